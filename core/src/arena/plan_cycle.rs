//! From announcement to announcement: what is observed, what is planned, what is in force.

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

/// A plan is given up if more than one request in so many deviates.
const TOLERATED: u64 = 4;

impl<D: DeviceMemory, R: Lock, S: Storage> OnDevice<'_, D, R, S> {
    /// An iteration ends, and the next begins. See [`Allocator::iteration`](crate::Allocator::iteration).
    pub(crate) fn iteration(self) -> Result<(), Error> {
        let Some(front) = self.planned.as_deref() else { return Ok(()) };
        self.health()?;
        let asked = if self.flags.has(flags::CAPTURE) { Ok(()) } else { self.process_events() };
        let phase = {
            let mut learning = front.learning.lock();
            learning.report.announced += 1;
            match &mut learning.phase {
                Phase::Observed(_) | Phase::Planning | Phase::Turning => return asked,
                // A driver call would disturb the capture.
                Phase::Ready(_) if self.flags.has(flags::CAPTURE) => return asked,
                phase => core::mem::replace(phase, Phase::Turning),
            }
        };
        let (next, turned) = match phase {
            Phase::Observing(log) => (self.observed_or_again(front, log), Ok(())),
            Phase::Ready(prepared) => self.switch_or_wait(front, prepared),
            // What a plan leaves behind is given back to the device, which would disturb a capture.
            Phase::Serving if !self.is_given_up(front) || self.flags.has(flags::CAPTURE) => (Phase::Serving, Ok(())),
            Phase::Serving => {
                let ended = self.end_lanes(front);
                front.learning.lock().report.given_up += 1;
                (self.observe(), ended)
            }
            _ => (self.observe(), Ok(())),
        };
        front.learning.lock().phase = next;
        asked.and(turned)
    }

    /// The plans come into force, if there is memory for them, else at a later announcement.
    fn switch_or_wait(self, front: &PlanServer<R>, prepared: Vec<Prepared>) -> (Phase, Result<(), Error>) {
        let begun = self.begin_lanes(front, &prepared);
        let mut learning = front.learning.lock();
        match begun {
            Ok(true) => {
                learning.report.plans += 1;
                learning.report.peak_bytes = prepared.iter().map(|prepared| prepared.peak).sum();
                learning.report.lower_bound_bytes = prepared.iter().map(|prepared| prepared.lower_bound).sum();
                learning.bad = 0;
                drop(learning);
                let judged = front.sums();
                front.learning.lock().judged = judged;
                (Phase::Serving, Ok(()))
            }
            begun => {
                learning.report.no_memory += 1;
                (Phase::Ready(prepared), begun.map(|_| ()))
            }
        }
    }

    /// Gives up what is in force, observed or planned: the next announcement begins an iteration that is observed.
    pub(crate) fn give_plans_up(self) -> Result<(), Error> {
        let Some(front) = self.planned.as_deref() else { return Ok(()) };
        front.learning.lock().phase = Phase::Waiting;
        self.flags.set(flags::OBSERVED, false);
        self.end_lanes(front)
    }

    /// A stream is no more: its lane goes, and nothing that was observed of it comes into force.
    pub(crate) fn forget_stream(self, stream: StreamId) -> Result<(), Error> {
        let Some(front) = self.planned.as_deref() else { return Ok(()) };
        {
            let mut learning = front.learning.lock();
            let known = learning.streams.contains(&stream);
            match &mut learning.phase {
                Phase::Observing(log) if log.knows(stream) => log.spoil(),
                phase @ (Phase::Observed(_) | Phase::Planning | Phase::Ready(_)) if known => *phase = Phase::Waiting,
                _ => {}
            }
        }
        self.end_lane_of(front, stream)
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// The next iteration is observed.
    fn observe(&self) -> Phase {
        self.flags.set(flags::OBSERVED, true);
        Phase::Observing(Log::default())
    }

    /// What was observed, if anything of it can be planned, else the next iteration is observed too.
    fn observed_or_again(&self, front: &PlanServer<R>, log: Log) -> Phase {
        let mut learning = front.learning.lock();
        learning.serial += 1;
        let Some(observed) = log.finish(learning.serial) else { return Phase::Observing(Log::default()) };
        learning.streams = observed.streams.iter().map(|stream| stream.stream).collect();
        self.flags.set(flags::OBSERVED, false);
        Phase::Observed(observed)
    }

    /// Every lane begins its sequence anew. True if that is of no use any longer.
    fn is_given_up(&self, front: &PlanServer<R>) -> bool {
        for lane_slot in &front.lane_slots {
            let mut lane = lane_slot.lane.lock();
            if let Some(lane) = lane.as_mut() {
                self.reclaim_returned(lane);
                lane.sequence.begin_anew();
            }
        }
        let (deviations, requests) = front.sums();
        let without_lanes = front.lane_slots.iter().all(|lane_slot| lane_slot.lane.lock().is_none());
        let mut learning = front.learning.lock();
        let before = core::mem::replace(&mut learning.judged, (deviations, requests));
        let (deviations, requests) = (deviations - before.0, requests - before.1);
        learning.bad = match deviations > requests / TOLERATED {
            // An iteration without requests says nothing.
            _ if deviations == 0 && requests == 0 => learning.bad,
            true => learning.bad + 1,
            false => 0,
        };
        learning.bad >= learning.patience() || without_lanes
    }

    /// Takes out what was observed, to be planned.
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

    /// Takes plans in, one for each stream that was observed.
    pub(crate) fn adopt_plans(&self, observed: Observed, plans: &[Plan]) -> Result<(), Error> {
        let stale = Error::PlanRefused("it is not of the latest observation");
        let front = self.planned.as_deref().ok_or(stale)?;
        if plans.len() != observed.streams.len() {
            return Err(Error::PlanRefused("there is not one plan for each stream"));
        }
        let serial = observed.serial;
        let mut prepared = Vec::with_capacity(plans.len());
        for (stream, plan) in observed.streams.into_iter().zip(plans) {
            if verify(&stream.problem, plan).is_err() {
                return Err(Error::PlanRefused("it is none of the problem"));
            }
            if plan.peak >= MAX_REQUEST {
                return Err(Error::TooLarge(plan.peak));
            }
            let lower_bound = lower_bound(&stream.problem);
            let mut offsets = plan.offsets.iter();
            let planned = stream.problem.buffers.iter().map(|buffer| buffer.start as usize);
            let mut steps = stream.steps;
            for number in planned {
                steps[number].offset = offsets.next().copied();
            }
            prepared.push(Prepared { stream: stream.stream, steps, peak: plan.peak, lower_bound });
        }
        let mut learning = front.learning.lock();
        if learning.serial != serial || !matches!(learning.phase, Phase::Planning) {
            return Err(stale);
        }
        learning.phase = Phase::Ready(prepared);
        Ok(())
    }

    /// How the policy has done.
    pub(crate) fn planned_report(&self) -> PlannedReport {
        self.planned.as_deref().map_or_else(PlannedReport::default, PlanServer::report)
    }

    /// Notes a request that was served, while an iteration is observed.
    pub(crate) fn note_malloc(&self, request: &Request, ptr: DevicePtr) {
        if self.flags.has(flags::OBSERVED) && request.pool == 0 && !self.flags.has(flags::CAPTURE) {
            self.note(|log| log.malloc(request.stream, request.bytes, ptr.0));
        }
    }

    /// Notes that the program gives a block up, before anyone else can have it.
    pub(crate) fn note_free(&self, ptr: DevicePtr) {
        if self.flags.has(flags::OBSERVED) {
            self.note(|log| log.free(ptr.0));
        }
    }

    /// Notes that a block will not be free as soon as the program gives it up.
    pub(crate) fn note_use(&self, ptr: DevicePtr) {
        if self.flags.has(flags::OBSERVED) {
            self.note(|log| log.used(ptr.0));
        }
    }

    #[cold]
    fn note(&self, note: impl FnOnce(&mut Log)) {
        if let Some(front) = self.planned.as_deref()
            && let Phase::Observing(log) = &mut front.learning.lock().phase
        {
            note(log);
        }
    }
}
