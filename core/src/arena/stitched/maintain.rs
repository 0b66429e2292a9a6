//! Upkeep at quiet moments: what requests put off so they need not wait.
//!
//! In this order, until the time is used up:
//! 1. stale mappings whose work is complete are removed;
//! 2. memory beyond the budget goes back to the device: spare pages, and then free pages that no
//!    work uses any longer;
//! 3. runs of short pages that meet again and again are replaced by longer pages (consolidate.rs).

use super::Stitcher;
use super::gather::{Wish, slots_of};
use crate::device::{DeviceMemory, ErrorKind};
use crate::error::Error;
use crate::heap::expandable::Range;
use crate::heap::stitched::Wanted;
use crate::pages::Batch;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::trace::Action;
use crate::units::{DevicePtr, NO_STREAM};

/// Estimated time to unmap a page, in tenths of a microsecond (measured on an H100: 14 to 17 µs).
const UNMAP_TENTHS_US: u64 = 150;

/// Estimated time to unmap and destroy a page, in tenths of a microsecond: destroy 10 to 14 µs more.
pub(super) const RELEASE_TENTHS_US: u64 = 290;

/// The time that is left to one call, estimated from the measured costs of the driver's calls.
pub(super) struct TimeLeft(u64);

impl TimeLeft {
    /// Returns whether no page can be given back any more.
    pub(super) fn is_over(&self) -> bool {
        self.0 < RELEASE_TENTHS_US
    }

    /// Takes `tenths` of a microsecond. Returns false if less is left.
    pub(super) fn take(&mut self, tenths: u64) -> bool {
        let left = self.0.checked_sub(tenths);
        self.0 = left.unwrap_or(self.0);
        left.is_some()
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Stitcher<'_, D, R, S> {
    /// Does what requests have put off, for about `max_us` microseconds of driver time. Returns true
    /// if something is left to do.
    ///
    /// # Errors
    /// The first error of the device; the rest is left to the next call.
    pub(crate) fn maintain(&self, max_us: u64) -> Result<bool, Error> {
        let device = self.device();
        let mut left = TimeLeft(max_us.saturating_mul(10));
        device.quiet().poll();
        let stale = self.remove_stale(&mut left)?;
        let indebted = self.give_back(&mut left, || device.ledger.reserved().saturating_sub(self.most_held(0)))?;
        let short = self.consolidate(&mut left)?;
        // The free pages of this moment are quiet at one of the next calls.
        for used in device.heaps.pairs_of(0) {
            self.begin_epochs(used.pair, NO_STREAM);
        }
        Ok(stale | indebted | short)
    }

    /// Gives free memory back to the device, so `bytes` of parked memory can wake within the budget.
    /// Waits for the streams of the default pool if completed work does not leave enough. Does nothing
    /// under a limit, which is the budget.
    ///
    /// # Errors
    /// The first error of the device. A capturing stream permits no wait, which is no error.
    pub(in crate::arena) fn make_room_to_wake(&self, bytes: u64) -> Result<(), Error> {
        let device = self.device();
        if device.ledger.limit_if_set().is_some() {
            return Ok(());
        }
        let excess = || device.ledger.reserved().saturating_add(bytes).saturating_sub(self.most_held(bytes));
        let mut left = TimeLeft(u64::MAX);
        device.quiet().poll();
        if self.give_back(&mut left, excess)? {
            for used in device.arena.heaps.pairs_of(0) {
                self.begin_epochs(used.pair, NO_STREAM);
                let (stream, ended) = {
                    let heap = device.heaps.lock(slots_of(used.pair)[0]);
                    (heap.stream, heap.ended)
                };
                // The handle of an ended stream may not be used.
                if ended {
                    continue;
                }
                match device.call(|memory| memory.synchronize(stream)) {
                    Err(error) if error.kind == ErrorKind::NotPermittedInCapture => {}
                    waited => waited?,
                }
            }
            device.quiet().poll();
            self.give_back(&mut left, excess)?;
        }
        Ok(())
    }

    /// Removes stale mappings whose work is complete. Returns true if some are left.
    fn remove_stale(&self, left: &mut TimeLeft) -> Result<bool, Error> {
        let device = self.device();
        let mut some = false;
        for slot in device.heaps.slot_numbers() {
            while left.take(UNMAP_TENTHS_US) {
                if self.unmap_stale(slot, 1)? == 0 {
                    // Nothing was removed, so no time was used.
                    left.0 += UNMAP_TENTHS_US;
                    break;
                }
            }
            let heap = device.heaps.lock(slot);
            some |= !heap.is_empty() && heap.sets.stale.count > 0;
        }
        Ok(some)
    }

    /// Gives memory back to the device as long as there is an `excess`. Returns true if some is left.
    pub(super) fn give_back(&self, left: &mut TimeLeft, excess: impl Fn() -> u64) -> Result<bool, Error> {
        while excess() > 0 && left.take(RELEASE_TENTHS_US) {
            if self.mapper.destroy_spare()? {
                continue;
            }
            let Some(batch) = self.take_one_quiet() else { return Ok(true) };
            self.unmap_taken_pages(&batch)?;
        }
        Ok(excess() > 0)
    }

    /// Takes one free page that no work uses any longer, if any. The memory of a private
    /// pool does not count: it may be in use on any stream, as long as its last replays run.
    fn take_one_quiet(&self) -> Option<Batch> {
        let mut batch = Batch::EMPTY;
        let any = Wish { end: self.step(), room: u64::MAX };
        for used in self.device().arena.heaps.pairs_of(0) {
            self.take_from(Wanted::Quiet, used.pair, any, &mut 1, &mut batch);
            if batch.count > 0 {
                return Some(batch);
            }
        }
        None
    }

    /// Unmaps free pages that were taken from their heaps. The pages become spare.
    fn unmap_taken_pages(&self, batch: &Batch) -> Result<(), Error> {
        let device = self.device();
        let mut result = Ok(());
        for page in self.mapper.numbers_of(batch) {
            let Some((slot, block)) = device.page_pool.lock()[page].origin else { continue };
            let mut heap = device.heaps.lock(slot);
            let entry = &heap.blocks[block];
            let range = Range { at: DevicePtr(entry.addr), bytes: entry.size, granule: entry.size };
            if let Some(recorder) = device.tracing() {
                recorder.release(&mut heap, Action::SegmentUnmap, range.at, range.bytes);
            }
            drop(heap);
            result = result.and(self.mapper.unmap_detached(slot, block, range));
        }
        result
    }
}
