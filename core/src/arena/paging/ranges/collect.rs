//! Removal of stale mappings: polls the events of departures, and unmaps what no work uses any
//! longer.

use crate::arena::paging::mapper::Mapper;
use crate::device::{DeviceMemory, DeviceResult, Event};
use crate::error::Error;
use crate::pages::departures::Departure;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::DevicePtr;

impl<D: DeviceMemory, R: Lock, S: Storage> Mapper<'_, D, R, S> {
    /// Asks the device which departures are complete. Does not wait.
    ///
    /// # Errors
    /// The loss of the context. A departure whose event cannot be polled counts as incomplete.
    pub(super) fn poll_departures(&self) -> Result<(), Error> {
        let (device, mut from) = (self.device, 0);
        loop {
            let next = device.paging.pool.lock().departures.hold_oldest(from);
            let Some((queue, departure, entry)) = next else { break };
            let complete = self.query_departure(entry, D::is_complete) == Ok(true);
            if complete {
                device.paging.pool.lock().departures.complete(departure);
            }
            self.release_departure(departure);
            // The later departures of the stream are not complete before.
            from = if complete { queue } else { queue + 1 };
        }
        self.list_removable();
        Ok(device.health()?)
    }

    /// Waits for a departure.
    pub(super) fn wait_for_departure(&self, departure: u32) -> Result<(), Error> {
        let device = self.device;
        let entry = device.paging.pool.lock().departures.hold(departure);
        let waited = self.query_departure(entry, |memory, event| memory.wait(event).map(|()| true));
        if waited.is_ok() {
            device.paging.pool.lock().departures.complete(departure);
        }
        self.release_departure(departure);
        waited?;
        Ok(())
    }

    /// Asks the device after a departure; one without a fence is complete.
    fn query_departure(
        &self,
        departure: Departure,
        ask: impl Fn(&D, Event) -> DeviceResult<bool>,
    ) -> DeviceResult<bool> {
        departure.fence.map_or(Ok(true), |fence| self.device.call(|memory| ask(memory, fence.event)))
    }

    /// Waits for all departures so far, and removes all stale mappings.
    ///
    /// # Errors
    /// The first error of the device, after all mappings were tried.
    pub(super) fn wait_for_departures(&self) -> Result<(), Error> {
        let device = self.device;
        let (mut from, mut result) = (0, Ok(()));
        // Other threads may add departures for ever.
        let added = device.paging.pool.lock().departures.added();
        loop {
            let next = device.paging.pool.lock().departures.hold_oldest(from);
            let Some((queue, departure, entry)) = next else { break };
            let waited = if entry.age < added { self.wait_for_departure(departure) } else { Ok(()) };
            // The departure is complete then, and another one the oldest of its queue.
            from = if entry.age < added && waited.is_ok() { queue } else { queue + 1 };
            result = result.and(waited);
            self.release_departure(departure);
        }
        result.and(self.collect_stale(u32::MAX))
    }

    /// Removes up to `most` stale mappings whose work is complete. Does not wait.
    ///
    /// # Errors
    /// The first error of the device, after all mappings were tried.
    pub(super) fn collect_stale(&self, most: u32) -> Result<(), Error> {
        self.poll_departures()?;
        let device = self.device;
        let (mut left, mut from, mut result) = (most, 0, Ok(()));
        while left > 0 {
            let next = device.paging.ranges.lock().next_removable(from);
            let Some((number, _)) = next else { break };
            from = number + 1;
            // A range that another thread works on is left to that thread.
            let Some((held, _)) = self.try_hold_range(number) else { continue };
            while left > 0 {
                let next = device.paging.ranges.lock().next_removable(number);
                let Some((_, at)) = next.filter(|&(range, _)| range == number) else { break };
                result = result.and(self.unmap_stale_piece(at));
                left -= 1;
            }
            drop(held);
        }
        result
    }

    /// Lists the stale mappings whose work is complete as removable, and their pages as such.
    fn list_removable(&self) {
        let mut ranges = self.device.paging.ranges.lock();
        loop {
            let completed = self.device.paging.pool.lock().departures.next_completed();
            let Some(departure) = completed else { return };
            ranges.make_removable(departure, |page| self.device.paging.pool.lock().follow_departure(page));
        }
    }

    /// Removes the stale mapping at `at` of a held range, whose work is complete. A page still
    /// departed becomes spare. If the device fails, the addresses are never used again.
    pub(super) fn unmap_stale_piece(&self, at: u64) -> Result<(), Error> {
        let device = self.device;
        let piece = device.paging.ranges.lock().stale(at);
        let unmapped = self.unmap(DevicePtr(at), piece.bytes);
        device.paging.ranges.lock().end_stale(at, unmapped);
        let finished = device.paging.pool.lock().finish_departure(piece.page, piece.departure, unmapped.is_err());
        let (was_departed, over) = finished;
        self.end_departure(over);
        if was_departed {
            self.spare_page(piece.page);
        }
        Ok(unmapped?)
    }
}
