//! The rules of a served free: the work to complete before a block serves again.

use super::setup::{PAGE, Setup};
use cachalot_run::Options;

/// Requests blocks of `bytes` bytes until a block has an address of `wanted`, at most `most` times.
/// Returns the address. The other blocks stay in use.
fn taken_again(setup: &Setup, bytes: usize, wanted: &[u64], most: usize) -> Option<u64> {
    (0..most).map(|_| setup.take(bytes)).find(|address| wanted.contains(address))
}

#[test]
fn a_free_returns_at_once_and_calls_no_free_of_the_driver() {
    let setup = Setup::new();
    let stream = setup.stream();
    let block = setup.take(PAGE);
    setup.control.hold(stream).expect("a stream");
    setup.fill(block, 7, PAGE, stream);
    let allocations = setup.control.calls("cuMemAlloc_v2");
    assert_eq!(setup.give(block), 0);
    assert_eq!(setup.control.pending(stream), 1, "the free has waited");
    assert_eq!(setup.control.calls("cuMemAlloc_v2"), allocations);
    setup.control.release(stream).expect("held");
    assert_eq!(setup.cuCtxSynchronize(), 0);
    assert_eq!(setup.take(PAGE), block, "complete memory serves again");
}

#[test]
fn a_block_keeps_its_contents_until_the_work_of_every_stream_is_complete() {
    for flags in [0, 1] {
        let setup = Setup::new();
        let stream = setup.stream_of(flags);
        let block = setup.take(PAGE);
        setup.control.hold(stream).expect("a stream");
        setup.fill(block, 7, PAGE, stream);
        assert_eq!(setup.give(block), 0);
        let other = setup.take(PAGE);
        assert_ne!(other, block, "pending memory has served");
        setup.fill(other, 9, PAGE, setup.stream());
        setup.control.release(stream).expect("held");
        assert_eq!(setup.cuCtxSynchronize(), 0);
        assert!(setup.now(block, PAGE).iter().all(|&byte| byte == 7), "flags {flags}");
        assert_eq!(setup.take(PAGE), block);
    }
}

#[test]
fn work_of_another_context_holds_a_block_back() {
    let setup = Setup::new();
    let block = setup.take(PAGE);
    let mut second = cachalot_cuda::driver::types::CuContext::NULL;
    // SAFETY: `second` outlives the call.
    let code = unsafe { setup.process.ctx_create_v2(&raw mut second, 0, cachalot_cuda::driver::types::CuDevice(0)) };
    assert_eq!(code.0, 0);
    let stream = setup.stream();
    setup.control.hold(stream).expect("a stream");
    setup.fill(block, 7, PAGE, stream);
    assert_eq!(setup.cuCtxSetCurrent(setup.context), 0);
    assert_eq!(setup.give(block), 0);
    assert_ne!(setup.take(PAGE), block, "pending memory has served");
    setup.control.release(stream).expect("held");
    assert_eq!((setup.cuStreamSynchronize(stream), setup.take(PAGE)), (0, block));
}

#[test]
fn work_that_another_thread_has_launched_holds_a_block_back() {
    let setup = Setup::new();
    let block = setup.take(PAGE);
    let stream = setup.stream();
    setup.control.hold(stream).expect("a stream");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(setup.cuCtxSetCurrent(setup.context), 0);
            setup.fill(block, 7, PAGE, stream);
        });
    });
    assert_eq!(setup.give(block), 0);
    assert_ne!(setup.take(PAGE), block, "pending memory has served");
    setup.control.release(stream).expect("held");
    assert_eq!((setup.cuStreamSynchronize(stream), setup.take(PAGE)), (0, block));
}

#[test]
fn work_of_a_destroyed_stream_holds_a_block_back() {
    let setup = Setup::new();
    let (block, stream) = (setup.take(PAGE), setup.stream());
    setup.control.set_delay_us(50_000);
    setup.fill(block, 7, PAGE, stream);
    // SAFETY: the stream is not used afterwards.
    let destroyed = unsafe { setup.process.stream_destroy(cachalot_cuda::driver::types::CuStream(stream as usize)) };
    assert_eq!((destroyed.0, setup.give(block)), (0, 0));
    let first = setup.take(PAGE);
    if first == block {
        // The work was done already.
        assert!(setup.now(block, PAGE).iter().all(|&byte| byte == 7));
    }
    assert_eq!(setup.cuCtxSynchronize(), 0);
    assert!(first == block || setup.take(PAGE) == block);
}

#[test]
fn new_memory_is_complete_for_the_host_and_for_every_stream() {
    let setup = Setup::new();
    let streams = [setup.stream(), setup.stream()];
    for round in 0..100_u8 {
        let block = setup.take(PAGE);
        // A copy of the host right after the request.
        assert_eq!(setup.cuMemcpyHtoD_v2(block, [round; 64].as_ptr().cast(), 64), 0);
        assert_eq!(setup.now(block, 64), [round; 64]);
        setup.fill(block, 200, PAGE, streams[usize::from(round % 2)]);
        assert_eq!(setup.give(block), 0);
    }
    assert_eq!(setup.cuCtxSynchronize(), 0);
}

