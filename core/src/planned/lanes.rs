//! The lanes of one device: which streams are served from plans, each under a lock of its own.

use super::LANES;
use super::sequence::Sequence;
use super::state::PlannerState;
use crate::config::Planned;
use crate::planned::report::PlannedReport;
use crate::pool::PoolId;
use crate::stats::HeapCounters;
use crate::sync::{AtomicU64, CachePadded, Lock, Ordering, Rank, Ranked};
use crate::units::{DevicePtr, StreamId};

/// The stream of a lane that nobody has; no request is on it.
const NOBODY: u64 = u64::MAX;

/// A stream that is served.
pub(crate) struct Lane {
    pub stream: StreamId,
    pub sequence: Sequence,
    /// The slot of the heap that holds its segment, and cares for blocks that are more than handed out and freed.
    pub home: u32,
    /// That heap's pool.
    pub pool: PoolId,
    /// Its segment.
    pub base: u64,
    /// The segment's length.
    pub bytes: u64,
    /// Blocks of so many bytes count as oversize.
    pub oversize: u64,
}

impl Lane {
    /// Whether an address lies in the segment of the lane.
    pub(crate) fn contains(&self, ptr: DevicePtr) -> bool {
        (self.base..self.base + self.bytes).contains(&ptr.0)
    }
}

/// The place of a lane.
pub(crate) struct LaneSlot<R: Lock> {
    /// `None` ⟺ nobody has it.
    pub lane: Ranked<R, Option<Lane>>,
    /// What the program holds of the lane's blocks, but for those that its heap cares for. Written under the lane's lock.
    pub tally: HeapCounters,
}

/// Everything of the planned policy on one device.
pub(crate) struct PlanServer<R: Lock> {
    /// Each lane's stream, or [`NOBODY`]: whoever finds his stream here looks again under the lane's lock.
    streams: [AtomicU64; LANES],
    pub(crate) lane_slots: [CachePadded<LaneSlot<R>>; LANES],
    /// Requests of streams without a lane, while plans are in force.
    pub(crate) elsewhere: AtomicU64,
    pub(crate) learning: Ranked<R, PlannerState>,
    /// The policy's own settings, which stay.
    pub(crate) options: Planned,
}

impl<R: Lock> PlanServer<R> {
    pub(crate) fn new(options: Planned) -> Self {
        Self {
            streams: core::array::from_fn(|_| AtomicU64::new(NOBODY)),
            lane_slots: core::array::from_fn(|_| {
                CachePadded(LaneSlot { lane: Ranked::new(Rank::Lane, None), tally: HeapCounters::default() })
            }),
            elsewhere: AtomicU64::new(0),
            learning: Ranked::new(Rank::Learning, PlannerState::default()),
            options,
        }
    }

    /// The place of a stream's lane.
    #[inline(always)]
    pub(crate) fn lane_slot(&self, stream: StreamId) -> Option<&LaneSlot<R>> {
        let number = self.streams.iter().position(|of| of.load(Ordering::Acquire) == stream.0)?;
        self.lane_slots.get(number).map(|lane_slot| &**lane_slot)
    }

    /// The slot of a lane, by its number in the page map.
    #[inline(always)]
    pub(crate) fn numbered(&self, number: u32) -> Option<&LaneSlot<R>> {
        self.lane_slots.get(number as usize).map(|lane_slot| &**lane_slot)
    }

    /// From here on requests of `stream` find a lane that is there, or `None` no longer one that goes.
    pub(crate) fn lead(&self, lane: usize, stream: Option<StreamId>) {
        self.streams[lane].store(stream.map_or(NOBODY, |stream| stream.0), Ordering::Release);
    }

    /// What each lane counts.
    pub(crate) fn tallies(&self) -> impl Iterator<Item = &HeapCounters> + Clone {
        self.lane_slots.iter().map(|lane_slot| &lane_slot.tally)
    }
}

impl Lane {
    /// Adds what the lane has come to.
    pub(crate) fn add_to(&self, report: &mut PlannedReport) {
        let counts = self.sequence.astray.counts;
        report.served += self.sequence.served();
        report.lasting += counts.lasting;
        report.extra += counts.extra;
        report.missing += counts.missing;
        report.reordered += counts.reordered;
        report.occupied += counts.occupied;
    }
}

/// In the place of a size: the program does not say what it asked for. Unlike `None` it takes no register, so that no argument is on
/// the stack, and what is called last is called without a frame: 8 instructions.
#[derive(Clone, Copy)]
pub(crate) struct SizeUnknown;

impl From<SizeUnknown> for Option<u64> {
    fn from(_: SizeUnknown) -> Self {
        None
    }
}

impl<R: Lock> PlanServer<R> {
    pub(crate) fn report(&self) -> PlannedReport {
        let mut report = {
            let learning = self.learning.lock();
            PlannedReport { stage: learning.stage(), ..learning.report }
        };
        report.extra += self.elsewhere.load(Ordering::Relaxed);
        for lane_slot in &self.lane_slots {
            if let Some(lane) = lane_slot.lane.lock().as_ref() {
                lane.add_to(&mut report);
                report.segment_bytes += lane.bytes;
            }
        }
        report
    }

    /// The deviations so far, and the requests.
    pub(crate) fn sums(&self) -> (u64, u64) {
        let PlannedReport { served, lasting, extra, missing, occupied, .. } = self.report();
        (extra + missing + occupied, served + lasting + extra + occupied)
    }
}
