//! Memory of a process parked and woken.

use super::setup::{PAGE, Setup};
use cachalot_cuda::driver::types::CuDevice;
use cachalot_run::Options;
use cachalot_run::control::{Controlled, RefusalKind, RemainderKind, SleepState};
use cachalot_run::options::SleepOptions;
use core::sync::atomic::{AtomicBool, Ordering};
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Codes of the driver.
const OUT_OF_MEMORY: u32 = 2;
const UNKNOWN: u32 = 999;

/// A process whose memory can be parked. Alone in the test program: the threads of a program have
/// common marks.
pub(super) struct Sleeps {
    setup: Setup,
    _alone: MutexGuard<'static, ()>,
}

impl Deref for Sleeps {
    type Target = Setup;

    fn deref(&self) -> &Setup {
        &self.setup
    }
}

/// Starts a process whose memory can be parked, with additional options.
pub(super) fn setup_with(sleep: SleepOptions, options: Options) -> Sleeps {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    Sleeps { setup: Setup::with(&[], Options { sleep: Some(sleep), ..options }), _alone: alone }
}

fn setup() -> Sleeps {
    setup_with(SleepOptions::default(), Options::default())
}

/// A block, and the byte that fills it.
pub(super) type Filled = (u64, usize, u8);

/// Requests blocks of several sizes, for the host and on a stream, and fills each with its own
/// byte.
pub(super) fn filled(setup: &Setup) -> Vec<Filled> {
    let stream = setup.stream();
    let sizes = [512, 100 << 10, 3 * PAGE + 512, 700];
    let mut blocks: Vec<Filled> =
        sizes.iter().zip(1..).map(|(&bytes, value)| (setup.take(bytes), bytes, value)).collect();
    for (bytes, value) in [(4096, 11), (5 * PAGE, 12)] {
        blocks.push((setup.take_on(bytes, stream), bytes, value));
    }
    for &(address, bytes, value) in &blocks {
        setup.fill(address, value, bytes, stream);
    }
    assert_eq!(setup.cuCtxSynchronize(), 0);
    blocks
}

/// Checks that every block has its byte everywhere.
pub(super) fn check(setup: &Setup, blocks: &[Filled]) {
    for &(address, bytes, value) in blocks {
        // A comparison of slices: tests without optimization read bytes one by one slowly.
        assert!(setup.now(address, bytes) == vec![value; bytes], "{address:x} of {bytes} bytes is not {value}");
    }
}

/// Returns the bytes of the device in use.
pub(super) fn used(setup: &Setup) -> usize {
    let (mut free, mut total) = (0, 0);
    assert_eq!(setup.cuMemGetInfo_v2(&mut free, &mut total), 0);
    total - free
}

pub(super) fn phase(setup: &Setup) -> SleepState {
    setup.process.sleep().expect("can be parked").0
}

/// Makes a call that may use memory.
pub(super) fn touch(setup: &Setup) -> Result<(), u32> {
    setup.process.enter().map(drop).map_err(|code| code.0)
}

#[test]
fn parked_memory_leaves_the_device_and_wakes_where_it_was() {
    for settings in ["", "policy:stitched"] {
        let setup = setup_with(SleepOptions::default(), Options { settings: settings.into(), ..Options::default() });
        let before = used(&setup);
        let blocks = filled(&setup);
        for _ in 0..3 {
            setup.process.park(PATIENCE).unwrap();
            assert_eq!((phase(&setup), used(&setup)), (SleepState::Parked, before), "{settings}");
            assert!(setup.control.peek(blocks[0].0, 1).is_err(), "no memory there");
            setup.process.park(PATIENCE).unwrap();
            touch(&setup).unwrap();
            assert_eq!(phase(&setup), SleepState::Awake);
            check(&setup, &blocks);
        }
        let (_, _, figures) = setup.process.sleep().unwrap();
        assert_eq!((figures.parks, figures.wakes, figures.failure), (3, 3, None));
        assert_eq!(figures.last_park.bytes, figures.last_wake.bytes);
        assert!(figures.last_park.bytes >= blocks.iter().map(|block| block.1 as u64).sum());
    }
}

#[test]
fn the_idle_time_is_known_before_somebody_asks() {
    let setup = setup();
    touch(&setup).unwrap();
    // A round of the maintenance thread, which parks nothing without an idle time of the options.
    setup.process.park_if_idle();
    let wait = Duration::from_millis(30);
    std::thread::sleep(wait);
    assert!(setup.process.status().idle_ms.is_some_and(|idle| u128::from(idle) >= wait.as_millis()));
    assert_eq!(phase(&setup), SleepState::Awake);
}

