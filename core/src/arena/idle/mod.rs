//! The setting `reclaim:auto`: idle memory goes back to the device by its worth.
//!
//! ```text
//! look (heap/idle.rs) ─▶ predictor: time to the next use ─┐
//! cost of giving back and obtaining again (budget.rs) ────┴─▶ worthwhile? ─▶ quiet? ─▶ budget left? ─▶ device
//! ```
//!
//! Everything happens in [`maintain`](crate::Pages::maintain): requests and frees do nothing for
//! the setting, and find less cached memory at most. A unit is given back if the prediction is no
//! use for as long as the part of the budget takes to pay the driver's calls, or if more is held
//! than before anything was given back. The budget bounds the driver's time under all predictions:
//! giving back and obtaining again are paid together, when a unit is given back.
//!
//! Nothing waits for the device. All work on a unit is known to be complete
//! (arena/paging/epochs.rs). A driver waits for running work of any kind before a free of a
//! segment, so segments go back while all streams known to the allocator are idle; pages are
//! unmapped at any time. Nothing is given back while a graph is captured. Of the private pools in
//! use those give whose tags have limits, down to `low`, unless a captured graph has their memory.

mod budget;
mod give;
mod predictor;
#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests;

use self::budget::Budget;
use self::predictor::{Obtained, Predictor};
use crate::arena::flags;
use crate::arena::heaps::Heaps;
use crate::arena::heaps::pairs::PairUse;
use crate::arena::holdings::Holdings;
use crate::arena::platform::Platform;
use crate::config::rounding::PoolKind;
use crate::device::Host;
use crate::error::Error;
use crate::heap::age::{Found, Moment};
use crate::stats::{ReclaimStats, Stat};
use crate::sync::{Ordering, Ranked, impl_empty};
use core::cell::Cell;
use core::iter::once;

/// Experience and budget of `reclaim:auto` on a device.
#[derive(Debug)]
pub(crate) struct IdleMemory {
    predictor: Predictor,
    budget: Budget,
    /// The time of the last look, in microseconds of the device's clock; 0 before the first.
    last_us: u64,
    /// The most bytes held, and the most in use, until memory was given back for the first time.
    before: [u64; 2],
    stats: ReclaimStats,
}

impl_empty! { IdleMemory { predictor: Predictor::new(), budget: Budget::new(), last_us, before, stats } }

impl IdleMemory {
    /// Returns the figures so far.
    pub(crate) fn stats(&self) -> ReclaimStats {
        ReclaimStats { budget_us: self.budget.left() / 1000, caution: self.predictor.caution(), ..self.stats }
    }

    /// Returns how many of the `held` bytes are beyond the most held before anything was given
    /// back, and beyond the growth of the use since. `most` bytes were held at one time, and `live`
    /// in use. Where segments have gone, requests obtain segments of different sizes: the memory
    /// held could become more than without the setting.
    fn excess(&mut self, held: u64, most: u64, live: u64) -> u64 {
        if self.stats.given_back == 0 {
            self.before = [most, live];
        }
        let [held_before, live_before] = self.before;
        held.saturating_sub(held_before.saturating_add(live.saturating_sub(live_before)))
    }
}

/// The shortest time between two looks, in microseconds.
const LOOK_US: u64 = 1000;

/// A call of `maintain`.
struct Round {
    /// The time of the look.
    now: Moment,
    /// The part of the time for the driver.
    driver_share: f64,
    /// Bytes held from the device at the beginning.
    held: u64,
    /// The driver time left to the call, in nanoseconds.
    left: Cell<u64>,
    /// Bytes held beyond those before anything was given back.
    excess: Cell<u64>,
    /// Whether a segment was not given back because a stream had work.
    blocked: Cell<bool>,
    /// Whether the time has ended before all worthwhile units were given back.
    more: Cell<bool>,
}

