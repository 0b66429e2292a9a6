//! Fault injection: fails each device call at each occurrence in a program, and checks the state
//! after each failure.

use crate::failures::INJECTED;
use crate::program::{Op, stream};
use crate::seen::Seen;
use crate::twins::Twins;
use cachalot_core::simulated::{Call, Failure, Outstanding, SimulatedDevice};
use cachalot_core::{Config, DeviceError, Error, ErrorKind};
use std::collections::BTreeMap;

/// Capacity of the device: small, so that programs run out of memory.
pub const CAPACITY: u64 = 256 << 20;
const MIB: u64 = 1 << 20;

/// Number of the configuration with garbage collection, for [`Op::Configure`].
const COLLECT: u8 = 4;

fn malloc(mib: u64, stream: u8) -> Op {
    Op::Malloc { bytes: mib * MIB, stream }
}

/// A program with requests, pending frees and releases of memory. The configuration determines the
/// kind of segments.
pub fn common() -> Vec<Op> {
    vec![
        Op::Malloc { bytes: 700, stream: 0 },
        malloc(3, 0),
        malloc(30, 0),
        malloc(5, 1),
        Op::RecordStream { block: 1, stream: 1 },
        Op::RecordStream { block: 1, stream: 2 },
        Op::RecordStream { block: 2, stream: 1 },
        Op::Free { block: 1 },
        Op::CompleteOne { stream: 1 },
        malloc(4, 0),
        Op::Complete { stream: 2 },
        Op::ProcessEvents,
        Op::Free { block: 1 },
        malloc(45, 0),
        Op::Free { block: 3 },
        malloc(200, 0),
        malloc(90, 0),
        Op::Free { block: 0 },
        Op::Trim { keep_mib: 60 },
        Op::Free { block: 0 },
        Op::EmptyCache,
        malloc(25, 1),
        Op::Free { block: 1 },
        Op::StreamDestroyed { stream: 1 },
    ]
}

/// A program that captures a graph and gives up the pool.
pub fn capture() -> Vec<Op> {
    vec![
        Op::CreatePool { use_on_oom: true, no_split: false },
        malloc(12, 0),
        Op::RecordStream { block: 0, stream: 1 },
        Op::Capture { pool: 1, stream: 0 },
        malloc(14, 0),
        malloc(2, 0),
        Op::RecordStream { block: 1, stream: 2 },
        Op::Free { block: 1 },
        Op::Free { block: 0 },
        malloc(250, 0),
        malloc(1, 1),
        Op::EndCapture { tidily: true },
        Op::ProcessEvents,
        Op::ReleasePool { pool: 1 },
        Op::ReleasePool { pool: 1 },
        Op::Free { block: 0 },
        Op::Free { block: 0 },
        Op::EmptyPool { pool: 1 },
        Op::Complete { stream: 1 },
        Op::EmptyCache,
    ]
}

/// A program whose captured graph uses blocks on two streams, and uses one of them again behind
/// both.
pub fn graph_reuse() -> Vec<Op> {
    vec![
        Op::CreatePool { use_on_oom: false, no_split: false },
        Op::Capture { pool: 1, stream: 0 },
        malloc(3, 0),
        malloc(14, 0),
        Op::CaptureWork { stream: 0 },
        Op::CaptureWait { stream: 1, awaited: 0 },
        Op::CaptureWork { stream: 1 },
        Op::RecordStream { block: 0, stream: 1 },
        Op::RecordStream { block: 1, stream: 1 },
        Op::RecordStream { block: 1, stream: 2 },
        Op::Free { block: 0 },
        // The third stream does not capture: a mark is begun and given up.
        Op::Free { block: 0 },
        malloc(2, 0),
        Op::CaptureWait { stream: 0, awaited: 1 },
        malloc(3, 0),
        Op::RecordStream { block: 0, stream: 1 },
        Op::Free { block: 0 },
        Op::EndCapture { tidily: true },
        Op::StopCapturing { stream: 1 },
        Op::ProcessEvents,
        Op::Free { block: 0 },
        Op::Complete { stream: 1 },
        Op::Complete { stream: 2 },
        Op::ProcessEvents,
        Op::ReleasePool { pool: 1 },
        Op::EmptyCache,
    ]
}

/// A program with every kind of release, and with the cache off.
pub fn releases() -> Vec<Op> {
    vec![
        malloc(40, 0),
        malloc(35, 0),
        malloc(3, 0),
        Op::Free { block: 0 },
        Op::Free { block: 0 },
        Op::Limit { above_mib: Some(10) },
        malloc(50, 0),
        Op::Free { block: 0 },
        Op::Configure { config: COLLECT },
        malloc(60, 0),
        malloc(22, 0),
        Op::Limit { above_mib: None },
        Op::Caching { on: false },
        malloc(7, 0),
        Op::Free { block: 1 },
        Op::RecordStream { block: 0, stream: 2 },
        Op::Free { block: 0 },
        Op::Complete { stream: 2 },
        Op::ProcessEvents,
        Op::Caching { on: true },
        Op::ResetPeaks,
    ]
}

/// A program with its initial configuration.
pub struct Sweep {
    config: Config,
    program: Vec<Op>,
}

/// Returns the simulated device of a run.
///
/// # Panics
/// Never.
pub fn device(twins: &Twins) -> &SimulatedDevice {
    twins.real().device(twins.device()).expect("it has the device")
}

