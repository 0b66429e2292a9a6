//! Contexts from start to end, peers, and memory in the order of streams.

use super::setup::{PAGE, Setup};
use cachalot_cuda::driver::types::CuGreenContext;
use cachalot_cuda::driver::types::{CuContext, CuDevice, CuMemoryPool, CuStream};
use cachalot_run::Options;

/// Makes a context, which is current then.
fn create(setup: &Setup, device: i32) -> u64 {
    let mut context = CuContext::NULL;
    // SAFETY: `context` outlives the call.
    assert_eq!(unsafe { setup.process.ctx_create_v2(&raw mut context, 0, CuDevice(device)) }.0, 0);
    context.0 as u64
}

#[test]
fn each_context_has_memory_of_its_own_and_frees_that_of_others() {
    let setup = Setup::new();
    let first = setup.take(512);
    let second = create(&setup, 0);
    let other = setup.take(512);
    assert_eq!((setup.give(first), setup.give(first)), (0, 1));
    assert_eq!(setup.cuCtxSetCurrent(setup.context), 0);
    assert_eq!((setup.give(other), setup.give(other)), (0, 1));
    assert_eq!(setup.cuCtxSetCurrent(second), 0);
    assert_eq!(setup.process.counts().used_bytes, 0);
}

#[test]
fn a_destroyed_context_is_forgotten_without_calls_in_it() {
    let limit = 64 * PAGE as u64;
    let setup = Setup::with(&[], Options { limit: Some(limit), ..Options::default() });
    for _ in 0..20 {
        let context = create(&setup, 0);
        let (block, pending) = (setup.take(8 * PAGE), setup.take(8 * PAGE));
        assert_eq!(setup.give(pending), 0);
        let freed = setup.control.calls("cuMemFree_v2");
        // SAFETY: no other thread uses the context.
        assert_eq!(unsafe { setup.process.ctx_destroy(CuContext(context as usize)) }.0, 0);
        assert_eq!(setup.control.calls("cuMemFree_v2"), freed);
        assert_eq!(setup.cuCtxSetCurrent(setup.context), 0);
        assert_eq!(setup.give(block), 1, "the memory went with its context");
    }
    assert_eq!((setup.process.counts().held_bytes, setup.take(60 * PAGE) != 0), (0, true));
}

#[test]
fn a_detached_context_is_forgotten_with_its_last_use() {
    let setup = Setup::new();
    let context = CuContext(create(&setup, 0) as usize);
    let mut same = CuContext::NULL;
    // SAFETY: `same` outlives the call.
    assert_eq!((unsafe { setup.process.ctx_attach(&raw mut same, 0) }.0, same), (0, context));
    let (block, kept) = (setup.take(PAGE), setup.take(PAGE));
    // SAFETY: no other thread uses the context.
    let detach = || unsafe { setup.process.ctx_detach(context) }.0;
    assert_eq!((detach(), setup.give(block), setup.process.counts().used_bytes), (0, 0, PAGE as u64));
    assert_eq!((detach(), setup.process.counts().held_bytes, detach()), (0, 0, 201));
    assert_eq!((setup.cuCtxSetCurrent(setup.context), setup.give(kept)), (0, 1));
    assert_eq!(CuContext(create(&setup, 0) as usize), context, "the driver uses the handle again");
    assert_eq!(setup.give(setup.take(PAGE)), 0);
}

#[test]
fn a_primary_context_is_served_anew_after_a_reset_and_after_the_last_release() {
    let setup = Setup::new();
    for reset in [true, false, true] {
        let block = setup.take(PAGE);
        assert_eq!(setup.give(setup.take(PAGE)), 0);
        let code = if reset {
            // SAFETY: no other thread uses the context.
            unsafe { setup.process.device_primary_ctx_reset(CuDevice(0)) }
        } else {
            // SAFETY: as above.
            unsafe { setup.process.device_primary_ctx_release(CuDevice(0)) }
        };
        assert_eq!(code.0, 0);
        assert_eq!(setup.process.counts().held_bytes, 0, "reset {reset}");
        let context = setup.retain(0);
        assert_eq!(setup.cuCtxSetCurrent(context), 0);
        assert_eq!(setup.give(block), 1);
        let again = setup.take(PAGE);
        assert_eq!((setup.cuMemsetD8Async(again, 1, PAGE, 0), setup.give(again)), (0, 0));
        if reset {
            // The reset has kept the retention of before.
            // SAFETY: no other thread uses the context.
            let _ = unsafe { setup.process.device_primary_ctx_release(CuDevice(0)) };
        }
    }
}