#[test]
fn small_blocks_share_a_segment_and_serve_again_only_when_complete() {
    let setup = Setup::new();
    let stream = setup.stream();
    let blocks: Vec<u64> = (0..64).map(|_| setup.take(PAGE / 64)).collect();
    assert_eq!(setup.control.calls("cuMemAlloc_v2"), 1, "one segment for all");
    setup.control.hold(stream).expect("a stream");
    for (at, &block) in blocks.iter().enumerate() {
        setup.fill(block, at as u8, PAGE / 64, stream);
        assert_eq!(setup.give(block), 0);
    }
    assert_eq!(taken_again(&setup, PAGE / 64, &blocks, 64), None);
    setup.control.release(stream).expect("held");
    assert_eq!(setup.cuCtxSynchronize(), 0);
    for (at, &block) in blocks.iter().enumerate() {
        assert!(setup.now(block, PAGE / 64).iter().all(|&byte| byte == at as u8));
    }
    assert!(taken_again(&setup, PAGE / 64, &blocks, 1).is_some());
}

#[test]
fn one_event_covers_a_batch_of_frees() {
    let setup = Setup::new();
    let blocks: Vec<u64> = (0..1000).map(|_| setup.take(512)).collect();
    let recorded = setup.control.calls("cuCtxRecordEvent");
    blocks.iter().for_each(|&block| assert_eq!(setup.give(block), 0));
    assert_eq!(setup.control.calls("cuCtxRecordEvent"), recorded, "an event at a free");
    // Until the segment is full.
    (0..4096).for_each(|_| assert_ne!(setup.take(512), 0));
    assert_eq!(setup.control.calls("cuCtxRecordEvent"), recorded + 1);
}

#[test]
fn a_request_short_of_memory_waits_for_the_oldest_frees() {
    let setup = Setup::with(&[], Options { limit: Some(8 * PAGE as u64), ..Options::default() });
    let stream = setup.stream();
    setup.control.set_delay_us(20_000);
    for round in 0..10 {
        let blocks: Vec<u64> = (0..4).map(|_| setup.take(2 * PAGE)).collect();
        blocks.iter().for_each(|&block| setup.fill(block, round, 2 * PAGE, stream));
        blocks.iter().for_each(|&block| assert_eq!(setup.give(block), 0));
    }
    let blocks: Vec<u64> = (0..4).map(|_| setup.take(2 * PAGE)).collect();
    assert_eq!(setup.try_take(512), Err(2), "beyond the limit");
    assert_eq!(setup.control.pending(stream), 0);
    assert!(blocks.iter().all(|&block| setup.now(block, 64) == [9; 64]));
}

#[test]
fn a_driver_without_events_of_contexts_is_waited_for() {
    let setup = Setup::with(&["cuCtxRecordEvent"], Options::default());
    let stream = setup.stream();
    setup.control.set_delay_us(1000);
    let block = setup.take(PAGE);
    setup.fill(block, 7, PAGE, stream);
    assert_eq!(setup.give(block), 0);
    assert_eq!(setup.take(PAGE), block);
    assert_eq!(setup.control.pending(stream), 0, "the request has waited");
    assert_eq!(setup.now(block, 64), [7; 64]);
}

#[test]
fn a_waiting_free_is_complete_when_it_returns() {
    let setup = Setup::with(&[], Options { sync_free: true, ..Options::default() });
    let stream = setup.stream();
    setup.control.set_delay_us(1000);
    let block = setup.take(PAGE);
    setup.fill(block, 7, PAGE, stream);
    assert_eq!(setup.give(block), 0);
    assert_eq!(setup.control.pending(stream), 0, "the free has waited");
    assert_eq!((setup.take(PAGE), setup.control.calls("cuCtxRecordEvent")), (block, 0));
    assert_eq!((setup.give(block + 512), setup.give(block), setup.give(block)), (1, 0, 1));
}

#[test]
fn memory_is_cleared_before_it_is_given_out_again() {
    let setup = Setup::with(&[], Options { zero: true, ..Options::default() });
    let stream = setup.stream();
    for bytes in [100, PAGE] {
        let block = setup.take(bytes);
        setup.fill(block, 7, bytes, stream);
        assert_eq!((setup.give(block), setup.cuCtxSynchronize()), (0, 0));
        let again: Vec<u64> = (0..4096 * 8).map(|_| setup.take(bytes)).take_while(|&other| other != block).collect();
        assert!(again.len() < 4096 * 8);
        assert_eq!(setup.now(block, bytes), vec![0; bytes]);
        again.iter().for_each(|&other| assert_eq!(setup.give(other), 0));
        let ordered = setup.take_on(bytes, stream);
        setup.fill(ordered, 7, bytes, stream);
        assert_eq!(setup.give_on(ordered, stream), 0);
        assert_eq!(setup.take_on(bytes, stream), ordered);
        assert_eq!(setup.cuStreamSynchronize(stream), 0);
        assert_eq!(setup.now(ordered, bytes), vec![0; bytes]);
    }
}
