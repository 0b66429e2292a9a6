//! Gives idle units back: which are worthwhile, and the calls of the device.

use super::budget::{Cost, Unit, worth_ms};
use super::{IdleMemory, Keeper, Round, flags};
use crate::config::rounding::PoolKind;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::heap::Heap;
use crate::heap::age::IdleUnit;
use crate::heap::expandable::Range;
use crate::heap::idle::IdleUnits;
use crate::sync::{Lock, MutexGuard};
use crate::tables::{Lazy, Storage};
use crate::trace::Action;
use crate::units::NO_STREAM;
use core::cell::Cell;

/// The result of giving back.
#[derive(Clone, Copy)]
pub(super) struct Given {
    /// The time has ended before all worthwhile units were given back.
    pub(super) more: bool,
    /// Events were recorded, which will tell the end of work.
    pub(super) began: bool,
}

/// The result of an attempt to give units back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    /// Some units went back.
    Some,
    /// Nothing is worthwhile, quiet and paid.
    Nothing,
    /// The time of the call has ended.
    NoTime,
}

/// Units to give back: a segment, or neighbouring pages of equal length.
#[derive(Clone, Copy)]
struct Chosen {
    unit: Unit,
    /// Bytes of each.
    bytes: u64,
    count: u32,
    /// The age of a unit, in milliseconds.
    age: u32,
    cost: Cost,
}

impl Chosen {
    fn give_ns(&self) -> u64 {
        self.cost.give.saturating_mul(u64::from(self.count))
    }
}

/// The worth of units at a moment.
struct Worth<'a> {
    idle: &'a IdleMemory,
    round: &'a Round,
}

