//! The report of the planned policy: its stage, its plans and their deviations.

use core::fmt;

/// The stage of the planned policy on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Stage {
    /// The next announcement starts an iteration that is observed. Under all other policies, this
    /// is the only stage.
    #[default]
    Waiting,
    /// The policy is observing the current iteration.
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

/// A report on the planned policy of a device. Counts start when the allocator is created.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PlannedReport {
    /// The current stage.
    pub stage: Stage,
    /// How many iterations were announced.
    pub announced: u64,
    /// How many sets of plans were activated.
    pub plans: u64,
    /// How many sets of plans were given up because too many requests deviated.
    pub given_up: u64,
    /// How many attempts to activate plans failed because there was not enough memory.
    pub no_memory: u64,
    /// The bytes that the current or latest plans need, summed over streams.
    pub peak_bytes: u64,
    /// The fewest bytes that any plan for the requests needs, summed over streams.
    pub lower_bound_bytes: u64,
    /// The bytes of the segments reserved for the active plans.
    pub segment_bytes: u64,
    /// Requests that were served from plans.
    pub served: u64,
    /// Requests that were observed to outlive their iteration. The fallback serves them, which does
    /// not count as a deviation.
    pub lasting: u64,
    /// Requests that do not match the sequence anywhere near the current position. The fallback
    /// serves them.
    pub extra: u64,
    /// Requests of the sequence that the program did not make.
    pub missing: u64,
    /// Requests that were made later than in the sequence, and served from the plan.
    pub reordered: u64,
    /// Requests for which the planned bytes were still in use. The fallback serves them.
    pub occupied: u64,
}

impl PlannedReport {
    /// Returns how many requests the fallback served while plans were active.
    #[must_use]
    pub const fn fallback(&self) -> u64 {
        self.lasting + self.extra + self.occupied
    }

    /// Returns the number of deviations, of all kinds.
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
