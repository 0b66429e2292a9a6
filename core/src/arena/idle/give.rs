//! Giving idle units back: the choice of the worthwhile ones, and the calls to the device.

use super::budget::{Cost, worth_ms};
use super::{IdleMemory, Round, flags};
use crate::arena::driver::Driver;
use crate::arena::heaps::units::{Unit, UnitKind, units_down};
use crate::arena::heaps::{HeapGuard, Heaps};
use crate::arena::holdings::Holdings;
use crate::arena::platform::Platform;
use crate::config::rounding::PoolKind;
use crate::device::StreamOrder;
use crate::error::Error;
use crate::heap::Heap;
use crate::pages::Place;
use crate::sync::{Lock, Ranked};
use crate::tables::Storage;
use crate::units::NO_STREAM;
use core::iter::once;

/// Units to give back: one segment, or adjacent pages of equal length.
#[derive(Clone, Copy)]
struct ReleaseBatch {
    /// All of them as one unit.
    run: Unit,
    /// The bytes of each.
    bytes: u64,
    count: u32,
    /// The age of the first, in milliseconds.
    age: u32,
    cost: Cost,
}

impl ReleaseBatch {
    fn give_ns(&self) -> u64 {
        self.cost.give.saturating_mul(u64::from(self.count))
    }
}

/// The policy that decides which idle memory goes back, at one moment.
struct ReleasePolicy<'a> {
    idle: &'a IdleMemory,
    round: &'a Round,
}

impl ReleasePolicy<'_> {
    /// Returns the age of a unit in milliseconds, or `None` for a unit in use.
    fn age(&self, unit: &Unit) -> Option<u32> {
        unit.idle.age(self.round.now)
    }

    /// Returns whether a unit is expected to stay unused for as long as makes giving it back
    /// worthwhile.
    fn is_likely_idle(&self, unit: &Unit) -> bool {
        let (predictor, cost) = (&self.idle.predictor, self.idle.budget.cost(unit.kind, unit.bytes));
        let ms = worth_ms(cost.both(), unit.bytes, self.round.held, self.round.driver_share);
        let ms = ms.saturating_mul(1 << predictor.caution());
        self.age(unit).is_some_and(|age| predictor.stays_idle(unit.bytes, age, ms))
    }

    /// Returns whether a unit is worthwhile: it is expected to stay unused, or more is held than
    /// ever before.
    fn should_release(&self, unit: &Unit) -> bool {
        unit.bytes <= self.round.excess.get() || self.is_likely_idle(unit)
    }

    /// Returns how many units at `cost` each can be given back with the time and the budget left.
    fn payable(&self, cost: Cost) -> u64 {
        (self.round.left.get() / cost.give.max(1)).min(self.idle.budget.left() / cost.both().max(1))
    }
}

