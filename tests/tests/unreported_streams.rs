//! Streams that go without a report: no call uses a stream after its end, under any policy. Memory
//! passes between streams only once all work on the memory is complete. The device panics at the
//! use of an ended stream, and reports work on memory in use.

use cachalot_core::simulated::{Call, Outstanding, SimulatedDevice};
use cachalot_core::{Error, PoolOptions, Route, StreamId};
use cachalot_tests::host::{DEVICE, Host, MIB};
use cachalot_tests::strategies::proptest_config;
use cachalot_tests::working::Working;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Number of streams of a program at any moment.
const STREAMS: usize = 4;

/// Room for every program, mostly.
const CAPACITY: u64 = 512 * MIB;

/// Policies and settings under which memory passes between streams, or goes back to the device, in
/// different ways.
const CONFIGS: [&str; 9] = [
    "",
    "parity:False",
    "expandable_segments:True",
    "compact:0",
    "reclaim:auto",
    "policy:bfc",
    "policy:stitched,slack:0",
    "policy:stitched,slack:0,completed_pages_only:True",
    "policy:stitched",
];

/// One step of a program. Numbers of blocks are taken modulo the count, and numbers of streams are
/// places among the present streams.
#[derive(Clone, Debug)]
enum Step {
    Malloc {
        bytes: u64,
        stream: usize,
    },
    Work {
        block: usize,
    },
    Share {
        block: usize,
        stream: usize,
    },
    Free {
        block: usize,
    },
    Complete {
        stream: usize,
    },
    Go {
        stream: usize,
    },
    EmptyCache,
    ProcessEvents,
    Maintain {
        us: u64,
    },
    Limit {
        above_mib: Option<u64>,
    },
    /// Changes the form of new segments. Old segments go back in time.
    Expandable {
        on: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let stream = || 0..STREAMS;
    let bytes = prop_oneof![2 => 1..MIB, 3 => MIB..6 * MIB, 4 => 6 * MIB..40 * MIB];
    prop_oneof![
        30 => (bytes, stream()).prop_map(|(bytes, stream)| Step::Malloc { bytes, stream }),
        8 => any::<usize>().prop_map(|block| Step::Work { block }),
        6 => (any::<usize>(), stream()).prop_map(|(block, stream)| Step::Share { block, stream }),
        28 => any::<usize>().prop_map(|block| Step::Free { block }),
        4 => stream().prop_map(|stream| Step::Complete { stream }),
        4 => stream().prop_map(|stream| Step::Go { stream }),
        1 => Just(Step::EmptyCache),
        2 => Just(Step::ProcessEvents),
        2 => (0..2000_u64).prop_map(|us| Step::Maintain { us }),
        1 => prop::option::of(0..100_u64).prop_map(|above_mib| Step::Limit { above_mib }),
        1 => any::<bool>().prop_map(|on| Step::Expandable { on }),
    ]
}

/// A program with its present streams.
struct Program {
    working: Working,
    streams: [StreamId; STREAMS],
    gone: BTreeSet<StreamId>,
    next: u64,
    /// The configuration is of the caching policy, without further settings.
    may_change: bool,
}

impl Program {
    fn new(config: &str) -> Self {
        let device = SimulatedDevice::new(CAPACITY).with_exports().with_unreported_ends();
        let streams = [1, 2, 3, 4].map(StreamId);
        let may_change = config.is_empty() || config == "expandable_segments:True";
        Self { working: Working::of(Host::on(config, device)), streams, gone: BTreeSet::new(), next: 5, may_change }
    }

    /// Lets a stream go, and takes a new stream in its place.
    fn go(&mut self, stream: usize) {
        let old = std::mem::replace(&mut self.streams[stream], StreamId(self.next));
        self.next += 1;
        self.working.host.device().let_go(old);
        self.gone.insert(old);
    }

