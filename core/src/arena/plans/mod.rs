//! The plans of one device, as other parts of the arena see the planned policy.
//!
//! Requests and frees are served from plans in planned.rs. Iterations are announced in `cycle.rs`,
//! and plans are activated in `switch.rs`.

mod cycle;
mod planned;
mod switch;

pub(in crate::arena) use self::planned::{FreedOf, PlannedBlock, are_off, is_unusual};
pub(crate) use self::switch::PlanSwitch;

use crate::arena::allocation::Allocation;
use crate::arena::flags::{self, Flags};
use crate::arena::heaps::Heaps;
use crate::arena::platform::Platform;
use crate::arena::request::Request;
use crate::config::Config;
use crate::config::rounding::PoolKind;
use crate::error::Error;
use crate::page_map::LaneRef;
use crate::planned::lanes::{Lane, LaneSlot, PlanServer};
use crate::planned::recorder::{Log, Observed};
use crate::planned::sequence::Placement;
use crate::planned::state::{Phase, Prepared};
use crate::stats::{KindCounters, PlannedReport, Stat};
use crate::sync::{Lock, empty_by};
use crate::units::{DeviceIndex, DevicePtr, MAX_REQUEST, StreamId};
use alloc::boxed::Box;
use alloc::vec::Vec;
use cachalot_planner::{Plan, lower_bound, verify};
use once_cell::race::OnceBox;

/// The number of requests for each tolerated deviation. An iteration is bad if more than a quarter
/// of its requests deviate from the plan.
const REQUESTS_PER_DEVIATION: u64 = 4;

/// The planned policy of one device, if it is configured.
pub(crate) struct Plans<R: Lock>(OnceBox<PlanServer<R>>);

empty_by!([R: Lock] Plans<R> = Self(OnceBox::new()));

impl<R: Lock> Plans<R> {
    /// Creates the state of the planned policy, if `config` uses this policy.
    pub(in crate::arena) fn start(&self, config: &Config) {
        if let Some(options) = config.planned() {
            self.0.get_or_init(|| Box::new(PlanServer::new(options)));
        }
    }

    /// Returns the plans of a device for a copy of its `server`.
    pub(in crate::arena) fn of(server: Option<PlanServer<R>>) -> Self {
        Self(server.map_or_else(OnceBox::new, |server| OnceBox::with_value(Box::new(server))))
    }

    /// Returns the state of the planned policy, if it is configured.
    #[inline(always)]
    pub(in crate::arena) fn server(&self) -> Option<&PlanServer<R>> {
        self.0.get()
    }

    /// Takes out the finished observation so that it can be planned. Returns `None` in any other
    /// phase.
    pub(crate) fn observed(&self) -> Option<Observed> {
        let mut planner = self.server()?.planner.lock();
        match core::mem::replace(&mut planner.phase, Phase::Planning) {
            Phase::Observed(observed) => Some(observed),
            phase => {
                planner.phase = phase;
                None
            }
        }
    }

    /// Verifies plans, one for each observed stream in order, and makes them ready for the next
    /// announcement.
    pub(crate) fn adopt_plans(&self, observed: Observed, plans: &[Plan]) -> Result<(), Error> {
        let stale = Error::PlanRefused("it is not for the latest observation");
        let server = self.server().ok_or(stale)?;
        if plans.len() != observed.streams.len() {
            return Err(Error::PlanRefused("each observed stream needs exactly one plan"));
        }
        // Everything is verified without the lock, because a plan may have a million offsets.
        let serial = observed.serial;
        let mut prepared = Vec::with_capacity(plans.len());
        for (stream, plan) in observed.streams.into_iter().zip(plans) {
            if verify(&stream.problem, plan).is_err() {
                return Err(Error::PlanRefused("it does not solve the problem of its stream"));
            }
            if plan.peak >= MAX_REQUEST {
                return Err(Error::TooLarge(plan.peak));
            }
            let lower_bound = lower_bound(&stream.problem);
            let mut offsets = plan.offsets.iter();
            // The buffers of the problem are the requests that end within the iteration, in order.
            // The request of a buffer is the step at which the buffer starts. The other steps get
            // no offset.
            let planned = stream.problem.buffers.iter().map(|buffer| buffer.start as usize);
            let mut steps = stream.steps;
            for number in planned {
                steps[number].offset = offsets.next().copied();
            }
            prepared.push(Prepared { stream: stream.stream, steps, peak: plan.peak, lower_bound });
        }
        let mut planner = server.planner.lock();
        // The phase may have changed since `observed`, because the plans were given up or a stream
        // was destroyed.
        if planner.serial != serial || !matches!(planner.phase, Phase::Planning) {
            return Err(stale);
        }
        planner.phase = Phase::Ready(prepared);
        Ok(())
    }

