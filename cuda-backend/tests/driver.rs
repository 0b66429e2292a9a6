//! Tests of the device over a real driver or the emulated driver, for the assumptions of the unit
//! tests about a driver.
//!
//! Runs on the driver named by `CACHALOT_LIBCUDA`, or on `libcuda.so.1`. Without a driver, each
//! test prints a line and is skipped.

use cachalot_core::{DevicePtr, ErrorKind, Event, Segments, StreamId, StreamOrder, VirtualMemory};
use cachalot_cuda::driver::LIBRARY_VARIABLE;
use cachalot_cuda::driver::types::{
    CuCaptureMode, CuContext, CuDeviceAttribute, CuGraph, CuGraphExec, CuStream, CuStreamFlags,
};
use cachalot_cuda::{CuResult, CudaDevice, DeviceOptions, Driver, LoadError, PageOptions, StreamIdentity};
use core::ffi::c_void;
use std::io::Write;
use std::os::fd::FromRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Opens the first device, or prints a line about the skipped test. The tests run one at a time,
/// since some capture in global mode.
pub(crate) fn device(what: &str) -> Option<(CudaDevice, MutexGuard<'static, ()>)> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match Driver::load() {
        Ok(driver) => Some((CudaDevice::open(driver, 0).expect("device 0 opens"), turn)),
        // A driver requested by name must exist.
        Err(error @ (LoadError::NotFound { .. } | LoadError::Start(CuResult::NO_DEVICE | CuResult::STUB_LIBRARY)))
            if std::env::var_os(LIBRARY_VARIABLE).is_none() =>
        {
            let _ = writeln!(std::io::stderr(), "skipped: {what} ({error})");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Creates a non-blocking stream, so without order to the legacy stream.
pub(crate) fn stream(device: &CudaDevice) -> CuStream {
    let mut stream = CuStream::NULL;
    let made = device.with_context(|driver| {
        // SAFETY: `stream` outlives the call, which writes one handle to it.
        unsafe { driver.stream_create(&raw mut stream, CuStreamFlags::NON_BLOCKING) }
    });
    assert_eq!(made, Ok(()));
    stream
}

/// Destroys an unused stream.
pub(crate) fn destroy(device: &CudaDevice, stream: CuStream) {
    let destroyed = device.with_context(|driver| {
        // SAFETY: the test made the stream, and does not use the stream again.
        unsafe { driver.stream_destroy(stream) }
    });
    assert_eq!(destroyed, Ok(()));
}

/// Returns the calling thread's context.
fn current(driver: &Driver) -> CuContext {
    let mut context = CuContext::NULL;
    // SAFETY: `context` outlives the call, which writes one handle to it.
    assert!(unsafe { driver.ctx_get_current(&raw mut context) }.is_success());
    context
}

/// Keeps a stream busy until opened.
#[derive(Clone)]
pub(crate) struct Gate(Arc<AtomicBool>);

impl Gate {
    /// Queues a closed gate on a stream.
    pub(crate) fn close(device: &CudaDevice, stream: CuStream) -> Self {
        unsafe extern "C" fn wait(gate: *mut c_void) {
            // SAFETY: `close` gave one reference count of the gate to this call.
            let gate = unsafe { Arc::from_raw(gate.cast::<AtomicBool>()) };
            while !gate.load(Ordering::Acquire) {
                std::thread::sleep(std::time::Duration::from_micros(100));
            }
        }
        let gate = Arc::new(AtomicBool::new(false));
        let given = Arc::into_raw(gate.clone()).cast_mut().cast::<c_void>();
        let launched = device.with_context(|driver| {
            // SAFETY: the function takes its reference count once.
            unsafe { driver.launch_host_func(stream, Some(wait), given) }
        });
        assert_eq!(launched, Ok(()));
        Self(gate)
    }

    /// Lets the stream continue.
    pub(crate) fn open(&self) {
        self.0.store(true, Ordering::Release);
    }
}

#[test]
fn a_gpu_has_a_uuid() {
    let Some((device, _turn)) = device("the UUID of a driver") else { return };
    let uuid = device.uuid().expect("told since CUDA 11.4");
    assert_ne!(uuid, [0; 16]);
    assert_eq!(device.driver().is_emulated(), uuid == *b"cachalot-emu-00\0");
    assert_eq!(device.close(), Ok(()));
}

#[test]
fn memory_is_obtained_and_released() {
    let Some((device, _turn)) = device("memory on a driver") else { return };
    let before = device.memory_info().expect("told");
    assert!(before.free <= before.total && before.total >= 64 << 20);
    assert_eq!(device.driver().total_memory(0), Ok(before.total));
    assert_eq!(device.driver().total_memory(10_000), Err(CuResult::INVALID_DEVICE));
    let bytes = 32 << 20;
    let base = device.obtain(bytes).expect("memory");
    assert_eq!(device.address_range(base.offset(512)), Ok((base, bytes)));
    assert!(device.memory_info().expect("told").free <= before.free - bytes);
    assert_eq!(device.release(base, bytes), Ok(()));
    assert_eq!(device.obtain(1 << 50).map_err(|error| error.kind), Err(ErrorKind::OutOfMemory));
    assert_eq!(device.health(), Ok(()));
    assert_eq!(current(device.driver()), CuContext::NULL);
    assert_eq!(device.close(), Ok(()));
}

#[test]
fn an_event_follows_its_stream() {
    let Some((device, _turn)) = device("events on a driver") else { return };
    let stream = stream(&device);
    let number = device.stream_id(stream).expect("a number");
    let event = device.create_event().expect("an event");
    assert_eq!(device.is_complete(event), Ok(true), "nothing was recorded");
    let gate = Gate::close(&device, stream);
    device.record(event, number).expect("recorded");
    assert_eq!(device.is_complete(event), Ok(false));
    gate.open();
    device.wait(event).expect("waited");
    assert_eq!(device.is_complete(event), Ok(true));
    device.synchronize(number).expect("waited");
    device.destroy_event(event).expect("destroyed");
    device.stream_destroyed(stream).expect("reported");
    destroy(&device, stream);
    assert_eq!(device.close(), Ok(()));
}

#[test]
fn a_retired_stream_is_waited_for_though_its_handle_is_gone() {
    let Some((device, _turn)) = device("retired streams on a driver") else { return };
    let stream = stream(&device);
    let gate = Gate::close(&device, stream);
    let old = device.stream_destroyed(stream).expect("reported");
    destroy(&device, stream);
    let event = device.create_event().expect("an event");
    let opened = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            opened.store(true, Ordering::Release);
            gate.open();
        });
        device.record(event, old).expect("waited");
        assert!(opened.load(Ordering::Acquire), "the stream's work was not waited for");
    });
    device.destroy_event(event).expect("destroyed");
    assert_eq!(device.close(), Ok(()));
}