    fn take(&mut self, step: &Step) -> Result<Option<Error>, String> {
        let count = self.working.held.len().max(1);
        // The program queues no more work on a stream that has gone.
        let is_there =
            |block: usize| self.working.held.get(block).is_some_and(|held| !self.gone.contains(&held.stream));
        let allocator = &self.working.host.allocator;
        Ok(match *step {
            Step::Malloc { bytes, stream } => return self.working.malloc(bytes, self.streams[stream]),
            Step::Work { block } if is_there(block % count) => return self.working.work(block % count).map(|()| None),
            Step::Share { block, stream } if is_there(block % count) => {
                return self.working.share(block % count, self.streams[stream]);
            }
            Step::Work { .. } | Step::Share { .. } => None,
            Step::Free { block } => self.working.free(block % count),
            Step::Complete { stream } => {
                self.working.host.device().complete(self.streams[stream]);
                None
            }
            Step::Go { stream } => {
                self.go(stream);
                None
            }
            Step::EmptyCache => allocator.empty_cache(DEVICE).err(),
            Step::ProcessEvents => allocator.process_events(DEVICE).err(),
            Step::Maintain { us } => allocator.pages(DEVICE).and_then(|pages| pages.maintain(us)).err(),
            Step::Limit { above_mib } => {
                let limit = above_mib.map(|mib| self.working.host.device().used() + mib * MIB);
                allocator.set_limit(DEVICE, limit).err()
            }
            Step::Expandable { on } => {
                if self.may_change {
                    self.working.host.configure(if on { "expandable_segments:True" } else { "" });
                }
                None
            }
        })
    }
}

fn hold(config: &str, steps: &[Step]) -> Result<(), String> {
    let mut program = Program::new(config);
    for (number, step) in steps.iter().enumerate() {
        let held = program.take(step).and_then(|error| match error {
            None | Some(Error::OutOfMemory(_)) => {
                program.working.check().and_then(|()| program.working.check_nothing_lost())
            }
            Some(error) => Err(error.to_string()),
        });
        held.map_err(|why| format!("`{config}`, step {number}, {step:?}: {why}"))?;
    }
    program.working.give_back()?;
    let left = program.working.host.device().outstanding();
    if left == Outstanding::default() { program.working.check() } else { Err(format!("`{config}`: {left:?} is left")) }
}

proptest! {
    #![proptest_config(proptest_config("regressions/unreported_streams.txt", 40))]

    #[test]
    fn a_stream_that_has_gone_is_left_alone(program in prop::collection::vec(step(), 1..150)) {
        for config in CONFIGS {
            hold(config, &program).map_err(TestCaseError::fail)?;
        }
    }
}

#[test]
fn pages_of_a_stream_move_once_its_own_requests_show_that_its_work_is_complete() {
    let mut program = Program::new("policy:stitched,slack:0");
    let working = &mut program.working;
    let [first, second, ..] = program.streams;
    assert_eq!(working.malloc(40 * MIB, first), Ok(None));
    assert_eq!(working.free(0), None);
    // No call that names the first stream reports its work: the pages stay, and new ones are
    // created.
    working.host.device().complete(first);
    for mib in [20, 2, 20] {
        assert_eq!(working.malloc(mib * MIB, second), Ok(None));
    }
    let used = working.host.device().used();
    assert_eq!(used, 82 * MIB);
    // A request of the second stream that lacks memory begins an epoch. What is still free then may
    // move later.
    assert_eq!(working.free(0), None);
    assert_eq!(working.free(0), None);
    assert_eq!(working.malloc(22 * MIB, second), Ok(None));
    working.host.device().complete(second);
    let moved = |working: &Working| working.host.allocator.pages(DEVICE).unwrap().stats().unwrap().moved;
    let before = moved(working);
    assert_eq!(working.malloc(44 * MIB, first), Ok(None));
    assert_eq!((moved(working) > before, working.host.device().used()), (true, used));
    assert_eq!(working.host.device().calls(Call::OrderBehind), 0);
    working.check().and_then(|()| working.check_nothing_lost()).unwrap();
}

#[test]
fn a_block_freed_during_a_capture_is_not_reused_behind_streams_that_may_have_gone() {
    let config = "graph_capture_record_stream_reuse:True";
    let host = Host::on(config, SimulatedDevice::new(CAPACITY).with_exports().with_unreported_ends());
    let [own, user] = [1, 2].map(StreamId);
    let pool = host.allocator.create_pool(DEVICE, PoolOptions::default()).unwrap();
    host.allocator.begin_capture(DEVICE, pool, Route::Stream(own)).unwrap();
    host.device().set_capturing(own, true);
    let block = host.allocator.malloc(DEVICE, 40 * MIB, own).unwrap();
    host.allocator.record_stream(block, user).unwrap();
    // The stream's work is in the graph.
    host.device().let_go(user);
    host.allocator.free(block).unwrap();
    assert_eq!(host.device().calls(Call::MarkCapture), 0);
    assert_ne!(host.allocator.malloc(DEVICE, 40 * MIB, own), Ok(block));
    host.device().set_capturing(own, false);
    host.allocator.end_capture(DEVICE, pool).unwrap();
}

#[test]
fn no_loan_of_a_stream_that_may_have_gone_is_told() {
    let host =
        Host::on("policy:stitched,slack:0", SimulatedDevice::new(CAPACITY).with_exports().with_unreported_ends());
    let [lender, borrower] = [1, 2].map(StreamId);
    let [_first, middle, _last] =
        [41, 21, 41].map(|mib| host.allocator.malloc(DEVICE, mib * MIB + 512, lender).unwrap());
    host.allocator.free(middle).unwrap();
    let told = host.allocator.rehearsal(DEVICE).unwrap().would_fit(&[20 * MIB], borrower).unwrap();
    let before = host.device().used();
    host.allocator.malloc(DEVICE, 20 * MIB, borrower).unwrap();
    assert_eq!(told.new_bytes, host.device().used() - before);
    assert_eq!(told.new_bytes, 20 * MIB);
}
