//! The number of values that a pickle may expand to.

/// How many values a pickle may expand to for each of its bytes. A value takes a byte at least, so
/// that only shared values below shared values expand to more than one.
pub(super) const MOST_VALUES_PER_BYTE: u64 = 8;
/// How many values every pickle may expand to.
pub(super) const SOME_VALUES: u64 = 1 << 16;