#[test]
fn a_handle_that_comes_back_is_another_stream() {
    let Some((device, _turn)) = device("reused handles on a driver") else { return };
    let options = DeviceOptions { identity: StreamIdentity::Asked, ..DeviceOptions::default() };
    let asking = CudaDevice::open_with(device.driver(), 0, options).expect("opens twice");
    let mut seen = std::collections::BTreeMap::new();
    let mut came_back = 0;
    for _ in 0..50 {
        let stream = stream(&device);
        let number = asking.stream_id(stream).expect("a number");
        assert_eq!(asking.stream_id(stream), Ok(number));
        came_back += usize::from(seen.values().any(|handle| *handle == stream));
        assert_eq!(seen.insert(number, stream), None, "a number came back");
        destroy(&device, stream);
    }
    let _ = writeln!(std::io::stderr(), "handles that came back: {came_back} of 50");
    assert_eq!((asking.close(), device.close()), (Ok(()), Ok(())));
}

#[test]
fn another_threads_default_stream_is_recorded_on() {
    let Some((device, _turn)) = device("per-thread streams on a driver") else { return };
    let event = device.create_event().expect("an event");
    let (gate, other) = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let number = device.stream_id(CuStream::PER_THREAD).expect("a number");
            (Gate::close(&device, CuStream::PER_THREAD), number)
        });
        other.join().expect("no panic")
    });
    device.record(event, other).expect("recorded");
    assert_eq!(device.is_complete(event), Ok(false), "the event does not come after the other thread's work");
    gate.open();
    device.wait(event).expect("waited");
    device.destroy_event(event).expect("destroyed");
    assert_eq!(device.close(), Ok(()));
}

