//! Advances the planned policy at each announcement of an iteration.
//!
//! ```text
//! Waiting ── announce ─▶ Observing ── announce ─▶ Observed ── observed() ─▶ Planning
//!                            ▲                                                  │ adopt_plans()
//!                            └── announce, bad plans ── Serving ◀── announce ── Ready
//! ```
//!
//! The phase is part of the planner's state, under the lock `planner`. An announcement that has
//! slow work to do takes the phase out, leaves [`Phase::Switching`] in its place, and works without
//! the lock. An announcement that finds [`Phase::Switching`] does nothing. Plans that are given up
//! during a switch stay given up.
//!
//! `planner` is never held while a heap or another lock of the allocator is taken.

use crate::arena::flags;
use crate::arena::plans::switch::PlanSwitch;
use crate::arena::plans::{restart, sums};
use crate::arena::platform::Platform;
use crate::arena::waits::{DeviceWaits, Outside};
use crate::error::Error;
use crate::planned::lanes::PlanServer;
use crate::planned::recorder::Log;
use crate::planned::state::{Phase, PlannerState, Prepared};
use crate::sync::Lock;
use crate::units::StreamId;
use alloc::vec::Vec;

impl<P: Platform> PlanSwitch<'_, P> {
    /// Ends an iteration and starts the next; see
    /// [`Planning::end_iteration`](crate::Planning::end_iteration).
    pub(crate) fn announce<'w>(&self, waits: DeviceWaits<'w, P, impl Outside<'w, P>>) -> Result<(), Error> {
        self.held.driver.health()?;
        // Frees come first, so that blocks with complete events return to the lanes before the
        // lanes restart.
        let polled = if self.held.driver.flags.has(flags::CAPTURE) { Ok(()) } else { waits.process_events() };
        let phase = {
            let mut planner = self.server.planner.lock();
            planner.report.announced += 1;
            match &mut planner.phase {
                Phase::Observed(_) | Phase::Planning | Phase::Switching => return polled,
                // Activating plans calls the device, which could invalidate the capture.
                Phase::Ready(_) if self.held.driver.flags.has(flags::CAPTURE) => return polled,
                // Only this thread works on the phase now, because every other announcement finds
                // `Switching`.
                phase => core::mem::replace(phase, Phase::Switching),
            }
        };
        let (next, turned) = match phase {
            Phase::Observing(log) => (finish_observation(self.server, log), Ok(())),
            Phase::Ready(prepared) => self.begin_serving(prepared),
            // `restart` must run at every announcement, so it comes first in the condition.
            // During a capture the plans stay even if they are bad, because ending a lane releases
            // memory.
            Phase::Serving if !restart(self.server, self.held.heaps) || self.held.driver.flags.has(flags::CAPTURE) => {
                (Phase::Serving, Ok(()))
            }
            Phase::Serving => {
                let ended = self.end_lanes();
                self.server.planner.lock().report.given_up += 1;
                (Phase::Observing(Log::default()), ended)
            }
            _ => (Phase::Observing(Log::default()), Ok(())),
        };
        polled.and(turned).and(self.enter_phase(next))
    }

    /// Ends a switch of phases. `next` is the phase from here on. If another thread gave up the
    /// plans during the switch, `next` is dropped, and the lanes that the switch started end.
    fn enter_phase(&self, next: Phase) -> Result<(), Error> {
        {
            let mut planner = self.server.planner.lock();
            if matches!(planner.phase, Phase::Switching) {
                // Under the lock, because a flag that is set before another thread gives up would
                // outlive the log.
                self.held.driver.flags.set(flags::OBSERVED, matches!(next, Phase::Observing(_)));
                planner.phase = next;
                return Ok(());
            }
        }
        self.end_lanes()
    }

    /// Activates the plans if there is memory. Otherwise leaves them for the next announcement.
    fn begin_serving(&self, prepared: Vec<Prepared>) -> (Phase, Result<(), Error>) {
        let begun = self.begin_lanes(&prepared);
        let mut planner = self.server.planner.lock();
        match begun {
            Ok(true) => {
                planner.report.plans += 1;
                planner.report.peak_bytes = prepared.iter().map(|prepared| prepared.peak).sum();
                planner.report.lower_bound_bytes = prepared.iter().map(|prepared| prepared.lower_bound).sum();
                planner.bad = 0;
                planner.incomplete = false;
                // `sums` takes the lock itself. The sums include the counts of earlier plans, so
                // later iterations are judged by the difference from here.
                drop(planner);
                let baseline = sums(self.server, self.held.heaps);
                self.server.planner.lock().baseline = baseline;
                (Phase::Serving, Ok(()))
            }
            begun => {
                planner.report.no_memory += 1;
                (Phase::Ready(prepared), begun.map(|_| ()))
            }
        }
    }

    /// Gives up the active plans, and discards observations and plans that are not active yet. The
    /// next announcement starts an observed iteration.
    pub(crate) fn give_up(&self) -> Result<(), Error> {
        // This also makes `adopt_plans` refuse plans for an earlier observation.
        {
            let mut planner = self.server.planner.lock();
            planner.phase = Phase::Waiting;
            self.held.driver.flags.set(flags::OBSERVED, false);
        }
        self.end_lanes()
    }

    /// Ends the lanes without blocks in use, the largest first, as long as more than `keep` bytes
    /// are held. The next announcement gives up the others, because plans are made for all streams
    /// together.
    pub(in crate::arena) fn give_idle_up(&self, keep: u64) -> Result<(), Error> {
        let held = &self.held;
        // As for bad plans, no memory is released for plans during a capture.
        while held.ledger.reserved() > keep
            && !held.driver.flags.has(flags::CAPTURE)
            && let Some(heap) = self.plans.largest_idle(held.heaps)
        {
            match &mut *self.server.planner.lock() {
                PlannerState { phase: Phase::Serving, incomplete, .. } => *incomplete = true,
                // Another thread is activating plans or giving them up.
                _ => return Ok(()),
            }
            self.end_lane(heap)?;
        }
        Ok(())
    }

    /// Ends the lane of a destroyed stream, and discards observations and plans that involve the
    /// stream.
    pub(crate) fn forget_stream(&self, stream: StreamId) -> Result<(), Error> {
        {
            let mut planner = self.server.planner.lock();
            let known = planner.streams.contains(&stream);
            match &mut planner.phase {
                // The number may later name another stream, and the log would mix the two.
                Phase::Observing(log) if log.knows(stream) => log.invalidate(),
                phase @ (Phase::Observed(_) | Phase::Planning | Phase::Ready(_)) if known => *phase = Phase::Waiting,
                _ => {}
            }
        }
        self.end_lane_of(stream)
    }
}

/// Ends the observation if the log can be planned. Otherwise observes the next iteration.
fn finish_observation<R: Lock>(server: &PlanServer<R>, log: Log) -> Phase {
    let mut planner = server.planner.lock();
    // This distinguishes plans for this observation from plans that arrive late for an earlier one.
    planner.serial += 1;
    let Some(observed) = log.finish(planner.serial) else { return Phase::Observing(Log::default()) };
    planner.streams = observed.streams.iter().map(|stream| stream.stream).collect();
    Phase::Observed(observed)
}
