//! A simulated device that adds up what its calls would cost on a real one.

use super::costs::Costs;
use crate::program::Simulation;
use cachalot_core::simulated::{Call, SimulatedDevice};
use cachalot_core::{
    DeviceMemory, DevicePtr, DeviceResult, Event, MemoryInfo, PhysicalHandle, StreamId, VirtualMemory,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The device. Calls that fail cost what they cost otherwise.
#[derive(Debug)]
pub struct MeteredDevice {
    simulated: SimulatedDevice,
    costs: Arc<Costs>,
    meter: Mutex<Meter>,
}

#[derive(Debug, Default)]
struct Meter {
    /// Microseconds so far.
    us: f64,
    /// The most bytes in use so far.
    peak: u64,
    /// Bytes of every handle that was not dropped.
    handles: BTreeMap<u64, u64>,
    /// Address → bytes of every mapping.
    mappings: BTreeMap<u64, u64>,
}

impl MeteredDevice {
    /// A device of `capacity` bytes.
    pub(super) fn new(capacity: u64, costs: Arc<Costs>) -> Self {
        Self { simulated: SimulatedDevice::new(capacity), costs, meter: Mutex::default() }
    }

    /// What all calls so far would have cost, in microseconds.
    pub(super) fn us(&self) -> f64 {
        self.meter.lock().us
    }

    /// The most bytes that were ever in use.
    pub(super) fn peak(&self) -> u64 {
        self.meter.lock().peak
    }

    /// The most bytes in use from here on.
    pub(super) fn restart_peak(&self) {
        self.meter.lock().peak = self.simulated.used();
    }

    fn charge(&self, call: Call, bytes: u64) {
        self.meter.lock().us += self.costs.us(call, bytes);
    }

    /// Memory was taken.
    fn raise_peak(&self) {
        let mut meter = self.meter.lock();
        meter.peak = meter.peak.max(self.simulated.used());
    }
}

impl Simulation for MeteredDevice {
    fn simulated(&self) -> &SimulatedDevice {
        &self.simulated
    }
}

impl DeviceMemory for MeteredDevice {
    fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        self.charge(Call::Obtain, bytes);
        let segment = self.simulated.obtain(bytes)?;
        self.raise_peak();
        Ok(segment)
    }

    fn release(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.charge(Call::Release, bytes);
        self.simulated.release(base, bytes)
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        self.charge(Call::MemoryInfo, 0);
        self.simulated.memory_info()
    }

    fn create_event(&self) -> DeviceResult<Event> {
        self.charge(Call::CreateEvent, 0);
        self.simulated.create_event()
    }

    fn destroy_event(&self, event: Event) -> DeviceResult<()> {
        self.charge(Call::DestroyEvent, 0);
        self.simulated.destroy_event(event)
    }

    fn record(&self, event: Event, stream: StreamId) -> DeviceResult<()> {
        self.charge(Call::Record, 0);
        self.simulated.record(event, stream)
    }

    fn is_complete(&self, event: Event) -> DeviceResult<bool> {
        self.charge(Call::IsComplete, 0);
        self.simulated.is_complete(event)
    }

    fn wait(&self, event: Event) -> DeviceResult<()> {
        self.charge(Call::Wait, 0);
        self.simulated.wait(event)
    }

    fn order_behind(&self, stream: StreamId, event: Event) -> DeviceResult<()> {
        self.charge(Call::OrderBehind, 0);
        self.simulated.order_behind(stream, event)
    }

    fn synchronize(&self, stream: StreamId) -> DeviceResult<()> {
        self.charge(Call::Synchronize, 0);
        self.simulated.synchronize(stream)
    }

    fn is_capturing(&self, stream: StreamId) -> DeviceResult<bool> {
        self.charge(Call::IsCapturing, 0);
        self.simulated.is_capturing(stream)
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        Some(self)
    }
}

impl VirtualMemory for MeteredDevice {
    fn granularity(&self) -> u64 {
        self.simulated.granularity()
    }

    fn reserve(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        self.charge(Call::Reserve, bytes);
        self.simulated.reserve(bytes)
    }

    fn unreserve(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.charge(Call::Unreserve, bytes);
        self.simulated.unreserve(base, bytes)
    }

    fn create(&self, bytes: u64) -> DeviceResult<PhysicalHandle> {
        self.charge(Call::Create, bytes);
        let handle = self.simulated.create(bytes)?;
        self.raise_peak();
        self.meter.lock().handles.insert(handle.0, bytes);
        Ok(handle)
    }

    fn destroy(&self, handle: PhysicalHandle) -> DeviceResult<()> {
        let bytes = self.meter.lock().handles.get(&handle.0).copied().unwrap_or(0);
        self.charge(Call::Destroy, bytes);
        self.simulated.destroy(handle)?;
        self.meter.lock().handles.remove(&handle.0);
        Ok(())
    }

    fn map(&self, at: DevicePtr, bytes: u64, handle: PhysicalHandle) -> DeviceResult<()> {
        self.charge(Call::Map, bytes);
        self.simulated.map(at, bytes, handle)?;
        self.meter.lock().mappings.insert(at.0, bytes);
        Ok(())
    }

    fn set_access(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let mut meter = self.meter.lock();
        // The driver sets it handle by handle.
        let handles = meter.mappings.range(at.0..at.0 + bytes);
        let us: f64 = handles.map(|(_, &bytes)| self.costs.us(Call::SetAccess, bytes)).sum();
        meter.us += us;
        drop(meter);
        self.simulated.set_access(at, bytes)
    }

    fn unmap(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.charge(Call::Unmap, bytes);
        self.simulated.unmap(at, bytes)?;
        self.meter.lock().mappings.remove(&at.0);
        Ok(())
    }
}
