//! The lanes of a device. Each lane serves one stream from a plan, under a separate lock.

use super::LANES;
use super::sequence::Sequence;
use super::state::PlannerState;
use crate::config::Planned;
use crate::pool::PoolId;
use crate::stats::{HeapCounters, PlannedReport};
use crate::sync::{AtomicU64, CachePadded, Lock, MutexGuard, Ordering, Rank, Ranked};
use crate::units::{DevicePtr, StreamId};
use alloc::vec::Vec;

/// The stream number of a vacant lane. No request has this stream.
const UNUSED: u64 = u64::MAX;

/// A stream served from a plan.
#[derive(Clone)]
pub(crate) struct Lane {
    /// The stream.
    pub stream: StreamId,
    /// The observed requests with their planned addresses, and the current position.
    pub sequence: Sequence,
    /// The slot of the heap that contains the lane's segment. The lane delegates blocks to this
    /// heap, unless a block is allocated and freed in the plain way.
    pub home: u32,
    /// The pool of the heap.
    pub pool: PoolId,
    /// The address of the segment.
    pub base: u64,
    /// The size of the segment in bytes.
    pub bytes: u64,
    /// The size in bytes from which a block counts as oversize.
    pub oversize: u64,
}

impl Lane {
    /// Returns whether the address is in the lane's segment.
    pub(crate) fn contains(&self, ptr: DevicePtr) -> bool {
        (self.base..self.base + self.bytes).contains(&ptr.0)
    }
}

/// A place for a lane. It outlives the lane.
pub(crate) struct LaneSlot<R: Lock> {
    /// The lane; `None` ⟺ the slot is vacant.
    pub lane: Ranked<R, Option<Lane>>,
    /// The counters of the lane's blocks, except delegated ones. Written under the lane's lock.
    pub counters: HeapCounters,
}

/// The state of the planned policy on a device.
pub(crate) struct PlanServer<R: Lock> {
    /// The stream of each lane, or [`UNUSED`]. This is read without a lock; a thread that finds its
    /// stream checks again under the lane's lock.
    streams: [AtomicU64; LANES],
    /// The lanes. No two share a cache line, so that threads of different streams do not write to
    /// the same line.
    pub(crate) lane_slots: [CachePadded<LaneSlot<R>>; LANES],
    /// How many requests came from streams without a lane while plans were active.
    pub(crate) without_lane: AtomicU64,
    /// Observation and planning: everything that happens between two sets of plans.
    pub(crate) planner: Ranked<R, PlannerState>,
    /// The settings of the policy, which do not change.
    pub(crate) options: Planned,
}

impl<R: Lock> PlanServer<R> {
    /// Creates the state of a device that has no lanes yet.
    pub(crate) fn new(options: Planned) -> Self {
        Self {
            streams: core::array::from_fn(|_| AtomicU64::new(UNUSED)),
            lane_slots: core::array::from_fn(|_| {
                CachePadded(LaneSlot { lane: Ranked::new(Rank::Lane, None), counters: HeapCounters::default() })
            }),
            without_lane: AtomicU64::new(0),
            planner: Ranked::new(Rank::Planner, PlannerState::default()),
            options,
        }
    }

    /// Locks all lanes, for a caller that holds all locks of a device.
    pub(crate) fn lock_lanes(&self) -> Vec<MutexGuard<'_, R, Option<Lane>>> {
        self.lane_slots.iter().map(|slot| slot.lane.lock_beside()).collect()
    }

    /// Returns the state for another device, with the same lanes and plans. `lanes` are the locked
    /// lanes.
    pub(crate) fn copy_of(&self, lanes: &[MutexGuard<'_, R, Option<Lane>>], planner: &PlannerState) -> Self {
        let mut copy = Self::new(self.options);
        for (number, (from, lane)) in self.lane_slots.iter().zip(lanes).enumerate() {
            copy.streams[number] = AtomicU64::new(self.streams[number].load(Ordering::Acquire));
            let (lane, counters) = ((**lane).clone(), from.counters.copy());
            copy.lane_slots[number] = CachePadded(LaneSlot { lane: Ranked::new(Rank::Lane, lane), counters });
        }
        copy.without_lane = AtomicU64::new(self.without_lane.load(Ordering::Relaxed));
        copy.planner = Ranked::new(Rank::Planner, planner.clone());
        copy
    }

    /// Returns the slot of a stream's lane.
    #[inline(always)]
    pub(crate) fn lane_slot(&self, stream: StreamId) -> Option<&LaneSlot<R>> {
        // A linear search is enough, because there are only eight lanes. `Acquire` pairs with the
        // `Release` in `assign`.
        let number = self.streams.iter().position(|of| of.load(Ordering::Acquire) == stream.0)?;
        self.lane_slots.get(number).map(|lane_slot| &**lane_slot)
    }

    /// Returns the slot of a lane by the lane's number in the page map.
    #[inline(always)]
    pub(crate) fn numbered(&self, number: u32) -> Option<&LaneSlot<R>> {
        self.lane_slots.get(number as usize).map(|lane_slot| &**lane_slot)
    }

    /// Directs the requests of `stream` to a new lane or, if it is `None`, away from a lane that is
    /// about to be removed.
    pub(crate) fn assign(&self, lane: usize, stream: Option<StreamId>) {
        self.streams[lane].store(stream.map_or(UNUSED, |stream| stream.0), Ordering::Release);
    }

    /// Returns the counters of each lane.
    pub(crate) fn all_counters(&self) -> impl Iterator<Item = &HeapCounters> + Clone {
        self.lane_slots.iter().map(|lane_slot| &lane_slot.counters)
    }
}

impl Lane {
    /// Adds the lane's counts to a report.
    pub(crate) fn add_to(&self, report: &mut PlannedReport) {
        let counts = self.sequence.deviations.counts;
        report.served += self.sequence.served();
        report.lasting += counts.lasting;
        report.extra += counts.extra;
        report.missing += counts.missing;
        report.reordered += counts.reordered;
        report.occupied += counts.occupied;
    }
}

impl<R: Lock> PlanServer<R> {
    /// Returns the report of the planned policy on the device.
    pub(crate) fn report(&self) -> PlannedReport {
        // The guard is dropped at the end of the block, so no lane is locked while `planner` is.
        let mut report = {
            let planner = self.planner.lock();
            PlannedReport { stage: planner.stage(), ..planner.report }
        };
        report.extra += self.without_lane.load(Ordering::Relaxed);
        for lane_slot in &self.lane_slots {
            if let Some(lane) = lane_slot.lane.lock().as_ref() {
                lane.add_to(&mut report);
                report.segment_bytes += lane.bytes;
            }
        }
        report
    }

    /// Returns how many deviations and how many requests there were so far.
    pub(crate) fn sums(&self) -> (u64, u64) {
        let PlannedReport { served, lasting, extra, missing, occupied, .. } = self.report();
        (extra + missing + occupied, served + lasting + extra + occupied)
    }
}