    /// Returns the figures of the planned policy; all 0 under another policy.
    pub(crate) fn report(&self) -> PlannedReport {
        self.server().map_or_else(PlannedReport::default, PlanServer::report)
    }

    /// Logs a served request while an iteration is observed. Requests that were led into a private
    /// pool or made during a capture are not planned.
    pub(crate) fn observe_malloc(&self, flags: &Flags, request: &Request, ptr: DevicePtr) {
        if flags.has(flags::OBSERVED) && request.pool == 0 && !flags.has(flags::CAPTURE) {
            self.log(|log| log.malloc(request.stream, request.bytes, ptr.0));
        }
    }

    /// Logs a free while an iteration is observed. Called before the free, because another thread
    /// may get the address after it.
    pub(crate) fn observe_free(&self, flags: &Flags, ptr: DevicePtr) {
        if flags.has(flags::OBSERVED) {
            self.log(|log| log.free(ptr.0));
        }
    }

    /// Logs a block that remains in use after its free, because it was used on another stream or
    /// freed at a count. Such a block is planned to the end of the iteration.
    pub(crate) fn observe_use(&self, flags: &Flags, ptr: DevicePtr) {
        if flags.has(flags::OBSERVED) {
            self.log(|log| log.used(ptr.0));
        }
    }

    /// Calls `note` with the log of the observed iteration, if there is one. Takes the lock
    /// `planner`, so no heap may be locked.
    #[cold]
    fn log(&self, note: impl FnOnce(&mut Log)) {
        if let Some(server) = self.server()
            && let Phase::Observing(log) = &mut server.planner.lock().phase
        {
            note(log);
        }
    }

    /// Iterates over the counters of all lanes. Blocks of lanes count as large.
    pub(in crate::arena) fn lane_counters(&self) -> impl Iterator<Item = KindCounters<'_>> + Clone {
        self.server().into_iter().flat_map(PlanServer::all_counters).map(|counters| (PoolKind::Large, counters))
    }

    /// Sets the planned policy's settings in `config` to those with which the allocator was made. A
    /// later configuration cannot change them.
    pub(in crate::arena) fn pin(&self, config: &mut Config) {
        config.set_planned(self.server().map(|server| server.options));
    }

    /// Checks the invariants of every lane, for tests. Returns a description of the first
    /// violation.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let Some(server) = self.server() else { return Ok(()) };
        for lane_slot in &server.lane_slots {
            let guard = lane_slot.lane.lock();
            let (mut blocks, mut bytes, mut requested_bytes) = (0, 0, 0);
            if let Some(lane) = guard.as_ref() {
                lane.sequence.check()?;
                for (block, requested) in lane.sequence.residents() {
                    (blocks, bytes, requested_bytes) = (blocks + 1, bytes + block.size, requested_bytes + requested);
                }
            }
            // The home heap counts delegated blocks. A slot without a lane counts nothing.
            let counted =
                [(Stat::Allocation, blocks), (Stat::AllocatedBytes, bytes), (Stat::RequestedBytes, requested_bytes)];
            if counted.iter().any(|&(stat, sum)| lane_slot.counters.current(stat) != sum as i64) {
                return Err("a counter of a lane differs from the sum over its blocks");
            }
        }
        Ok(())
    }

    /// Describes the resident block that contains `ptr`. Returns `None` if there is none, or if the
    /// block is delegated.
    pub(crate) fn allocation(&self, owner: LaneRef, ptr: DevicePtr) -> Option<Allocation> {
        let guard = self.server()?.numbered(owner.lane)?.lane.lock();
        let lane = guard.as_ref()?;
        let (block, requested) = resident_block(lane, ptr)?;
        Some(Allocation {
            base: DevicePtr(block.addr),
            size: block.size,
            requested,
            stream: lane.stream,
            device: DeviceIndex(owner.device),
            segment: DevicePtr(lane.base),
            segment_bytes: lane.bytes,
        })
    }

    /// Returns whether a resident block starts at exactly `ptr` and was allocated on `stream`.
    pub(crate) fn is_on(&self, owner: LaneRef, ptr: DevicePtr, stream: StreamId) -> bool {
        self.allocation(owner, ptr).is_some_and(|block| block.base == ptr && block.stream == stream)
    }

    /// Finds the segment of the first lane without blocks in use, for a forecast. Giving up the
    /// plans releases this segment; segments with blocks in use stay.
    pub(crate) fn first_idle<P: Platform>(&self, heaps: &Heaps<P>) -> Option<DevicePtr> {
        self.idle_lanes(heaps).next().map(|(_, base, _)| DevicePtr(base))
    }

    /// Finds the lane with the largest segment among those without blocks in use.
    pub(in crate::arena) fn largest_idle<P: Platform>(&self, heaps: &Heaps<P>) -> Option<usize> {
        self.idle_lanes(heaps).max_by_key(|&(_, base, bytes)| (bytes, base)).map(|(number, ..)| number)
    }

    /// Iterates over the lanes without blocks in use, as number, base and bytes of the segment.
    fn idle_lanes<P: Platform>(&self, heaps: &Heaps<P>) -> impl Iterator<Item = (usize, u64, u64)> {
        let lane_slots = self.server().into_iter().flat_map(|server| server.lane_slots.iter().enumerate());
        lane_slots.filter_map(|(number, lane_slot)| {
            let lane = lane_slot.lane.lock();
            let &Lane { home, base, bytes, .. } = lane.as_ref()?;
            // The lane counts resident blocks, and delegated blocks are entries of the home heap.
            let idle =
                lane_slot.counters.current(Stat::Allocation) == 0 && heaps.lock(home).sub_blocks().next().is_none();
            idle.then_some((number, base, bytes))
        })
    }
}

