//! The age of idle memory, as found by looks at a heap (idle.rs).

/// A moment in milliseconds of a device's clock, modulo 2^32. This is enough to tell ages of up to
/// 49 days.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moment(pub u32);

/// The moment at which a look first found a unit of memory idle, or that the unit is new or in use.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Idle(u32);

impl Idle {
    /// No look has seen the unit yet.
    pub(crate) const NEW: Self = Self(0);
    /// The unit was in use at the last look.
    pub(crate) const IN_USE: Self = Self(1);

    pub(crate) fn since(now: Moment) -> Self {
        Self(now.0.max(2))
    }

    /// Returns whether the last look found the unit idle.
    pub(crate) fn is_idle(self) -> bool {
        self.0 > Self::IN_USE.0
    }

    /// Returns for how many milliseconds the unit has been idle, or `None` if it is not.
    pub(crate) fn age(self, now: Moment) -> Option<u32> {
        self.is_idle().then(|| now.0.wrapping_sub(self.0))
    }
}

/// The finding of a look at a unit of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found {
    /// The unit was obtained since the last look.
    New {
        /// The length in bytes.
        bytes: u64,
    },
    /// The unit was idle, but was used again since the last look.
    UsedAgain {
        /// The length in bytes.
        bytes: u64,
        /// Since when the unit had been idle.
        idle: Idle,
    },
    /// The unit is idle, either for the first time or still.
    Idle {
        /// The length in bytes.
        bytes: u64,
    },
}
