//! The planned policy under programs that repeat themselves, with deviations: no two blocks share
//! bytes, no byte moves from stream to stream, and every statistic is exact.

use cachalot_core::simulated::{Call, SimulatedDevice};
use cachalot_core::{Allocator, DeviceIndex, DevicePtr, Growable, Stage, StreamId, UNIT};
use cachalot_planner::{Algorithm, Plan, greedy::Greedy};
use cachalot_tests::claims::Ranges;
use cachalot_tests::consistency;
use cachalot_tests::hooked::Hooked;
use cachalot_tests::strategies::proptest_config;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

type Subject = Allocator<SimulatedDevice, parking_lot::RawMutex, Growable>;

const DEVICE: DeviceIndex = DeviceIndex(0);
const CAPACITY: u64 = 64 << 20;
const CONFIGS: [&str; 5] = [
    "policy:planned",
    "policy:planned,expandable_segments:True",
    "policy:planned,fallback:bfc",
    "policy:planned,fallback:slab",
    "policy:planned,fallback:buddy,arena_mb:4",
];

fn subject(config: &str) -> Subject {
    Allocator::new([SimulatedDevice::new(CAPACITY)], &cachalot_policies::parse(config).expect(config))
        .expect("one device fits")
}

/// Announces an iteration, and plans the observed iteration.
fn announce(allocator: &Subject) {
    allocator.plans(DEVICE).unwrap().end_iteration().expect("the device is well");
    if let Some(observed) = allocator.plans(DEVICE).unwrap().observed() {
        let plan = |problem| Algorithm::plan(&Greedy::Size, problem, &mut ()).expect("nobody stops it");
        let plans: Vec<Plan> = observed.streams.iter().map(|stream| plan(&stream.problem)).collect();
        allocator.plans(DEVICE).unwrap().adopt(observed, &plans).expect("greedy plans");
    }
}

/// Operations of a program. Blocks are numbered among the blocks held by the program.
#[derive(Clone, Copy, Debug)]
enum Op {
    Malloc {
        units: u16,
        stream: u8,
    },
    Free {
        block: u8,
    },
    /// Advances the frontier to the next count.
    FreeAt {
        block: u8,
    },
    Use {
        block: u8,
        stream: u8,
    },
    Complete {
        stream: u8,
    },
    Reach,
    Look {
        block: u8,
    },
    Check,
    EmptyCache,
    Trace {
        capacity: u8,
    },
    Destroy {
        stream: u8,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let stream = || prop_oneof![4 => Just(0_u8), 2 => Just(1), 1 => Just(2)];
    prop_oneof![
        40 => (1..600_u16, stream()).prop_map(|(units, stream)| Op::Malloc { units, stream }),
        36 => any::<u8>().prop_map(|block| Op::Free { block }),
        2 => any::<u8>().prop_map(|block| Op::FreeAt { block }),
        5 => (any::<u8>(), stream()).prop_map(|(block, stream)| Op::Use { block, stream }),
        3 => stream().prop_map(|stream| Op::Complete { stream }),
        1 => Just(Op::Reach),
        1 => any::<u8>().prop_map(|block| Op::Look { block }),
        1 => Just(Op::Check),
    ]
}

/// Operations of a deviation, beside the ordinary operations.
fn odd() -> impl Strategy<Value = Op> {
    prop_oneof![
        20 => op(),
        1 => Just(Op::EmptyCache),
        1 => (0..9_u8).prop_map(|capacity| Op::Trace { capacity }),
        1 => (0..3_u8).prop_map(|stream| Op::Destroy { stream }),
    ]
}

#[derive(Clone, Debug)]
struct Block {
    ptr: DevicePtr,
    bytes: u64,
    stream: u8,
    users: Vec<u8>,
    /// Count at which the block is freed.
    count: u64,
}

impl Block {
    /// Returns the units of memory that the block surely covers.
    fn units(&self) -> std::ops::Range<u64> {
        self.ptr.0 / UNIT..(self.ptr.0 + self.bytes).div_ceil(UNIT)
    }
}

/// A running program with its blocks.
struct Run {
    allocator: Subject,
    held: Vec<Block>,
    /// Freed blocks, in use on other streams or with a count not yet reached.
    pending: Vec<Block>,
    /// First stream of each unit of memory since the last release to the device.
    streams: BTreeMap<u64, u8>,
    /// Number of releases to the device.
    released: u64,
    count: u64,
    most: usize,
    made: u64,
}

impl Run {
    fn new(config: &str) -> Self {
        let (held, pending, streams) = (Vec::new(), Vec::new(), BTreeMap::new());
        Self { allocator: subject(config), held, pending, streams, released: 0, count: 1, most: 0, made: 0 }
    }

