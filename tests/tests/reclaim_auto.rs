//! `reclaim:auto` beside programs whose work takes time: no memory in use is unmapped, the device
//! is not waited for, no block changes, and each request is decided as the segments of that moment
//! demand.

use cachalot_core::config::rounding::PoolKind;
use cachalot_core::simulated::{Call, Outstanding};
use cachalot_core::{BlockState, DevicePtr, ErrorKind, Forecast, StreamId};
use cachalot_tests::failures;
use cachalot_tests::host::{DEVICE, MIB};
use cachalot_tests::strategies::proptest_config;
use cachalot_tests::working::{Outcome, Step, Working};
use proptest::prelude::*;

/// Streams of the generated programs.
const STREAMS: u64 = 3;

/// Capacity of the device: small, so that programs run out of memory.
const CAPACITY: u64 = 512 * MIB;

const CONFIGS: [&str; 4] = [
    "reclaim:auto,reclaim_budget:1",
    "reclaim:auto,reclaim_budget:1,expandable_segments:True",
    "policy:bfc,reclaim:auto,reclaim_budget:1",
    "policy:bfc,reclaim:auto,reclaim_budget:0.01,expandable_segments:True",
];

fn step() -> impl Strategy<Value = Step> {
    let stream = || 0..STREAMS;
    let bytes = prop_oneof![2 => 1..MIB, 3 => MIB..10 * MIB, 4 => 10 * MIB..60 * MIB];
    prop_oneof![
        20 => (bytes, stream()).prop_map(|(bytes, stream)| Step::Malloc { bytes, stream }),
        8 => any::<usize>().prop_map(|block| Step::Work { block }),
        4 => (any::<usize>(), stream()).prop_map(|(block, stream)| Step::Share { block, stream }),
        20 => any::<usize>().prop_map(|block| Step::Free { block }),
        6 => stream().prop_map(|stream| Step::Complete { stream }),
        1 => (stream(), any::<bool>()).prop_map(|(stream, on)| Step::Capturing { stream, on }),
        20 => (1..9000_u64, 50..100_000_u64).prop_map(|(ms, us)| Step::Pass { ms, us }),
        1 => (0..300_u64).prop_map(|keep_mib| Step::Trim { keep_mib }),
    ]
}

/// Takes a step. Each request is checked, and completed work is polled at once.
fn take(working: &mut Working, step: &Step) -> Outcome {
    match *step {
        Step::Malloc { bytes, stream } => malloc(working, bytes, StreamId(stream)),
        Step::Complete { .. } => working.take(step).and_then(|_| working.take(&Step::ProcessEvents)),
        _ => working.take(step),
    }
}

/// Requests a block, and holds the decision against the snapshot of the moment before: the smallest
/// free block of the stream that is large enough, at the lowest address.
fn malloc(working: &mut Working, bytes: u64, stream: StreamId) -> Outcome {
    let allocator = &working.host.allocator;
    let config = allocator.settings(DEVICE).map(|settings| settings.config()).map_err(|error| error.to_string())?;
    // A request polls pending frees first, and a forecast does not. A failure is the request's,
    // too.
    let _polled = allocator.process_events(DEVICE);
    let is_native = config.policy().traits().follows_pytorch && !config.expandable_segments();
    let best = is_native.then(|| best_fit(working, bytes.next_multiple_of(512), stream));
    // The forecast asks the device, too, which may be about to fail.
    let forecast = allocator.forecast(DEVICE).unwrap().malloc(bytes, stream);
    let (held, calls) = (working.held.len(), working.calls(Call::Obtain));
    let outcome = working.malloc(bytes, stream)?;
    if working.held.len() == held {
        return Ok(outcome);
    }
    let ptr = working.held[held].ptr;
    if let Ok(Forecast::Hit(expected)) = forecast
        && expected != ptr
    {
        return Err(format!("{bytes} bytes at {ptr}, and {expected} was forecast"));
    }
    let obtained = working.calls(Call::Obtain) > calls;
    match best {
        Some(Some(best)) if obtained => Err(format!("a segment for {bytes} bytes, and {best} is free")),
        _ => Ok(outcome),
    }
}

fn best_fit(working: &Working, size: u64, stream: StreamId) -> Option<DevicePtr> {
    let mut best: Option<(u64, DevicePtr)> = None;
    let is_small = size <= MIB;
    for segment in working.host.allocator.snapshot() {
        if segment.stream != stream || (segment.kind == PoolKind::Small) != is_small {
            continue;
        }
        let mut address = segment.address;
        for block in &segment.blocks {
            if block.state == BlockState::Inactive && block.size >= size {
                best = Some(best.map_or((block.size, address), |best| best.min((block.size, address))));
            }
            address = address.offset(block.size);
        }
    }
    best.map(|(_, address)| address)
}

