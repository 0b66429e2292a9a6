//! The state of the planned policy between announcements: waiting, observing, planning or serving.

use super::recorder::{Log, Observed};
use super::sequence::SequenceStep;
use crate::stats::{PlannedReport, Stage};
use crate::units::StreamId;
use alloc::vec::Vec;

/// How many iterations in a row may have too many deviations before the plan is given up. This
/// doubles with each plan that is given up, up to 64.
const TOLERATED_IN_A_ROW: u32 = 2;

/// How often the tolerated number can double.
const MAX_DOUBLINGS: u64 = 5;

/// The plan of a stream, ready to be activated.
#[derive(Clone)]
pub(crate) struct Prepared {
    /// The stream.
    pub stream: StreamId,
    /// The requests of the iteration, with their planned offsets.
    pub steps: Vec<SequenceStep>,
    /// How many bytes the plan needs.
    pub peak: u64,
    /// How many bytes any plan for the requests needs at least.
    pub lower_bound: u64,
}

/// The phase of a device. Each announcement may advance it.
#[derive(Clone, Default)]
pub(crate) enum Phase {
    /// Nothing is recorded. The next announcement starts to record an iteration.
    #[default]
    Waiting,
    /// The current iteration is being recorded.
    Observing(Log),
    /// An iteration was recorded, but the program has not taken the observation yet.
    Observed(Observed),
    /// The program has the observation, and computes plans.
    Planning,
    /// Plans were passed back. The next announcement activates them.
    Ready(Vec<Prepared>),
    /// The plans are active.
    Serving,
    /// A thread is switching phases, without the lock. Meanwhile, the phase is changed only by a
    /// thread that gives the plans up.
    Switching,
}

/// The phase of the planned policy on a device, and the history on which its decisions are based.
#[derive(Clone, Default)]
pub(crate) struct PlannerState {
    /// The current phase.
    pub(crate) phase: Phase,
    /// How many observations there were so far.
    pub(crate) serial: u64,
    /// The streams of the latest observation.
    pub(crate) streams: Vec<StreamId>,
    /// How many iterations in a row had too many deviations.
    pub(crate) bad: u32,
    /// Whether a stream lost its lane because there was not enough memory, while others are served
    /// from their lanes.
    pub(crate) incomplete: bool,
    /// The deviations and the requests of all lanes at the latest announcement. The next
    /// announcement compares with these.
    pub(crate) baseline: (u64, u64),
    /// The counts of lanes that were removed, and everything in the report that lanes do not count.
    pub(crate) report: PlannedReport,
}

impl PlannerState {
    /// Returns the stage of the current phase.
    pub(crate) fn stage(&self) -> Stage {
        match self.phase {
            Phase::Waiting => Stage::Waiting,
            Phase::Observing(_) => Stage::Observing,
            Phase::Observed(_) | Phase::Planning => Stage::Planning,
            Phase::Ready(_) => Stage::Ready,
            Phase::Serving | Phase::Switching => Stage::Serving,
        }
    }

    /// Returns how many iterations in a row may have too many deviations.
    pub(crate) fn tolerance(&self) -> u32 {
        TOLERATED_IN_A_ROW << self.report.given_up.min(MAX_DOUBLINGS)
    }
}