    fn number(&self, block: u8) -> Option<usize> {
        (!self.held.is_empty()).then(|| usize::from(block) % self.held.len())
    }

    fn malloc(&mut self, bytes: u64, stream: u8) -> Result<(), TestCaseError> {
        // Nothing that is pending waits for the frontier alone, so memory is always enough.
        let ptr = self.allocator.malloc(DEVICE, bytes, StreamId(u64::from(stream)));
        let Ok(ptr) = ptr else { return Err(TestCaseError::fail(format!("{bytes} bytes: {ptr:?}"))) };
        let block = Block { ptr, bytes, stream, users: Vec::new(), count: 0 };
        for other in self.held.iter().chain(&self.pending) {
            let (new, old) = (block.units(), other.units());
            prop_assert!(new.end <= old.start || old.end <= new.start, "{:?} shares bytes with {:?}", block, other);
        }
        self.forget_what_went_back();
        for unit in block.units() {
            let first = *self.streams.entry(unit).or_insert(stream);
            prop_assert_eq!(first, stream, "{:?} has bytes of another stream", block);
        }
        self.held.push(block);
        (self.most, self.made) = (self.most.max(self.held.len()), self.made + 1);
        Ok(())
    }

    /// Forgets the streams of all units after a release to the device. Released memory may serve
    /// any stream: the device has waited for all work.
    fn forget_what_went_back(&mut self) {
        let device = self.allocator.device(DEVICE).expect("there is one");
        let released = device.calls(Call::Release) + device.calls(Call::Unmap);
        if std::mem::replace(&mut self.released, released) != released {
            self.streams.clear();
            for block in self.held.iter().chain(&self.pending) {
                self.streams.extend(block.units().map(|unit| (unit, block.stream)));
            }
        }
    }

    fn perform(&mut self, op: Op) -> Result<(), TestCaseError> {
        let allocator = &self.allocator;
        match op {
            Op::Malloc { units, stream } => self.malloc(u64::from(units) * UNIT - u64::from(units % 100), stream)?,
            Op::Free { block } => {
                if let Some(number) = self.number(block) {
                    let block = self.held.remove(number);
                    self.allocator.free_sized(block.ptr, block.bytes).expect("it is held");
                    prop_assert!(self.allocator.free(block.ptr).is_err());
                    if !block.users.is_empty() {
                        self.pending.push(block);
                    }
                }
            }
            Op::FreeAt { block } => {
                if let Some(number) = self.number(block) {
                    let block = Block { count: self.count, ..self.held.remove(number) };
                    self.allocator.free_at(block.ptr, self.count).expect("it is held");
                    self.pending.push(block);
                }
            }
            Op::Use { block, stream } => {
                if let Some(number) = self.number(block) {
                    let block = &mut self.held[number];
                    allocator.record_stream(block.ptr, StreamId(u64::from(stream))).expect("it is held");
                    if stream != block.stream && !block.users.contains(&stream) {
                        block.users.push(stream);
                    }
                }
            }
            Op::Complete { stream } => {
                allocator.device(DEVICE).expect("there is one").complete(StreamId(u64::from(stream)));
                self.pending.iter_mut().for_each(|block| block.users.retain(|&user| user != stream));
            }
            Op::Reach => {
                allocator.set_safe_frontier(DEVICE, self.count).expect("there is one device");
                self.pending.iter_mut().for_each(|block| block.count = 0);
                self.count += 1;
            }
            Op::Look { block } => {
                if let Some(number) = self.number(block) {
                    let Block { ptr, bytes, stream, .. } = self.held[number];
                    let found = allocator.base_of(ptr.offset(bytes - 1)).expect("it is held");
                    prop_assert_eq!((found.base, found.requested, found.stream.0), (ptr, bytes, u64::from(stream)));
                }
            }
            Op::Check => consistency::check(allocator, DEVICE, None).map_err(TestCaseError::fail)?,
            Op::EmptyCache => {
                self.perform_reach_and_wait()?;
            }
            Op::Trace { capacity } => {
                allocator.trace(DEVICE).expect("there is room").record(capacity.into()).expect("there is room");
            }
            Op::Destroy { stream } => {
                // Completes all uses of the stream first.
                self.perform(Op::Complete { stream })?;
                self.allocator.stream_destroyed(DEVICE, StreamId(u64::from(stream))).expect("the device is well");
            }
        }
        self.pending.retain(|block| !block.users.is_empty() || block.count > 0);
        self.check()
    }

