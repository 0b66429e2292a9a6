//! How far the policy is: observing, planning or serving.

use super::recorder::{Log, Observed};
use super::report::{PlannedReport, Stage};
use super::sequence::Step;
use crate::units::StreamId;
use alloc::vec::Vec;

/// And if that was so in so many iterations in a row; twice as many after each plan that is given up, up to 64.
const PATIENT: u32 = 2;

const MOST_DOUBLINGS: u64 = 5;

/// A stream's plan, as it will be put in force.
pub(crate) struct Prepared {
    pub stream: StreamId,
    pub steps: Vec<Step>,
    pub peak: u64,
    pub lower_bound: u64,
}

/// What the next announcement is to do something about.
#[derive(Default)]
pub(crate) enum Phase {
    #[default]
    Waiting,
    Observing(Log),
    Observed(Observed),
    Planning,
    Ready(Vec<Prepared>),
    Serving,
    /// Somebody is about it.
    Turning,
}

/// What is known of iterations.
#[derive(Default)]
pub(crate) struct PlannerState {
    pub(crate) phase: Phase,
    /// How many observations there were.
    pub(crate) serial: u64,
    /// The streams of the last one.
    pub(crate) streams: Vec<StreamId>,
    /// Iterations in a row in which too much deviated.
    pub(crate) bad: u32,
    /// Deviations of the lanes, and their requests, up to the last announcement.
    pub(crate) judged: (u64, u64),
    /// What lanes that are gone have come to, and everything that is not a lane's.
    pub(crate) report: PlannedReport,
}

impl PlannerState {
    pub(crate) fn stage(&self) -> Stage {
        match self.phase {
            Phase::Waiting => Stage::Waiting,
            Phase::Observing(_) => Stage::Observing,
            Phase::Observed(_) | Phase::Planning => Stage::Planning,
            Phase::Ready(_) => Stage::Ready,
            Phase::Serving | Phase::Turning => Stage::Serving,
        }
    }

    /// How often in a row too much may deviate.
    pub(crate) fn patience(&self) -> u32 {
        PATIENT << self.report.given_up.min(MOST_DOUBLINGS)
    }
}