#[test]
fn every_call_is_permitted_during_a_capture_and_breaks_none() {
    let Some((device, _turn)) = device("captures on a driver") else { return };
    let options = DeviceOptions { identity: StreamIdentity::Asked, ..DeviceOptions::default() };
    let device = CudaDevice::open_with(device.driver(), 0, options).expect("opens twice");
    for mode in [CuCaptureMode::GLOBAL, CuCaptureMode::THREAD_LOCAL, CuCaptureMode::RELAXED] {
        let (captured, other) = (stream(&device), stream(&device));
        let (number, other_number) = (device.stream_id(captured).expect("one"), device.stream_id(other).expect("one"));
        let [recorded, fresh] = [(); 2].map(|()| device.create_event().expect("an event"));
        device.record(recorded, other_number).expect("recorded");
        let segment = device.obtain(2 << 20).expect("memory");
        let gone = unreported(&device);
        assert_eq!(device.is_capturing(number), Ok(false));
        begin(&device, captured, mode);
        assert_eq!(device.is_capturing(number), Ok(true));
        assert_eq!(device.is_capturing(other_number), Ok(false));
        assert!(device.capture_id(captured).expect("a number").is_some());
        assert_eq!(device.stream_id(captured), Ok(number));
        // Nothing was announced, and no stream is left to record on: the call waits for the whole
        // context.
        device.record_announced(fresh, gone).expect("waited");
        let during = || calls_during_a_capture(&device, [recorded, fresh], other_number, segment);
        during();
        // Calls of other threads can invalidate a capture too.
        std::thread::scope(|scope| scope.spawn(during).join().expect("no panic"));
        // SAFETY: the range is the segment, which no other code uses.
        unsafe { device.fill(segment, 1, 512, captured) }.expect("captured");
        run_captured(&device, captured);
        assert_eq!(device.health(), Ok(()));
        device.release(segment, 2 << 20).expect("released");
        for event in [recorded, fresh] {
            device.destroy_event(event).expect("destroyed");
        }
        destroy(&device, captured);
        destroy(&device, other);
    }
}

#[test]
fn a_full_device_is_waited_for_beside_a_capture() {
    let Some((plain, _turn)) = device("waits on a full device of a driver") else { return };
    let options = DeviceOptions { identity: StreamIdentity::Asked, ..DeviceOptions::default() };
    let device = CudaDevice::open_with(plain.driver(), 0, options).expect("opens twice");
    let (captured, other) = (stream(&device), stream(&device));
    let number = device.stream_id(other).expect("a number");
    let mut taken = Vec::new();
    for bytes in [1 << 30, 64 << 20, 2 << 20, 512] {
        while let Ok(base) = device.obtain(bytes) {
            taken.push((base, bytes));
        }
    }
    for mode in [CuCaptureMode::GLOBAL, CuCaptureMode::THREAD_LOCAL, CuCaptureMode::RELAXED] {
        begin(&device, captured, mode);
        let gate = Gate::close(&device, other);
        let opened = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(20));
                opened.store(true, Ordering::Release);
                gate.open();
            });
            device.synchronize(number).expect("waited without memory");
            assert!(opened.load(Ordering::Acquire), "the stream's work was not waited for");
        });
        for _ in 0..50 {
            device.synchronize(number).expect("waited without memory");
        }
        let graph = end(&device, captured);
        // SAFETY: the graph is not used again.
        assert_eq!(device.with_context(|driver| unsafe { driver.graph_destroy(graph) }), Ok(()));
    }
    for (base, bytes) in taken {
        device.release(base, bytes).expect("released");
    }
    destroy(&device, captured);
    destroy(&device, other);
    assert_eq!((device.close(), plain.close()), (Ok(()), Ok(())));
}

/// Returns the number of a stream destroyed without a report.
fn unreported(device: &CudaDevice) -> StreamId {
    let stream = stream(device);
    let number = device.stream_id(stream).expect("a number");
    destroy(device, stream);
    number
}

/// Starts to capture a stream.
fn begin(device: &CudaDevice, stream: CuStream, mode: CuCaptureMode) {
    // SAFETY: the stream is the test's own.
    let begun = device.with_context(|driver| unsafe { driver.stream_begin_capture(stream, mode) });
    assert_eq!(begun, Ok(()));
}

/// Makes every call of an allocator that is allowed while some stream captures.
fn calls_during_a_capture(device: &CudaDevice, events: [Event; 2], other: StreamId, segment: DevicePtr) {
    let more = device.obtain(2 << 20).expect("memory");
    device.release(more, 2 << 20).expect("released");
    device.memory_info().expect("told");
    device.address_range(segment).expect("told");
    let event = device.create_event().expect("an event");
    device.record(event, other).expect("recorded on a stream that does not capture");
    device.wait(event).expect("waited");
    assert_eq!(device.is_complete(event), Ok(true));
    assert_eq!(events.map(|event| device.is_complete(event)), [Ok(true); 2]);
    device.destroy_event(event).expect("destroyed");
    device.synchronize(other).expect("waited");
    map_and_unmap(device);
}

