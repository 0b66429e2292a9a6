//! The bins of the free index, which decide which sizes share a list.

use crate::units::GRAIN;

/// The number of bins per octave, as a power of two.
pub(crate) const STEPS_LOG2: u32 = 6;

/// Each size below this number of units has a separate bin.
pub(crate) const EXACT: u64 = 2 << STEPS_LOG2;

/// The number of bins: as many as one summary word covers, which is more than the sizes need.
pub(crate) const BINS: usize = 64 * WORDS;

/// The number of words in the bitmap of occupied bins: one for each bit of the summary word.
pub(crate) const WORDS: usize = 64;

const _: () = assert!(bin_of(u64::MAX) < BINS, "every size has a bin");

/// Returns the bin of blocks of `size` bytes. It is monotone in `size`, and below [`EXACT`] it is
/// the number of units. There are no branches, because they would be mispredicted for the sizes of
/// real programs.
#[inline(always)]
pub(crate) const fn bin_of(size: u64) -> usize {
    let units = size / GRAIN;
    // Below `EXACT`, the shift is 0 and the bin is the number of units. Above, the top seven bits
    // of `units` choose the step within the octave, and each octave adds as many bins as it has
    // steps.
    let shift = (units | (EXACT / 2)).ilog2() - STEPS_LOG2;
    // The remainder never changes the value (the assertion above shows this for the largest size),
    // but it tells the compiler that the bin is in bounds.
    (((shift as usize) << STEPS_LOG2) + (units >> shift) as usize) % BINS
}

/// Returns the bin in the width of [`BlockEntry::bin`](crate::heap::block::BlockEntry::bin).
#[inline(always)]
pub(crate) const fn bin(size: u64) -> u16 {
    bin_of(size) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_size_has_a_bin_alone_and_a_larger_one_shares_a_64th_of_an_octave() {
        for units in 1..EXACT {
            assert_eq!(bin_of(units * GRAIN) as u64, units);
        }
        for (shift, step) in (1..44).flat_map(|shift| (64..128).map(move |step| (shift, step))) {
            let (first, next) = ((step << shift) * GRAIN, ((step + 1) << shift) * GRAIN);
            assert_eq!(bin_of(next - 1), bin_of(first), "{step} << {shift} units");
            assert_eq!(bin_of(next), bin_of(first) + 1, "{step} << {shift} units");
        }
    }
}
