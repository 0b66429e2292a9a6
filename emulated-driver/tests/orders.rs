//! Several contexts on a device: events of a whole context, waits of a whole context, the end of a
//! context, and what a free waits for. The codes are those of driver 580.159 on an H100.

use crate::common::{Emulated, PAGE};
use std::ffi::c_void;
use std::time::{Duration, Instant};

/// Milliseconds of the long piece of work.
const LONG_MS: u64 = 60;

/// A piece of work that takes [`LONG_MS`].
unsafe extern "C" fn last_long(_argument: *mut c_void) {
    std::thread::sleep(Duration::from_millis(LONG_MS));
}

/// Creates a second context on device 0, which becomes current.
fn second(driver: &Emulated) -> u64 {
    let mut context = 0;
    assert_eq!(driver.cuCtxCreate_v2(&mut context, 0, 0), 0);
    context
}

/// Creates a driver, and returns the primary context of device 0.
fn with_context() -> (Emulated, u64) {
    let driver = Emulated::new();
    let context = driver.enter(0).expect("a context");
    (driver, context)
}

/// Returns the milliseconds of a call.
fn milliseconds(call: impl FnOnce()) -> u64 {
    let start = Instant::now();
    call();
    start.elapsed().as_millis() as u64
}

#[test]
fn a_free_takes_as_long_as_the_work_of_its_own_context() {
    let (driver, own) = with_context();
    let stream = driver.stream(1).expect("a stream");
    let (plain, mut managed, mut host) = (driver.alloc(PAGE).expect("memory"), 0, std::ptr::null_mut());
    assert_eq!((driver.cuMemAllocManaged(&mut managed, 8, 1), driver.cuMemAllocHost_v2(&mut host, 8)), (0, 0));
    let long = || assert_eq!(driver.cuLaunchHostFunc(stream, last_long, std::ptr::null_mut()), 0);
    for (name, free) in [
        ("plain", &(|| assert_eq!(driver.cuMemFree_v2(plain), 0)) as &dyn Fn()),
        ("managed", &|| assert_eq!(driver.cuMemFree_v2(managed), 0)),
        ("pinned", &|| assert_eq!(driver.cuMemFreeHost(host), 0)),
    ] {
        long();
        let took = milliseconds(free);
        assert!(took + 5 >= LONG_MS, "{name}: {took} ms");
    }
    // Work of another context of the same device is not waited for.
    second(&driver);
    let other = driver.alloc(PAGE).expect("memory");
    driver.control.hold(stream).expect("a stream");
    long();
    assert_eq!(driver.cuMemFree_v2(other), 0);
    assert_eq!(driver.control.pending(stream), 1);
    driver.control.release(stream).expect("a stream");
    assert_eq!((driver.cuCtxSetCurrent(own), driver.cuCtxSynchronize()), (0, 0));
}

#[test]
fn an_event_of_a_context_is_complete_with_the_work_of_every_stream() {
    let (driver, context) = with_context();
    let (blocking, free) = (driver.stream(0).expect("a stream"), driver.stream(1).expect("a stream"));
    let (event, address) = (driver.event().expect("an event"), driver.alloc(8).expect("memory"));
    let mut timed = [0; 2];
    assert_eq!((driver.cuEventCreate(&mut timed[0], 0), driver.cuEventCreate(&mut timed[1], 0)), (0, 0));
    assert_eq!(driver.cuCtxRecordEvent(context, timed[0]), 0);
    for stream in [blocking, free] {
        driver.control.hold(stream).expect("a stream");
        assert_eq!(driver.cuMemsetD8Async(address, 1, 8, stream), 0);
    }
    assert_eq!((driver.cuCtxRecordEvent(context, event), driver.cuCtxRecordEvent(context, timed[1])), (0, 0));
    assert_eq!((driver.cuEventQuery(event), driver.cuEventQuery(timed[1])), (600, 600));
    driver.control.release(free).expect("a stream");
    assert_eq!((driver.cuStreamSynchronize(free), driver.cuEventQuery(event)), (0, 600));
    // Work that comes later delays no event.
    driver.control.hold(free).expect("a stream");
    assert_eq!(driver.cuMemsetD8Async(address, 2, 8, free), 0);
    driver.control.release(blocking).expect("a stream");
    assert_eq!((driver.cuEventSynchronize(event), driver.cuEventQuery(event)), (0, 0));
    assert_eq!(driver.cuEventSynchronize(timed[1]), 0);
    let mut took = -1.0;
    assert_eq!(driver.cuEventElapsedTime_v2(&mut took, timed[0], timed[1]), 0);
    assert!(took > 0.0, "{took}");
    driver.control.release(free).expect("a stream");
    assert_eq!(driver.cuCtxSynchronize(), 0);
}

