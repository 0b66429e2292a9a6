//! Events told to the host as they happen.

use crate::allocator::Allocator;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::DeviceIndex;

impl<D: DeviceMemory, R: Lock, S: Storage> Allocator<D, R, S> {
    /// Sets whether the free of each block requested from now on waits for the work of the block's
    /// own stream, as for that of announced streams. The event
    /// [`FreeCompleted`](crate::Action::FreeCompleted) then tells that no work known at the free
    /// uses the block. At first no free does: the next block at the address goes to the same
    /// stream.
    ///
    /// Blocks served from a plan are left out. Device: not called; later frees record an event.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`].
    pub fn watch_frees(&self, device: DeviceIndex, on: bool) -> Result<(), Error> {
        let arena = self.arena(device)?;
        arena.guarding.watch_frees(&arena.driver.flags, on);
        Ok(())
    }

    /// Sets whether each event of `device` is reported to the host at the moment of the event,
    /// through [`Host::on_event`](crate::Host::on_event). At first no event is. For a call in
    /// progress on another thread, the last event may be missing or reported in excess.
    ///
    /// A [trace](Self::record_trace) records the events independently of the reports.
    ///
    /// Device: not called.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`].
    pub fn report_events(&self, device: DeviceIndex, on: bool) -> Result<(), Error> {
        self.arena(device)?.recorder().set_reports(on);
        Ok(())
    }
}
