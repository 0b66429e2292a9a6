//! Contexts: each thread's stack, sticky errors, lost devices, destroyed contexts.

use crate::common::{Emulated, PAGE};

/// A sticky code: an illegal address.
const STICKY: u32 = 700;

#[test]
fn nothing_works_before_init_but_what_needs_none() {
    let driver = Emulated::without(&[]);
    assert_eq!((driver.alloc(1), driver.cuCtxGetCurrent(&mut 0), driver.cuDeviceGetCount(&mut 0)), (Err(3), 3, 3));
    let mut version = 0;
    assert_eq!((driver.cuDriverGetVersion(&mut version), version), (0, 13_000));
    assert_eq!((driver.cuInit(1), driver.cuInit(0), driver.cuInit(0)), (1, 0, 0));
    let mut count = 0;
    assert_eq!((driver.cuDeviceGetCount(&mut count), count), (0, 2));
    assert_eq!(
        (driver.cuDeviceGet(&mut 0, 1), driver.cuDeviceGet(&mut 0, 2), driver.cuDeviceGet(&mut 0, -1)),
        (0, 101, 101)
    );
}

#[test]
fn every_thread_has_its_own_stack() {
    let driver = Emulated::new();
    let first = driver.enter(0).expect("a context");
    let second = driver.enter(1).expect("a context");
    let mut popped = 0;
    assert_eq!(driver.cuCtxPushCurrent_v2(first), 0);
    assert_eq!((driver.cuCtxPopCurrent_v2(&mut popped), popped), (0, first));
    assert_eq!((driver.cuCtxGetCurrent(&mut popped), popped), (0, second));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut current = 1;
            assert_eq!((driver.cuCtxGetCurrent(&mut current), current), (0, 0));
            assert_eq!((driver.alloc(1), driver.stream(0), driver.event()), (Err(201), Err(201), Err(201)));
            assert_eq!((driver.cuCtxPopCurrent_v2(&mut 0), driver.cuCtxGetDevice(&mut 0)), (201, 201));
            // Virtual memory needs no context.
            assert!(driver.reserve(PAGE).is_ok() && driver.create(PAGE).is_ok());
        });
    });
    let mut device = 0;
    assert_eq!((driver.cuCtxGetDevice(&mut device), device), (0, 1));
    assert_eq!((driver.cuCtxSetCurrent(0), driver.cuCtxGetDevice(&mut device)), (0, 201));
    assert_eq!((driver.cuCtxPushCurrent_v2(0), driver.cuCtxPushCurrent_v2(12_345)), (1, 201));
}

#[test]
fn streams_and_events_of_different_contexts_do_not_mix() {
    let driver = Emulated::new();
    let event = driver.event().expect("an event");
    let other = driver.enter(1).expect("a context");
    let stream = driver.stream(1).expect("a stream");
    assert_eq!(driver.cuEventRecord(event, stream), 400);
    assert_eq!(driver.cuEventRecord(event, 0), 400);
    assert_eq!(driver.cuStreamWaitEvent(stream, event, 0), 0);
    let mut context = 0;
    driver.enter(0).expect("a context");
    assert_eq!((driver.cuStreamGetCtx(stream, &mut context), context), (0, other));
}

#[test]
fn a_sticky_error_is_answered_by_everything_in_its_context() {
    let driver = Emulated::new();
    let (stream, event) = (driver.stream(1).expect("a stream"), driver.event().expect("an event"));
    let address = driver.alloc(PAGE).expect("memory");
    driver.control.fail_later(stream, STICKY).expect("a stream");
    assert_eq!(driver.cuMemsetD8Async(address, 1, PAGE, stream) % STICKY, 0);
    assert_eq!(driver.cuStreamSynchronize(stream), STICKY);
    assert_eq!((driver.alloc(1), driver.cuMemFree_v2(address), driver.info()), (Err(STICKY), STICKY, Err(STICKY)));
    assert_eq!((driver.cuEventQuery(event), driver.cuEventRecord(event, stream)), (STICKY, STICKY));
    assert_eq!((driver.cuEventDestroy_v2(event), driver.cuStreamDestroy_v2(stream)), (STICKY, STICKY));
    assert_eq!((driver.cuCtxSynchronize(), driver.cuCtxGetCurrent(&mut 0)), (STICKY, 0));
    // The first error stays; the other device is well.
    driver.control.break_context(0, 719).expect("a context");
    assert_eq!(driver.alloc(1), Err(STICKY));
    driver.enter(1).expect("a context");
    assert!(driver.alloc(1).is_ok());
}