#[test]
fn a_release_that_is_not_the_last_forgets_nothing() {
    let setup = Setup::new();
    setup.retain(0);
    let block = setup.take(PAGE);
    // SAFETY: the context stays.
    assert_eq!(unsafe { setup.process.device_primary_ctx_release(CuDevice(0)) }.0, 0);
    assert_eq!((setup.give(block), setup.give(block)), (0, 1));
}

#[test]
fn a_peer_reaches_memory_of_segments_and_of_pages() {
    for settings in ["", "expandable_segments:True", "policy:stitched"] {
        for enabled_first in [true, false] {
            let setup = Setup::with(&[], Options { settings: settings.to_owned(), ..Options::default() });
            let peer = setup.retain(1);
            let enable = || {
                assert_eq!(setup.cuCtxSetCurrent(peer), 0);
                // SAFETY: the context lives.
                let code = unsafe { setup.process.ctx_enable_peer_access(CuContext(setup.context as usize), 0) };
                assert_eq!(code.0, 0);
                assert_eq!(setup.cuCtxSetCurrent(setup.context), 0);
            };
            if enabled_first {
                enable();
            }
            let block = setup.take(PAGE);
            assert_eq!(setup.cuCtxSetCurrent(peer), 0);
            // The peer's own allocator is opened by its own request.
            let own = setup.take(512);
            if !enabled_first {
                enable();
            }
            let later = {
                assert_eq!(setup.cuCtxSetCurrent(setup.context), 0);
                setup.take(20 * PAGE)
            };
            assert_eq!(setup.cuCtxSetCurrent(peer), 0);
            let stream = setup.stream();
            for (address, bytes) in [(block, PAGE), (later, 20 * PAGE), (own, 512)] {
                setup.fill(address, 3, bytes, stream);
                assert_eq!(setup.cuStreamSynchronize(stream), 0, "{settings:?}, {enabled_first}");
                assert_eq!(setup.now(address, 64), [3; 64]);
            }
        }
    }
}

#[test]
fn ordered_memory_is_open_to_devices_with_access_to_its_pool() {
    for settings in ["", "expandable_segments:True"] {
        for peer_comes_first in [true, false] {
            let setup = Setup::with(&[], Options { settings: settings.to_owned(), ..Options::default() });
            let mut peer = if peer_comes_first { setup.retain(1) } else { 0 };
            let stream = setup.stream();
            let block = setup.take_on(PAGE, stream);
            assert_eq!(setup.open_default_pool(0, 1), 0);
            if !peer_comes_first {
                peer = setup.retain(1);
            }
            assert_eq!(setup.cuCtxSetCurrent(peer), 0);
            let of_peer = setup.stream();
            setup.fill(block, 3, PAGE, of_peer);
            assert_eq!(setup.cuStreamSynchronize(of_peer), 0, "{settings:?}, {peer_comes_first}");
            assert_eq!(setup.now(block, 64), [3; 64]);
            // The program's own permission comes late and is its first, and the next one its
            // second.
            for code in [0, 704] {
                // SAFETY: the context lives.
                let enabled = unsafe { setup.process.ctx_enable_peer_access(CuContext(setup.context as usize), 0) };
                assert_eq!(enabled.0, code);
            }
        }
    }
}

#[test]
fn ordered_memory_serves_its_stream_at_once_and_others_behind_their_work() {
    let setup = Setup::new();
    let (one, two) = (setup.stream(), setup.stream());
    let block = setup.take_on(PAGE, one);
    setup.control.hold(one).expect("a stream");
    setup.fill(block, 1, PAGE, one);
    assert_eq!(setup.give_on(block, one), 0);
    assert_eq!(setup.take_on(PAGE, one), block, "in the order of the stream");
    assert_ne!(setup.take_on(PAGE, two), block);
    setup.control.release(one).expect("held");
    // A free on another stream is a use by that stream.
    setup.control.hold(two).expect("a stream");
    setup.fill(block, 2, PAGE, two);
    assert_eq!(setup.give_on(block, two), 0);
    assert_ne!(setup.take_on(PAGE, one), block, "the use by the other stream is not complete");
    setup.control.release(two).expect("held");
    assert_eq!(setup.cuCtxSynchronize(), 0);
    assert_eq!(setup.take_on(PAGE, one), block);
    assert_eq!(setup.control.calls("cuMemAllocAsync"), 0);
}