/// Ends a capture.
fn end(device: &CudaDevice, stream: CuStream) -> CuGraph {
    let mut graph = CuGraph::NULL;
    let ended = device.with_context(|driver| {
        // SAFETY: `graph` outlives the call, which writes one handle to it.
        unsafe { driver.stream_end_capture(stream, &raw mut graph) }
    });
    assert_eq!(ended, Ok(()), "the capture was spoilt");
    assert!(!graph.is_null());
    graph
}

/// Ends a capture, and runs the captured graph.
fn run_captured(device: &CudaDevice, stream: CuStream) {
    let (graph, mut executable) = (end(device, stream), CuGraphExec::NULL);
    let steps = [
        // SAFETY: `executable` outlives the call, which writes one handle to it; the graph is live.
        device.with_context(|driver| unsafe { driver.graph_instantiate(&raw mut executable, graph, 0) }),
        // SAFETY: both handles are live.
        device.with_context(|driver| unsafe { driver.graph_launch(executable, stream) }),
        // SAFETY: the stream is live.
        device.with_context(|driver| unsafe { driver.stream_synchronize(stream) }),
        // SAFETY: the graph has completed, and is not used again.
        device.with_context(|driver| unsafe { driver.graph_exec_destroy(executable) }),
        // SAFETY: the graph is not used again.
        device.with_context(|driver| unsafe { driver.graph_destroy(graph) }),
    ];
    assert_eq!(steps, [Ok(()); 5]);
}

/// Performs one round of virtual memory, if supported: physical memory mapped at two addresses.
fn map_and_unmap(device: &CudaDevice) {
    let Some(memory) = device.virtual_memory() else { return };
    let unit = memory.granularity();
    let base = memory.reserve(4 * unit).expect("addresses");
    let handle = memory.create(unit).expect("physical memory");
    let views = [base, base.offset(2 * unit)];
    for view in views {
        memory.map(view, unit, handle).expect("mapped");
        memory.set_access(view, unit).expect("open");
    }
    for view in views {
        memory.unmap(view, unit).expect("unmapped");
    }
    memory.destroy(handle).expect("dropped");
    memory.unreserve(base, 4 * unit).expect("unreserved");
}

#[test]
fn two_mappings_of_one_memory_show_the_same_bytes() {
    let Some((device, _turn)) = device("virtual memory on a driver") else { return };
    let Some(memory) = device.virtual_memory() else {
        let _ = writeln!(std::io::stderr(), "skipped: virtual memory (the device has none)");
        return;
    };
    let unit = memory.granularity();
    assert!(unit.is_power_of_two() && unit >= 4096);
    let base = memory.reserve(4 * unit).expect("addresses");
    let handle = memory.create(unit).expect("physical memory");
    let views = [base, base.offset(2 * unit)];
    for view in views {
        memory.map(view, unit, handle).expect("mapped");
        memory.set_access(view, unit).expect("open");
    }
    let stream = stream(&device);
    let number = device.stream_id(stream).expect("a number");
    // SAFETY: the range is mapped, and no other code uses the range.
    unsafe { device.fill(views[0], 0x5a, unit, stream) }.expect("filled");
    device.synchronize(number).expect("waited");
    let mut seen = [0_u8; 64];
    let copied = device.with_context(|driver| {
        // SAFETY: `seen` outlives the call, which writes 64 bytes to it and waits.
        unsafe { driver.memcpy_dtoh(seen.as_mut_ptr().cast(), views[1].0 + unit - 64, 64) }
    });
    assert_eq!((copied, seen), (Ok(()), [0x5a; 64]));
    for view in views {
        memory.unmap(view, unit).expect("unmapped");
    }
    memory.destroy(handle).expect("dropped");
    memory.unreserve(base, 4 * unit).expect("unreserved");
    destroy(&device, stream);
    assert_eq!(device.close(), Ok(()));
}