#[test]
fn work_after_the_error_is_not_done() {
    let driver = Emulated::new();
    let stream = driver.stream(1).expect("a stream");
    let address = driver.alloc(PAGE).expect("memory");
    driver.control.hold(stream).expect("a stream");
    driver.control.fail_later(stream, STICKY).expect("a stream");
    assert_eq!(driver.cuMemsetD8Async(address, 1, PAGE, stream), 0);
    driver.control.release(stream).expect("a stream");
    assert_eq!(driver.cuStreamSynchronize(stream), STICKY);
    assert_eq!(driver.control.peek(address, 2), Ok(vec![0xa5, 0xa5]));
}

#[test]
fn events_and_graphs_outlive_their_context_as_objects_of_none() {
    let driver = Emulated::new();
    let mut context = 0;
    assert_eq!(driver.cuCtxCreate_v2(&mut context, 0, 0), 0);
    let (stream, event) = (driver.stream(1).expect("a stream"), driver.event().expect("an event"));
    let (mut graph, mut executable) = (0, 0);
    assert_eq!((driver.cuEventRecord(event, stream), driver.cuGraphCreate(&mut graph, 0)), (0, 0));
    assert_eq!(driver.cuGraphInstantiateWithFlags(&mut executable, graph, 0), 0);
    assert_eq!(driver.cuCtxDestroy_v2(context), 0);
    let alive = driver.stream(1).expect("a stream");
    let of_event = [
        driver.cuEventQuery(event),
        driver.cuEventSynchronize(event),
        driver.cuEventRecord(event, alive),
        driver.cuStreamWaitEvent(alive, event, 0),
        driver.cuEventDestroy_v2(event),
    ];
    assert_eq!(of_event, [709; 5]);
    assert_eq!((driver.cuGraphLaunch(executable, alive), driver.cuGraphExecDestroy(executable)), (709, 709));
    assert_eq!((driver.count("events"), driver.count("executables")), (0, 0));
}

#[test]
fn a_context_has_a_limited_number_of_interprocess_events() {
    let driver = Emulated::new();
    let shared = |event: &mut u64| driver.cuEventCreate(event, 6);
    let mut last = 0;
    assert!((0..4096).all(|_| shared(&mut last) == 0));
    assert_eq!((shared(&mut 0), driver.cuEventCreate(&mut 0, 2)), (2, 0));
    assert_eq!((driver.cuEventDestroy_v2(last), shared(&mut 0), shared(&mut 0)), (0, 0, 2));
    let mut other = 0;
    assert_eq!((driver.cuCtxCreate_v2(&mut other, 0, 0), shared(&mut 0)), (0, 0));
}

#[test]
fn a_lost_device_breaks_its_contexts_and_gives_no_new_one() {
    let driver = Emulated::new();
    let stream = driver.stream(1).expect("a stream");
    driver.control.hold(stream).expect("a stream");
    let address = driver.alloc(PAGE).expect("memory");
    assert_eq!(driver.cuMemsetD8Async(address, 1, PAGE, stream), 0);
    driver.control.lose_device(0, 46).expect("a device");
    // Waits for work that can never end are refused.
    assert_eq!((driver.cuStreamSynchronize(stream), driver.cuCtxSynchronize()), (46, 46));
    assert_eq!((driver.cuDevicePrimaryCtxRetain(&mut 0, 0), driver.create(PAGE)), (46, Err(46)));
    assert!(driver.enter(1).is_ok());
    assert_eq!(driver.control.lose_device(5, 46).map_err(|why| why.0), Err(101));
}

#[test]
fn a_context_made_anew_has_the_former_handle_and_another_id() {
    let driver = Emulated::new();
    let id_of = |context| {
        let mut id = 0;
        let code = driver.cuCtxGetId(context, &mut id);
        if code == 0 { Ok(id) } else { Err(code) }
    };
    assert_eq!((driver.cuCtxSetCurrent(0), id_of(0)), (0, Err(201)));
    let context = driver.enter(0).expect("a context");
    let first = id_of(context).expect("an id");
    assert_eq!(id_of(0), Ok(first), "the current one");
    assert_eq!((driver.cuDevicePrimaryCtxReset_v2(0), id_of(context), id_of(0)), (0, Err(709), Err(709)));
    assert_eq!(driver.enter(0), Ok(context));
    assert!(id_of(context).is_ok_and(|id| id != first));
}

#[test]
fn a_primary_context_ends_with_its_last_release() {
    let driver = Emulated::new();
    let context = driver.enter(0).expect("a context");
    let (stream, event) = (driver.stream(1).expect("a stream"), driver.event().expect("an event"));
    assert!(driver.alloc(PAGE).is_ok() && stream != 0 && event != 0);
    assert_eq!((driver.cuDevicePrimaryCtxRelease_v2(0), driver.count("streams")), (0, 1));
    assert_eq!(driver.cuDevicePrimaryCtxRelease_v2(0), 0);
    assert_eq!((driver.count("allocations"), driver.count("streams"), driver.count("events")), (0, 0, 0));
    assert_eq!((driver.alloc(1), driver.cuCtxSynchronize()), (Err(709), 709));
    assert_eq!((driver.cuCtxGetDevice(&mut 1), driver.cuCtxSetCurrent(context), driver.alloc(1)), (0, 0, Err(709)));
    assert_eq!((driver.cuDevicePrimaryCtxRelease_v2(0), driver.cuDevicePrimaryCtxRelease_v2(1)), (201, 201));
    // A new life under the same handle.
    assert_eq!(driver.enter(0), Ok(context));
    assert_eq!(driver.info(), Ok((1 << 30, 1 << 30)));
}

