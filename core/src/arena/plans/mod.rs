//! The plans of one device, as other parts of the arena see the planned policy.
//!
//! Requests and frees are served from plans in planned.rs. Iterations are announced in `cycle.rs`,
//! and plans are activated in `switch.rs`.

mod cycle;
mod planned;
mod switch;

pub(crate) use self::planned::{allocation, list_block};
pub(in crate::arena) use self::planned::{are_off, free_or_list, is_unusual, try_free};
pub(crate) use self::switch::PlanSwitch;

use crate::arena::flags::{self, Flags};
use crate::arena::heaps::Heaps;
use crate::arena::platform::Platform;
use crate::arena::request::Request;
use crate::config::Config;
use crate::error::Error;
use crate::planned::lanes::PlanServer;
use crate::planned::recorder::{Log, Observed};
use crate::planned::state::{Phase, Prepared};
use crate::stats::PlannedReport;
use crate::sync::{Lock, Ordering, empty_by};
use crate::units::{DevicePtr, MAX_REQUEST};
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
    pub(crate) fn report<P: Platform<Lock = R>>(&self, heaps: &Heaps<P>) -> PlannedReport {
        self.server().map_or_else(PlannedReport::default, |server| report(server, heaps))
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

    /// Iterates over the slots of the heaps with an active plan.
    pub(in crate::arena) fn heaps(&self) -> impl Iterator<Item = u32> {
        self.server().into_iter().flat_map(PlanServer::heaps)
    }

    /// Sets the planned policy's settings in `config` to those with which the allocator was made. A
    /// later configuration cannot change them.
    pub(in crate::arena) fn pin(&self, config: &mut Config) {
        config.set_planned(self.server().map(|server| server.options));
    }

    /// Finds the segment of the first plan without blocks in use, for a forecast. Giving up the
    /// plans releases this segment; segments with blocks in use stay.
    pub(crate) fn first_idle<P: Platform>(&self, heaps: &Heaps<P>) -> Option<DevicePtr> {
        self.idle(heaps).next().map(|(_, base, _)| DevicePtr(base))
    }

    /// Finds the heap with the largest segment among the plans without blocks in use.
    pub(in crate::arena) fn largest_idle<P: Platform>(&self, heaps: &Heaps<P>) -> Option<u32> {
        self.idle(heaps).max_by_key(|&(_, base, bytes)| (bytes, base)).map(|(heap, ..)| heap)
    }

    /// Iterates over the plans without blocks in use, as slot of the heap, base and bytes of the
    /// segment.
    fn idle<P: Platform>(&self, heaps: &Heaps<P>) -> impl Iterator<Item = (u32, u64, u64)> {
        self.heaps().filter_map(|heap| {
            let (base, bytes) = heaps.lock(heap).idle_plan(&heaps.slot(heap).counters)?;
            Some((heap, base, bytes))
        })
    }
}

/// Returns the report of the planned policy on the device.
fn report<P: Platform>(server: &PlanServer<P::Lock>, heaps: &Heaps<P>) -> PlannedReport {
    // The guard is dropped at the end of the block: heaps are locked before `planner`.
    let mut report = {
        let planner = server.planner.lock();
        PlannedReport { stage: planner.stage(), ..planner.report }
    };
    report.extra += server.without_lane.load(Ordering::Relaxed);
    for heap in server.heaps() {
        report.segment_bytes += heaps.lock(heap).report_plan(&mut report);
    }
    report
}

/// Returns how many deviations and how many requests there were so far.
fn sums<P: Platform>(server: &PlanServer<P::Lock>, heaps: &Heaps<P>) -> (u64, u64) {
    let PlannedReport { served, lasting, extra, missing, occupied, .. } = report(server, heaps);
    (extra + missing + occupied, served + lasting + extra + occupied)
}

/// Restarts the sequence of every plan, and judges the iteration that has ended. Returns true if
/// the plans should be given up, because there were too many bad iterations in a row or no plan is
/// left.
fn restart<P: Platform>(server: &PlanServer<P::Lock>, heaps: &Heaps<P>) -> bool {
    server.heaps().for_each(|heap| heaps.lock(heap).restart_plan());
    // Locks heaps, so it comes before `planner` is locked.
    let (deviations, requests) = sums(server, heaps);
    let mut planner = server.planner.lock();
    // The sums since the last announcement. The sums of ended plans are kept, so no difference is
    // negative.
    let before = core::mem::replace(&mut planner.baseline, (deviations, requests));
    let (deviations, requests) = (deviations - before.0, requests - before.1);
    // If there was no request, the program did nothing of the plan, and its memory serves nobody.
    let is_bad = requests == 0 || deviations > requests / REQUESTS_PER_DEVIATION;
    planner.bad = if is_bad { planner.bad + 1 } else { 0 };
    planner.bad >= planner.tolerance() || planner.incomplete || server.heaps().next().is_none()
}
