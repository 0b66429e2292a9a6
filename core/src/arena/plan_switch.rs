//! Putting plans in force, and giving them up.

use crate::arena::{Arena, OnDevice, flags};
use crate::config::rounding::PoolKind;
use crate::device::{DeviceMemory, ErrorKind};
use crate::error::Error;
use crate::page_map::{LaneRef, Owner};
use crate::planned::LANES;
use crate::planned::lanes::{Lane, PlanServer};
use crate::planned::sequence::Sequence;
use crate::planned::state::Prepared;
use crate::pool::{PoolId, PoolOptions};
use crate::stats::{Event, Stat};
use crate::sync::Lock;
use crate::tables::Storage;
use crate::trace::Action;
use crate::units::{DevicePtr, MIB, StreamId};

/// What the length of a lane's segment is a multiple of: a page of the pages, and what devices give in any case.
const SEGMENT_GRAIN: u64 = 2 * MIB;

impl<D: DeviceMemory, R: Lock, S: Storage> OnDevice<'_, D, R, S> {
    /// Begins a lane for each stream, each with a segment. What the fallback has cached is given back first: what the plans serve
    /// will not need it. False if there is no memory for all; then there is no lane.
    pub(super) fn begin_lanes(self, front: &PlanServer<R>, prepared: &[Prepared]) -> Result<bool, Error> {
        self.release_cached(None)?;
        for (number, prepared) in prepared.iter().enumerate().take(LANES) {
            let begun = self.begin_lane(front, number, prepared);
            if !matches!(begun, Ok(true)) {
                return self.end_lanes(front).and(begun);
            }
        }
        self.flags.set(flags::PLANNED, true);
        Ok(true)
    }

    fn begin_lane(self, front: &PlanServer<R>, number: usize, prepared: &Prepared) -> Result<bool, Error> {
        let bytes = prepared.peak.next_multiple_of(SEGMENT_GRAIN);
        let pool = self.create_planned_pool()?;
        let begun = self.begin_lane_in(front, number, prepared, pool, bytes);
        if !matches!(begun, Ok(true)) {
            self.release_pool(pool)?;
        }
        begun
    }

    fn begin_lane_in(
        self,
        front: &PlanServer<R>,
        number: usize,
        prepared: &Prepared,
        pool: PoolId,
        bytes: u64,
    ) -> Result<bool, Error> {
        let pair = self.use_pair(self.private_pool(pool)?, prepared.stream)?;
        let home = pair.slot(PoolKind::Large);
        self.lock(home).make_room_for_plan()?;
        if !self.ledger.charge(bytes) {
            return Ok(false);
        }
        let base = match self.call(|device| device.obtain(bytes)) {
            Ok(base) => base,
            Err(error) => {
                self.ledger.refund(bytes);
                return if error.kind == ErrorKind::OutOfMemory { Ok(false) } else { Err(error.into()) };
            }
        };
        let owner = Owner::Lane(LaneRef { device: self.number, lane: number as u32 });
        if let Err(error) = self.pages.insert(base, bytes, owner) {
            self.give_back(base, bytes)?;
            return Err(error);
        }
        let slot = self.slot(home);
        let mut heap = self.lock(home);
        // Room was made before the lock was given up; the tables of an empty heap may have been dropped since.
        if let Err(full) = heap.make_room_for_plan() {
            drop(heap);
            self.pages.remove(base, bytes);
            self.give_back(base, bytes)?;
            return Err(full.into());
        }
        self.totals.count(Event::DeviceAlloc);
        self.trace_segment(&mut heap, Action::SegmentAlloc, 0, base, bytes);
        let begun = heap.begin_plan(base, bytes, &slot.tally);
        let oversize = heap.rules.max_split;
        drop(heap);
        self.settle(slot, begun);
        let sequence = Sequence::new(base.0, &prepared.steps);
        let lane = Lane { stream: prepared.stream, sequence, home, pool, base: base.0, bytes, oversize };
        *front.lane_slots[number].lane.lock() = Some(lane);
        front.lead(number, Some(prepared.stream));
        Ok(true)
    }

    /// Gives every plan up.
    pub(super) fn end_lanes(self, front: &PlanServer<R>) -> Result<(), Error> {
        let mut ended = Ok(());
        for number in 0..LANES {
            let lane = self.end_lane(front, number);
            ended = ended.and(lane);
        }
        self.flags.set(flags::PLANNED, false);
        ended
    }

    /// Gives the plan of one stream up.
    pub(super) fn end_lane_of(self, front: &PlanServer<R>, stream: StreamId) -> Result<(), Error> {
        let of_stream =
            |number: &usize| front.lane_slots[*number].lane.lock().as_ref().is_some_and(|lane| lane.stream == stream);
        (0..LANES).find(of_stream).map_or(Ok(()), |number| self.end_lane(front, number))
    }

    /// Gives a plan up: its blocks are its heap's from here on, and what is free of it is cached.
    fn end_lane(self, front: &PlanServer<R>, number: usize) -> Result<(), Error> {
        let lane_slot = &front.lane_slots[number];
        let mut guard = lane_slot.lane.lock();
        let Some(lane) = guard.as_mut() else { return Ok(()) };
        let peaks_stale = self.move_all_to_plan_segment(lane_slot, lane)?;
        let Lane { home, pool, base, bytes, .. } = *lane;
        self.lock(home).end_plan();
        // Whoever was led here before finds no lane, and looks again.
        self.pages.change(DevicePtr(base), bytes, Owner::Heap(self.heap_ref(home)));
        front.lead(number, None);
        let gone = guard.take();
        drop(guard);
        if let Some(lane) = gone {
            lane.add_to(&mut front.learning.lock().report);
        }
        if peaks_stale {
            self.reconcile_peaks(self.slot(home));
        }
        // Keeps the pair the lane's until its segment is released.
        let _used = self.enter_pair(home / 2);
        self.release_pool(pool)?;
        self.release_heap(home)
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// A pool that only lanes know.
    fn create_planned_pool(&self) -> Result<PoolId, Error> {
        let mut name = PoolId(crate::planned::POOLS, 0);
        loop {
            match self.create_pool(Some(name), PoolOptions::default()) {
                Err(Error::PoolExists(_)) => name.1 += 1,
                made => return made,
            }
        }
    }

    /// The segment of the first plan of which the program holds nothing: it is released when the plans are given up. The segment of
    /// another plan stays for the blocks in it.
    pub(crate) fn first_idle_lane(&self) -> Option<DevicePtr> {
        self.planned.as_deref()?.lane_slots.iter().find_map(|lane_slot| {
            let lane = lane_slot.lane.lock();
            let &Lane { home, base, .. } = lane.as_ref()?;
            let idle = lane_slot.tally.current(Stat::Allocation) == 0 && self.lock(home).pieces().next().is_none();
            idle.then_some(DevicePtr(base))
        })
    }
}