#[test]
fn memory_of_either_kind_may_be_freed_by_the_function_of_the_other() {
    let setup = Setup::new();
    let stream = setup.stream();
    setup.control.hold(stream).expect("a stream");
    let (plain, ordered) = (setup.take(PAGE), setup.take_on(PAGE, stream));
    setup.fill(plain, 1, PAGE, stream);
    assert_eq!((setup.give_on(plain, stream), setup.give(ordered)), (0, 0));
    assert_eq!((setup.give_on(plain, stream), setup.give(ordered)), (1, 1), "double frees");
    assert_eq!(setup.give_on(ordered + 512, stream), 1);
    assert_ne!(setup.take(PAGE), plain);
    setup.control.release(stream).expect("held");
    assert_eq!(setup.cuCtxSynchronize(), 0);
    assert_eq!(setup.take(PAGE), plain);
    assert_eq!(setup.take_on(PAGE, stream), ordered);
}

#[test]
fn other_pools_and_shared_pools_are_the_drivers() {
    let setup = Setup::new();
    let stream = setup.stream();
    let from = |pool: u64| {
        let calls = setup.control.calls("cuMemAllocFromPoolAsync");
        let (mut address, pool) = (0, CuMemoryPool(pool as usize));
        // SAFETY: `address` outlives the call, and the pool and the stream live.
        let code =
            unsafe { setup.process.mem_alloc_from_pool_async(&raw mut address, PAGE, pool, CuStream(stream as usize)) };
        assert_eq!(code.0, 0);
        assert_eq!(setup.give_on(address, stream), 0);
        setup.control.calls("cuMemAllocFromPoolAsync") - calls
    };
    let default = setup.default_pool(0).expect("a pool");
    let mut other = 0;
    let properties = cachalot_emulated_driver::api::PoolProperties::of_device(0);
    assert_eq!(setup.cuMemPoolCreate(&mut other, &properties), 0);
    assert_eq!((from(default), from(other)), (0, 1));
    // SAFETY: the pool lives.
    let choose = |pool: u64| unsafe { setup.process.device_set_mem_pool(CuDevice(0), CuMemoryPool(pool as usize)) }.0;
    let asynchronous = || {
        let calls = setup.control.calls("cuMemAllocAsync");
        assert_eq!(setup.give_on(setup.take_on(PAGE, stream), stream), 0);
        setup.control.calls("cuMemAllocAsync") - calls
    };
    assert_eq!((choose(other), asynchronous(), choose(default), asynchronous()), (0, 1, 0, 0));
    // SAFETY: the pool lives, and no descriptor is read.
    let _ = unsafe { setup.process.mem_pool_set_access(CuMemoryPool(default as usize), std::ptr::null(), 0) };
    assert_eq!((from(default), asynchronous()), (1, 1));
}

#[test]
fn a_pool_that_is_shared_before_the_first_request_is_the_drivers() {
    let setup = Setup::new();
    let peer = setup.retain(1);
    assert_eq!(setup.open_default_pool(0, 1), 0);
    let block = setup.take_on(PAGE, setup.stream());
    assert_eq!((setup.control.calls("cuMemAllocAsync"), setup.cuCtxSynchronize()), (1, 0));
    assert_eq!(setup.cuCtxSetCurrent(peer), 0);
    let of_peer = setup.stream();
    setup.fill(block, 3, PAGE, of_peer);
    assert_eq!((setup.cuStreamSynchronize(of_peer), setup.now(block, 8)), (0, vec![3; 8]));
}

#[test]
fn a_destroyed_stream_leaves_its_memory_to_others() {
    let limit = 8 * PAGE as u64;
    let setup = Setup::with(&[], Options { limit: Some(limit), ..Options::default() });
    for _ in 0..10 {
        let stream = setup.stream();
        let block = setup.take_on(6 * PAGE, stream);
        setup.fill(block, 1, 6 * PAGE, stream);
        assert_eq!(setup.give_on(block, stream), 0);
        // SAFETY: the stream is not used afterwards.
        assert_eq!(unsafe { setup.process.stream_destroy(CuStream(stream as usize)) }.0, 0);
    }
    assert_ne!(setup.take(7 * PAGE), 0);
}

#[test]
fn memory_of_the_driver_is_no_longer_charged_when_its_context_is_gone() {
    let limit = Some(24 * PAGE as u64);
    let setup = Setup::with(&[], Options { observe: true, limit, ..Options::default() });
    // Other sizes each time: the addresses of one context say nothing about those of the next.
    for sizes in [[1; 20].as_slice(), &[6], &[20]] {
        let context = create(&setup, 0);
        sizes.iter().for_each(|pages| assert!(setup.try_take(pages * PAGE).is_ok(), "{sizes:?}"));
        // SAFETY: no other thread uses the context.
        assert_eq!(unsafe { setup.process.ctx_destroy(CuContext(context as usize)) }.0, 0);
        assert_eq!(setup.cuCtxSetCurrent(setup.context), 0);
    }
}

