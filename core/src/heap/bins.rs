//! Which bin of the free index a size belongs to.

use crate::units::GRAIN;

/// Bins an octave, as a power of two.
pub(crate) const STEPS_LOG2: u32 = 6;

/// Sizes below this many units have a bin of their own.
pub(crate) const EXACT: u64 = 2 << STEPS_LOG2;

/// As many as one summary word covers, which is more than there are sizes for.
pub(crate) const BINS: usize = 64 * WORDS;

pub(crate) const WORDS: usize = 64;

const _: () = assert!(bin_of(u64::MAX) < BINS, "every size has a bin");

/// The bin of blocks of `size` bytes: monotone in `size`, and its own number of units below [`EXACT`]. Free of branches, which
/// the sizes of a real program would mispredict.
#[inline(always)]
pub(crate) const fn bin_of(size: u64) -> usize {
    let units = size / GRAIN;
    let shift = (units | (EXACT / 2)).ilog2() - STEPS_LOG2;
    (((shift as usize) << STEPS_LOG2) + (units >> shift) as usize) % BINS
}

/// What a block of `size` bytes [remembers](Block::bin) of its bin.
#[inline(always)]
pub(crate) const fn bin(size: u64) -> u16 {
    bin_of(size) as u16
}
