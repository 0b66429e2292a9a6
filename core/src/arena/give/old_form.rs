//! Memory in the form of earlier settings: after a change, idle segments retire, and idle pages are
//! unmapped if this does not require waiting for the device.
//!
//! Blocks that other streams use are not free, so their segments are not idle.

use crate::arena::flags;
use crate::arena::heaps::pairs::PairUse;
use crate::arena::holdings::Holdings;
use crate::arena::platform::Platform;
use crate::arena::tuning::TuningState;
use crate::config::rounding::PoolKind;
use crate::error::Error;
use crate::sync::Ranked;
use crate::tables::Lazy;
use crate::units::NO_STREAM;
use core::iter::once;

impl<P: Platform> Holdings<'_, P> {
    /// Gives back idle memory of the default pool that is in the form of earlier settings. Segments
    /// go back if pages are mapped now, and pages if segments are obtained now. With `all`,
    /// everything idle goes back, because its sizes are those of earlier settings. Pages go back
    /// only while their stream is idle.
    ///
    /// # Errors
    /// Those of the device.
    pub(crate) fn give_old_form_back(&self, tuning: &Ranked<P::Lock, TuningState>, all: bool) -> Result<(), Error> {
        self.given_up().poll_departures();
        let mut released = self.release_retired(false);
        if tuning.lock().has_leftovers && !self.driver.flags.has(flags::CAPTURE) {
            let mut any = false;
            for (slot, pair) in self.heaps.heaps_of(once(0), |_| [PoolKind::Large, PoolKind::Small]) {
                let (maps_pages, is_empty) = {
                    let heap = self.heaps.lock(slot);
                    (heap.rules.source.maps_pages(), heap.is_empty())
                };
                if all || maps_pages {
                    self.retire_segments(&pair, slot);
                }
                if (all || !maps_pages) && self.is_stream_at_rest(slot) {
                    released = released.and(self.unmap_cached(slot));
                }
                any |= all || !is_empty;
            }
            tuning.lock().has_leftovers = any;
            let spares = self.destroy_spares();
            self.given_up().poll_departures();
            released = released.and(spares).and(self.release_retired(false));
        }
        released
    }

    /// Returns whether the stream of a heap has no unfinished work. Returns false if the heap has
    /// no pages to give back.
    fn is_stream_at_rest(&self, slot: u32) -> bool {
        // An epoch that is complete at once shows this.
        if self.heaps.pages_of(slot).next().is_none() || !self.given_up().begin_epoch(slot, NO_STREAM) {
            return false;
        }
        self.given_up().poll_departures();
        let heap = self.heaps.lock(slot);
        heap.sets.is_made() && heap.sets.quiet == heap.clock
    }

    /// Retires the wholly free segments of the heap in `slot`. The pair is in use.
    fn retire_segments(&self, _used: &PairUse<'_, P>, slot: u32) {
        // Held until the event is recorded, so that no capture starts in between.
        let Some(_permission) = self.driver.may_record() else { return };
        let stream = self.driver.usable_stream(&self.heaps.lock(slot), NO_STREAM);
        let Some(stream) = stream else { return };
        for unit in self.heaps.segments_of(slot) {
            // A segment that cannot be taken stays in the heap. The fence is recorded afterwards,
            // because another thread may have used the segment until it was taken.
            if let Ok(Some(taken)) = unit.take(self) {
                taken.retire(self, stream);
            }
        }
    }
}
