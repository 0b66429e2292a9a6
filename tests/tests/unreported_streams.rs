//! Streams that go without a report: no call uses a stream after its end, under any policy. Memory
//! passes between streams only once all work on the memory is complete. The device panics at the
//! use of an ended stream, and reports work on memory in use.

use cachalot_core::simulated::{Call, SimulatedDevice};
use cachalot_core::{PoolOptions, Route, RoutePurpose, StreamId};
use cachalot_tests::host::{DEVICE, Host, MIB};
use cachalot_tests::strategies::proptest_config;
use cachalot_tests::working::{Outcome, Step as Any, Working};
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

/// A step of a program. Numbers of streams are places among the present streams.
#[derive(Clone, Debug)]
enum Step {
    /// A step of any program.
    Take(Any),
    /// Lets a stream go.
    Go { stream: usize },
    /// Changes the form of new segments. Old segments go back in time.
    Expandable { on: bool },
}

fn step() -> impl Strategy<Value = Step> {
    let stream = || 0..STREAMS;
    let bytes = prop_oneof![2 => 1..MIB, 3 => MIB..6 * MIB, 4 => 6 * MIB..40 * MIB];
    prop_oneof![
        30 => (bytes, stream()).prop_map(|(bytes, stream)| Step::Take(Any::Malloc { bytes, stream: stream as u64 })),
        8 => any::<usize>().prop_map(|block| Step::Take(Any::Work { block })),
        6 => (any::<usize>(), stream())
            .prop_map(|(block, stream)| Step::Take(Any::Share { block, stream: stream as u64 })),
        28 => any::<usize>().prop_map(|block| Step::Take(Any::Free { block })),
        4 => stream().prop_map(|stream| Step::Take(Any::Complete { stream: stream as u64 })),
        4 => stream().prop_map(|stream| Step::Go { stream }),
        1 => Just(Step::Take(Any::EmptyCache)),
        2 => Just(Step::Take(Any::ProcessEvents)),
        2 => (0..2000_u64).prop_map(|us| Step::Take(Any::Maintain { us })),
        1 => prop::option::of(0..100_u64).prop_map(|above_mib| Step::Take(Any::Limit { above_mib })),
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

    fn take(&mut self, step: &Step) -> Outcome {
        let count = self.working.held.len().max(1);
        // The program queues no more work on a stream that has gone.
        let is_there =
            |block: usize| self.working.held.get(block).is_some_and(|held| !self.gone.contains(&held.stream));
        let at = |stream: u64| self.streams[stream as usize].0;
        let step = match *step {
            Step::Take(Any::Work { block } | Any::Share { block, .. }) if !is_there(block % count) => return Ok(None),
            Step::Take(Any::Malloc { bytes, stream }) => Any::Malloc { bytes, stream: at(stream) },
            Step::Take(Any::Share { block, stream }) => Any::Share { block, stream: at(stream) },
            Step::Take(Any::Complete { stream }) => Any::Complete { stream: at(stream) },
            Step::Take(ref step) => step.clone(),
            Step::Go { stream } => {
                self.go(stream);
                return Ok(None);
            }
            Step::Expandable { on } => {
                if self.may_change {
                    self.working.host.configure(if on { "expandable_segments:True" } else { "" });
                }
                return Ok(None);
            }
        };
        self.working.take(&step)
    }
}

fn hold(config: &str, steps: &[Step]) -> Result<(), String> {
    let mut program = Program::new(config);
    for (number, step) in steps.iter().enumerate() {
        let taken = program.take(step);
        program.working.judge(taken).map_err(|why| format!("`{config}`, step {number}, {step:?}: {why}"))?;
    }
    program.working.finish().map_err(|why| format!("`{config}`: {why}"))
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
    let before = working.pages().moved;
    assert_eq!(working.malloc(44 * MIB, first), Ok(None));
    assert_eq!((working.pages().moved > before, working.host.device().used()), (true, used));
    assert_eq!(working.calls(Call::OrderBehind), 0);
    working.check_all().unwrap();
}

#[test]
fn a_block_freed_during_a_capture_is_not_reused_behind_streams_that_may_have_gone() {
    let config = "graph_capture_record_stream_reuse:True";
    let host = Host::on(config, SimulatedDevice::new(CAPACITY).with_exports().with_unreported_ends());
    let [own, user] = [1, 2].map(StreamId);
    let pool = host.allocator.pools(DEVICE).unwrap().create(PoolOptions::default()).unwrap();
    host.allocator.pools(DEVICE).unwrap().begin_route(pool, Route::Stream(own), RoutePurpose::Capture).unwrap();
    host.device().set_capturing(own, true);
    let block = host.allocator.malloc(DEVICE, 40 * MIB, own).unwrap();
    host.allocator.record_stream(block, user).unwrap();
    // The stream's work is in the graph.
    host.device().let_go(user);
    host.allocator.free(block).unwrap();
    assert_eq!(host.device().calls(Call::MarkCapture), 0);
    assert_ne!(host.allocator.malloc(DEVICE, 40 * MIB, own), Ok(block));
    host.device().set_capturing(own, false);
    host.allocator.pools(DEVICE).unwrap().end_route(pool, RoutePurpose::Capture).unwrap();
}

#[test]
fn no_loan_of_a_stream_that_may_have_gone_is_told() {
    let host =
        Host::on("policy:stitched,slack:0", SimulatedDevice::new(CAPACITY).with_exports().with_unreported_ends());
    let [lender, borrower] = [1, 2].map(StreamId);
    let [_first, middle, _last] =
        [41, 21, 41].map(|mib| host.allocator.malloc(DEVICE, mib * MIB + 512, lender).unwrap());
    host.allocator.free(middle).unwrap();
    let told = host.allocator.forecast(DEVICE).unwrap().would_fit(&[20 * MIB], borrower).unwrap();
    let before = host.device().used();
    host.allocator.malloc(DEVICE, 20 * MIB, borrower).unwrap();
    assert_eq!(told.new_bytes, host.device().used() - before);
    assert_eq!(told.new_bytes, 20 * MIB);
}
