//! Every call to the device fails at every one of its occurrences in a program that uses everything: nobody panics, a failed
//! operation changes nothing, nothing is lost uncounted, and the allocator works again afterwards.

use cachalot_core::Error;
use cachalot_core::device::{DeviceError, ErrorKind};
use cachalot_core::simulated::{Call, Failure, Outstanding, SimulatedDevice};
use cachalot_tests::program::Op;
use cachalot_tests::seen::Seen;
use cachalot_tests::twins::Twins;
use std::collections::BTreeMap;

const CAPACITY: u64 = 256 << 20;
const MIB: u64 = 1 << 20;

/// The configurations of [`Op::Configure`] that the program changes between, by number.
const PLAIN: u8 = 0;
const SPLIT_32: u8 = 2;
const COLLECT: u8 = 4;
const EXPANDABLE: u8 = 11;

fn malloc(mib: u64, stream: u8) -> Op {
    Op::Malloc { bytes: mib * MIB, stream }
}

/// Requests, frees that wait, and what gives memory back; with segments of whatever sort the configuration makes.
fn common() -> Vec<Op> {
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

/// A graph is captured, and its pool is let go.
fn capture() -> Vec<Op> {
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

/// Every release there is, and memory without a cache.
fn releases() -> Vec<Op> {
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

fn program() -> Vec<Op> {
    let configure = |config| vec![Op::Configure { config }];
    [
        common(),
        capture(),
        configure(SPLIT_32),
        releases(),
        configure(EXPANDABLE),
        common(),
        capture(),
        releases(),
        configure(PLAIN),
        common(),
    ]
    .concat()
}

fn device(twins: &Twins) -> &SimulatedDevice {
    twins.real().device(twins.device()).unwrap()
}

/// Runs the program with one failure to come, in operation number `first` of it.
fn run(program: &[Op], failure: Failure, first: usize) -> Result<(), String> {
    let mut twins = Twins::alone(CAPACITY, PLAIN);
    device(&twins).fail(failure);
    for (number, op) in program.iter().enumerate() {
        // Before it everything is as it always is.
        let before = (number >= first).then(|| Seen::of(&twins));
        let error = twins.act(op)?;
        let (Some(before), true) = (before, error.is_some() || number == first) else { continue };
        let failed = error.is_some();
        let checked =
            twins.check().and_then(|()| if failed { before.check_unchanged_by(op, &Seen::of(&twins)) } else { Ok(()) });
        checked.map_err(|why| format!("operation {number}, {op:?}, {error:?}: {why}"))?;
    }
    device(&twins).clear_failures();
    twins.give_everything_back()?;
    check_end(&twins, failure)
}

/// After everything was freed nothing is left but what counts as leaked; and requests are served again.
fn check_end(twins: &Twins, failure: Failure) -> Result<(), String> {
    let (left, used) = (device(twins).outstanding(), device(twins).used());
    let leaked = twins.real().leaked_bytes(twins.device()).unwrap();
    if used != leaked || leaked > 0 && !matches!(failure.call, Call::Release | Call::Unmap | Call::Destroy) {
        return Err(format!("{used} bytes are in use, {leaked} are counted as leaked"));
    }
    let nothing = Outstanding { reservations: left.reservations, ..Outstanding::default() };
    if leaked == 0 && (left != nothing || left.reservations > 0 && failure.call != Call::Unreserve) {
        return Err(format!("{left:?} is left"));
    }
    for bytes in [1, 3 * MIB, 12 * MIB] {
        let served = twins.real().malloc(twins.device(), bytes, cachalot_tests::program::stream(0));
        if used + 34 * MIB < CAPACITY && served.is_err() {
            return Err(format!("{bytes} bytes: {served:?}"));
        }
    }
    Ok(())
}

/// For each call, in which operations of the program it is made, when nothing fails.
fn occurrences(program: &[Op]) -> BTreeMap<Call, Vec<usize>> {
    let mut twins: Twins = Twins::alone(CAPACITY, PLAIN);
    let mut made: BTreeMap<_, _> = Call::ALL.into_iter().map(|call| (call, Vec::new())).collect();
    for (number, op) in program.iter().enumerate() {
        twins.act(op).unwrap();
        for (&call, made) in &mut made {
            made.resize(device(&twins).calls(call) as usize, number);
        }
    }
    made
}

fn fail_everywhere(kind: ErrorKind, persistent: bool) {
    let program = program();
    for (call, made) in occurrences(&program) {
        for (nth, first) in (1..).zip(made) {
            let failure = Failure { call, nth, persistent, error: DeviceError::new(kind, 77) };
            run(&program, failure, first).unwrap_or_else(|why| panic!("{failure:?}: {why}"));
        }
    }
}

#[test]
fn the_program_makes_every_call() {
    for (call, made) in occurrences(&program()) {
        // Events are kept and used again: nothing ever destroys one.
        assert_eq!(made.is_empty(), call == Call::DestroyEvent, "{call:?}");
    }
}

#[test]
fn the_program_agrees_with_the_model() {
    let mut twins = Twins::<spin::mutex::SpinMutex<()>>::new(CAPACITY, PLAIN);
    twins.run(&program()).unwrap();
    twins.finish().unwrap();
}

#[test]
fn any_call_once_out_of_memory() {
    fail_everywhere(ErrorKind::OutOfMemory, false);
}

#[test]
fn any_call_out_of_memory_from_then_on() {
    fail_everywhere(ErrorKind::OutOfMemory, true);
}

#[test]
fn any_call_once_for_whatever_reason() {
    fail_everywhere(ErrorKind::Other, false);
}

#[test]
fn any_call_for_whatever_reason_from_then_on() {
    fail_everywhere(ErrorKind::Other, true);
}

/// After the call that lost the context the device is not called any more, and errors carry its code.
#[test]
fn a_lost_context() {
    let program = program();
    for (call, made) in occurrences(&program) {
        for (nth, first) in (1..).zip(made) {
            let code = 700 + nth as u32;
            let error = DeviceError::new(ErrorKind::ContextLost, code);
            let mut twins: Twins = Twins::alone(CAPACITY, PLAIN);
            device(&twins).fail(Failure { call, nth, persistent: false, error });
            for (number, op) in program.iter().enumerate() {
                let outcome = twins.act(op).unwrap();
                let lost = number >= first;
                let health = if lost { Err(Error::Device(error)) } else { Ok(()) };
                assert_eq!(twins.real().health(twins.device()), health, "{call:?} {nth}, operation {number}, {op:?}");
                if let (true, Some(Error::Device(told))) = (lost, outcome) {
                    assert_eq!(told, error, "{call:?} {nth}, operation {number}, {op:?}");
                }
                if number == first {
                    twins.check().unwrap_or_else(|why| panic!("{call:?} {nth}, operation {number}, {op:?}: {why}"));
                }
            }
            assert_eq!(device(&twins).calls_after_loss(), 0, "{call:?} {nth}, operation {first}");
            twins.check().unwrap_or_else(|why| panic!("{call:?} {nth}, at the end: {why}"));
        }
    }
}
