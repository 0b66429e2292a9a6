//! The planned policy of a device: which heap serves a stream from a plan, and the planner.

use super::LANES;
use super::state::PlannerState;
use crate::config::Planned;
use crate::sync::{AtomicU32, AtomicU64, Lock, Ordering, Rank, Ranked};
use crate::units::StreamId;

/// The stream number of a vacant lane. No request has this stream.
const UNUSED: u64 = u64::MAX;

/// The state of the planned policy on a device. The sequences are in the heaps.
pub(crate) struct PlanServer<R: Lock> {
    /// The stream of each lane, or [`UNUSED`]. This is read without a lock; a thread that finds its
    /// stream checks again under the lock of the heap.
    streams: [AtomicU64; LANES],
    /// The slot of each lane's heap.
    heaps: [AtomicU32; LANES],
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
            heaps: core::array::from_fn(|_| AtomicU32::new(0)),
            without_lane: AtomicU64::new(0),
            planner: Ranked::new(Rank::Planner, PlannerState::default()),
            options,
        }
    }

    /// Returns the state for another device, whose heaps are copies of this device's heaps.
    pub(crate) fn copy_of(&self, planner: &PlannerState) -> Self {
        Self {
            streams: self.streams.each_ref().map(|stream| AtomicU64::new(stream.load(Ordering::Acquire))),
            heaps: self.heaps.each_ref().map(|heap| AtomicU32::new(heap.load(Ordering::Relaxed))),
            without_lane: AtomicU64::new(self.without_lane.load(Ordering::Relaxed)),
            planner: Ranked::new(Rank::Planner, planner.clone()),
            options: self.options,
        }
    }

    /// Returns the slot of the heap that serves a stream from a plan.
    #[inline(always)]
    pub(crate) fn heap_of(&self, stream: StreamId) -> Option<u32> {
        // A linear search is enough, because there are only eight lanes. `Acquire` pairs with the
        // `Release` in `assign`.
        let lane = self.streams.iter().position(|of| of.load(Ordering::Acquire) == stream.0)?;
        Some(self.heaps.get(lane)?.load(Ordering::Relaxed))
    }

    /// Iterates over the slots of the heaps that serve from plans.
    pub(crate) fn heaps(&self) -> impl Iterator<Item = u32> {
        self.lanes().map(|(_, heap)| heap)
    }

    /// Iterates over the lanes in use, with the slots of their heaps.
    fn lanes(&self) -> impl Iterator<Item = (usize, u32)> {
        let used = self.streams.iter().enumerate().filter(|(_, stream)| stream.load(Ordering::Acquire) != UNUSED);
        used.map(|(lane, _)| (lane, self.heaps[lane].load(Ordering::Relaxed)))
    }

    /// Directs the requests of `stream` to a heap with a plan.
    pub(crate) fn assign(&self, lane: usize, stream: StreamId, heap: u32) {
        self.heaps[lane].store(heap, Ordering::Relaxed);
        self.streams[lane].store(stream.0, Ordering::Release);
    }

    /// Directs no requests to a heap any more.
    pub(crate) fn clear(&self, heap: u32) {
        if let Some((lane, _)) = self.lanes().find(|&(_, of)| of == heap) {
            self.streams[lane].store(UNUSED, Ordering::Release);
        }
    }
}
