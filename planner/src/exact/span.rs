//! A range of sections, including both ends. Failures and decisions name the sections on which they
//! depend by a span.

/// The sections from `first` to `last`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Span {
    pub(super) first: u32,
    pub(super) last: u32,
}

impl Span {
    /// Returns the smallest span that contains both.
    #[must_use]
    pub(super) fn join(self, other: Self) -> Self {
        Self { first: self.first.min(other.first), last: self.last.max(other.last) }
    }

    /// Returns whether the spans share a section.
    pub(super) fn meets(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// Returns whether `other` is inside.
    pub(super) fn holds(self, other: Self) -> bool {
        self.first <= other.first && other.last <= self.last
    }

    pub(super) fn indices(self) -> core::ops::RangeInclusive<usize> {
        self.first as usize..=self.last as usize
    }
}