#[test]
fn small_blocks_stay_if_they_may() {
    let setup = setup_with(SleepOptions { keep_awake: 64 << 20, ..SleepOptions::default() }, Options::default());
    let blocks = filled(&setup);
    setup.process.park(PATIENCE).unwrap();
    // The blocks of 512 bytes and of 3 pages.
    assert!(setup.control.peek(blocks[0].0, 1).is_ok() && setup.control.peek(blocks[2].0, 1).is_err());
    let status = setup.process.status();
    assert!(status.remaining.iter().any(|rest| rest.what == RemainderKind::KeptAwake && rest.bytes > 0), "{status:?}");
    touch(&setup).unwrap();
    check(&setup, &blocks);
}

#[test]
fn a_request_wakes_and_a_free_and_a_question_do_not() {
    let setup = setup();
    let mut blocks = filled(&setup);
    setup.process.park(PATIENCE).unwrap();
    let freed = blocks.swap_remove(2);
    assert_eq!(setup.give(freed.0), 0);
    let mut free = 0;
    // SAFETY: `free` outlives the call, and null is left out.
    assert_eq!(unsafe { setup.process.mem_get_info(&raw mut free, std::ptr::null_mut()) }.0, 0);
    assert_eq!(phase(&setup), SleepState::Parked);
    let new = setup.take(PAGE);
    assert_eq!(phase(&setup), SleepState::Awake);
    check(&setup, &blocks);
    assert!(blocks.iter().all(|block| new + PAGE as u64 <= block.0 || block.0 + block.1 as u64 <= new));
}

#[test]
fn work_and_captures_keep_the_memory_awake() {
    let setup = setup();
    let blocks = filled(&setup);
    let stream = setup.stream();
    setup.control.hold(stream).expect("a stream");
    setup.fill(blocks[0].0, 99, 512, stream);
    assert_eq!(setup.process.park(Duration::from_millis(20)).unwrap_err().kind, RefusalKind::NeverIdle);
    setup.control.release(stream).expect("a stream");
    assert_eq!(setup.begin(stream, 2), 0);
    assert_eq!(setup.process.park(Duration::from_millis(20)).unwrap_err().kind, RefusalKind::NeverIdle);
    assert_eq!(setup.end(stream), 0);
    setup.process.park(PATIENCE).unwrap();
    assert_eq!(setup.begin(stream, 0), 0);
    assert_eq!((phase(&setup), setup.end(stream)), (SleepState::Awake, 0));
    check(&setup, &blocks[1..]);
}

