//! A device that panics if the thread that calls it holds a lock of the core. Compiled with the
//! feature `paranoid`.

use crate::device::forward::{
    ForwardContents, ForwardHost, ForwardSegments, ForwardStreamOrder, ForwardVirtualMemory, Forwarder,
};
use crate::device::{Call, Contents, DeviceMemory, DeviceResult, VirtualMemory};
use crate::sync::assert_no_lock_held;
use core::borrow::Borrow;

/// Methods that may be called under a lock, because they do not call the driver: `virtual_memory`
/// and `granularity` (while a heap's rules change), `can_order`, `can_record_all`, `orders` and
/// `reports_end` (while the uses of a block are examined), `thread_id` (while a request is routed),
/// `ticks` and `on_event` (for each event of a heap) and `time_us` (for each event that is read).
const EXEMPT: [&str; 10] = [
    "virtual_memory",
    "granularity",
    "can_order",
    "can_record_all",
    "orders",
    "reports_end",
    "thread_id",
    "ticks",
    "on_event",
    "time_us",
];

/// A device that may only be called by a thread that holds no lock of the core.
pub(crate) struct Unlocked<D>(D);

impl<D> From<D> for Unlocked<D> {
    fn from(device: D) -> Self {
        Self(device)
    }
}

impl<D> Borrow<D> for Unlocked<D> {
    fn borrow(&self) -> &D {
        &self.0
    }
}

impl<D: DeviceMemory> Forwarder for Unlocked<D> {
    type Inner = D;

    fn inner(&self) -> DeviceResult<&D> {
        Ok(&self.0)
    }

    fn before(&self, method: &'static str, _: Option<Call>) {
        if !EXEMPT.contains(&method) {
            assert_no_lock_held(method);
        }
    }
}

impl<D: DeviceMemory> ForwardSegments for Unlocked<D> {
    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.0.virtual_memory().map(|_| self as &dyn VirtualMemory)
    }

    fn contents(&self) -> Option<&dyn Contents> {
        self.0.contents().map(|_| self as &dyn Contents)
    }
}

impl<D: DeviceMemory> ForwardStreamOrder for Unlocked<D> {}
impl<D: DeviceMemory> ForwardHost for Unlocked<D> {}
impl<D: DeviceMemory> ForwardVirtualMemory for Unlocked<D> {}
impl<D: DeviceMemory> ForwardContents for Unlocked<D> {}
