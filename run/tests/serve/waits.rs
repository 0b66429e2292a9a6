//! Waits for the work in front of frees, where the driver's answers do not tell that the work is over.

use super::setup::{PAGE, Setup};
use cachalot_cuda::driver::types::{CuContext, CuDevice};
use cachalot_run::Options;
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
        // The request asks the driver for a segment now, and the other device's looks after the frees.
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