#[test]
fn an_idle_process_is_parked_and_a_busy_one_is_not() {
    let idle_after = |ms| setup_with(SleepOptions { idle_ms: Some(ms), ..SleepOptions::default() }, Options::default());
    let setup = idle_after(3_600_000);
    filled(&setup);
    setup.process.park_if_idle();
    assert_eq!(phase(&setup), SleepState::Awake);
    drop(setup);
    let setup = idle_after(30);
    let blocks = filled(&setup);
    for _ in 0..1_000 {
        setup.process.park_if_idle();
        if phase(&setup) == SleepState::Parked {
            touch(&setup).unwrap();
            check(&setup, &blocks);
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("never parked, with {:?}", setup.process.sleep());
}

#[test]
fn memory_without_pages_is_not_parked_and_the_refusal_says_so() {
    let setup = setup_with(SleepOptions::default(), Options { settings: "policy:direct".into(), ..Options::default() });
    let block = setup.take(PAGE);
    let refusal = setup.process.park(PATIENCE).unwrap_err();
    assert_eq!((refusal.kind, phase(&setup)), (RefusalKind::Unsupported, SleepState::Awake), "{refusal}");
    assert_eq!(setup.give(block), 0);
    assert_eq!(Setup::new().process.park(PATIENCE).unwrap_err().kind, RefusalKind::Unsupported);
}

#[test]
fn a_full_device_delays_the_wake_and_then_fails_the_call() {
    let setup = setup_with(SleepOptions { wake_timeout_ms: 50, ..SleepOptions::default() }, Options::default());
    let blocks = filled(&setup);
    setup.process.park(PATIENCE).unwrap();
    let (mut free, mut total) = (0, 0);
    assert_eq!(setup.cuMemGetInfo_v2(&mut free, &mut total), 0);
    setup.control.set_others_bytes(0, (free - PAGE) as u64).expect("a device");
    assert_eq!(touch(&setup), Err(OUT_OF_MEMORY));
    assert_eq!(setup.try_take(512), Err(OUT_OF_MEMORY));
    assert_eq!(phase(&setup), SleepState::Parked);
    setup.control.set_others_bytes(0, 0).expect("a device");
    touch(&setup).unwrap();
    check(&setup, &blocks);
}

#[test]
fn a_context_destroyed_while_parked_leaves_a_process_that_works() {
    let setup = setup();
    let blocks = filled(&setup);
    setup.process.park(PATIENCE).unwrap();
    // SAFETY: no thread uses the context.
    let code = unsafe { setup.process.device_primary_ctx_reset(CuDevice(0)) };
    assert_eq!(code.0, 0);
    setup.retain(0);
    let block = setup.take(PAGE);
    assert_eq!((phase(&setup), setup.give(block)), (SleepState::Awake, 0));
    drop(blocks);
}

/// Fails the `nth` call of a function from now on, or of any function for `*`. Returns whether
/// there was such a call in `act`.
pub(super) fn failing(setup: &Setup, function: &str, nth: u64, act: impl FnOnce()) -> bool {
    let fired = setup.control.faults();
    let plan = format!(r#"{{"fn": "{function}", "nth": {nth}, "code": {UNKNOWN}}}"#);
    setup.control.plan(&plan).expect("a plan");
    act();
    setup.control.clear_plan();
    setup.control.faults() > fired
}

#[test]
fn each_call_of_a_park_fails_once_and_nothing_is_lost() {
    let setup = setup();
    let blocks = filled(&setup);
    for nth in 1.. {
        let hit = failing(&setup, "*", nth, || _ = setup.process.park(PATIENCE));
        touch(&setup).unwrap_or_else(|code| panic!("call {nth}: {code}"));
        check(&setup, &blocks);
        setup.process.park(PATIENCE).unwrap_or_else(|error| panic!("call {nth}: {error}"));
        touch(&setup).unwrap();
        check(&setup, &blocks);
        if !hit {
            assert!(nth > 20, "a park makes calls");
            break;
        }
    }
}

#[test]
fn each_call_of_a_wake_fails_once_and_nothing_is_lost() {
    let setup = setup();
    let blocks = filled(&setup);
    for nth in 1.. {
        setup.process.park(PATIENCE).unwrap_or_else(|error| panic!("call {nth}: {error}"));
        let hit = failing(&setup, "*", nth, || _ = touch(&setup));
        touch(&setup).unwrap_or_else(|code| panic!("call {nth}: {code}"));
        check(&setup, &blocks);
        if !hit {
            assert!(nth > 20, "a wake makes calls");
            break;
        }
    }
}

#[test]
fn threads_that_work_while_another_parks_find_their_bytes() {
    let setup = setup();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=3_u8)
            .map(|value| {
                let setup = &setup;
                scope.spawn(move || {
                    assert_eq!(setup.cuCtxSetCurrent(setup.context), 0);
                    let stream = setup.stream();
                    let block = setup.take(2 * PAGE);
                    for round in 0..60_u8 {
                        let byte = value.wrapping_mul(60).wrapping_add(round);
                        let inside = setup.process.enter().expect("awake");
                        setup.fill(block, byte, 2 * PAGE, stream);
                        drop(inside);
                        assert_eq!(setup.cuStreamSynchronize(stream), 0);
                        if round % 8 == 0 {
                            std::thread::sleep(Duration::from_millis(2));
                        }
                        let inside = setup.process.enter().expect("awake");
                        assert!(setup.now(block, 2 * PAGE).iter().all(|&now| now == byte), "round {round}");
                        drop(inside);
                        if round % 16 == 5 {
                            let other = setup.take(PAGE);
                            assert_eq!(setup.give(other), 0);
                        }
                    }
                    assert_eq!(setup.give(block), 0);
                })
            })
            .collect();
        let parker = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                drop(setup.process.park(PATIENCE));
                std::thread::yield_now();
            }
        });
        let ended: Vec<_> = threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        parker.join().unwrap();
        ended.into_iter().for_each(|thread| thread.unwrap());
    });
    assert!(setup.process.sleep().unwrap().2.wakes > 3, "{:?}", setup.process.sleep());
}
