//! The state of the planned policy between announcements: waiting, observing, planning or serving.

use super::recorder::{Log, Observed};
use super::sequence::SequenceStep;
use crate::stats::{PlannedReport, Stage};
use crate::units::StreamId;
use alloc::vec::Vec;

/// The number of consecutive iterations with too many deviations before the plan is given up.
/// Doubles with each plan given up, up to 64.
const TOLERATED_IN_A_ROW: u32 = 2;

/// The most doublings of the tolerated number.
const MAX_DOUBLINGS: u64 = 5;

/// A stream's plan, ready to be activated.
#[derive(Clone)]
pub(crate) struct Prepared {
    /// The stream.
    pub stream: StreamId,
    /// The requests of the iteration, with their planned offsets.
    pub steps: Vec<SequenceStep>,
    /// The bytes needed by the plan.
    pub peak: u64,
    /// The bytes needed at least by any plan for the requests.
    pub lower_bound: u64,
}

/// The phase of a device. Each announcement may move it on.
#[derive(Clone, Default)]
pub(crate) enum Phase {
    /// Nothing is recorded; the next announcement begins to record an iteration.
    #[default]
    Waiting,
    /// The present iteration is recorded.
    Observing(Log),
    /// An iteration was recorded; the program has not taken the observation out.
    Observed(Observed),
    /// The program has the observation, and computes plans.
    Planning,
    /// Plans were passed back; the next announcement activates them.
    Ready(Vec<Prepared>),
    /// The plans are active.
    Serving,
    /// A thread is switching phases, without the lock. Meanwhile only a thread that gives the plans
    /// up changes the phase.
    Switching,
}

/// The planned policy's phase on a device, and the history behind the policy's decisions.
#[derive(Clone, Default)]
pub(crate) struct PlannerState {
    /// The present phase.
    pub(crate) phase: Phase,
    /// The number of observations so far.
    pub(crate) serial: u64,
    /// The streams of the latest observation.
    pub(crate) streams: Vec<StreamId>,
    /// Consecutive iterations with too many deviations.
    pub(crate) bad: u32,
    /// Whether a stream has lost its lane for lack of memory, while others are served from theirs.
    pub(crate) incomplete: bool,
    /// The deviations and the requests of all lanes at the latest announcement: the baseline of the
    /// next.
    pub(crate) baseline: (u64, u64),
    /// The counts of removed lanes, and everything in the report not counted by lanes.
    pub(crate) report: PlannedReport,
}

impl PlannerState {
    /// Returns the stage of the present phase.
    pub(crate) fn stage(&self) -> Stage {
        match self.phase {
            Phase::Waiting => Stage::Waiting,
            Phase::Observing(_) => Stage::Observing,
            Phase::Observed(_) | Phase::Planning => Stage::Planning,
            Phase::Ready(_) => Stage::Ready,
            Phase::Serving | Phase::Switching => Stage::Serving,
        }
    }

    /// Returns how many consecutive iterations with too many deviations are tolerated.
    pub(crate) fn tolerance(&self) -> u32 {
        TOLERATED_IN_A_ROW << self.report.given_up.min(MAX_DOUBLINGS)
    }
}
