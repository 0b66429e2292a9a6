//! Removal of stale mappings. Unmaps what no work uses any more, which the departures show. A
//! mapping whose page is not in use stays until memory is wanted elsewhere, because a commit there
//! would need it again: to map a page anew takes 57 µs on an H100, and to take it back nothing.

use crate::arena::Platform;
use crate::arena::paging::mapper::Mapper;
use crate::arena::paging::ranges::table::Staleness;
use crate::error::Error;
use crate::units::DevicePtr;

impl<P: Platform> Mapper<'_, P> {
    /// Waits for all departures so far, and removes all stale mappings.
    ///
    /// # Errors
    /// The first error of the device, after all mappings have been tried.
    pub(super) fn wait_for_departures(&self) -> Result<(), Error> {
        let waited = self.given_up().wait_for_pages();
        waited.and(self.collect_stale(u32::MAX, true))
    }

    /// Removes up to `most` stale mappings if their work is complete: those that pages have left,
    /// and then, with `idle`, those at which a commit would take the page back. Does not wait.
    ///
    /// # Errors
    /// The first error of the device, after all mappings have been tried.
    pub(in crate::arena::paging) fn collect_stale(&self, most: u32, idle: bool) -> Result<(), Error> {
        self.given_up().poll_departures();
        self.driver.health()?;
        if self.driver.holds_frees() {
            return Ok(());
        }
        let mut left = most;
        let result = self.collect_in(Staleness::Left, &mut left);
        if idle { result.and(self.collect_in(Staleness::Idle, &mut left)) } else { result }
    }

    /// Removes stale mappings in `stage`, up to `left`, which it lowers.
    ///
    /// # Errors
    /// The first error of the device, after all mappings have been tried.
    fn collect_in(&self, stage: Staleness, left: &mut u32) -> Result<(), Error> {
        let (mut from, mut result) = (0, Ok(()));
        while *left > 0 {
            let next = self.paging.ranges.lock().next_stale(from, stage);
            let Some((number, _)) = next else { break };
            from = number + 1;
            // Another thread is working on this range, and deals with it.
            let Some(held) = self.try_hold_range(number) else { continue };
            while *left > 0 {
                let next = self.paging.ranges.lock().next_stale(number, stage);
                let Some((_, at)) = next.filter(|&(range, _)| range == number) else { break };
                result = result.and(self.unmap_stale_piece(at));
                *left -= 1;
            }
            drop(held);
        }
        result
    }

    /// Removes the stale mapping at `at` of a held range. Its work is complete. If the page is
    /// still departed, it becomes spare. If the device fails, the addresses are never used again.
    pub(super) fn unmap_stale_piece(&self, at: u64) -> Result<(), Error> {
        let piece = self.paging.ranges.lock().stale(at);
        let unmapped = self.unmap(DevicePtr(at), piece.bytes);
        self.paging.ranges.lock().end_stale(at, unmapped);
        let finished = self.paging.pool.lock().finish_departure(piece.page, piece.departure, unmapped.is_err());
        let (was_departed, over) = finished;
        self.given_up().end_departure(over);
        if was_departed {
            self.spare_page(piece.page);
        }
        Ok(unmapped?)
    }
}