#[test]
fn a_context_that_follows_one_under_the_same_handle_is_served_anew() {
    let setup = Setup::new();
    // SAFETY: no other thread uses the context.
    assert_eq!(unsafe { setup.process.device_primary_ctx_release(CuDevice(0)) }.0, 0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for round in 0..1500 {
                    let context = setup.retain(0);
                    assert_eq!(setup.cuCtxSetCurrent(context), 0);
                    let block = setup.take(512);
                    assert_eq!(setup.cuMemsetD8Async(block, 1, 512, 0), 0, "round {round}");
                    assert_eq!((setup.give(block), setup.cuCtxSetCurrent(0)), (0, 0));
                    // SAFETY: the thread uses the context no longer.
                    assert_eq!(unsafe { setup.process.device_primary_ctx_release(CuDevice(0)) }.0, 0);
                }
            });
        }
    });
}

/// Makes a green context on device 0. Returns the handle, and the context.
fn create_green(setup: &Setup) -> (CuGreenContext, u64) {
    let (mut green, resources) = (CuGreenContext(0), std::ptr::dangling_mut());
    // SAFETY: `green` outlives the call, and the emulated driver reads no description.
    assert_eq!(unsafe { setup.process.green_ctx_create(&raw mut green, resources, CuDevice(0), 1) }.0, 0);
    let mut context = 0;
    assert_eq!(setup.cuCtxFromGreenCtx(&mut context, green.0 as u64), 0);
    (green, context)
}

#[test]
fn a_green_context_is_served_from_the_memory_of_its_primary_context() {
    let setup = Setup::new();
    let free = setup.take(PAGE);
    let (green, context) = create_green(&setup);
    assert_eq!((setup.give(free), setup.cuCtxSetCurrent(context)), (0, 0));
    let stream = setup.stream();
    let block = setup.take(PAGE);
    assert_eq!(block, free, "one allocator serves both");
    setup.control.hold(stream).expect("a stream");
    setup.fill(block, 7, PAGE, stream);
    assert_eq!((setup.give(block), setup.take(PAGE) == block), (0, false), "the work of the green context is awaited");
    setup.control.release(stream).expect("held");
    let kept = setup.take_on(512, stream);
    assert_eq!((setup.give_on(kept, stream), setup.cuStreamSynchronize(stream)), (0, 0));
    let kept = setup.take(3 * PAGE);
    // SAFETY: no other thread uses the green context.
    assert_eq!(unsafe { setup.process.green_ctx_destroy(green) }.0, 0);
    assert_eq!(setup.cuCtxSetCurrent(setup.context), 0);
    setup.fill(kept, 1, 3 * PAGE, setup.stream());
    assert_eq!((setup.cuCtxSynchronize(), setup.now(kept, 4), setup.give(kept)), (0, vec![1; 4], 0));
}

#[test]
fn default_streams_of_a_green_context_are_not_those_of_the_primary_one() {
    let setup = Setup::new();
    let (_, context) = create_green(&setup);
    let ordered = setup.take_on(PAGE, setup.stream());
    assert_eq!(setup.cuCtxSetCurrent(context), 0);
    let passed = setup.take_on(512, 0);
    assert_eq!((setup.control.calls("cuMemAllocAsync"), setup.give_on(passed, 0)), (1, 0));
    setup.control.hold(0).expect("a stream");
    setup.fill(ordered, 7, PAGE, 0);
    assert_eq!((setup.give_on(ordered, 0), setup.cuCtxSetCurrent(setup.context)), (0, 0));
    assert_ne!(setup.take_on(PAGE, setup.stream()), ordered, "pending memory has served");
    assert_eq!(setup.cuCtxSetCurrent(context), 0);
    setup.control.release(0).expect("held");
    assert_eq!(setup.cuCtxSynchronize(), 0);
}

#[test]
fn the_last_green_context_ends_a_primary_context_that_nobody_retains() {
    let setup = Setup::new();
    let ((first, _), (second, _)) = (create_green(&setup), create_green(&setup));
    let block = setup.take(PAGE);
    // SAFETY: no other thread uses the contexts.
    let destroy = |green| unsafe { setup.process.green_ctx_destroy(green) }.0;
    // SAFETY: as above.
    assert_eq!(unsafe { setup.process.device_primary_ctx_release(CuDevice(0)) }.0, 0);
    assert_eq!((destroy(first), setup.process.counts().used_bytes), (0, PAGE as u64));
    assert_eq!((destroy(second), setup.process.counts().held_bytes, destroy(second)), (0, 0, 201));
    setup.retain(0);
    assert_eq!(setup.give(block), 1);
}