fn hold(config: &str, program: &[Step]) -> Result<(), String> {
    let mut working = Working::new(config, CAPACITY);
    for (number, step) in program.iter().enumerate() {
        let before = waits(&working);
        let taken = take(&mut working, step);
        let held = working.judge(taken);
        let waited = matches!(step, Step::Pass { .. }) && waits(&working) > before;
        let held = held.and_then(|()| if waited { Err("it has waited for the device".to_owned()) } else { Ok(()) });
        held.map_err(|why| format!("`{config}`, step {number}, {step:?}: {why}"))?;
    }
    finish(&mut working).map_err(|why| format!("`{config}`: {why}"))
}

fn waits(working: &Working) -> u64 {
    [Call::Wait, Call::Synchronize, Call::SynchronizeAll].map(|call| working.calls(call)).iter().sum()
}

/// Frees every block, and expects all memory to go back without a call that demands it.
fn finish(working: &mut Working) -> Result<(), String> {
    (0..STREAMS).for_each(|stream| working.set_capturing(StreamId(stream), false));
    while !working.held.is_empty() {
        if let Some(error) = working.free(0) {
            return Err(error.to_string());
        }
    }
    for _ in 0..400 {
        (0..STREAMS).for_each(|stream| working.host.device().complete(StreamId(stream)));
        working.host.allocator.process_events(DEVICE).map_err(|error| error.to_string())?;
        let passed = take(working, &Step::Pass { ms: 1000, us: 1_000_000 })?;
        if let Some(error) = passed {
            return Err(error.to_string());
        }
    }
    let used = working.host.device().used();
    let leaked =
        working.host.allocator.stats(DEVICE).map(|stats| stats.leaked_bytes()).map_err(|error| error.to_string())?;
    if used > leaked {
        let stats = working.host.allocator.pages(DEVICE).map(|pages| pages.reclaim_stats());
        return Err(format!("{used} bytes are still held: {stats:?}"));
    }
    working.host.allocator.empty_cache(DEVICE).map_err(|error| error.to_string())?;
    // Addresses that the device refuses to release are never used again.
    let left = Outstanding { reservations: 0, ..working.host.device().outstanding() };
    if leaked > 0 || left == Outstanding::default() { working.check() } else { Err(format!("{left:?} is left")) }
}

/// Two phases: the blocks of the first are idle during the second, which goes on all the while.
fn phases() -> Vec<Step> {
    let mut steps = Vec::new();
    for bytes in [200 * MIB, 60 * MIB, 30 * MIB, 5000] {
        steps.push(Step::Malloc { bytes, stream: 1 });
    }
    steps.extend([Step::Share { block: 1, stream: 2 }, Step::Free { block: 1 }]);
    (0..3).for_each(|_| steps.push(Step::Free { block: 0 }));
    for _ in 0..40 {
        steps.extend([Step::Malloc { bytes: 3 * MIB, stream: 1 }, Step::Work { block: 0 }, Step::Free { block: 0 }]);
        steps.extend([Step::Complete { stream: 1 }, Step::Complete { stream: 2 }, Step::Pass { ms: 700, us: 100_000 }]);
    }
    steps
}

#[test]
fn memory_of_an_earlier_phase_goes_back_beside_the_work_of_the_next() {
    // Best fit with coalescing has one large segment for all, in which the second phase lies.
    for config in CONFIGS.into_iter().filter(|&config| config != CONFIGS[2]) {
        let mut working = Working::new(config, CAPACITY);
        for step in phases() {
            assert!(matches!(take(&mut working, &step), Ok(None)), "`{config}`, {step:?}");
        }
        assert!(working.host.device().used() <= 62 * MIB, "`{config}`: {} bytes", working.host.device().used());
        working.check_nothing_lost().unwrap();
    }
}

#[test]
fn each_call_may_fail_at_each_occurrence() {
    for config in CONFIGS {
        let mut whole = Working::new(config, CAPACITY);
        phases().iter().for_each(|step| _ = take(&mut whole, step));
        let made = failures::calls(whole.host.device()).into_iter().map(|(call, made)| (call, made.min(60))).collect();
        for failure in failures::each(&made, ErrorKind::Other, false) {
            let mut working = Working::new(config, CAPACITY);
            working.host.device().fail(failure);
            for step in phases() {
                let taken = take(&mut working, &step).and_then(|_| working.check());
                assert_eq!(taken, Ok(()), "`{config}`, {failure:?}, {step:?}");
            }
            working.host.device().clear_failures();
            assert_eq!(finish(&mut working), Ok(()), "`{config}`, {failure:?}");
        }
    }
}

proptest! {
    #![proptest_config(proptest_config("regressions/reclaim_auto.txt", 30))]

    #[test]
    fn no_memory_in_use_goes_back(program in prop::collection::vec(step(), 1..160)) {
        for config in CONFIGS {
            hold(config, &program).map_err(TestCaseError::fail)?;
        }
    }
}
