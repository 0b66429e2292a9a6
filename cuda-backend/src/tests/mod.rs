//! Tests of the device over the fake driver, of the state that it restores, and of failures.

mod announced;
mod captures;
mod contents;
mod devices;
mod failures;
mod files;
mod host;
mod memory;
mod pressure;
mod shared_memory;
mod store;
mod streams;
mod threads;
mod waits;

use crate::driver::types::CuStream;
use crate::fake::{self, FOREIGN_STREAM, STREAM};
use crate::{CudaDevice, DeviceOptions, PageOptions, StreamIdentity};
use cachalot_core::{DevicePtr, DeviceResult, Event, PhysicalHandle, Segments, StreamId, StreamOrder, VirtualMemory};

/// Opens a device over a fresh fake, with an empty log.
fn device() -> CudaDevice {
    let device = CudaDevice::open(fake::driver(), 0).expect("the fake has a device");
    fake::with(|fake| fake.log.clear());
    device
}

/// Opens a device with [`StreamIdentity::Asked`].
fn asking() -> CudaDevice {
    let options = DeviceOptions { identity: StreamIdentity::Asked, ..DeviceOptions::default() };
    CudaDevice::open_with(fake::driver(), 0, options).expect("the fake has a device")
}

/// Opens a device over a driver since CUDA 12.5.
fn with_events_of_contexts() -> CudaDevice {
    let _ = fake::driver();
    let mut table = fake::table();
    table.ctx_record_event = Some(fake::record_context);
    CudaDevice::open(fake::load(&table).expect("loads"), 0).expect("opens")
}

/// Opens the second device of the fake, with the table of streams of `first`.
fn second(first: &CudaDevice) -> CudaDevice {
    let options = DeviceOptions { streams: first.streams().clone(), ..DeviceOptions::default() };
    CudaDevice::open_with(first.driver(), 1, options).expect("the fake has two devices")
}

/// Returns the names of the functions called by `body`.
fn calls(body: impl FnOnce()) -> Vec<&'static str> {
    fake::with(|fake| fake.log.clear());
    body();
    fake::with(|fake| core::mem::take(&mut fake.log))
}

/// A named operation of a device. Its inputs are prepared before the driver is made to fail.
type Operation = (&'static str, fn(&CudaDevice, &Prepared) -> DeviceResult<()>);

/// The inputs of the operations.
struct Prepared {
    /// A segment.
    segment: DevicePtr,
    /// A recorded event.
    event: Event,
    /// A recorded event for streams.
    order: Event,
    /// An event to destroy.
    other_event: Event,
    /// A retired stream with incomplete work, and with an event after the work.
    retired: StreamId,
    /// A stream with a handle that was reused without a report.
    reused: StreamId,
    /// Another device.
    peer: CudaDevice,
}

impl Prepared {
    /// Prepares the inputs of the operations.
    fn new(device: &CudaDevice) -> Self {
        let event = device.create_event().expect("an event");
        device.record(event, StreamId::DEFAULT).expect("recorded");
        let order = device.create_order_event().expect("an event");
        device.record(order, StreamId::DEFAULT).expect("recorded");
        let retired = CuStream(STREAM.0 + 0x100);
        let retired = device.stream_destroyed(retired).expect("retired");
        let handle = CuStream(STREAM.0 + 0x200);
        let reused = device.stream_id(handle).expect("a number");
        device.synchronize(reused).expect("asked for the first time");
        fake::with(|fake| fake.ids.insert(handle.0, 4711));
        Self {
            segment: device.obtain(2 << 20).expect("memory"),
            event,
            order,
            other_event: device.create_event().expect("an event"),
            retired,
            reused,
            peer: second(device),
        }
    }
}

/// Returns the number of a stream with generation 0.
fn id(stream: CuStream) -> StreamId {
    StreamId(stream.0 as u64)
}

/// Lists every operation that may call the driver.
const OPERATIONS: &[Operation] = &[
    ("obtain", |device, _| device.obtain(512).map(drop)),
    ("release", |device, on| device.release(on.segment, 2 << 20)),
    ("memory_info", |device, _| device.memory_info().map(drop)),
    ("create_event", |device, _| device.create_event().map(drop)),
    ("create_order_event", |device, _| device.create_order_event().map(drop)),
    ("destroy_event", |device, on| device.destroy_event(on.other_event)),
    ("record", |device, on| device.record(on.event, id(STREAM))),
    ("record default", |device, on| device.record(on.event, StreamId::DEFAULT)),
    ("record foreign", |device, on| device.record(on.event, id(FOREIGN_STREAM))),
    ("record retired", |device, on| device.record(on.event, on.retired)),
    ("record reused", |device, on| device.record(on.event, on.reused)),
    ("is_complete", |device, on| device.is_complete(on.event).map(drop)),
    ("wait", |device, on| device.wait(on.event)),
    ("order_behind for the host", |device, on| device.order_behind(id(STREAM), on.event)),
    ("order_behind", |device, on| device.order_behind(id(STREAM), on.order)),
    ("order_behind foreign", |device, on| device.order_behind(id(FOREIGN_STREAM), on.order)),
    ("order_behind retired", |device, on| device.order_behind(on.retired, on.order)),
    ("synchronize default", |device, _| device.synchronize(StreamId::DEFAULT)),
    ("synchronize", |device, _| device.synchronize(id(STREAM))),
    ("synchronize retired", |device, on| device.synchronize(on.retired)),
    ("is_capturing", |device, _| device.is_capturing(id(STREAM)).map(drop)),
    ("stream_destroyed", |device, _| device.stream_destroyed(STREAM).map(drop)),
    ("capture_id", |device, _| device.capture_id(STREAM).map(drop)),
    ("attribute", |device, _| device.attribute(crate::driver::types::CuDeviceAttribute(16)).map(drop)),
    ("fill", |device, on| {
        // SAFETY: the fake has no real memory; the fake's fill only logs the call.
        unsafe { device.fill(on.segment, 0xdd, 512, STREAM) }
    }),
    ("address_range", |device, on| device.address_range(on.segment).map(drop)),
    ("memory_users", |device, _| device.memory_users().map(drop)),
    ("allow_access_from", |device, on| device.allow_access_from(&on.peer)),
    ("reserve", |device, _| device.reserve(2 << 20).map(drop)),
    ("unreserve", |device, _| device.unreserve(DevicePtr(1 << 40), 2 << 20)),
    ("create", |device, _| device.create(2 << 20).map(drop)),
    ("destroy", |device, _| device.destroy(PhysicalHandle(9))),
    ("map", |device, _| device.map(DevicePtr(1 << 40), 2 << 20, PhysicalHandle(9))),
    ("set_access", |device, _| device.set_access(DevicePtr(1 << 40), 2 << 20)),
    ("unmap", |device, _| device.unmap(DevicePtr(1 << 40), 2 << 20)),
    ("export", |device, _| device.export(PhysicalHandle(9)).map(drop)),
];