#[test]
fn a_created_context_is_current_until_destroyed() {
    let driver = Emulated::new();
    let primary = driver.enter(0).expect("a context");
    let address = driver.alloc(PAGE).expect("memory");
    let (mut context, mut current) = (0, 0);
    assert_eq!(driver.cuCtxCreate_v2(&mut context, 0, 0), 0);
    assert_eq!((driver.cuCtxGetCurrent(&mut current), current), (0, context));
    assert!(driver.alloc(PAGE).is_ok());
    // Memory of another context may be freed here.
    assert_eq!(driver.cuMemFree_v2(address), 0);
    assert_eq!((driver.cuCtxDestroy_v2(context), driver.count("allocations")), (0, 0));
    assert_eq!((driver.cuCtxGetCurrent(&mut current), current), (0, primary));
    assert_eq!((driver.cuCtxDestroy_v2(context), driver.cuCtxDestroy_v2(primary)), (201, 201));
}

#[test]
fn a_context_destroyed_by_another_thread_is_refused() {
    let driver = Emulated::new();
    let mut context = 0;
    assert_eq!(driver.cuCtxCreate_v2(&mut context, 0, 0), 0);
    std::thread::scope(|scope| {
        assert_eq!(scope.spawn(|| driver.cuCtxDestroy_v2(context)).join().expect("joined"), 0);
    });
    assert_eq!((driver.alloc(1), driver.cuCtxSynchronize()), (Err(709), 709));
    assert_eq!(driver.cuCtxPopCurrent_v2(&mut 0), 0);
}

#[test]
fn a_context_ends_with_its_last_detachment() {
    let driver = Emulated::new();
    assert_eq!((driver.cuCtxAttach(&mut 0, 0), driver.cuCtxAttach(&mut 0, 1)), (201, 1), "a primary context");
    let (mut context, mut same) = (0, 0);
    assert_eq!(driver.cuCtxCreate_v2(&mut context, 0, 0), 0);
    assert_eq!((driver.cuCtxAttach(&mut same, 0), same), (0, context));
    let address = driver.alloc(PAGE).expect("memory");
    assert_eq!((driver.cuCtxDetach(context), driver.cuMemsetD8_v2(address, 0, PAGE)), (0, 0));
    assert_eq!((driver.cuCtxDetach(context), driver.cuCtxDetach(context)), (0, 201));
    assert_eq!((driver.cuCtxPushCurrent_v2(context), driver.cuMemFree_v2(address)), (201, 1));
}

#[test]
fn memory_of_a_green_context_is_the_primary_contexts() {
    let driver = Emulated::new();
    let primary = driver.enter(0).expect("a context");
    let (mut green, mut context) = (0, 0);
    let (none, some) = (std::ptr::null_mut(), std::ptr::without_provenance_mut(8));
    let refused = (driver.cuGreenCtxCreate(&mut green, none, 0, 1), driver.cuGreenCtxCreate(&mut green, some, 0, 0));
    assert_eq!(refused, (1, 1));
    assert_eq!(
        (driver.cuGreenCtxCreate(&mut green, some, 0, 1), driver.cuCtxFromGreenCtx(&mut context, green)),
        (0, 0)
    );
    assert!(context != green && context != primary);
    assert_eq!(driver.cuCtxSetCurrent(context), 0);
    let (address, stream) = (driver.alloc(PAGE).expect("memory"), driver.stream(1).expect("a stream"));
    let event = {
        assert_eq!(driver.cuCtxSetCurrent(primary), 0);
        driver.event().expect("an event")
    };
    driver.control.hold(stream).expect("a stream");
    assert_eq!(driver.cuMemsetD8Async(address, 1, PAGE, stream), 0);
    assert_eq!((driver.cuCtxRecordEvent(primary, event), driver.cuEventQuery(event)), (0, 600));
    driver.control.release(stream).expect("a stream");
    assert_eq!((driver.cuEventSynchronize(event), driver.cuGreenCtxDestroy(green)), (0, 0));
    assert_eq!((driver.cuGreenCtxDestroy(green), driver.cuCtxFromGreenCtx(&mut context, green)), (201, 201));
    assert_eq!((driver.read(address, 1), driver.cuMemFree_v2(address)), (Ok(vec![1]), 0));
}
