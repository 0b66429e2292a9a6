//! A simulated device with a record of the notices to the host.

use crate::consistency::Simulated;
use cachalot_core::forward::{
    ForwardContents, ForwardHost, ForwardSegments, ForwardStreamOrder, ForwardVirtualMemory, Forwarder,
};
use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{
    CallSite, Contents, DevicePtr, DeviceResult, Explanation, Host as _, OutOfMemory, PoolId, Segments as _,
    TraceEntry, VirtualMemory,
};
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// A simulated device with notices.
pub(super) struct Noted {
    pub(super) inner: SimulatedDevice,
    told: Mutex<String>,
    sites: AtomicU32,
}

impl Noted {
    pub(super) fn new(inner: SimulatedDevice) -> Self {
        Self { inner, told: Mutex::default(), sites: AtomicU32::new(0) }
    }

    /// Takes the notices since the last call.
    pub(super) fn take(&self) -> String {
        std::mem::take(&mut *self.told.lock().expect("no holder panics"))
    }

    fn tell(&self, what: &str, value: &dyn std::fmt::Debug) {
        write!(self.told.lock().expect("no holder panics"), " {what} {value:?}").expect("a string takes every text");
    }
}

impl Simulated for Noted {
    fn simulated(&self) -> &SimulatedDevice {
        &self.inner
    }
}

impl Forwarder for Noted {
    type Inner = SimulatedDevice;

    fn inner(&self) -> DeviceResult<&SimulatedDevice> {
        Ok(&self.inner)
    }
}

impl ForwardSegments for Noted {
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.inner.virtual_memory().map(|_| self as &dyn VirtualMemory)
    }

    fn contents(&self) -> Option<&dyn Contents> {
        self.inner.contents().map(|_| self as &dyn Contents)
    }
}

impl ForwardStreamOrder for Noted {}
impl ForwardVirtualMemory for Noted {}
impl ForwardContents for Noted {}

impl ForwardHost for Noted {
    /// Counts pauses and calls alone: how often the clock is read makes no difference.
    fn ticks(&self) -> u64 {
        self.inner.now_us() * 1000 + self.inner.driver_ns()
    }

    fn on_out_of_memory(&self, report: &OutOfMemory) {
        self.tell("short", report);
    }

    fn on_missing_virtual_memory(&self) {
        self.tell("without", &"virtual memory");
    }

    fn on_map(&self, at: DevicePtr, bytes: u64) {
        self.tell("map", &(at, bytes));
        self.inner.on_map(at, bytes);
    }

    fn on_unmap(&self, at: DevicePtr, bytes: u64) {
        self.tell("unmap", &(at, bytes));
        self.inner.on_unmap(at, bytes);
    }

    fn on_event(&self, entry: &TraceEntry, pool: PoolId) {
        self.tell("event", &(entry, pool));
    }

    fn on_damage(&self, block: &Explanation) {
        self.tell("damage", block);
        self.inner.on_damage(block);
    }

    fn call_site(&self, _: CallSite) -> u32 {
        self.sites.fetch_add(1, Ordering::Relaxed)
    }
}
