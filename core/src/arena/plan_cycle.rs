//! Moves the planned policy on at each announcement of an iteration.
//!
//! ```text
//! Waiting ── announce ─▶ Observing ── announce ─▶ Observed ── observed() ─▶ Planning
//!                            ▲                                                  │ adopt_plans()
//!                            └── announce, bad plans ── Serving ◀── announce ── Ready
//! ```
//!
//! The phase is kept in the planner's state, under the lock `learning`. An announcement with slow
//! work to do takes the phase out, leaves [`Phase::Switching`] in place, and works without the lock.
//! An announcement that finds [`Phase::Switching`] does nothing. Plans that are given up during a
//! switch stay given up.
//!
//! `learning` is never held while a heap, a lane or another lock of the allocator is taken.

use crate::arena::request::Request;
use crate::arena::{Arena, OnDevice, flags};
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::planned::lanes::PlanServer;
use crate::planned::recorder::{Log, Observed};
use crate::planned::report::PlannedReport;
use crate::planned::state::{Phase, Prepared};
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::{DevicePtr, MAX_REQUEST, StreamId};
use alloc::vec::Vec;
use cachalot_planner::{Plan, lower_bound, verify};

/// Requests per tolerated deviation: an iteration is bad if more than a quarter of the requests
/// deviate from the plan.
const REQUESTS_PER_DEVIATION: u64 = 4;

