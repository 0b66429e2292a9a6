//! What the planned policy has come to, for the program to ask.

use core::fmt;

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Stage {
    /// The next announcement begins an iteration that is observed. Another policy is always here.
    #[default]
    Waiting,
    /// An iteration is observed.
    Observing,
    /// One was observed, and nobody has brought plans for it yet.
    Planning,
    /// The next announcement puts the plans in force.
    Ready,
    /// The plans are in force.
    Serving,
}

impl Stage {
    /// Its name.
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

/// The planned policy on one device, since the allocator was made. Sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PlannedReport {
    /// How far it is.
    pub stage: Stage,
    /// How often an iteration was announced.
    pub announced: u64,
    /// Plans that came into force.
    pub plans: u64,
    /// Plans that were given up because too much deviated.
    pub given_up: u64,
    /// How often plans could not come into force for want of memory.
    pub no_memory: u64,
    /// The peaks of the plans in force, or that were last, all streams together.
    pub peak_bytes: u64,
    /// What any plan for the same requests needs.
    pub lower_bound_bytes: u64,
    /// The segments that are held for the plans in force.
    pub segment_bytes: u64,
    /// Requests that plans have served.
    pub served: u64,
    /// Requests that outlive their iteration, as observed: the fallback's, and no deviation.
    pub lasting: u64,
    /// Requests that stand nowhere near in the sequence: the fallback's.
    pub extra: u64,
    /// Requests of the sequence that were not made.
    pub missing: u64,
    /// Requests that were made later than in the sequence, and served by the plan.
    pub reordered: u64,
    /// Requests whose bytes were still occupied: the fallback's.
    pub occupied: u64,
}

impl PlannedReport {
    /// Requests that were the fallback's while plans were in force.
    #[must_use]
    pub const fn fallback(&self) -> u64 {
        self.lasting + self.extra + self.occupied
    }

    /// Deviations of all kinds.
    #[must_use]
    pub const fn deviations(&self) -> u64 {
        self.extra + self.missing + self.reordered + self.occupied
    }
}
