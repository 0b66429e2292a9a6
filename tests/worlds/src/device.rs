//! A simulated device. Each call offers the turn, and may fail by plan.

use crate::turns;
use cachalot_core::forward::{
    ForwardContents, ForwardHost, ForwardSegments, ForwardStreamOrder, ForwardVirtualMemory, Forwarder,
};
use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{
    Call, Contents, DevicePtr, DeviceResult, ErrorKind, Event, Host, PhysicalHandle, Segments, StreamId, StreamOrder,
    VirtualMemory,
};
use cachalot_tests::consistency::Simulated;
use cachalot_tests::failures;

/// A planted mistake, which the worlds must find.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mistake {
    /// An event is complete at the first question.
    EarlyEvent,
    /// Work on a stream does not wait for work on another.
    NoOrder,
    /// A wait for a stream returns at once.
    NoWait,
}

/// The device of a world.
pub struct Device {
    /// The device behind the calls.
    pub inner: SimulatedDevice,
    mistake: Option<Mistake>,
}

impl Device {
    /// Creates a device of `capacity` bytes.
    #[must_use]
    pub fn new(capacity: u64, mistake: Option<Mistake>) -> Self {
        let inner = SimulatedDevice::new(capacity);
        // Only `spill` asks for it.
        inner.set_mappable_host_memory(capacity / 4);
        Self { inner, mistake }
    }

    /// Lets a later call fail: the `after`th from now on.
    pub fn fail(&self, call: Call, after: u64) {
        let takes = matches!(call, Call::Obtain | Call::Create | Call::CreateAtHost);
        let kind = if takes { ErrorKind::OutOfMemory } else { ErrorKind::Other };
        failures::fail_after(&self.inner, call, after, kind);
    }

    fn has(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }
}

impl Simulated for Device {
    fn simulated(&self) -> &SimulatedDevice {
        &self.inner
    }
}

impl Forwarder for Device {
    type Inner = SimulatedDevice;

    fn inner(&self) -> DeviceResult<&SimulatedDevice> {
        Ok(&self.inner)
    }

    fn before(&self, method: &'static str, call: Option<Call>) {
        // Methods without a kind may be called below a lock of the core.
        if call.is_some() {
            turns::offer();
            turns::tell(|| format!("    device: {method}"));
        }
    }
}

impl ForwardSegments for Device {
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.inner.virtual_memory().map(|_| self as &dyn VirtualMemory)
    }

    fn contents(&self) -> Option<&dyn Contents> {
        self.inner.contents().map(|_| self as &dyn Contents)
    }
}

impl ForwardStreamOrder for Device {
    fn is_complete(&self, event: Event) -> DeviceResult<bool> {
        if self.has(Mistake::EarlyEvent) { Ok(true) } else { self.inner.is_complete(event) }
    }

    fn wait(&self, event: Event) -> DeviceResult<()> {
        if self.has(Mistake::NoWait) { Ok(()) } else { self.inner.wait(event) }
    }

    fn order_behind(&self, stream: StreamId, event: Event) -> DeviceResult<()> {
        if self.has(Mistake::NoOrder) { Ok(()) } else { self.inner.order_behind(stream, event) }
    }

    fn synchronize(&self, stream: StreamId) -> DeviceResult<()> {
        if self.has(Mistake::NoWait) { Ok(()) } else { self.inner.synchronize(stream) }
    }
}

impl ForwardVirtualMemory for Device {
    fn map(&self, at: DevicePtr, bytes: u64, handle: PhysicalHandle) -> DeviceResult<()> {
        turns::tell(|| format!("    device: {bytes} bytes of {handle:?} at {at}"));
        self.inner.map(at, bytes, handle)
    }

    fn unmap(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let unmapped = self.inner.unmap(at, bytes);
        turns::tell(|| format!("    device: {bytes} bytes at {at}: {unmapped:?}"));
        unmapped
    }
}
impl ForwardContents for Device {}

impl ForwardHost for Device {
    fn thread_id(&self) -> u64 {
        turns::number().map_or(0, |number| u64::from(number) + 1)
    }

    fn pause(&self, us: u64) -> bool {
        turns::pass();
        self.inner.pause(us)
    }
}
