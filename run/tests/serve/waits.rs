//! Waits for the work in front of frees, where the driver's answers do not say that the work is
//! over.

use super::setup::{PAGE, Setup};
use cachalot_cuda::driver::types::{CuContext, CuDevice};
use cachalot_run::Options;
use std::ffi::c_void;
use std::sync::Mutex;
use std::time::Duration;

/// Has calls of a function fail with a code, `count` times.
fn fail(setup: &Setup, function: &str, code: u32, count: u32) {
    let plan = format!(r#"{{"fn": "{function}", "code": {code}, "count": {count}}}"#);
    setup.control.plan(&plan).expect("a plan");
}

/// Makes a block whose stream is held, and frees the block.
fn free_behind_held_work(setup: &Setup) -> (u64, u64) {
    let (stream, block) = (setup.stream(), setup.take(PAGE));
    setup.control.hold(stream).expect("a stream");
    setup.fill(block, 7, PAGE, stream);
    assert_eq!(setup.give(block), 0);
    (stream, block)
}

#[test]
fn a_failed_question_after_an_event_is_no_end_of_the_work() {
    for code in [2, 900, 999] {
        let setup = Setup::new();
        let (stream, block) = free_behind_held_work(&setup);
        fail(&setup, "cuEventQuery", code, 1);
        for _ in 0..3 {
            assert_ne!(setup.take(PAGE), block, "code {code}: pending memory has served");
        }
        setup.control.release(stream).expect("held");
        assert_eq!((setup.cuCtxSynchronize(), setup.take(PAGE)), (0, block));
    }
}

#[test]
fn a_failed_wait_for_a_context_is_no_end_of_the_work() {
    for (function, code) in [("cuCtxSynchronize", 900), ("cuCtxSynchronize", 999), ("cuCtxPushCurrent_v2", 999)] {
        let setup = Setup::with(&["cuCtxRecordEvent"], Options::default());
        let (stream, block) = free_behind_held_work(&setup);
        fail(&setup, function, code, 1);
        assert_ne!(setup.take(PAGE), block, "{function}, code {code}: pending memory has served");
        setup.control.release(stream).expect("held");
        assert_eq!((setup.cuCtxSynchronize(), setup.take(PAGE)), (0, block));
    }
}

#[test]
fn a_failed_context_of_another_device_keeps_no_free_waiting() {
    let setup = Setup::new();
    let other = setup.retain(1);
    setup.control.break_context(other, 700).expect("a context");
    let block = setup.take(PAGE);
    assert_eq!((setup.give(block), setup.take(PAGE)), (0, block));
}

#[test]
fn a_request_is_served_by_frees_that_one_of_another_device_saw_complete() {
    let setup = Setup::with(&[], Options { limit: Some(64 * PAGE as u64), ..Options::default() });
    let (stream, block) = (setup.stream(), setup.take(8 * PAGE));
    setup.control.hold(stream).expect("a stream");
    setup.fill(block, 7, PAGE, stream);
    assert_eq!(setup.give(block), 0);
    let second = setup.retain(1);
    assert_eq!(setup.cuCtxSetCurrent(second), 0);
    let other = setup.take(PAGE);
    setup.control.plan(r#"{"fn": "cuMemAlloc_v2", "code": 2, "delay_us": 100000, "count": 20}"#).expect("a plan");
    let taken = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            assert_eq!(setup.cuCtxSetCurrent(setup.context), 0);
            setup.try_take(8 * PAGE)
        });
        // The request asks the driver for a segment now, and the other device's looks after the
        // frees.
        std::thread::sleep(Duration::from_millis(50));
        setup.control.release(stream).expect("held");
        assert_eq!((setup.cuStreamSynchronize(stream), setup.give(other)), (0, 0));
        let _ = setup.try_take(PAGE / 2 + 1);
        waiting.join().unwrap()
    });
    assert_eq!(taken, Ok(block));
}

#[test]
fn no_call_of_the_driver_waits_for_a_context_that_may_be_destroyed_meanwhile() {
    let setup = Setup::with(&[], Options { limit: Some(8 * PAGE as u64), ..Options::default() });
    let mut second = CuContext::NULL;
    // SAFETY: `second` outlives the call.
    assert_eq!(unsafe { setup.process.ctx_create_v2(&raw mut second, 0, CuDevice(0)) }.0, 0);
    let stream = setup.stream();
    setup.control.hold(stream).expect("a stream");
    let own = setup.alloc(PAGE).expect("memory");
    setup.fill(own, 1, PAGE, stream);
    assert_eq!(setup.cuCtxSetCurrent(setup.context), 0);
    assert_eq!(setup.give(setup.take(8 * PAGE)), 0);
    let (finished, waits, taken) = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            assert_eq!(setup.cuCtxSetCurrent(setup.context), 0);
            setup.try_take(8 * PAGE)
        });
        std::thread::sleep(Duration::from_millis(50));
        let (finished, waits) = (waiting.is_finished(), setup.control.calls("cuEventSynchronize"));
        setup.control.release(stream).expect("held");
        // SAFETY: no thread of the program uses the context.
        assert_eq!(unsafe { setup.process.ctx_destroy(second) }.0, 0);
        (finished, waits, waiting.join().unwrap())
    });
    assert_eq!((finished, waits, taken.is_ok()), (false, 0, true));
}