#[test]
fn devices_reach_each_other_where_they_can() {
    let Some((device, _turn)) = device("peers on a driver") else { return };
    if device.driver().device_count() == Ok(1) {
        let _ = writeln!(std::io::stderr(), "skipped: peers (one device)");
        return;
    }
    let options = DeviceOptions { streams: device.streams().clone(), ..DeviceOptions::default() };
    let peer = CudaDevice::open_with(device.driver(), 1, options).expect("device 1 opens");
    // Another device's streams can be recorded on, whether or not peer access is possible.
    let theirs = stream(&peer);
    let gate = Gate::close(&peer, theirs);
    let event = device.create_event().expect("an event");
    let number = peer.stream_id(theirs).expect("a number");
    assert_eq!(device.is_capturing(number), Ok(false));
    device.record(event, number).expect("recorded over a stream of this device");
    assert_eq!(device.is_complete(event), Ok(false));
    gate.open();
    device.wait(event).expect("waited");
    assert_eq!(device.stream_destroyed(theirs), Ok(number));
    destroy(&peer, theirs);

    if device.can_be_reached_from(&peer) != Ok(true) {
        let refused = device.allow_access_from(&peer).map_err(|error| error.kind);
        assert_eq!(refused, Err(ErrorKind::Unsupported));
        return;
    }
    let segment = device.obtain(2 << 20).expect("memory");
    device.allow_access_from(&peer).expect("allowed");
    let on_peer = stream(&peer);
    // SAFETY: the range is the segment, which no other code uses, and the peer may access the
    // range.
    unsafe { peer.fill(segment, 0x77, 2 << 20, on_peer) }.expect("filled from the peer");
    peer.synchronize(peer.stream_id(on_peer).expect("a number")).expect("waited");
    device.release(segment, 2 << 20).expect("released");
    destroy(&peer, on_peer);
    device.destroy_event(event).expect("destroyed");
}

#[test]
fn a_forked_child_answers_without_the_driver() {
    let Some((device, _turn)) = device("forked children on a driver") else { return };
    let event = device.create_event().expect("an event");
    // SAFETY: the child calls the device, which returns without a lock or a driver call, and exits.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork failed");
    if child == 0 {
        let forked = |error: Option<ErrorKind>| error == Some(ErrorKind::Forked);
        let right = forked(device.obtain(512).err().map(|error| error.kind))
            && forked(device.is_complete(event).err().map(|error| error.kind))
            && forked(device.close().err().map(|error| error.kind));
        // SAFETY: ends the child at once, without touching the parent's state.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (child, true, 0));
    device.destroy_event(event).expect("the parent goes on");
    assert_eq!(device.close(), Ok(()));
}

#[test]
fn the_users_of_the_memory_are_reported() {
    let Some((device, _turn)) = device("memory users on a driver") else { return };
    let users = device.memory_users().expect("told");
    let _ = writeln!(std::io::stderr(), "users of device 0: {users:?}");
    if let Some(own) = users.own() {
        assert!(own > 0);
    }
    assert_eq!(device.health(), Ok(()));
}

#[test]
fn pages_of_a_fabric_and_of_a_locality_domain_are_created_mapped_and_exported() {
    const NAME: &str = "pages_of_a_fabric_and_of_a_locality_domain_are_created_mapped_and_exported";
    /// The attributes of an emulated device with a fabric and two domains.
    const ATTRIBUTES: (&str, &str) = ("CACHALOT_EMU_ATTRIBUTES", r#"{"128":1,"149":2}"#);
    let Some((device, _turn)) = device(NAME) else { return };
    if std::env::var_os(ATTRIBUTES.0).is_none() {
        // Another process has another device. A real driver does not read the variable.
        let program = std::env::current_exe().expect("this program");
        let mut again = std::process::Command::new(program);
        let found = again.args([NAME, "--nocapture"]).env(ATTRIBUTES.0, ATTRIBUTES.1).output().expect("it runs");
        assert!(found.status.success(), "{}", String::from_utf8_lossy(&found.stderr));
        return;
    }
    let has = |attribute: u32| device.attribute(CuDeviceAttribute(attribute)).unwrap_or(0);
    let (fabric, domains) = (has(128) == 1, has(149));
    let pages = PageOptions { fabric: true, locality_domain: Some(1) };
    let localized = CudaDevice::open_with(device.driver(), 0, DeviceOptions { pages, ..DeviceOptions::default() });
    let localized = localized.expect("opens");
    assert_eq!(localized.is_localized(), domains > 1);
    let bytes = localized.granularity();
    let page = localized.create(bytes).expect("a page");
    // A device may support a fabric that the process has no channel for.
    assert!(fabric || !localized.is_fabric_capable());
    let base = localized.reserve(bytes).expect("addresses");
    assert_eq!((localized.map(base, bytes, page), localized.set_access(base, bytes)), (Ok(()), Ok(())));
    if localized.can_export() {
        let descriptor = localized.export(page).expect("exported").0;
        // SAFETY: the driver has created the descriptor, and no other owner exists.
        drop(unsafe { std::os::fd::OwnedFd::from_raw_fd(descriptor) });
    }
    assert_eq!((localized.unmap(base, bytes), localized.destroy(page)), (Ok(()), Ok(())));
    assert_eq!((localized.unreserve(base, bytes), localized.close()), (Ok(()), Ok(())));
}
