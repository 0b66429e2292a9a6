//! The report of the planned policy: its stage, its plans and their deviations.

use core::fmt;

/// The stage of the planned policy on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Stage {
    /// The next announcement begins an iteration to observe. All other policies are always in this
    /// stage.
    #[default]
    Waiting,
    /// The policy observes the present iteration.
    Observing,
    /// An iteration was observed, and the program has not passed plans back yet.
    Planning,
    /// The next announcement activates the plans.
    Ready,
    /// The plans are active.
    Serving,
}

impl Stage {
    /// Returns the name of the stage in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Observing => "observing",
            Self::Planning => "planning",
            Self::Ready => "ready",
            Self::Serving => "serving",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The planned policy on a device, since the allocator was created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PlannedReport {
    /// The present stage.
    pub stage: Stage,
    /// Iterations announced.
    pub announced: u64,
    /// Activated sets of plans.
    pub plans: u64,
    /// Sets of plans given up because too many requests deviated.
    pub given_up: u64,
    /// Failed attempts to activate plans, for lack of memory.
    pub no_memory: u64,
    /// Bytes needed by the present or latest plans, summed over streams.
    pub peak_bytes: u64,
    /// The least bytes of any plan for the requests, summed over streams.
    pub lower_bound_bytes: u64,
    /// Bytes of the segments reserved for the active plans.
    pub segment_bytes: u64,
    /// Requests served from plans.
    pub served: u64,
    /// Requests observed to outlive their iteration. The fallback serves these requests, which are
    /// no deviation.
    pub lasting: u64,
    /// Requests found nowhere near in the sequence. The fallback serves them.
    pub extra: u64,
    /// Requests of the sequence not made by the program.
    pub missing: u64,
    /// Requests made later than in the sequence, and served from the plan.
    pub reordered: u64,
    /// Requests whose bytes were still in use. The fallback serves them.
    pub occupied: u64,
}

impl PlannedReport {
    /// Returns the requests served by the fallback while plans were active.
    #[must_use]
    pub const fn fallback(&self) -> u64 {
        self.lasting + self.extra + self.occupied
    }

    /// Returns the deviations of all kinds.
    #[must_use]
    pub const fn deviations(&self) -> u64 {
        self.extra + self.missing + self.reordered + self.occupied
    }
}

#[cfg(test)]
mod tests {
    use super::{PlannedReport, Stage};
    use std::string::ToString;

    #[test]
    fn sums_count_each_kind_once() {
        let report = PlannedReport {
            lasting: 1,
            extra: 10,
            missing: 100,
            reordered: 1_000,
            occupied: 10_000,
            ..Default::default()
        };
        assert_eq!((report.fallback(), report.deviations()), (10_011, 11_110));
    }

    #[test]
    fn stages_have_their_names() {
        let stages = [Stage::Waiting, Stage::Observing, Stage::Planning, Stage::Ready, Stage::Serving];
        assert_eq!(stages.map(|stage| stage.to_string()), ["waiting", "observing", "planning", "ready", "serving"]);
    }
}
