//! Events told to the host as they happen.

use crate::allocator::Allocator;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::DeviceIndex;

/// Tells the host of each event of one device as it happens, through
/// [`Host::on_event`](crate::Host::on_event): a view of an [`Allocator`].
///
/// A [trace](Allocator::record_trace) records the same events, and may be on or off at the same
/// time.
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

    /// Turns the reports on or off. A call in progress on another thread may report one more event,
    /// or one less.
    ///
    /// # Errors
    /// None for a device that exists.
    pub fn set(&self, on: bool) -> Result<(), Error> {
        self.allocator.arena(self.device)?.set_reports(on);
        Ok(())
    }
}
