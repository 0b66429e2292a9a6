//! The simulated device with another answer, or with calls noted.
//!
//! One type for all tests: the compiler writes out the whole allocator for each type of device,
//! which takes 12 s.

use crate::device::forward::{ForwardHost, ForwardSegments, ForwardStreamOrder, Forwarder};
use crate::device::simulated::SimulatedDevice;
use crate::device::{Call, Contents, DeviceError, DeviceResult, ErrorKind, Segments, StreamOrder};
use crate::tables::Growable;
use crate::units::{DevicePtr, StreamId};
use std::sync::Mutex;
use std::vec::Vec;

/// An allocator on a device that differs from the simulated one.
pub(crate) type Allocator = crate::allocator::Allocator<AlteredDevice, spin::mutex::SpinMutex<()>, Growable>;

/// How a device differs from the simulated one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// The host keeps no contents.
    KeepsNothing,
    /// The host says of every shortage that it has freed memory.
    ClaimsToFree,
    /// The system wants so many bytes back.
    Owes(u64),
    /// The process uses so many bytes.
    TellsUse(u64),
    /// Segments are obtained in the order of a stream, which is noted.
    IsOrdered,
    /// The calls that make events are noted.
    NotesEvents,
    /// Waits for streams need memory that the device does not have, and those without memory are
    /// noted.
    IsFull,
}

/// A device that differs from the simulated one.
pub(crate) struct AlteredDevice {
    pub(crate) inner: SimulatedDevice,
    change: Change,
    /// The stream of each segment; 0 for a segment in no order.
    streams: Mutex<Vec<u64>>,
    /// The calls that have made events, or that have waited without memory.
    made: Mutex<Vec<&'static str>>,
}

impl AlteredDevice {
    pub(crate) fn new(capacity: u64, change: Change) -> Self {
        let (streams, made) = (Mutex::default(), Mutex::default());
        Self { inner: SimulatedDevice::new(capacity), change, streams, made }
    }

    /// Takes the streams of the segments noted so far.
    pub(crate) fn take_streams(&self) -> Vec<u64> {
        core::mem::take(&mut self.streams.lock().unwrap())
    }

    /// Takes the calls noted so far.
    pub(crate) fn take_made(&self) -> Vec<&'static str> {
        core::mem::take(&mut self.made.lock().unwrap())
    }
}

impl Forwarder for AlteredDevice {
    type Inner = SimulatedDevice;

    fn inner(&self) -> DeviceResult<&SimulatedDevice> {
        Ok(&self.inner)
    }

    fn before(&self, method: &'static str, call: Option<Call>) {
        let noted = match self.change {
            Change::NotesEvents => call == Some(Call::CreateEvent),
            Change::IsFull => method == "synchronize_without_memory",
            _ => false,
        };
        if noted {
            self.made.lock().unwrap().push(method);
        }
    }
}

impl ForwardSegments for AlteredDevice {
    fn contents(&self) -> Option<&dyn Contents> {
        if self.change == Change::KeepsNothing { None } else { self.inner.contents() }
    }

    fn process_use(&self) -> Option<u64> {
        if let Change::TellsUse(bytes) = self.change { Some(bytes) } else { self.inner.process_use() }
    }

    fn owed(&self) -> u64 {
        if let Change::Owes(bytes) = self.change { bytes } else { 0 }
    }

    fn is_ordered(&self) -> bool {
        self.change == Change::IsOrdered || self.inner.is_ordered()
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

impl ForwardStreamOrder for AlteredDevice {
    fn synchronize(&self, stream: StreamId) -> DeviceResult<()> {
        if self.change == Change::IsFull {
            return Err(DeviceError::new(ErrorKind::OutOfMemory, 2));
        }
        self.inner.synchronize(stream)
    }

    fn synchronize_without_memory(&self, stream: StreamId) -> DeviceResult<()> {
        self.inner.synchronize(stream)
    }
}

impl ForwardHost for AlteredDevice {
    fn on_shortage(&self, _: u64) -> bool {
        self.change == Change::ClaimsToFree
    }
}
