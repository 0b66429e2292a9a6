//! Limits of the number of values in a pickle.

/// Most values of a pickle per byte. Every value takes at least a byte, so only shared values below
/// shared values expand to more than a value per byte.
pub(super) const MOST_VALUES_PER_BYTE: u64 = 8;
/// Number of values allowed in every pickle.
pub(super) const SOME_VALUES: u64 = 1 << 16;