impl<R: Lock> PlanServer<R> {
    /// Restarts the sequence of every lane, and judges the iteration that has ended. Returns true
    /// if the plans should be given up, because there were too many bad iterations in a row or no
    /// lane is left.
    pub(in crate::arena) fn restart_lanes<P: Platform>(&self, heaps: &Heaps<P>) -> bool {
        for lane_slot in &self.lane_slots {
            let mut lane = lane_slot.lane.lock();
            if let Some(lane) = lane.as_mut() {
                heaps.reclaim_returned(lane);
                lane.sequence.restart();
            }
        }
        // Both take lane locks, so they come before `planner` is locked.
        let (deviations, requests) = self.sums();
        let without_lanes = self.lane_slots.iter().all(|lane_slot| lane_slot.lane.lock().is_none());
        let mut planner = self.planner.lock();
        // The sums since the last announcement. The sums of ended lanes are kept, so no difference
        // is negative.
        let before = core::mem::replace(&mut planner.baseline, (deviations, requests));
        let (deviations, requests) = (deviations - before.0, requests - before.1);
        // If there was no request, the program did nothing of the plan, and its memory serves
        // nobody.
        let is_bad = requests == 0 || deviations > requests / REQUESTS_PER_DEVIATION;
        planner.bad = if is_bad { planner.bad + 1 } else { 0 };
        planner.bad >= planner.tolerance() || without_lanes || planner.incomplete
    }
}

/// Finds the resident block that contains `ptr`, with the requested size in bytes.
pub(in crate::arena) fn resident_block(lane: &Lane, ptr: DevicePtr) -> Option<(Placement, u64)> {
    // Most callers pass the first byte, which takes one probe of the address table. Only an address
    // inside a block needs the walk over all blocks of the lane.
    if let Some(block) = lane.sequence.resident(ptr.0) {
        return Some(block);
    }
    lane.sequence.residents().find(|(block, _)| (block.addr..block.addr + block.size).contains(&ptr.0))
}

impl<P: Platform> Heaps<P> {
    /// Returns the bytes of delegated blocks to a lane, if the home heap has freed the blocks.
    pub(in crate::arena) fn reclaim_returned(&self, lane: &mut Lane) {
        // Without delegated blocks, the home heap need not be locked.
        if lane.sequence.delegated > 0 {
            let returned = self.slot(lane.home).heap.lock().take_returned();
            for addr in returned {
                lane.sequence.take_back(addr);
            }
        }
    }

    /// Delegates the resident block at `addr` to the home heap. Returns true if the peaks must be
    /// reconciled. Does nothing if no resident block starts at `addr`.
    pub(in crate::arena) fn delegate(
        &self,
        lane_slot: &LaneSlot<P::Lock>,
        lane: &mut Lane,
        addr: u64,
    ) -> Result<bool, Error> {
        let slot = self.slot(lane.home);
        let mut heap = self.lock(lane.home);
        let Some((block, requested)) = lane.sequence.resident(addr) else { return Ok(false) };
        // This can fail if there is no table entry, so it comes before the lane is changed. The
        // counts move from the lane's counters to the heap's, and no sum changes.
        let peaks_stale =
            heap.take_over((addr, block.size), requested, lane.oversize, (&lane_slot.counters, &slot.counters))?;
        lane.sequence.delegate(addr);
        Ok(peaks_stale)
    }

    /// Delegates every resident block of a lane to the home heap, for callers that walk heaps.
    /// Returns true if the peaks must be reconciled.
    pub(in crate::arena) fn delegate_all(&self, lane_slot: &LaneSlot<P::Lock>, lane: &mut Lane) -> Result<bool, Error> {
        // Collected first, because delegating changes the table that `residents` iterates over.
        let residents: Vec<u64> = lane.sequence.residents().map(|(block, _)| block.addr).collect();
        let mut peaks_stale = false;
        for addr in residents {
            peaks_stale |= self.delegate(lane_slot, lane, addr)?;
        }
        Ok(peaks_stale)
    }
}
