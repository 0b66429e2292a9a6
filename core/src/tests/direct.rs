//! `policy:direct` on a device that allocates in the order of streams.

use crate::allocator::Allocator;
use crate::config::Config;
use crate::device::forward::{ForwardHost, ForwardSegments, ForwardStreamOrder, Forwarder};
use crate::device::simulated::{Call, SimulatedDevice};
use crate::device::{DeviceResult, Segments};
use crate::tables::Growable;
use crate::units::{DeviceIndex, DevicePtr, MIB, StreamId};
use std::sync::Mutex;
use std::vec::Vec;

const DEVICE: DeviceIndex = DeviceIndex(0);
const STREAM: StreamId = StreamId(1);
const SIDE: StreamId = StreamId(2);

/// A device that notes the stream of each segment; 0 for a segment in no order.
struct Ordered {
    inner: SimulatedDevice,
    streams: Mutex<Vec<u64>>,
}

impl Forwarder for Ordered {
    type Inner = SimulatedDevice;

    fn inner(&self) -> DeviceResult<&SimulatedDevice> {
        Ok(&self.inner)
    }
}

impl ForwardSegments for Ordered {
    fn is_ordered(&self) -> bool {
        true
    }

    fn obtain_on(&self, stream: StreamId, bytes: u64) -> DeviceResult<DevicePtr> {
        self.streams.lock().unwrap().push(stream.0);
        self.inner.obtain(bytes)
    }

    fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        self.streams.lock().unwrap().push(0);
        self.inner.obtain(bytes)
    }
}

impl ForwardStreamOrder for Ordered {}
impl ForwardHost for Ordered {}

fn allocator(config: &str) -> Allocator<Ordered, spin::mutex::SpinMutex<()>, Growable> {
    let device = Ordered { inner: SimulatedDevice::new(1 << 30), streams: Mutex::default() };
    Allocator::new([device], &Config::parse(config).unwrap()).unwrap()
}

#[test]
fn only_direct_requests_are_served_in_the_order_of_their_streams() {
    for (config, expected) in [("policy:direct", [1, 2, 1]), ("policy:caching", [0, 0, 0])] {
        let allocator = allocator(config);
        let large = [(STREAM, 30 * MIB), (SIDE, 40 * MIB), (STREAM, 50 * MIB)];
        let blocks = large.map(|(stream, bytes)| allocator.malloc(DEVICE, bytes, stream).unwrap());
        let device = allocator.device(DEVICE).unwrap();
        assert_eq!(*device.streams.lock().unwrap(), expected, "{config}");
        blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
        allocator.empty_cache(DEVICE).unwrap();
        assert_eq!(allocator.stats(DEVICE).unwrap().reserved_bytes().current, 0, "{config}");
        allocator.check_invariants().unwrap();
    }
}

#[test]
fn a_captured_request_is_served_in_no_order() {
    let allocator = allocator("policy:direct");
    let device = allocator.device(DEVICE).unwrap();
    let pool = allocator.create_pool(DEVICE, crate::pool::PoolOptions::default()).unwrap();
    allocator.begin_capture(DEVICE, pool, crate::pool::Route::Stream(STREAM)).unwrap();
    device.inner.set_capturing(STREAM, true);
    allocator.malloc(DEVICE, MIB, STREAM).unwrap();
    device.inner.set_capturing(STREAM, false);
    allocator.end_capture(DEVICE, pool).unwrap();
    allocator.malloc(DEVICE, MIB, STREAM).unwrap();
    assert_eq!(*device.streams.lock().unwrap(), [0, 1]);
}

#[test]
fn a_free_orders_its_stream_behind_the_uses_of_others() {
    let allocator = allocator("policy:direct");
    let device = allocator.device(DEVICE).unwrap();
    let block = allocator.malloc(DEVICE, MIB, STREAM).unwrap();
    allocator.record_stream(block, SIDE).unwrap();
    device.inner.launch(SIDE, block, MIB).unwrap();
    allocator.free(block).unwrap();
    assert_eq!((device.inner.calls(Call::OrderBehind), device.inner.calls(Call::Wait)), (1, 0));
    assert_eq!(allocator.stats(DEVICE).unwrap().reserved_bytes().current, 0);
    allocator.check_invariants().unwrap();
}

#[test]
fn the_direct_policy_never_caches() {
    let allocator = allocator("policy:direct");
    for caching in [true, false, true] {
        allocator.set_caching(DEVICE, caching).unwrap();
        let block = allocator.malloc(DEVICE, MIB, STREAM).unwrap();
        allocator.free(block).unwrap();
        assert_eq!(allocator.stats(DEVICE).unwrap().reserved_bytes().current, 0, "{caching}");
    }
}
