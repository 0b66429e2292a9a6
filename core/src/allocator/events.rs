//! Events told to the host as they happen.

use crate::allocator::Allocator;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::DeviceIndex;

impl<D: DeviceMemory, R: Lock, S: Storage> Allocator<D, R, S> {
    /// Sets whether each event of `device` is reported to the host at the moment of the event, through
    /// [`Host::on_event`](crate::Host::on_event). At first no event is. For a call in progress on another thread, the last
    /// event may be missing or reported in excess.
    ///
    /// A [trace](Self::record_trace) records the events independently of the reports.
    ///
    /// Device: not called.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`].
    pub fn report_events(&self, device: DeviceIndex, on: bool) -> Result<(), Error> {
        self.arena(device)?.set_reports(on);
        Ok(())
    }
}
