//! The calls of a simulated device, which are counted, and failures of calls.

use crate::device::DeviceError;

/// The calls of [`DeviceMemory`](crate::device::DeviceMemory), [`VirtualMemory`](crate::device::VirtualMemory) and
/// [`Contents`](crate::device::Contents), for counting calls and for making calls fail.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[allow(missing_docs, reason = "each is the method of the same name")]
pub enum Call {
    Obtain,
    Release,
    MemoryInfo,
    CreateEvent,
    DestroyEvent,
    Record,
    IsComplete,
    IsIdle,
    Wait,
    OrderBehind,
    Synchronize,
    IsCapturing,
    MarkCapture,
    IsBehind,
    Reserve,
    Unreserve,
    Create,
    Destroy,
    Map,
    SetAccess,
    Unmap,
    Export,
    SynchronizeAll,
    Prepare,
    Save,
    Restore,
    Zero,
    Mark,
    Finish,
}

impl Call {
    /// All calls.
    pub const ALL: [Self; 29] = [
        Self::Obtain,
        Self::Release,
        Self::MemoryInfo,
        Self::CreateEvent,
        Self::DestroyEvent,
        Self::Record,
        Self::IsComplete,
        Self::IsIdle,
        Self::Wait,
        Self::OrderBehind,
        Self::Synchronize,
        Self::IsCapturing,
        Self::MarkCapture,
        Self::IsBehind,
        Self::Reserve,
        Self::Unreserve,
        Self::Create,
        Self::Destroy,
        Self::Map,
        Self::SetAccess,
        Self::Unmap,
        Self::Export,
        Self::SynchronizeAll,
        Self::Prepare,
        Self::Save,
        Self::Restore,
        Self::Zero,
        Self::Mark,
        Self::Finish,
    ];
}

/// A failure to inject, with [`SimulatedDevice::fail`](super::SimulatedDevice::fail).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The call that fails.
    pub call: Call,
    /// The first call that fails, counted from 1 since the device was created.
    pub nth: u64,
    /// Makes all later calls fail too.
    pub persistent: bool,
    /// The error returned. [`ErrorKind::ContextLost`](crate::device::ErrorKind::ContextLost) makes every later call of any kind fail.
    pub error: DeviceError,
}