impl<P: Platform> Holdings<'_, P> {
    /// Gives back every worthwhile unit, within the time and the budget. Returns whether events
    /// were recorded that will show the end of work.
    ///
    /// # Errors
    /// The first error of the device. Nothing else is given back after it.
    pub(super) fn give_worthwhile(&self, idle: &Ranked<P::Lock, IdleMemory>, round: &Round) -> Result<bool, Error> {
        round.more.set(false);
        let (mut kept, mut began, mut result) = ([0; 3], false, Ok(()));
        for used in self.heaps.idle_pairs() {
            for slot in [PoolKind::Large, PoolKind::Small].map(|kind| used.slot(kind)) {
                // Nothing is given back while a graph is captured, because the driver may refuse,
                // and the capture may fail.
                while result.is_ok()
                    && !self.driver.flags.has(flags::CAPTURE)
                    && let Some(chosen) = round.next(self.driver, self.heaps, idle, slot)
                {
                    // A tag keeps its `low`.
                    let Ok(_giving) = self.heaps.begin_giving_of_heap(slot, chosen.run.bytes) else { break };
                    result = self.give_chosen(idle, round, chosen);
                }
                // Memory that is free now will be quiet at one of the next calls.
                if round.count_kept(self.heaps, idle, slot, &mut kept) {
                    began |= self.given_up().begin_epoch(slot, NO_STREAM);
                }
            }
        }
        let stats = &mut idle.lock().stats;
        [stats.needed_soon, stats.busy, stats.unpaid] = kept;
        result.map(|()| began)
    }

    /// Gives the chosen units back, and accounts for them. Gives nothing back if another thread has
    /// used them since they were chosen.
    fn give_chosen(
        &self,
        idle: &Ranked<P::Lock, IdleMemory>,
        round: &Round,
        chosen: ReleaseBatch,
    ) -> Result<(), Error> {
        let ReleaseBatch { run, bytes, count, age, cost } = chosen;
        let Some(taken) = run.take(self)? else { return Ok(()) };
        let (result, ticks) = self.driver.timed(|| {
            let mut result = taken.release(self).map(|_bytes| ());
            if run.kind == UnitKind::Pages
                && let Some(mapper) = self.mapper()
            {
                // As many as were added, because elastic ranges keep their own spare pages. All are
                // tried.
                (0..count).for_each(|_| result = result.and(mapper.destroy_spare(Place::Spare).map(|_any| ())));
            }
            result
        });
        let us = self.driver.ticks_to_us(ticks);
        round.left.set(round.left.get().saturating_sub((us * 1000).max(chosen.give_ns())));
        let excess = round.excess.get();
        round.excess.set(excess.saturating_sub(run.bytes));
        let mut idle = idle.lock();
        let IdleMemory { predictor, budget, stats, .. } = &mut *idle;
        budget.spend((us * 1000).saturating_add(cost.obtain.saturating_mul(u64::from(count))));
        stats.driver_us += us;
        result?;
        budget.learn(run.kind, chosen.give_ns(), us * 1000);
        // Giving back an excess was right, whatever happens next.
        let worth = if bytes <= excess { 0 } else { worth_ms(cost.both(), bytes, round.held, round.driver_share) };
        predictor.give_back(bytes, count, age, round.now, worth);
        stats.given_back += run.bytes;
        stats.given_back_units += u64::from(count);
        Ok(())
    }
}

impl Round {
    /// The rule of `reclaim:auto`. Returns the largest worthwhile segment of the heap in `slot`, or
    /// else adjacent worthwhile pages, as long as the time and the budget last.
    fn next<P: Platform>(
        &self,
        driver: &Driver<P::Device>,
        heaps: &Heaps<P>,
        idle: &Ranked<P::Lock, IdleMemory>,
        slot: u32,
    ) -> Option<ReleaseBatch> {
        for kind in [UnitKind::Segment, UnitKind::Pages] {
            match self.choose(heaps, idle, kind, slot) {
                Some(ReleaseBatch { count: 0, .. }) if !self.has_time_left(idle) => {
                    self.more.set(true);
                    return None;
                }
                None | Some(ReleaseBatch { count: 0, .. }) => {}
                // Before releasing a segment, the driver would wait for running work.
                Some(_) if kind == UnitKind::Segment && (self.blocked.get() || !heaps.are_at_rest(driver)) => {
                    self.blocked.set(true);
                }
                chosen => return chosen,
            }
        }
        None
    }

