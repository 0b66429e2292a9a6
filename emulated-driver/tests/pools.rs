//! Stream-ordered memory: the order of the stream, reuse, and the memory kept by a pool.

use crate::common::{Emulated, PAGE, in_child, is_child, text};
use cachalot_emulated_driver::api::{Access, PoolProperties};
use std::os::unix::process::ExitStatusExt;

/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT` and `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`.
const RESERVED: i32 = 5;
const USED: i32 = 7;

/// Creates a driver with a non-blocking stream.
fn with_stream() -> (Emulated, u64) {
    let driver = Emulated::new();
    let stream = driver.stream(1).expect("a stream");
    (driver, stream)
}

#[test]
fn memory_can_be_used_after_the_allocation_in_the_stream() {
    let (driver, stream) = with_stream();
    for bytes in [1, 5000, PAGE, 3 * PAGE + 1] {
        let address = driver.alloc_async(bytes, stream).expect("memory");
        assert_eq!(address % 512, 0);
        assert_eq!(driver.cuMemsetD8Async(address, 7, bytes, stream), 0);
        assert_eq!(driver.cuStreamSynchronize(stream), 0);
        assert_eq!(driver.read(address, bytes), Ok(vec![7; bytes]));
        assert_eq!(driver.cuMemFreeAsync(address, stream), 0);
        assert_eq!(driver.cuMemFreeAsync(address, stream), 1);
    }
    assert_eq!(driver.count("allocations"), 0);
}

#[test]
fn a_freed_address_is_the_same_streams_at_once_and_anothers_when_the_free_is_done() {
    for bytes in [512, PAGE] {
        let (driver, stream) = with_stream();
        let other = driver.stream(1).expect("a stream");
        let address = driver.alloc_async(bytes, stream).expect("memory");
        driver.control.hold(stream).expect("a stream");
        assert_eq!(driver.cuMemFreeAsync(address, stream), 0);
        let elsewhere = driver.alloc_async(bytes, other).expect("memory");
        assert_ne!(elsewhere, address);
        assert_eq!(driver.alloc_async(bytes, stream), Ok(address));
        assert_eq!(driver.cuMemFreeAsync(address, stream), 0);
        driver.control.release(stream).expect("a stream");
        assert_eq!(driver.cuCtxSynchronize(), 0);
        let pool = driver.default_pool(0).expect("a pool");
        assert_eq!(driver.set_pool_attribute(pool, 4, u64::MAX), 0);
        assert_eq!(driver.alloc_async(bytes, other), Ok(address));
    }
}

#[test]
fn a_pool_keeps_as_much_as_its_threshold_says() {
    let (driver, stream) = with_stream();
    let pool = driver.default_pool(0).expect("a pool");
    let read = |attribute| driver.pool_attribute(pool, attribute).expect("an attribute");
    let total = driver.info().expect("info").0;
    let round = || {
        let address = driver.alloc_async(4 * PAGE, stream).expect("memory");
        assert_eq!((read(USED), read(RESERVED)), (4 * PAGE as u64, 4 * PAGE as u64));
        assert_eq!(driver.info().expect("info").0, total - 4 * PAGE);
        assert_eq!(driver.cuMemFreeAsync(address, stream), 0);
        assert_eq!(driver.cuStreamSynchronize(stream), 0);
        assert_eq!(read(USED), 0);
        address
    };
    round();
    assert_eq!((read(RESERVED), driver.info().expect("info").0), (0, total));
    assert_eq!(driver.set_pool_attribute(pool, 4, 4 * PAGE as u64), 0);
    let kept = round();
    assert_eq!(read(RESERVED), 4 * PAGE as u64);
    assert_eq!(round(), kept);
    assert_eq!((driver.cuMemPoolTrimTo(pool, 0), read(RESERVED)), (0, 0));
}

#[test]
fn what_pools_keep_is_given_up_for_a_request_that_needs_it() {
    let (driver, stream) = with_stream();
    let pool = driver.default_pool(0).expect("a pool");
    assert_eq!(driver.set_pool_attribute(pool, 4, u64::MAX), 0);
    let kept = driver.alloc_async(1 << 29, stream).expect("half of the device");
    assert_eq!(driver.cuMemFreeAsync(kept, stream), 0);
    assert_eq!(driver.cuStreamSynchronize(stream), 0);
    let large = driver.alloc_async(1 << 30, stream).expect("all of the device");
    assert_eq!(driver.alloc_async(1, stream), Err(2));
    assert_eq!(driver.cuMemFreeAsync(large, stream), 0);
}

#[test]
fn a_destroyed_pool_lives_as_long_as_its_memory() {
    let (driver, stream) = with_stream();
    let free = driver.info().expect("info").0;
    let mut pool = 0;
    assert_eq!(driver.cuMemPoolCreate(&mut pool, &PoolProperties::of_device(0)), 0);
    assert_eq!(driver.count("pools"), 1);
    let mut address = 0;
    assert_eq!(driver.cuMemAllocFromPoolAsync(&mut address, PAGE, pool, stream), 0);
    assert_eq!((driver.cuMemPoolDestroy(pool), driver.cuMemPoolDestroy(pool)), (0, 1));
    assert_eq!(driver.cuMemAllocFromPoolAsync(&mut 0, PAGE, pool, stream), 1);
    assert_eq!(driver.cuMemsetD8Async(address, 3, PAGE, stream), 0);
    assert_eq!(driver.cuMemFreeAsync(address, stream), 0);
    assert_eq!(driver.cuStreamSynchronize(stream), 0);
    assert_eq!((driver.count("pools"), driver.info().expect("info").0), (0, free));
}

#[test]
fn both_frees_take_both_kinds_of_memory() {
    let (driver, stream) = with_stream();
    let free = driver.info().expect("info").0;
    for bytes in [100, PAGE] {
        let plain = driver.alloc(bytes).expect("memory");
        assert_eq!(driver.cuMemFreeAsync(plain, stream), 0);
        let ordered = driver.alloc_async(bytes, stream).expect("memory");
        assert_eq!((driver.cuMemFree_v2(ordered), driver.cuMemFree_v2(ordered)), (0, 1));
    }
    assert_eq!(driver.cuStreamSynchronize(stream), 0);
    assert_eq!((driver.count("allocations"), driver.info().expect("info").0), (0, free));
}

#[test]
fn the_end_of_a_context_keeps_the_memory_of_pools() {
    let (driver, stream) = with_stream();
    let pool = driver.default_pool(0).expect("a pool");
    let total = driver.info().expect("info").1;
    let mut kept = Vec::new();
    for bytes in [100, PAGE] {
        kept.push(driver.alloc_async(bytes, stream).expect("memory"));
        let freed = driver.alloc_async(bytes, stream).expect("memory");
        assert_eq!(driver.cuMemFreeAsync(freed, stream), 0);
    }
    assert_eq!(driver.cuDevicePrimaryCtxRelease_v2(0), 0);
    let amounts = || (driver.pool_attribute(pool, USED), driver.pool_attribute(pool, RESERVED));
    assert_eq!(amounts(), (Ok(100 + PAGE as u64), Ok(2 * PAGE as u64)));
    driver.enter(0).expect("a context");
    assert_eq!(driver.info(), Ok((total - 2 * PAGE, total)));
    // The memory is as usable as before, and can be freed in another context.
    for address in kept {
        assert_eq!((driver.cuMemsetD8Async(address, 1, 100, 0), driver.cuMemFreeAsync(address, 0)), (0, 0));
    }
    assert_eq!((driver.cuCtxSynchronize(), amounts()), (0, (Ok(0), Ok(0))));
    assert_eq!(driver.info(), Ok((total, total)));
}

#[test]
fn a_free_at_once_of_a_pool_waits_for_nothing() {
    let (driver, stream) = with_stream();
    let pool = driver.default_pool(0).expect("a pool");
    let there = driver.alloc_async(PAGE, stream).expect("memory");
    assert_eq!(driver.cuStreamSynchronize(stream), 0);
    driver.control.hold(stream).expect("a stream");
    let queued = driver.alloc_async(PAGE, stream).expect("memory");
    assert_eq!((driver.cuMemFree_v2(there), driver.cuMemFree_v2(queued)), (0, 0));
    // The first is free for others; the second becomes free when the allocation has run.
    let other = driver.stream(1).expect("a stream");
    assert_eq!(driver.alloc_async(PAGE, other), Ok(there));
    driver.control.release(stream).expect("a stream");
    assert_eq!((driver.cuMemFreeAsync(there, other), driver.cuCtxSynchronize()), (0, 0));
    assert_eq!(driver.pool_attribute(pool, RESERVED), Ok(0));
}

/// Runs the named test in a child, and expects the child to be killed by the work of `mistake`.
fn kills(test: &str, mistake: impl FnOnce(&Emulated, u64)) {
    if is_child(test) {
        let (driver, stream) = with_stream();
        mistake(&driver, stream);
        std::process::exit(0);
    }
    let output = in_child(test, &[]);
    assert_eq!(output.status.signal(), Some(libc::SIGSEGV), "{}", text(&output));
}

#[test]
fn work_of_another_stream_before_the_allocation_is_killed() {
    kills("work_of_another_stream_before_the_allocation_is_killed", |driver, stream| {
        let other = driver.stream(1).expect("a stream");
        driver.control.hold(stream).expect("a stream");
        let address = driver.alloc_async(PAGE, stream).expect("memory");
        assert_eq!(driver.cuMemsetD8Async(address, 1, PAGE, other), 0);
        driver.cuStreamSynchronize(other);
    });
}

#[test]
fn work_of_another_stream_after_the_free_is_killed() {
    kills("work_of_another_stream_after_the_free_is_killed", |driver, stream| {
        let other = driver.stream(1).expect("a stream");
        let address = driver.alloc_async(PAGE, stream).expect("memory");
        assert_eq!(driver.cuStreamSynchronize(stream), 0);
        driver.control.hold(other).expect("a stream");
        assert_eq!(driver.cuMemsetD8Async(address, 1, PAGE, other), 0);
        assert_eq!(driver.cuMemFreeAsync(address, stream), 0);
        assert_eq!(driver.cuStreamSynchronize(stream), 0);
        driver.control.release(other).expect("a stream");
        driver.cuStreamSynchronize(other);
    });
}

#[test]
fn a_device_without_pools_says_so() {
    let test = "a_device_without_pools_says_so";
    if is_child(test) {
        let (driver, stream) = with_stream();
        assert_eq!((driver.alloc_async(1, stream), driver.default_pool(0)), (Err(801), Err(801)));
        return;
    }
    let output = in_child(test, &[("CACHALOT_EMU_ATTRIBUTES", r#"{"115": 0}"#)]);
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn a_pool_is_open_to_the_devices_that_the_program_names() {
    let (driver, stream) = with_stream();
    let pool = driver.default_pool(0).expect("a pool");
    let set = |device, flags| {
        let access = Access { flags, ..Access::full(device) };
        driver.cuMemPoolSetAccess(pool, &raw const access, 1)
    };
    assert_eq!((set(0, 3), set(0, 0), set(1, 1), set(99, 3)), (0, 1, 1, 1));
    let before = driver.alloc_async(PAGE, stream).expect("memory");
    assert_eq!(driver.cuStreamSynchronize(stream), 0);
    assert_eq!((set(1, 3), set(1, 3)), (0, 0));
    let after = driver.alloc_async(PAGE, stream).expect("memory");
    assert_eq!(driver.cuStreamSynchronize(stream), 0);
    let (mut own, mut other) = (0, 0);
    assert_eq!(driver.cuCtxGetCurrent(&mut own), 0);
    assert_eq!(driver.cuDevicePrimaryCtxRetain(&mut other, 1), 0);
    assert_eq!(driver.cuCtxSetCurrent(other), 0);
    let peer = driver.stream(1).expect("a stream");
    for address in [before, after] {
        assert_eq!(driver.cuMemsetD8Async(address, 5, PAGE, peer), 0);
        assert_eq!(driver.cuStreamSynchronize(peer), 0);
        assert_eq!(driver.read(address, 64), Ok(vec![5; 64]));
    }
    assert_eq!(driver.cuCtxSetCurrent(own), 0);
    assert_eq!(driver.cuMemFreeAsync(before, stream), 0);
    assert_eq!(driver.cuMemFreeAsync(after, stream), 0);
}
