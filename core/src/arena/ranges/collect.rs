//! Removal of stale mappings: polls the events of departures, and unmaps what no work uses any
//! longer.

use super::Elastic;
use crate::arena::ranges::table::Part;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::{DevicePtr, NO_STREAM};

impl<D: DeviceMemory, R: Lock, S: Storage> Elastic<'_, D, R, S> {
    /// Asks the device which departures are complete. Does not wait.
    ///
    /// # Errors
    /// The loss of the context. A departure whose event cannot be polled counts as incomplete.
    pub(super) fn poll(&self) -> Result<(), Error> {
        let device = self.device();
        let (mut from, mut unfinished) = (0, NO_STREAM);
        loop {
            let next = device.page_pool.lock().departures.hold_incomplete(from);
            let Some((departure, entry)) = next else { break };
            from = departure + 1;
            // Most later departures of a stream are recorded later: the next poll finds the others.
            let skip = entry.stream != NO_STREAM && entry.stream == unfinished;
            let complete = !skip && device.call(|memory| memory.is_complete(entry.event)) == Ok(true);
            unfinished = if complete { unfinished } else { entry.stream };
            let mut pages = device.page_pool.lock();
            if complete {
                pages.departures.complete(departure);
            }
            pages.departures.release(departure);
        }
        Ok(device.health()?)
    }

    /// Waits for a departure.
    pub(super) fn wait_for(&self, departure: u32) -> Result<(), Error> {
        let device = self.device();
        let entry = device.page_pool.lock().departures.hold(departure);
        let waited = device.call(|memory| memory.wait(entry.event));
        let mut pages = device.page_pool.lock();
        if waited.is_ok() {
            pages.departures.complete(departure);
        }
        pages.departures.release(departure);
        Ok(waited?)
    }

    /// Waits for all departures so far, and removes all stale mappings.
    ///
    /// # Errors
    /// The first error of the device, after all mappings were tried.
    pub(super) fn wait(&self) -> Result<(), Error> {
        let device = self.device();
        let (mut from, mut result) = (0, Ok(()));
        loop {
            let next = device.page_pool.lock().departures.hold_incomplete(from);
            let Some((departure, _)) = next else { break };
            from = departure + 1;
            result = result.and(self.wait_for(departure));
            device.page_pool.lock().departures.release(departure);
        }
        result.and(self.collect(u32::MAX))
    }

    /// Removes up to `most` stale mappings whose work is complete. Does not wait.
    ///
    /// # Errors
    /// The first error of the device, after all mappings were tried.
    pub(super) fn collect(&self, most: u32) -> Result<(), Error> {
        self.poll()?;
        let device = self.device();
        let (mut left, mut result) = (most, Ok(()));
        let count = device.ranges.lock().range_count();
        for number in 0..count {
            let has_stale = device.ranges.lock().range(number).stale > 0;
            // A range that another thread works on is left to that thread.
            if let Some((held, part)) = has_stale.then(|| self.try_enter(number)).flatten() {
                let mut at = part.begin;
                while left > 0
                    && let Some((begin, end)) = self.next_complete(part, at)
                {
                    result = result.and(self.unmap_stale(number, begin));
                    (at, left) = (end, left - 1);
                }
                drop(held);
            }
        }
        result
    }

    /// Returns begin and end of the first stale piece behind `at` whose work is complete.
    fn next_complete(&self, part: Part, mut at: u64) -> Option<(u64, u64)> {
        let ranges = self.device().ranges.lock();
        while let Some(piece) = ranges.piece(part, at) {
            if piece.is_stale() && self.device().page_pool.lock().departures[piece.departure].complete {
                return Some((piece.at, piece.end()));
            }
            at = piece.end();
        }
        None
    }

    /// Removes the stale mapping at `at` of a held range, whose work is complete. A page still
    /// departed becomes spare.
    pub(super) fn unmap_stale(&self, range: u32, at: u64) -> Result<(), Error> {
        let device = self.device();
        let piece = device.ranges.lock().remove_stale(at);
        let unmapped = self.mapper.unmap(DevicePtr(at), piece.bytes);
        if unmapped.is_err() {
            // The addresses are never used again.
            device.ranges.lock().range(range).is_lost = true;
        }
        let was_departed = device.page_pool.lock().finish_departure(piece.page, piece.departure, unmapped.is_err());
        if was_departed {
            self.mapper.spare_page(piece.page);
        }
        Ok(unmapped?)
    }
}