    /// Chooses quiet and worthwhile units of one kind from the largest free block that has any: a
    /// segment, or a page and the pages below it. The count is 0 if none can be paid for.
    fn choose<P: Platform>(
        &self,
        heaps: &Heaps<P>,
        idle: &Ranked<P::Lock, IdleMemory>,
        kind: UnitKind,
        slot: u32,
    ) -> Option<ReleaseBatch> {
        let heap = heaps.lock(slot);
        let idle = idle.lock();
        let policy = ReleasePolicy { idle: &idle, round: self };
        let wanted = |unit: &Unit| unit.is_quiet() && policy.should_release(unit);
        let mut units = idle_units(&heap, slot).filter(|unit| unit.kind == kind);
        let first = units.find(wanted)?;
        let (cost, is_likely_idle) = (idle.budget.cost(kind, first.bytes), policy.is_likely_idle(&first));
        // Of units that will be needed, takes no more than the excess.
        let enough = if is_likely_idle { u64::MAX } else { self.excess.get() / first.bytes };
        let run = Unit { at: first.end(), bytes: 0, ..first };
        let mut chosen = ReleaseBatch { run, bytes: first.bytes, count: 0, age: policy.age(&first)?, cost };
        for unit in once(first).chain(units).take(enough.min(policy.payable(cost)) as usize) {
            let Unit { at, bytes, freed_at, .. } = chosen.run;
            let is_below = unit.block == first.block && unit.end() == at;
            if !is_below
                || unit.bytes != first.bytes
                || !wanted(&unit)
                || policy.is_likely_idle(&unit) != is_likely_idle
            {
                break;
            }
            chosen.run =
                Unit { at: unit.at, bytes: bytes + unit.bytes, freed_at: freed_at.max(unit.freed_at), ..first };
            chosen.count += 1;
        }
        Some(chosen)
    }

    /// Returns whether enough time is left for more than the cheapest unit.
    fn has_time_left<R: Lock>(&self, idle: &Ranked<R, IdleMemory>) -> bool {
        self.left.get() >= 2 * idle.lock().budget.cost(UnitKind::Segment, 0).give
    }

    /// Adds the idle bytes of a heap to `kept`: needed soon, busy and unpaid. Returns whether some
    /// may still be in use without an event that will show when they are not.
    fn count_kept<P: Platform>(
        &self,
        heaps: &Heaps<P>,
        idle: &Ranked<P::Lock, IdleMemory>,
        slot: u32,
        kept: &mut [u64; 3],
    ) -> bool {
        let heap = heaps.lock(slot);
        let newest = heap.epochs.newest();
        let idle = idle.lock();
        let policy = ReleasePolicy { idle: &idle, round: self };
        let mut wants_event = false;
        for unit in idle_units(&heap, slot) {
            let blocked = unit.kind == UnitKind::Segment && self.blocked.get();
            let why = match (policy.should_release(&unit), unit.is_quiet()) {
                (false, _) => 0,
                (true, true) if !blocked => 2,
                (true, _) => 1,
            };
            kept[why] += unit.bytes;
            wants_event |= why == 1 && !unit.is_quiet() && unit.freed_at >= newest;
        }
        wants_event
    }
}

impl<P: Platform> Heaps<P> {
    /// Returns whether every stream with a pair has finished its work, so that the driver frees a
    /// segment without waiting. If the device cannot tell, the events that have shown the end of
    /// the work are enough. Returns false while a stream captures a graph.
    fn are_at_rest(&self, driver: &Driver<P::Device>) -> bool {
        // No capture starts while the streams are asked.
        let Some(_permission) = driver.may_record() else { return false };
        // Both heaps of a pair have the same stream.
        self.slot_numbers().filter(|slot| slot % 2 == 0).all(|slot| {
            let (stream, ended) = {
                let heap: HeapGuard<'_, P> = self.lock(slot);
                (heap.stream, heap.ended)
            };
            // The handle of an ended stream may not be used.
            if stream == NO_STREAM || ended {
                return true;
            }
            match driver.call(|memory| memory.is_idle(stream)) {
                Ok(Some(idle)) => idle,
                // Without an answer, the events have already shown the end of the work on the
                // segment, and nothing else can be known.
                Ok(None) if !driver.may_use(stream, NO_STREAM) => true,
                Ok(None) => driver.call(|memory| memory.is_capturing(stream)) == Ok(false),
                Err(_) => false,
            }
        })
    }
}

/// Iterates over the units of a heap that the last look found idle, page by page.
fn idle_units<S: Storage>(heap: &Heap<S>, slot: u32) -> impl Iterator<Item = Unit> {
    units_down(heap, slot).filter(|unit| unit.idle.is_idle())
}