#[test]
fn a_context_that_waits_holds_present_and_later_streams_and_no_other_context() {
    let (driver, context) = with_context();
    let (busy, idle) = (driver.stream(1).expect("a stream"), driver.stream(1).expect("a stream"));
    let event = driver.event().expect("an event");
    let nothing = || driver.cuLaunchHostFunc(idle, short, std::ptr::null_mut());
    driver.control.hold(busy).expect("a stream");
    assert_eq!(driver.cuLaunchHostFunc(busy, short, std::ptr::null_mut()), 0);
    assert_eq!((driver.cuEventRecord(event, busy), driver.cuCtxWaitEvent(context, event)), (0, 0));
    assert_eq!(nothing(), 0);
    let later = driver.stream(1).expect("a stream");
    assert_eq!(driver.cuLaunchHostFunc(later, short, std::ptr::null_mut()), 0);
    second(&driver);
    let elsewhere = driver.stream(1).expect("a stream");
    assert_eq!(driver.cuLaunchHostFunc(elsewhere, short, std::ptr::null_mut()), 0);
    assert_eq!(driver.cuStreamSynchronize(elsewhere), 0);
    assert_eq!([idle, later].map(|stream| driver.control.pending(stream)), [1, 1]);
    driver.control.release(busy).expect("a stream");
    assert_eq!((driver.cuCtxSetCurrent(context), driver.cuCtxSynchronize()), (0, 0));
    assert_eq!((nothing(), driver.cuStreamSynchronize(idle)), (0, 0));
}

/// A piece of work that takes no time.
unsafe extern "C" fn short(_argument: *mut c_void) {}

#[test]
fn events_and_contexts_that_do_not_fit_are_refused() {
    let (driver, context) = with_context();
    let (event, never) = (driver.event().expect("an event"), driver.event().expect("an event"));
    let other = second(&driver);
    let others = driver.event().expect("an event");
    assert_eq!(driver.cuCtxSetCurrent(context), 0);
    let record = |context, event| driver.cuCtxRecordEvent(context, event);
    let wait = |context, event| driver.cuCtxWaitEvent(context, event);
    assert_eq!([record(context, event), record(other, event), record(other, others)], [0, 400, 0]);
    assert_eq!([record(0, event), record(context, 0), record(12_345, event)], [201, 400, 709]);
    assert_eq!([wait(context, event), wait(context, others), wait(context, never)], [0, 0, 0]);
    assert_eq!([wait(0, event), wait(context, 0)], [201, 400]);
    assert_eq!(driver.cuCtxDestroy_v2(other), 0);
    assert_eq!((record(other, event), driver.cuCtxSynchronize_v2(other)), (709, 709));
    assert_eq!(driver.cuCtxSynchronize_v2(context), 0);
    let mut device = 7;
    assert_eq!((driver.cuCtxGetDevice_v2(&mut device, context), device), (0, 0));
}

#[test]
fn events_of_a_context_break_a_capture_in_every_mode() {
    for mode in 0..3 {
        let (driver, context) = with_context();
        let (stream, event) = (driver.stream(1).expect("a stream"), driver.event().expect("an event"));
        assert_eq!(driver.cuStreamBeginCapture_v2(stream, mode), 0);
        assert_eq!((driver.cuCtxRecordEvent(context, event), driver.end_capture(stream)), (900, Err(901)));
        assert_eq!(driver.cuStreamBeginCapture_v2(stream, mode), 0);
        assert_eq!((driver.cuCtxWaitEvent(context, event), driver.end_capture(stream)), (900, Err(901)));
    }
}

#[test]
fn contexts_are_made_in_three_ways_with_known_flags() {
    let (driver, primary) = with_context();
    let mut made = [0; 4];
    assert_eq!(driver.cuCtxCreate_v2(&mut made[0], 0x80, 0), 0);
    assert_eq!(driver.cuCtxCreate_v3(&mut made[1], std::ptr::null_mut(), 0, 0, 0), 0);
    assert_eq!(driver.cuCtxCreate_v4(&mut made[2], std::ptr::null_mut(), 0, 0), 0);
    // CUDA 13's headers give every context parameters, mostly without contents. The length has four
    // bytes.
    let parameters = |words: &mut [u64; 3]| words.as_mut_ptr().cast();
    assert_eq!(driver.cuCtxCreate_v4(&mut made[3], parameters(&mut [0, 1 << 32, 0]), 0, 0), 0);
    for mut words in [[1, 0, 0], [0, 1, 0], [0, 0, 1]] {
        assert_eq!(driver.cuCtxCreate_v4(&mut 0, parameters(&mut words), 0, 0), 801);
    }
    assert_eq!((driver.cuCtxCreate_v2(&mut 0, 0x1000, 0), driver.cuCtxCreate_v2(&mut 0, 0, 99)), (1, 101));
    let mut current = 0;
    assert_eq!((driver.cuCtxGetCurrent(&mut current), current), (0, made[3]));
    assert_eq!(driver.cuCtxSetCurrent(primary), 0);
    // On one device there is nothing to enable.
    assert_eq!(made.map(|context| driver.cuCtxEnablePeerAccess(context, 0)), [217; 4]);
    assert_eq!(made.map(|context| driver.cuCtxDestroy_v2(context)), [0; 4]);
    assert_eq!(driver.count("contexts"), 1);
}