    /// Completes the work of all streams and empties the cache.
    fn perform_reach_and_wait(&mut self) -> Result<(), TestCaseError> {
        for stream in 0..3 {
            self.perform(Op::Complete { stream })?;
        }
        self.allocator.empty_cache(DEVICE).expect("the device is well");
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        self.allocator.check_invariants().map_err(TestCaseError::fail)?;
        let stats = self.allocator.stats(DEVICE).expect("there is one device").totals();
        let allocations = stats.allocations();
        prop_assert_eq!(allocations.current, self.held.len() as i64);
        prop_assert_eq!(allocations.peak, self.most as i64);
        prop_assert_eq!(allocations.allocated, self.made as i64);
        let held: u64 = self.held.iter().map(|block| block.bytes).sum();
        prop_assert!(stats.allocated_bytes().current as u64 >= held);
        prop_assert!(stats.requested_bytes().current as u64 >= held, "what is pending counts too");
        Ok(())
    }

    /// Frees all blocks and releases all memory.
    fn finish(mut self) -> Result<(), TestCaseError> {
        while !self.held.is_empty() {
            self.perform(Op::Free { block: 0 })?;
        }
        self.perform(Op::Reach)?;
        self.perform(Op::Check)?;
        self.allocator.plans(DEVICE).unwrap().give_up().expect("the device is well");
        self.perform(Op::EmptyCache)?;
        self.perform(Op::Check)?;
        prop_assert_eq!(self.allocator.device(DEVICE).expect("there is one").used(), 0);
        Ok(())
    }
}

fn run(
    config: &str,
    base: &[Op],
    iterations: &[Vec<(prop::sample::Index, u8, Vec<Op>)>],
) -> Result<u64, TestCaseError> {
    let mut run = Run::new(config);
    for deviations in iterations {
        announce(&run.allocator);
        let mut ops = base.to_vec();
        for (at, out, others) in deviations {
            let at = at.index(ops.len());
            let end = ops.len().min(at + usize::from(*out));
            ops.splice(at..end, others.iter().copied());
            if ops.is_empty() {
                ops.push(Op::Check);
            }
        }
        for &op in &ops {
            run.perform(op)?;
        }
        // A program that only grows would run out of memory.
        while run.held.len() > 24 {
            run.perform(Op::Free { block: 1 })?;
        }
        run.perform(Op::Reach)?;
        (0..3).try_for_each(|stream| run.perform(Op::Complete { stream }))?;
    }
    let report = run.allocator.plans(DEVICE).unwrap().report();
    run.finish()?;
    Ok(report.served)
}

proptest! {
    #![proptest_config(proptest_config("regressions/planned.txt", 20))]

    #[test]
    fn a_program_that_deviates_is_served_rightly_all_the_same(
        config in 0..CONFIGS.len(),
        base in prop::collection::vec(op(), 10..60),
        iterations in prop::collection::vec(
            prop::collection::vec((any::<prop::sample::Index>(), 0..6_u8, prop::collection::vec(odd(), 0..5)), 0..3),
            4..9,
        ),
    ) {
        run(CONFIGS[config], &base, &iterations)?;
    }
}

#[test]
fn a_program_that_repeats_is_served_under_every_fallback() {
    let malloc = |units, stream| Op::Malloc { units, stream };
    let base = [
        malloc(100, 0),
        malloc(7, 1),
        Op::Use { block: 0, stream: 1 },
        malloc(300, 0),
        Op::Free { block: 0 },
        Op::Check,
        malloc(100, 0),
        Op::Look { block: 2 },
        Op::Free { block: 1 },
        Op::Free { block: 1 },
        Op::Free { block: 0 },
    ];
    for config in CONFIGS {
        let served = run(config, &base, &vec![Vec::new(); 6]).unwrap_or_else(|why| panic!("{config}: {why}"));
        assert_eq!(served, 4 * 4, "{config}");
    }
}

/// Threads allocate on shared streams, in a different order each time, while one thread announces
/// iterations.
#[test]
fn threads_in_any_order_get_blocks_of_their_own() {
    const THREADS: u64 = 4;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let allocator = subject("policy:planned");
    let stop = AtomicBool::new(false);
    // The blocks held by any thread.
    let names = std::sync::Mutex::new(Ranges::default());
    let allocator = &allocator;
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (stop, names) = (&stop, &names);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed.wrapping_add(number));
                let stream = StreamId(number % 2);
                let mut held: Vec<(DevicePtr, u64)> = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    if held.len() < 8 && random.bool() {
                        let bytes = UNIT << random.u64(..6);
                        let ptr = allocator.malloc(DEVICE, bytes, stream).expect("there is memory");
                        let claimed = names.lock().expect("nobody fails").claim(ptr.0..ptr.0 + bytes, ());
                        assert_eq!(claimed, Ok(()), "{ptr} is somebody's");
                        held.push((ptr, bytes));
                    } else if !held.is_empty() {
                        let (ptr, bytes) = held.swap_remove(random.usize(..held.len()));
                        if random.u8(..3) == 0 {
                            allocator.record_stream(ptr, StreamId(number % 3)).expect("it is held");
                        }
                        names.lock().expect("nobody fails").give_up(ptr.0);
                        allocator.free_sized(ptr, bytes).expect("it is held");
                    }
                }
                for (ptr, _) in held {
                    names.lock().expect("nobody fails").give_up(ptr.0);
                    allocator.free(ptr).expect("it is held");
                }
            });
        }
        let mut random = fastrand::Rng::with_seed(seed);
        // On a busy machine it takes more rounds until a thread that is served from a plan has had
        // its turn.
        let was_served = || allocator.plans(DEVICE).unwrap().report().served > 0;
        for round in (0..20_000).take_while(|&round| round < 200 || !was_served()) {
            announce(allocator);
            thread::sleep(std::time::Duration::from_micros(random.u64(..400)));
            (0..3).for_each(|stream| allocator.device(DEVICE).expect("there is one").complete(StreamId(stream)));
            match round % 40 {
                13 => allocator.plans(DEVICE).unwrap().give_up().expect("the device is well"),
                26 => drop(allocator.snapshot()),
                _ => {}
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    let report = allocator.plans(DEVICE).unwrap().report();
    assert!(report.plans > 0 && report.served > 0, "{report:?}");
    (0..3).for_each(|stream| allocator.device(DEVICE).expect("there is one").complete(StreamId(stream)));
    consistency::check(allocator, DEVICE, None).expect("nothing is left half done");
    allocator.plans(DEVICE).unwrap().give_up().expect("the device is well");
    assert_eq!(allocator.plans(DEVICE).unwrap().report().stage, Stage::Waiting);
    allocator.empty_cache(DEVICE).expect("the device is well");
    assert_eq!(allocator.device(DEVICE).expect("there is one").used(), 0);
}

/// A program that never repeats itself, on one thread: every request deviates.
#[test]
fn what_never_repeats_is_served_rightly() {
    for seed in 0..200_u64 {
        let allocator = subject("policy:planned");
        let mut random = fastrand::Rng::with_seed(seed);
        let mut names = Ranges::default();
        let mut held: Vec<(DevicePtr, u64)> = Vec::new();
        for step in 0..3000 {
            if step % 97 == 0 {
                announce(&allocator);
                (0..3).for_each(|stream| allocator.device(DEVICE).expect("there is one").complete(StreamId(stream)));
                if random.u8(..40) == 0 {
                    allocator.plans(DEVICE).unwrap().give_up().expect("the device is well");
                }
                if random.u8(..20) == 0 {
                    drop(allocator.snapshot());
                }
            }
            if held.len() < 32 && random.bool() {
                let bytes = UNIT << random.u64(..6);
                let ptr = allocator.malloc(DEVICE, bytes, StreamId(random.u64(..2))).expect("there is memory");
                let claimed = names.claim(ptr.0..ptr.0 + bytes, ());
                assert_eq!(claimed, Ok(()), "seed {seed}, step {step}: {ptr} is somebody's");
                held.push((ptr, bytes));
            } else if !held.is_empty() {
                let (ptr, bytes) = held.swap_remove(random.usize(..held.len()));
                if random.u8(..8) == 0 {
                    allocator.record_stream(ptr, StreamId(random.u64(..3))).expect("it is held");
                }
                names.give_up(ptr.0);
                if let Err(error) = allocator.free_sized(ptr, bytes) {
                    panic!("seed {seed}, step {step}: {error}");
                }
            }
        }
    }
}

/// Plans are given up by another thread while an announcement activates them. The plans stay
/// given up, and a later iteration is observed again.
#[test]
fn plans_given_up_while_they_come_into_force_stay_given_up() {
    type Interrupted = Allocator<Hooked, spin::mutex::SpinMutex<()>, Growable>;
    let device = DeviceIndex(0);
    let config = cachalot_policies::parse("policy:planned").unwrap();
    let allocator = Arc::new(Interrupted::new([Hooked::new(SimulatedDevice::new(1 << 30))], &config).unwrap());
    let announce = || {
        allocator.plans(device).unwrap().end_iteration().unwrap();
        allocator.check_invariants().unwrap();
        let Some(observed) = allocator.plans(device).unwrap().observed() else { return };
        let plans: Vec<Plan> = observed
            .streams
            .iter()
            .map(|stream| Algorithm::plan(&Greedy::Size, &stream.problem, &mut ()).expect("nobody stops it"))
            .collect();
        allocator.plans(device).unwrap().adopt(observed, &plans).unwrap();
    };
    let iterate = || {
        for bytes in [3 << 20, 1000] {
            let block = allocator.malloc(device, bytes, StreamId(1)).unwrap();
            allocator.free(block).unwrap();
        }
    };
    announce();
    iterate();
    announce();
    assert_eq!(allocator.plans(device).unwrap().report().stage, Stage::Ready);
    // What the observed iteration has cached is released for the plans' segments.
    let other = Arc::clone(&allocator);
    allocator.device(device).unwrap().on_release(move || other.plans(device).unwrap().give_up().unwrap());
    announce();
    assert_eq!(allocator.plans(device).unwrap().report().stage, Stage::Waiting);
    for _ in 0..2 {
        announce();
        iterate();
    }
    announce();
    assert_eq!(allocator.plans(device).unwrap().report().stage, Stage::Serving);
}