impl Worth<'_> {
    /// Returns the milliseconds for which a unit must not be needed.
    fn ms(&self, unit: Unit, bytes: u64) -> u64 {
        worth_ms(self.idle.budget.cost(unit, bytes).both(), bytes, self.round.held, self.round.share)
    }

    /// Returns whether a unit is expected not to be needed for so long.
    fn is_expected(&self, unit: Unit, IdleUnit { bytes, age, .. }: IdleUnit) -> bool {
        let predictor = &self.idle.predictor;
        predictor.stays_idle(bytes, age, self.ms(unit, bytes).saturating_mul(1 << predictor.caution()))
    }

    /// Returns whether a unit is worthwhile: expected not to be needed, or more is held than ever before.
    fn holds(&self, unit: Unit, idle: IdleUnit) -> bool {
        idle.bytes <= self.round.excess.get() || self.is_expected(unit, idle)
    }

    /// Returns how many units of `bytes` can be given back with the time and the budget left.
    fn payable(&self, unit: Unit, bytes: u64) -> u32 {
        let cost = self.idle.budget.cost(unit, bytes);
        let count = (self.round.left.get() / cost.give.max(1)).min(self.idle.budget.left() / cost.both().max(1));
        u32::try_from(count).unwrap_or(u32::MAX)
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Keeper<'_, D, R, S> {
    /// Gives back every worthwhile unit, within time and budget.
    ///
    /// # Errors
    /// The first error of the device; then nothing more is given back.
    pub(super) fn give_back(&self, round: &Round) -> Result<Given, Error> {
        let device = self.device;
        let kept: [Cell<u64>; 3] = Default::default();
        let (mut given, mut result) = (Given { more: false, began: false }, Ok(()));
        for used in device.heaps.pairs_of(0) {
            for slot in [PoolKind::Large, PoolKind::Small].map(|kind| used.slot(kind)) {
                // Nothing is given back while a graph is captured: the driver may refuse, and the capture fail.
                while result.is_ok() && !device.flags.has(flags::CAPTURE) {
                    match self.give_segment(slot, round).and_then(|given| {
                        if given == Attempt::Nothing { self.give_pages(slot, round) } else { Ok(given) }
                    }) {
                        Ok(Attempt::Some) => {}
                        Ok(Attempt::Nothing) => break,
                        Ok(Attempt::NoTime) => {
                            given.more = true;
                            break;
                        }
                        Err(error) => result = Err(error),
                    }
                }
                // What is free now is quiet at one of the next calls.
                if self.count_kept(slot, round, &kept) {
                    given.began |= device.quiet().begin(slot, NO_STREAM);
                }
            }
        }
        let stats = &mut device.idle.lock().stats;
        [stats.needed_soon, stats.busy, stats.unpaid] = kept.map(Cell::into_inner);
        result.map(|()| given)
    }

    /// Gives the largest worthwhile segment of the heap in `slot` back.
    fn give_segment(&self, slot: u32, round: &Round) -> Result<Attempt, Error> {
        let device = self.device;
        let chosen = self.choose_segment(&device.heaps.lock(slot), round);
        let Some((_, Chosen { count, .. })) = chosen else { return Ok(Attempt::Nothing) };
        if count == 0 {
            return Ok(self.lacking(round));
        }
        // The driver would wait for running work.
        if round.blocked.get() || !self.is_at_rest() {
            round.blocked.set(true);
            return Ok(Attempt::Nothing);
        }
        let heap = device.heaps.lock(slot);
        // Another thread may have taken the segment since it was chosen: choose again.
        let Some((block, chosen)) = self.choose_segment(&heap, round).filter(|(_, chosen)| chosen.count > 0) else {
            return Ok(Attempt::Nothing);
        };
        self.give(round, chosen, || device.releaser().release_segment(slot, heap, block).map(|_| ()))
    }

    /// Chooses the largest quiet and worthwhile segment of a heap, as a block. The count is 0 if the cost cannot be
    /// paid.
    fn choose_segment(&self, heap: &Heap<S>, round: &Round) -> Option<(u32, Chosen)> {
        let idle = self.device.idle.lock();
        let worth = Worth { idle: &idle, round };
        let units = IdleUnits(heap);
        let (block, IdleUnit { bytes, age, .. }) =
            units.idle_segment(round.now, |unit| units.is_quiet(unit) && worth.holds(Unit::Segment, unit))?;
        let (cost, count) = (idle.budget.cost(Unit::Segment, bytes), worth.payable(Unit::Segment, bytes).min(1));
        Some((block, Chosen { unit: Unit::Segment, bytes, count, age, cost }))
    }

    /// Gives neighbouring worthwhile pages of the heap in `slot` back.
    fn give_pages(&self, slot: u32, round: &Round) -> Result<Attempt, Error> {
        let device = self.device;
        // Asking a device for its virtual memory may open the device, and no lock may be held; with pages it is open.
        if device.page_pool.lock().bytes.home == 0 {
            return Ok(Attempt::Nothing);
        }
        let Some(mapper) = device.mapper() else { return Ok(Attempt::Nothing) };
        let mut heap = device.heaps.lock(slot);
        let Some((block, range, chosen)) = self.choose_pages(&heap, round) else { return Ok(Attempt::Nothing) };
        if chosen.count == 0 {
            drop(heap);
            return Ok(self.lacking(round));
        }
        if heap.make_room().is_err() || !heap.make_room_for_range() {
            return Err(Error::TableFull("blocks"));
        }
        let detached = heap.detach_range(block, range);
        if let Some(recorder) = device.tracing() {
            recorder.release(&mut heap, Action::SegmentUnmap, range.at, range.bytes);
        }
        drop(heap);
        self.give(round, chosen, || {
            let unmapped = mapper.unmap_detached(slot, detached, range);
            // As many as were added: elastic ranges keep their own spare pages. All are tried.
            (0..chosen.count).fold(unmapped, |result, _| result.and(mapper.destroy_spare().map(|_| ())))
        })
    }

    /// Chooses neighbouring quiet and worthwhile pages of a heap, with the free block around them. The count is
    /// 0 if none can be paid.
    fn choose_pages(&self, heap: &Heap<S>, round: &Round) -> Option<(u32, Range, Chosen)> {
        let idle = self.device.idle.lock();
        let worth = Worth { idle: &idle, round };
        let units = IdleUnits(heap);
        let wanted = |unit| units.is_quiet(unit) && worth.holds(Unit::Page, unit);
        let (block, last) = units.idle_page(round.now, wanted)?;
        let IdleUnit { at, bytes, age, .. } = last;
        let mut chosen = Chosen { unit: Unit::Page, bytes, count: 0, age, cost: idle.budget.cost(Unit::Page, bytes) };
        let is_expected = worth.is_expected(Unit::Page, last);
        // No more of the pages that will be needed than the excess.
        let enough = if is_expected { u64::MAX } else { round.excess.get() / bytes };
        let most = enough.min(u64::from(worth.payable(Unit::Page, bytes)));
        let below = units.idle_pages_below(block, last, round.now);
        let run = core::iter::once(last).chain(below).take_while(|unit| {
            unit.bytes == bytes && wanted(*unit) && worth.is_expected(Unit::Page, *unit) == is_expected
        });
        let mut from = at;
        for unit in run.take(most as usize) {
            (chosen.count, from) = (chosen.count + 1, unit.at);
        }
        Some((block, units.range_of(block, from, at + bytes), chosen))
    }

    /// Gives the chosen units back by `release`, and accounts for them.
    fn give(
        &self,
        round: &Round,
        chosen: Chosen,
        release: impl FnOnce() -> Result<(), Error>,
    ) -> Result<Attempt, Error> {
        let device = self.device;
        let (result, ticks) = device.driver.timed(release);
        let us = device.driver.ticks_to_us(ticks);
        let Chosen { unit, bytes, count, age, cost } = chosen;
        let units = u64::from(count);
        round.left.set(round.left.get().saturating_sub((us * 1000).max(chosen.give_ns())));
        let excess = round.excess.get();
        round.excess.set(excess.saturating_sub(bytes * units));
        let mut idle = device.idle.lock();
        let IdleMemory { predictor, budget, stats, .. } = &mut *idle;
        budget.spend((us * 1000).saturating_add(cost.obtain.saturating_mul(units)));
        stats.driver_us += us;
        result?;
        budget.learn(unit, chosen.give_ns(), us * 1000);
        // Whatever follows, giving back an excess was right.
        let worth = if bytes <= excess { 0 } else { worth_ms(cost.both(), bytes, round.held, round.share) };
        predictor.give_back(bytes, count, age, round.now, worth);
        stats.given_back += bytes * units;
        stats.given_back_units += units;
        Ok(Attempt::Some)
    }

    /// Returns which of time and budget is lacking.
    fn lacking(&self, round: &Round) -> Attempt {
        // With less than the cheapest unit costs.
        let least = self.device.idle.lock().budget.cost(Unit::Segment, 0).give;
        if round.left.get() < 2 * least { Attempt::NoTime } else { Attempt::Nothing }
    }

    /// Adds the idle bytes of a heap to `kept`: needed soon, busy and unpaid. Returns whether some may still be in use, and
    /// no event will tell when they are not.
    fn count_kept(&self, slot: u32, round: &Round, kept: &[Cell<u64>; 3]) -> bool {
        let device = self.device;
        let heap = device.heaps.lock(slot);
        if heap.is_empty() || !heap.sets.is_made() {
            return false;
        }
        let covered = heap.sets.quiet.max(device.epochs.lock().newest(slot));
        let wants_event = Cell::new(false);
        let idle = device.idle.lock();
        let (worth, units) = (Worth { idle: &idle, round }, IdleUnits(&heap));
        let count = |kind: Unit, unit: IdleUnit| {
            let blocked = kind == Unit::Segment && round.blocked.get();
            let why = match (worth.holds(kind, unit), units.is_quiet(unit)) {
                (false, _) => 0,
                (true, true) if !blocked => 2,
                (true, _) => 1,
            };
            kept[why].set(kept[why].get() + unit.bytes);
            wants_event.set(wants_event.get() || why == 1 && unit.freed_at >= covered);
            false
        };
        let _none = units.idle_segment(round.now, |unit| count(Unit::Segment, unit));
        let _none = units.idle_page(round.now, |unit| count(Unit::Page, unit));
        wants_event.get()
    }

    /// Returns whether every stream with a pair has finished its work, so the driver frees a segment without a
    /// wait. A device that cannot tell is not asked again. False while a stream captures a graph.
    fn is_at_rest(&self) -> bool {
        let device = self.device;
        // No capture begins while the streams are asked.
        let Some(_permission) = device.driver.may_record(&device.flags) else { return false };
        // The two heaps of a pair have one stream.
        device.heaps.slot_numbers().filter(|slot| slot % 2 == 0).all(|slot| {
            let (stream, ended) = {
                let heap: MutexGuard<'_, R, Heap<S>> = device.heaps.lock(slot);
                (heap.stream, heap.ended)
            };
            // The handle of an ended stream may not be used.
            if stream == NO_STREAM || ended {
                return true;
            }
            match device.call(|memory| memory.is_idle(stream)) {
                Ok(Some(idle)) => idle,
                // Without an answer, the events have told of the work on the segment, which is what can be known.
                Ok(None) if !device.driver.may_use(stream, NO_STREAM) => true,
                Ok(None) => device.call(|memory| memory.is_capturing(stream)) == Ok(false),
                Err(_) => false,
            }
        })
    }
}