impl Sweep {
    /// Creates a sweep over a program.
    ///
    /// # Panics
    /// If the configuration is invalid.
    pub fn new(config: &str, program: Vec<Op>) -> Self {
        Self { config: cachalot_policies::parse(config).expect("the configuration is valid"), program }
    }

    fn twins(&self) -> Twins {
        Twins::alone_with(CAPACITY, &self.config)
    }

    /// For each call of the device, lists the operations that make the call in a run without
    /// failures.
    ///
    /// # Panics
    /// If an operation fails.
    pub fn occurrences(&self) -> BTreeMap<Call, Vec<usize>> {
        let mut twins = self.twins();
        let mut made: BTreeMap<_, _> = Call::ALL.into_iter().map(|call| (call, Vec::new())).collect();
        for (number, op) in self.program.iter().enumerate() {
            twins.act(op).unwrap_or_else(|why| panic!("operation {number}, {op:?}: {why}"));
            for (&call, made) in &mut made {
                made.resize(device(&twins).calls(call) as usize, number);
            }
        }
        made
    }

    /// Fails each call at each occurrence: once, and from the occurrence on.
    ///
    /// # Panics
    /// If an invariant is violated.
    pub fn fail_everywhere(&self, kind: ErrorKind, persistent: bool) {
        for (call, made) in self.occurrences() {
            for (nth, first) in (1..).zip(made) {
                let failure = Failure { call, nth, persistent, error: DeviceError::new(kind, INJECTED) };
                self.run(failure, first).unwrap_or_else(|why| panic!("{}: {failure:?}: {why}", self.config));
            }
        }
    }

    /// Loses the context in each call. Afterwards the allocator must not call the device, and
    /// errors must carry the code of the lost call.
    ///
    /// # Panics
    /// If an invariant is violated.
    pub fn lose_the_context_everywhere(&self) {
        for (call, made) in self.occurrences() {
            for (nth, first) in (1..).zip(made) {
                let error = DeviceError::new(ErrorKind::ContextLost, 700 + nth as u32);
                let failure = Failure { call, nth, persistent: false, error };
                self.lose_the_context(failure, first)
                    .unwrap_or_else(|why| panic!("{}: {call:?} {nth}, {why}", self.config));
            }
        }
    }

    /// Runs the program with a single failure, in operation number `first`.
    fn run(&self, failure: Failure, first: usize) -> Result<(), String> {
        let mut twins = self.twins();
        device(&twins).fail(failure);
        for (number, op) in self.program.iter().enumerate() {
            // Up to the failure, all answers are as in a run without failures.
            let before = (number >= first).then(|| Seen::of(&twins));
            let error = twins.act(op)?;
            let (Some(before), true) = (before, error.is_some() || number == first) else { continue };
            let failed = error.is_some();
            let checked = twins
                .check()
                .and_then(|()| if failed { before.check_unchanged_by(op, &Seen::of(&twins)) } else { Ok(()) });
            checked.map_err(|why| format!("operation {number}, {op:?}, {error:?}: {why}"))?;
        }
        device(&twins).clear_failures();
        twins.give_everything_back()?;
        check_end(&twins, failure)
    }

    fn lose_the_context(&self, failure: Failure, first: usize) -> Result<(), String> {
        let mut twins = self.twins();
        device(&twins).fail(failure);
        for (number, op) in self.program.iter().enumerate() {
            let at = |why: String| format!("operation {number}, {op:?}: {why}");
            let outcome = twins.act(op).map_err(at)?;
            let lost = number >= first;
            let health = if lost { Err(Error::Device(failure.error)) } else { Ok(()) };
            if twins.real().health(twins.device()) != health {
                return Err(at(format!("the health is not {health:?}")));
            }
            if let (true, Some(Error::Device(told))) = (lost, outcome)
                && told != failure.error
            {
                return Err(at(format!("{told:?} is told")));
            }
            if number == first {
                twins.check().map_err(at)?;
            }
        }
        let more = device(&twins).calls_after_loss();
        if more > 0 {
            return Err(format!("the device is called {more} times after operation {first}"));
        }
        twins.check().map_err(|why| format!("at the end: {why}"))
    }
}

/// Frees all blocks. Checks that only leaked memory remains, and that requests are served again.
fn check_end(twins: &Twins, failure: Failure) -> Result<(), String> {
    let (left, used) = (device(twins).outstanding(), device(twins).used());
    let leaked =
        twins.real().stats(twins.device()).map(|stats| stats.leaked_bytes()).map_err(|error| error.to_string())?;
    if used != leaked || leaked > 0 && !matches!(failure.call, Call::Release | Call::Unmap | Call::Destroy) {
        return Err(format!("{used} bytes are in use, {leaked} are counted as leaked"));
    }
    if device(twins).capture_marks() > 0 {
        return Err(format!("{} marks are left", device(twins).capture_marks()));
    }
    let nothing = Outstanding { reservations: left.reservations, ..Outstanding::default() };
    if leaked == 0 && (left != nothing || left.reservations > 0 && failure.call != Call::Unreserve) {
        return Err(format!("{left:?} is left"));
    }
    for bytes in [1, 3 * MIB, 12 * MIB] {
        let served = twins.real().malloc(twins.device(), bytes, stream(0));
        if used + 34 * MIB < CAPACITY && served.is_err() {
            return Err(format!("{bytes} bytes: {served:?}"));
        }
    }
    Ok(())
}
