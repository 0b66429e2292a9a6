//! The setting `reclaim:auto`: idle memory goes back to the device if this is worth its cost.
//!
//! ```text
//! look (heap/idle.rs) ─▶ predictor: time to the next use ─┐
//! cost of giving back and obtaining again (budget.rs) ────┴─▶ worthwhile? ─▶ quiet? ─▶ budget left? ─▶ device
//! ```
//!
//! Everything happens in [`maintain`](crate::Pages::maintain). Requests and frees do nothing for
//! this setting; at most they find less cached memory. A unit is given back if it is predicted to
//! stay unused for as long as its part of the budget takes to pay for the driver's calls, or if
//! more is held than before anything was given back. The budget bounds the driver's time under all
//! predictions, because giving back and obtaining again are both paid when a unit is given back.
//!
//! Nothing waits for the device. All work on a unit is known to be complete
//! (arena/paging/epochs.rs). Before it frees a segment, a driver waits for running work of any
//! kind, so segments go back only while all streams known to the allocator are idle. Pages are
//! unmapped at any time. Nothing is given back while a graph is captured. Private pools in use give
//! memory back if their tags have limits, down to `low`, unless it is memory of a captured graph.

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
use crate::device::{Host, Segments};
use crate::error::Error;
use crate::heap::age::{Found, Moment};
use crate::stats::{ReclaimStats, Stat};
use crate::sync::{Ranked, impl_empty};
use core::cell::Cell;
use core::iter::once;

/// The experience and the budget of `reclaim:auto` on a device.
#[derive(Debug)]
pub(crate) struct IdleMemory {
    predictor: Predictor,
    budget: Budget,
    /// The time of the last look, in microseconds of the device's clock, or 0 before the first.
    last_us: u64,
    /// The most bytes held and the most in use, until memory was first given back.
    before: [u64; 2],
    stats: ReclaimStats,
}

impl_empty! { IdleMemory { predictor: Predictor::new(), budget: Budget::new(), last_us, before, stats } }

impl IdleMemory {
    /// Returns the figures so far.
    pub(crate) fn stats(&self) -> ReclaimStats {
        ReclaimStats { budget_us: self.budget.left() / 1000, caution: self.predictor.caution(), ..self.stats }
    }

    /// Returns how many of the `held` bytes exceed the most that was held before anything was given
    /// back, plus the growth of the use since then. `most` is the most that was held at one time,
    /// and `live` the most in use. Requests that replace segments given back obtain segments of
    /// different sizes, so without this more memory could be held than without the setting.
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
    /// The share of the time that the driver may use.
    driver_share: f64,
    /// The bytes held from the device at the start.
    held: u64,
    /// The driver time that the call has left, in nanoseconds.
    left: Cell<u64>,
    /// The bytes held beyond those from before anything was given back, or those that the system
    /// wants back.
    excess: Cell<u64>,
    /// Whether a segment was kept because a stream had work.
    blocked: Cell<bool>,
    /// Whether the time ended before all worthwhile units were given back.
    more: Cell<bool>,
}

impl<P: Platform> Holdings<'_, P> {
    /// Looks at the heaps of the default pool and of tags with limits, and gives back worthwhile
    /// units, for about `max_us` microseconds of driver time. Returns true if the time ended before
    /// all of them were given back. Does nothing if the setting is off or the device has no clock.
    ///
    /// # Errors
    /// The first error of the device. The bytes of the unit count as leaked, and the rest is left
    /// to the next call. [`Error::TableFull`] if a block cannot be cut.
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
        round.excess.set(round.excess.get().max(memory.owed()));
        self.given_up().poll_departures();
        if self.give_worthwhile(idle, &round)? {
            // On a stream without unfinished work, memory that was free is now quiet.
            self.given_up().poll_departures();
            self.give_worthwhile(idle, &round)?;
        }
        Ok(round.more.get())
    }
}

impl<P: Platform> Heaps<P> {
    /// Iterates over the pairs that give back idle memory.
    fn idle_pairs(&self) -> impl Iterator<Item = PairUse<'_, P>> {
        once(0).chain(self.tenant_pools()).flat_map(|pool| self.pairs_of(pool))
    }
}

impl Round {
    /// Looks at every heap that gives back idle memory. Returns false if the last look was only
    /// just before.
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
            // Events since the last look happened, on average, in the middle.
            Moment(self.now.0.wrapping_sub((passed / 2000) as u32))
        };
        for used in heaps.idle_pairs() {
            for kind in [PoolKind::Large, PoolKind::Small] {
                let mut heap = heaps.lock(used.slot(kind));
                if heap.asleep {
                    continue;
                }
                // Memory that is freed from now on gets a stamp that no free block has yet.
                heaps.stamp(&mut heap);
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
