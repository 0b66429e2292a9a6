//! A run of sections, both ends included: what a part of the search looked at.

/// From the first section to the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span {
    pub(super) first: u32,
    pub(super) last: u32,
}

impl Span {
    /// The smallest span that holds both.
    #[must_use]
    pub(super) fn join(self, other: Self) -> Self {
        Self { first: self.first.min(other.first), last: self.last.max(other.last) }
    }

    /// Whether they share a section.
    pub(super) fn meets(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Whether the other one lies inside.
    pub(super) fn holds(self, other: Self) -> bool {
        self.first <= other.first && other.last <= self.last
    }

    pub(super) fn indices(self) -> core::ops::RangeInclusive<usize> {
        self.first as usize..=self.last as usize
    }
}