/// A function of the program, called by a stream: takes a lock of the program.
unsafe extern "C" fn take_lock(lock: *mut c_void) {
    // SAFETY: the test passes a lock that lives until the stream's context is destroyed.
    drop(unsafe { &*lock.cast::<Mutex<()>>() }.lock());
}

/// Makes a context on device 0, which is current then.
fn create(setup: &Setup) -> CuContext {
    let mut context = CuContext::NULL;
    // SAFETY: `context` outlives the call.
    assert_eq!(unsafe { setup.process.ctx_create_v2(&raw mut context, 0, CuDevice(0)) }.0, 0);
    context
}

#[test]
fn a_destruction_that_waits_for_the_program_holds_up_no_request() {
    let setup = Setup::new();
    let second = create(&setup);
    let lock = Mutex::new(());
    let held = lock.lock().unwrap();
    let argument = std::ptr::from_ref(&lock).cast_mut().cast();
    assert_eq!(setup.cuLaunchHostFunc(setup.stream(), take_lock, argument), 0);
    let (served, destroyed) = std::thread::scope(|scope| {
        // SAFETY: no other thread uses the context.
        let ending = scope.spawn(|| unsafe { setup.process.ctx_destroy(second) }.0);
        std::thread::sleep(Duration::from_millis(50));
        let requests = scope.spawn(|| {
            assert_eq!(setup.cuCtxSetCurrent(setup.context), 0);
            let block = setup.take(PAGE);
            // Work in front of the free may still run in the ending context.
            assert_eq!((setup.give(block), setup.take(PAGE) == block), (0, false));
            let stream = setup.stream();
            assert_eq!((setup.begin(stream, 2), setup.end(stream)), (0, 0));
            create(&setup)
        });
        let served = (0..500).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            requests.is_finished()
        });
        drop(held);
        let third = requests.join().unwrap();
        // A driver ends a context after the work of all contexts of the device.
        // SAFETY: no other thread uses the context.
        assert_eq!(unsafe { setup.process.ctx_destroy(third) }.0, 0);
        (served, ending.join().unwrap())
    });
    assert_eq!((served, destroyed), (true, 0));
    assert_eq!(setup.cuCtxSetCurrent(setup.context), 0);
    let block = setup.take(PAGE);
    assert_eq!((setup.give(block), setup.take(PAGE)), (0, block));
}

#[test]
fn a_refused_destruction_leaves_the_context_to_be_waited_for() {
    let setup = Setup::new();
    let second = create(&setup);
    let stream = setup.stream();
    assert_eq!(setup.cuCtxSetCurrent(setup.context), 0);
    let block = setup.take(PAGE);
    setup.control.hold(stream).expect("a stream");
    setup.fill(block, 7, PAGE, stream);
    setup.control.plan(r#"{"fn": "cuCtxDestroy_v2", "code": 999, "delay_us": 200000}"#).expect("a plan");
    std::thread::scope(|scope| {
        // SAFETY: no other thread uses the context.
        let ending = scope.spawn(|| unsafe { setup.process.ctx_destroy(second) }.0);
        std::thread::sleep(Duration::from_millis(50));
        // The free is settled while nobody knows whether the context lives on.
        assert_eq!((setup.give(block), setup.take(PAGE) == block), (0, false));
        assert_eq!(ending.join().unwrap(), 999);
    });
    assert_ne!(setup.take(PAGE), block, "pending memory has served");
    setup.control.release(stream).expect("held");
    assert_eq!((setup.cuStreamSynchronize(stream), setup.take(PAGE)), (0, block));
}

#[test]
fn without_events_of_contexts_no_context_is_destroyed_while_it_is_waited_for() {
    let setup = Setup::with(&["cuCtxRecordEvent"], Options::default());
    let second = create(&setup);
    let stream = setup.stream();
    assert_eq!(setup.cuCtxSetCurrent(setup.context), 0);
    let block = setup.take(PAGE);
    setup.control.hold(stream).expect("a stream");
    setup.fill(block, 7, PAGE, stream);
    assert_eq!(setup.give(block), 0);
    let began = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            assert_eq!(setup.cuCtxSetCurrent(setup.context), 0);
            setup.take(PAGE)
        });
        std::thread::sleep(Duration::from_millis(50));
        // SAFETY: no other thread of the program uses the context.
        let ending = scope.spawn(|| unsafe { setup.process.ctx_destroy(second) }.0);
        std::thread::sleep(Duration::from_millis(50));
        let began = setup.control.calls("cuCtxDestroy_v2");
        setup.control.release(stream).expect("held");
        assert_eq!((ending.join().unwrap(), waiting.join().unwrap()), (0, block));
        began
    });
    assert_eq!(began, 0);
}

#[test]
fn a_context_of_an_unseen_call_is_found_by_a_free() {
    let setup = Setup::new();
    let block = setup.take(PAGE);
    let mut unseen = 0;
    assert_eq!(setup.cuCtxCreate_v2(&mut unseen, 0, 0), 0);
    let stream = setup.stream();
    setup.control.hold(stream).expect("a stream");
    setup.fill(block, 7, PAGE, stream);
    assert_eq!(setup.give(block), 0);
    assert_eq!(setup.cuCtxSetCurrent(setup.context), 0);
    assert_ne!(setup.take(PAGE), block, "pending memory has served");
    setup.control.release(stream).expect("held");
    assert_eq!((setup.cuStreamSynchronize(stream), setup.take(PAGE)), (0, block));
}