impl<P: Platform> Holdings<'_, P> {
    /// Looks at the heaps of the default pool and of tags with limits, and gives back worthwhile
    /// units, for about `max_us` microseconds of driver time. Returns true if the time has ended
    /// before all of them were given back. Does nothing unless the setting is on and the device has
    /// a clock.
    ///
    /// # Errors
    /// The first error of the device. The bytes of the unit are counted as leaked, and the rest is
    /// left to the next call. [`Error::TableFull`] if a block cannot be cut.
    pub(crate) fn give_idle_back(&self, idle: &Ranked<P::Lock, IdleMemory>, max_us: u64) -> Result<bool, Error> {
        let Some(share) = self.settings.config.lock().reclaim() else { return Ok(false) };
        let memory = self.driver.device();
        let now_us = memory.time_us(memory.ticks());
        if now_us == 0 || self.driver.flags.has(flags::DIRECT) {
            return Ok(false);
        }
        let held = self.ledger.reserved();
        let most = self.peaks.most_with(&self.counters(), Stat::ReservedBytes, 0);
        let live = self.peaks.most_live_with(&self.counters(), 0, || self.paging.bytes().asleep);
        let round = Round {
            now: Moment((now_us / 1000) as u32),
            driver_share: share,
            held,
            left: Cell::new(max_us.saturating_mul(1000)),
            excess: Cell::new(idle.lock().excess(held, most, live)),
            blocked: Cell::new(false),
            more: Cell::new(false),
        };
        if !round.look(self.heaps, idle, now_us) {
            return Ok(false);
        }
        self.given_up().poll_departures();
        if self.give_worthwhile(idle, &round)? {
            // What was free is quiet at once on a stream without unfinished work.
            self.given_up().poll_departures();
            self.give_worthwhile(idle, &round)?;
        }
        Ok(round.more.get())
    }
}

impl<P: Platform> Heaps<P> {
    /// Iterates over the pairs that give idle memory back.
    fn idle_pairs(&self) -> impl Iterator<Item = PairUse<'_, P>> {
        once(0).chain(self.tenant_pools()).flat_map(|pool| self.pairs_of(pool))
    }
}

impl Round {
    /// Looks at every heap that gives idle memory back. Returns false if the last look was just
    /// before.
    fn look<P: Platform>(&self, heaps: &Heaps<P>, idle_memory: &Ranked<P::Lock, IdleMemory>, now_us: u64) -> bool {
        let between = {
            let mut idle = idle_memory.lock();
            let passed = now_us.saturating_sub(idle.last_us);
            if passed < LOOK_US {
                return false;
            }
            if idle.last_us > 0 {
                idle.budget.earn(passed, self.driver_share);
            }
            idle.last_us = now_us;
            idle.stats.looks += 1;
            idle.stats.idle = 0;
            idle.predictor.settle(self.now);
            // What has happened since the last look, happened in the middle on average.
            Moment(self.now.0.wrapping_sub((passed / 2000) as u32))
        };
        for used in heaps.idle_pairs() {
            for kind in [PoolKind::Large, PoolKind::Small] {
                let mut heap = heaps.lock(used.slot(kind));
                if heap.asleep {
                    continue;
                }
                // What is freed from now on has a stamp that no free block has yet.
                heap.clock = heaps.searches(&heap).fetch_add(1, Ordering::Relaxed) + 1;
                let mut idle = idle_memory.lock();
                let IdleMemory { predictor, stats, .. } = &mut *idle;
                heap.look(self.now, |found| match found {
                    Found::Idle { bytes } => stats.idle += bytes,
                    Found::UsedAgain { bytes, idle } => {
                        stats.observed_units += 1;
                        predictor.use_again(bytes, idle, between);
                    }
                    Found::New { bytes } => {
                        if let Obtained::Again { too_early: early } = predictor.obtain(bytes, between) {
                            stats.obtained_again += bytes;
                            stats.obtained_again_units += 1;
                            stats.too_early_units += u64::from(early);
                        }
                    }
                });
            }
        }
        true
    }
}