impl<D: DeviceMemory, R: Lock, S: Storage> OnDevice<'_, D, R, S> {
    /// Ends an iteration and begins the next; see
    /// [`Allocator::iteration`](crate::Allocator::iteration).
    pub(crate) fn iteration(self) -> Result<(), Error> {
        let Some(server) = self.planned.as_deref() else { return Ok(()) };
        self.health()?;
        // Frees first, so that blocks whose events are complete return to the lanes before the
        // lanes restart.
        let polled = if self.flags.has(flags::CAPTURE) { Ok(()) } else { self.process_events() };
        let phase = {
            let mut learning = server.learning.lock();
            learning.report.announced += 1;
            match &mut learning.phase {
                Phase::Observed(_) | Phase::Planning | Phase::Switching => return polled,
                // Putting plans in force calls the device, which could invalidate the capture.
                Phase::Ready(_) if self.flags.has(flags::CAPTURE) => return polled,
                // This thread alone works on the phase now: every other announcement finds
                // `Switching`.
                phase => core::mem::replace(phase, Phase::Switching),
            }
        };
        let (next, turned) = match phase {
            Phase::Observing(log) => (finish_observation(server, log), Ok(())),
            Phase::Ready(prepared) => self.begin_serving(server, prepared),
            // `restart_lanes` runs at every announcement, so it must come first in the condition.
            // During a capture the plans stay even if they are bad: ending a lane releases memory.
            Phase::Serving if !self.restart_lanes(server) || self.flags.has(flags::CAPTURE) => (Phase::Serving, Ok(())),
            Phase::Serving => {
                let ended = self.end_lanes(server);
                server.learning.lock().report.given_up += 1;
                (Phase::Observing(Log::default()), ended)
            }
            _ => (Phase::Observing(Log::default()), Ok(())),
        };
        polled.and(turned).and(self.enter_phase(server, next))
    }

    /// Ends a switch of phases: `next` is the phase from here on. If another thread gave the plans up
    /// during the switch, `next` is dropped, and the lanes that the switch began end.
    fn enter_phase(self, server: &PlanServer<R>, next: Phase) -> Result<(), Error> {
        {
            let mut learning = server.learning.lock();
            if matches!(learning.phase, Phase::Switching) {
                // Under the lock: a flag set before another thread gives up would outlive the log.
                self.flags.set(flags::OBSERVED, matches!(next, Phase::Observing(_)));
                learning.phase = next;
                return Ok(());
            }
        }
        self.end_lanes(server)
    }

    /// Puts the plans in force if there is memory, and leaves them for the next announcement
    /// otherwise.
    fn begin_serving(self, server: &PlanServer<R>, prepared: Vec<Prepared>) -> (Phase, Result<(), Error>) {
        let begun = self.begin_lanes(server, &prepared);
        let mut learning = server.learning.lock();
        match begun {
            Ok(true) => {
                learning.report.plans += 1;
                learning.report.peak_bytes = prepared.iter().map(|prepared| prepared.peak).sum();
                learning.report.lower_bound_bytes = prepared.iter().map(|prepared| prepared.lower_bound).sum();
                learning.bad = 0;
                // `sums` takes the lock itself. Counts of earlier plans are part of the sums: judge
                // later iterations by the difference from here.
                drop(learning);
                let baseline = server.sums();
                server.learning.lock().baseline = baseline;
                (Phase::Serving, Ok(()))
            }
            begun => {
                learning.report.no_memory += 1;
                (Phase::Ready(prepared), begun.map(|_| ()))
            }
        }
    }

    /// Gives up the plans in force, and discards observations and plans not yet in force. The next
    /// announcement begins an observed iteration.
    pub(crate) fn give_plans_up(self) -> Result<(), Error> {
        let Some(server) = self.planned.as_deref() else { return Ok(()) };
        // Also makes `adopt_plans` refuse plans for an observation made before.
        {
            let mut learning = server.learning.lock();
            learning.phase = Phase::Waiting;
            self.flags.set(flags::OBSERVED, false);
        }
        self.end_lanes(server)
    }

    /// Ends the lane of a destroyed stream, and discards observations and plans that involve the
    /// stream.
    pub(crate) fn forget_stream(self, stream: StreamId) -> Result<(), Error> {
        let Some(server) = self.planned.as_deref() else { return Ok(()) };
        {
            let mut learning = server.learning.lock();
            let known = learning.streams.contains(&stream);
            match &mut learning.phase {
                // The number may come to name another stream: the log would mix the two.
                Phase::Observing(log) if log.knows(stream) => log.invalidate(),
                phase @ (Phase::Observed(_) | Phase::Planning | Phase::Ready(_)) if known => *phase = Phase::Waiting,
                _ => {}
            }
        }
        self.end_lane_of(server, stream)
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Restarts the sequence of every lane, and judges the iteration that has ended. Returns true
    /// if the plans are to be given up: too many bad iterations in a row, or no lane left.
    fn restart_lanes(&self, server: &PlanServer<R>) -> bool {
        for lane_slot in &server.lane_slots {
            let mut lane = lane_slot.lane.lock();
            if let Some(lane) = lane.as_mut() {
                self.reclaim_returned(lane);
                lane.sequence.begin_anew();
            }
        }
        // Both take lane locks, so they come before `learning` is locked.
        let (deviations, requests) = server.sums();
        let without_lanes = server.lane_slots.iter().all(|lane_slot| lane_slot.lane.lock().is_none());
        let mut learning = server.learning.lock();
        // The sums since the last announcement. Sums of ended lanes are kept, so no difference is
        // negative.
        let before = core::mem::replace(&mut learning.baseline, (deviations, requests));
        let (deviations, requests) = (deviations - before.0, requests - before.1);
        learning.bad = match deviations > requests / REQUESTS_PER_DEVIATION {
            // An iteration without requests is neither good nor bad.
            _ if deviations == 0 && requests == 0 => learning.bad,
            true => learning.bad + 1,
            false => 0,
        };
        learning.bad >= learning.tolerance() || without_lanes
    }

    /// Takes the finished observation out, to be planned. Returns `None` in any other phase.
    pub(crate) fn observed(&self) -> Option<Observed> {
        let mut learning = self.planned.as_deref()?.learning.lock();
        match core::mem::replace(&mut learning.phase, Phase::Planning) {
            Phase::Observed(observed) => Some(observed),
            phase => {
                learning.phase = phase;
                None
            }
        }
    }

    /// Verifies plans, one for each observed stream in order, and makes them ready for the next
    /// announcement.
    pub(crate) fn adopt_plans(&self, observed: Observed, plans: &[Plan]) -> Result<(), Error> {
        let stale = Error::PlanRefused("it is not for the latest observation");
        let server = self.planned.as_deref().ok_or(stale)?;
        if plans.len() != observed.streams.len() {
            return Err(Error::PlanRefused("each observed stream needs exactly one plan"));
        }
        // Everything is verified without the lock: a plan may have a million offsets.
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
            // Buffers of the problem are the requests that end within the iteration, in order. The
            // request of a buffer is the step at which the buffer starts. The other steps stay
            // without an offset.
            let planned = stream.problem.buffers.iter().map(|buffer| buffer.start as usize);
            let mut steps = stream.steps;
            for number in planned {
                steps[number].offset = offsets.next().copied();
            }
            prepared.push(Prepared { stream: stream.stream, steps, peak: plan.peak, lower_bound });
        }
        let mut learning = server.learning.lock();
        // The phase may have changed since `observed`: the plans were given up, or a stream
        // destroyed.
        if learning.serial != serial || !matches!(learning.phase, Phase::Planning) {
            return Err(stale);
        }
        learning.phase = Phase::Ready(prepared);
        Ok(())
    }

    /// Returns the figures of the planned policy; all 0 under another policy.
    pub(crate) fn planned_report(&self) -> PlannedReport {
        self.planned.as_deref().map_or_else(PlannedReport::default, PlanServer::report)
    }

    /// Logs a served request while an iteration is observed. Requests led into a private pool, or
    /// made during a capture, are not planned.
    pub(crate) fn note_malloc(&self, request: &Request, ptr: DevicePtr) {
        if self.flags.has(flags::OBSERVED) && request.pool == 0 && !self.flags.has(flags::CAPTURE) {
            self.note(|log| log.malloc(request.stream, request.bytes, ptr.0));
        }
    }

    /// Logs a free while an iteration is observed. Called before the free: afterwards another
    /// thread may be given the address.
    pub(crate) fn note_free(&self, ptr: DevicePtr) {
        if self.flags.has(flags::OBSERVED) {
            self.note(|log| log.free(ptr.0));
        }
    }

    /// Logs a block whose bytes stay in use beyond the free: used on another stream, or freed at a
    /// count. Such a block is planned to the end of the iteration.
    pub(crate) fn note_use(&self, ptr: DevicePtr) {
        if self.flags.has(flags::OBSERVED) {
            self.note(|log| log.used(ptr.0));
        }
    }

    /// Calls `note` with the log of the observed iteration, if any. Takes the lock `learning`, so
    /// no heap may be locked.
    #[cold]
    fn note(&self, note: impl FnOnce(&mut Log)) {
        if let Some(server) = self.planned.as_deref()
            && let Phase::Observing(log) = &mut server.learning.lock().phase
        {
            note(log);
        }
    }
}

/// Ends the observation if the log can be planned, and observes the next iteration otherwise.
fn finish_observation<R: Lock>(server: &PlanServer<R>, log: Log) -> Phase {
    let mut learning = server.learning.lock();
    // Tells plans for this observation from plans that arrive late for an earlier one.
    learning.serial += 1;
    let Some(observed) = log.finish(learning.serial) else { return Phase::Observing(Log::default()) };
    learning.streams = observed.streams.iter().map(|stream| stream.stream).collect();
    Phase::Observed(observed)
}
