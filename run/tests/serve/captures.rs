//! Captures: no event of the library breaks a capture, and forbidden calls stay forbidden.

use super::setup::{PAGE, Setup};
use cachalot_run::Options;

#[test]
fn no_event_is_recorded_while_a_capture_runs() {
    let setup = Setup::new();
    let (captured, other) = (setup.stream(), setup.stream());
    let block = setup.take(PAGE);
    assert_eq!(setup.begin(captured, 2), 0);
    let recorded = setup.control.calls("cuCtxRecordEvent");
    assert_eq!(setup.give(block), 0);
    setup.fill(setup.take(PAGE), 1, PAGE, other);
    assert_eq!(setup.control.calls("cuCtxRecordEvent"), recorded);
    assert_ne!(setup.take(PAGE), block, "a free of an unknown end has served");
    assert_eq!(setup.end(captured), 0);
    assert_eq!(setup.cuCtxSynchronize(), 0);
    assert_eq!(setup.take(PAGE), block);
}

#[test]
fn a_capture_of_each_mode_survives_requests_in_relaxed_threads() {
    for mode in 0..3 {
        let setup = Setup::new();
        let captured = setup.stream();
        assert_eq!(setup.begin(captured, mode), 0);
        let mut relaxed = 2;
        assert_eq!(setup.cuThreadExchangeStreamCaptureMode(&mut relaxed), 0);
        let blocks: Vec<u64> = (0..4).map(|_| setup.take(PAGE)).collect();
        setup.fill(blocks[0], 5, PAGE, captured);
        assert!(blocks.iter().all(|&block| setup.give(block) == 0));
        assert!(setup.try_take(PAGE).is_ok());
        assert_eq!(setup.cuThreadExchangeStreamCaptureMode(&mut relaxed), 0);
        assert_eq!(setup.end(captured), 0, "mode {mode}");
    }
}

#[test]
fn requests_and_frees_break_a_capture_that_forbids_them_as_with_the_driver() {
    for mode in 0..2 {
        for request in [true, false] {
            let setup = Setup::new();
            let (captured, block) = (setup.stream(), setup.take(PAGE));
            assert_eq!(setup.begin(captured, mode), 0);
            let answer = if request { setup.try_take(512).err() } else { Some(setup.give(block)) };
            assert_eq!((answer, setup.end(captured)), (Some(900), 901), "mode {mode}, request {request}");
            assert_eq!((setup.give(block), setup.try_take(512).is_ok()), (0, true));
        }
    }
}

#[test]
fn a_thread_local_capture_of_another_thread_forbids_nothing() {
    let setup = Setup::new();
    let captured = setup.stream();
    assert_eq!(setup.begin(captured, 1), 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(setup.cuCtxSetCurrent(setup.context), 0);
            let block = setup.take(PAGE);
            assert_eq!(setup.give(block), 0);
        });
    });
    assert_eq!(setup.end(captured), 0);
}

#[test]
fn a_capture_that_fails_to_begin_holds_nothing_back() {
    let setup = Setup::new();
    let block = setup.take(PAGE);
    assert_ne!(setup.begin(1, 2), 0, "the legacy stream captures nothing");
    assert_eq!((setup.give(block), setup.take(PAGE)), (0, block));
}

#[test]
fn a_capture_ends_with_its_stream() {
    let setup = Setup::new();
    let (captured, block) = (setup.stream(), setup.take(PAGE));
    assert_eq!(setup.begin(captured, 2), 0);
    // SAFETY: the stream is not used afterwards.
    let code = unsafe { setup.process.stream_destroy(cachalot_cuda::driver::types::CuStream(captured as usize)) };
    if code.0 != 0 {
        assert_eq!(setup.end(captured), 0);
    }
    assert_eq!((setup.give(block), setup.take(PAGE)), (0, block));
}

#[test]
fn requests_in_the_order_of_a_capturing_stream_are_the_drivers() {
    let setup = Setup::new();
    let captured = setup.stream();
    assert_eq!(setup.begin(captured, 2), 0);
    let calls = setup.control.calls("cuMemAllocAsync");
    let mut address = 0;
    // SAFETY: `address` outlives the call.
    let code = unsafe {
        setup.process.mem_alloc_async(&raw mut address, PAGE, cachalot_cuda::driver::types::CuStream(captured as usize))
    };
    assert_eq!(setup.control.calls("cuMemAllocAsync"), calls + 1, "answered {code}");
    let _ = setup.end(captured);
}

#[test]
fn a_process_that_observes_passes_every_request_on() {
    let setup = Setup::with(&[], Options { observe: true, ..Options::default() });
    let block = setup.take(512);
    assert_eq!((setup.give(block), setup.give(block)), (0, 1));
    assert_eq!(setup.control.calls("cuMemAlloc_v2"), 1);
    assert_eq!(setup.process.counts().passed, 3);
}
