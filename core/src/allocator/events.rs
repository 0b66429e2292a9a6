//! Events told to the host as they happen.

use crate::allocator::Allocator;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::DeviceIndex;

/// Reports each event of a device to the host at the moment of the event, through
/// [`Host::on_event`](crate::Host::on_event): a view of an [`Allocator`].
///
/// A [trace](Allocator::record_trace) records the events independently of the reports.
pub struct EventReports<'a, D: DeviceMemory, R: Lock, S: Storage> {
    allocator: &'a Allocator<D, R, S>,
    device: DeviceIndex,
}

impl<'a, D: DeviceMemory, R: Lock, S: Storage> EventReports<'a, D, R, S> {
    /// Returns the reports of `device`, which are off at first.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`].
    pub fn of(allocator: &'a Allocator<D, R, S>, device: DeviceIndex) -> Result<Self, Error> {
        allocator.arena(device)?;
        Ok(Self { allocator, device })
    }

    /// Turns the reports on or off. For a call in progress on another thread, the last event may be missing or
    /// reported in excess.
    ///
    /// # Errors
    /// None for an existing device.
    pub fn set(&self, on: bool) -> Result<(), Error> {
        self.allocator.arena(self.device)?.set_reports(on);
        Ok(())
    }
}