#[test]
fn memory_ends_with_its_context() {
    let (driver, primary) = with_context();
    let free = driver.info().expect("info").0;
    let other = second(&driver);
    let (address, mut context) = (driver.alloc(PAGE).expect("memory"), 0_u64);
    assert_eq!(driver.cuCtxSetCurrent(primary), 0);
    assert_eq!(driver.cuPointerGetAttribute((&raw mut context).cast(), 1, address), 0);
    assert_eq!(context, other);
    assert_eq!(driver.cuCtxDestroy_v2(other), 0);
    assert_eq!((driver.cuMemFree_v2(address), driver.info().map(|info| info.0)), (1, Ok(free)));
    assert_eq!(driver.cuPointerGetAttribute((&raw mut context).cast(), 1, address), 1);
}

#[test]
fn a_reset_ends_the_primary_context_and_keeps_the_retains() {
    let (driver, context) = with_context();
    let state = |driver: &Emulated| {
        let (mut flags, mut active) = (9, 9);
        assert_eq!(driver.cuDevicePrimaryCtxGetState(0, &mut flags, &mut active), 0);
        (flags, active)
    };
    assert_eq!((driver.cuDevicePrimaryCtxSetFlags_v2(0, 4), driver.cuDevicePrimaryCtxSetFlags_v2(0, 0x1000)), (0, 1));
    assert_eq!(state(&driver), (4, 1));
    // `with_context` has retained twice.
    assert_eq!(driver.cuDevicePrimaryCtxRelease_v2(0), 0);
    let address = driver.alloc(PAGE).expect("memory");
    assert_eq!((driver.cuDevicePrimaryCtxReset_v2(0), driver.cuDevicePrimaryCtxReset_v2(99)), (0, 101));
    assert_eq!((state(&driver), driver.count("allocations"), driver.count("contexts")), ((0, 0), 0, 0));
    assert_eq!((driver.alloc(8), driver.cuCtxSynchronize(), driver.cuMemFree_v2(address)), (Err(709), 709, 709));
    let mut current = 0;
    assert_eq!((driver.cuCtxGetCurrent(&mut current), current), (0, context));
    assert_eq!((driver.cuCtxSetCurrent(context), driver.alloc(8)), (0, Err(709)));
    // The retain from before the reset is still there.
    assert_eq!((driver.cuDevicePrimaryCtxRelease_v2(0), driver.cuDevicePrimaryCtxRelease_v2(0)), (0, 201));
    assert_eq!(driver.enter(0), Ok(context));
    assert_eq!(driver.cuMemFree_v2(address), 1);
    assert!(driver.alloc(8).is_ok());
    assert_eq!([(); 2].map(|()| driver.cuDevicePrimaryCtxReset_v2(0)), [0, 0]);
    assert_eq!(driver.enter(0), Ok(context), "two retains now");
    assert_eq!([(); 3].map(|()| driver.cuDevicePrimaryCtxRelease_v2(0)), [0, 0, 201]);
}

#[test]
fn a_capture_forbids_what_makes_memory_and_permits_a_library() {
    let driver = Emulated::new();
    let stream = driver.stream(1).expect("a stream");
    let captured = |call: &dyn Fn() -> u32| {
        assert_eq!(driver.cuStreamBeginCapture_v2(stream, 0), 0);
        (call(), driver.end_capture(stream).err())
    };
    let broken = (900, Some(901));
    assert_eq!(captured(&|| driver.cuMemAllocPitch_v2(&mut 0, &mut 0, 8, 8, 4)), broken);
    assert_eq!(captured(&|| driver.cuMemAllocManaged(&mut 0, 8, 1)), broken);
    assert_eq!(captured(&|| driver.cuMemAllocHost_v2(&mut std::ptr::null_mut(), 8)), broken);
    let (options, values) = (std::ptr::null_mut(), std::ptr::null_mut());
    let load = || driver.cuLibraryLoadData(&mut 0, c"rubbish".as_ptr().cast(), options, values, 0, options, values, 0);
    assert_eq!(captured(&load), (0, None));
}
