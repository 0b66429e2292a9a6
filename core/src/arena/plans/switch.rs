//! Activating and giving up plans.
//!
//! An active plan is a lane: a private pool that no program knows, one segment in this pool, and an
//! entry in the table of lanes, from the stream to the heap of the segment. After the end of a
//! plan, the heap keeps the blocks in use and caches the rest of the segment.

use crate::arena::flags;
use crate::arena::heaps::Heaps;
use crate::arena::holdings::Holdings;
use crate::arena::plans::Plans;
use crate::arena::platform::Platform;
use crate::config::rounding::PoolKind;
use crate::device::Segments;
use crate::error::Error;
use crate::page_map::Owner;
use crate::planned::LANES;
use crate::planned::lanes::PlanServer;
use crate::planned::sequence::Sequence;
use crate::planned::state::Prepared;
use crate::pool::{PoolId, PoolOptions};
use crate::stats::Occurrence;
use crate::trace::Action;
use crate::units::{MIB, StreamId};

/// The unit of the length of a lane's segment, in bytes. It is a page of the page map, and the unit
/// in which known devices obtain memory.
const SEGMENT_GRAIN: u64 = 2 * MIB;

/// The switch between plans and heaps, on a device with the planned policy.
pub(crate) struct PlanSwitch<'a, P: Platform> {
    pub held: Holdings<'a, P>,
    pub plans: &'a Plans<P::Lock>,
    pub server: &'a PlanServer<P::Lock>,
}

impl<'a, P: Platform> PlanSwitch<'a, P> {
    /// Returns the switch of a device, if the planned policy is configured.
    pub(crate) fn of(held: Holdings<'a, P>, plans: &'a Plans<P::Lock>) -> Option<Self> {
        Some(Self { held, plans, server: plans.server()? })
    }

    /// Starts a lane with a segment for each prepared stream. Returns false, and starts no lane, if
    /// the device or the limit does not have enough memory.
    ///
    /// Releases the cache first. The plans replace most of the cached memory, and holding both
    /// would double the use of memory.
    pub(in crate::arena) fn begin_lanes(&self, prepared: &[Prepared]) -> Result<bool, Error> {
        self.held.release_cached(None)?;
        for (number, prepared) in prepared.iter().enumerate().take(LANES) {
            let begun = self.begin_lane(number, prepared);
            if !matches!(begun, Ok(true)) {
                // All lanes or none, because the plans are one decision and share one baseline.
                return self.end_lanes().and(begun);
            }
        }
        self.held.driver.flags.set(flags::PLANNED, true);
        Ok(true)
    }

    /// Starts the lane `number` in a new private pool. Returns false if there is no memory.
    fn begin_lane(&self, number: usize, prepared: &Prepared) -> Result<bool, Error> {
        let bytes = prepared.peak.next_multiple_of(SEGMENT_GRAIN);
        let pool = create_planned_pool(self.held.heaps)?;
        let begun = self.begin_lane_in(number, prepared, pool, bytes);
        if !matches!(begun, Ok(true)) {
            self.held.heaps.release_pool(pool)?;
        }
        begun
    }

    /// Starts the lane `number` with a segment of `bytes` in `pool`. Returns false if there is no
    /// memory. On failure nothing of the lane is left.
    fn begin_lane_in(&self, number: usize, prepared: &Prepared, pool: PoolId, bytes: u64) -> Result<bool, Error> {
        debug_assert_eq!(bytes % SEGMENT_GRAIN, 0, "the segment ends on a page");
        // The pair stays in use until the segment keeps it from becoming vacant.
        let pair = self.held.heaps.use_pair(self.held.heaps.private_pool(pool)?, prepared.stream)?;
        let home = pair.slot(PoolKind::Large);
        // Everything that can fail cheaply comes before the call to the device: room in the tables,
        // and the limit.
        self.held.heaps.lock(home).make_room_for_plan()?;
        if !self.held.ledger.charge(bytes) {
            return Ok(false);
        }
        // From now on frees find the heap by address, although the program holds no address yet.
        let owner = Owner::Planned(self.held.heaps.heap_ref(home));
        let Some(base) =
            self.held.ledger.allocate_charged::<P>(self.held.driver, self.held.pages, bytes, owner, |device| {
                device.obtain(bytes)
            })?
        else {
            return Ok(false);
        };
        let slot = self.held.heaps.slot(home);
        let mut heap = self.held.heaps.lock(home);
        // The heap was unlocked during the call to the device, and empty heaps may drop their
        // tables. So make room again under the lock that uses it.
        if let Err(full) = heap.make_room_for_plan() {
            drop(heap);
            self.held.ledger.undo_allocation::<P>(self.held.driver, self.held.pages, base, bytes)?;
            return Err(full.into());
        }
        self.held.peaks.device.count(Occurrence::DeviceAlloc);
        self.held.trace(|recorder| recorder.segment(&mut heap, Action::SegmentAlloc, 0, base, bytes));
        let sequence = Sequence::new(base.0, &prepared.steps);
        let begun = heap.begin_plan((base, bytes), sequence, pool, &slot.counters);
        drop(heap);
        self.held.reconcile(slot, begun);
        // This comes last: from here on requests of the stream find the heap, which is now
        // complete.
        self.server.assign(number, prepared.stream, home);
        Ok(true)
    }

    /// Ends every lane, and returns the first error. A lane stays if its heap has no room for its
    /// blocks.
    pub(in crate::arena) fn end_lanes(&self) -> Result<(), Error> {
        let mut ended = Ok(());
        for heap in self.server.heaps() {
            let lane = self.end_lane(heap);
            ended = ended.and(lane);
        }
        self.held.driver.flags.set(flags::PLANNED, false);
        ended
    }

    /// Ends the lane of a stream, if it has one.
    pub(in crate::arena) fn end_lane_of(&self, stream: StreamId) -> Result<(), Error> {
        self.server.heap_of(stream).map_or(Ok(()), |heap| self.end_lane(heap))
    }

    /// Ends the lane of a heap: lists its blocks in use, and releases the segment if no block is in
    /// use. A segment with blocks in use becomes part of the cache.
    pub(super) fn end_lane(&self, number: u32) -> Result<(), Error> {
        let mut heap = self.held.heaps.lock(number);
        // This can fail if there are no table entries, so it comes before anything that cannot be
        // undone.
        heap.list_all()?;
        let _segment_bytes = heap.report_plan(&mut self.server.planner.lock().report);
        let Some((pool, base, bytes)) = heap.end_plan() else { return Ok(()) };
        self.held.pages.change(base, bytes, Owner::Heap(self.held.heaps.heap_ref(number)));
        self.server.clear(number);
        drop(heap);
        // Releasing the pool makes its empty pairs vacant. This use keeps the pair until the
        // segment is released, so that the heap cannot become that of another stream.
        let _used = self.held.heaps.enter_pair(number / 2);
        self.held.heaps.release_pool(pool)?;
        self.held.release_heap(number)
    }
}

/// Makes the private pool of a lane, under a name that is reserved for plans.
fn create_planned_pool<P: Platform>(heaps: &Heaps<P>) -> Result<PoolId, Error> {
    // The pool of an ended lane may still exist for the blocks in its segment. In that case take
    // the next name.
    let mut name = PoolId(crate::planned::POOLS, 0);
    loop {
        match heaps.create_pool(Some(name), PoolOptions::default()) {
            Err(Error::PoolExists(_)) => name.1 += 1,
            made => return made,
        }
    }
}
