//! The bins of the free index: which sizes share a list.

use crate::units::GRAIN;

/// Bins per octave, as a power of two.
pub(crate) const STEPS_LOG2: u32 = 6;

/// Sizes below this number of units each have a bin alone.
pub(crate) const EXACT: u64 = 2 << STEPS_LOG2;

/// Number of bins: as many as one summary word covers, and more than the sizes need.
pub(crate) const BINS: usize = 64 * WORDS;

/// Words of the bitmap of occupied bins, one for each bit of the summary word.
pub(crate) const WORDS: usize = 64;

const _: () = assert!(bin_of(u64::MAX) < BINS, "every size has a bin");

/// Returns the bin of blocks of `size` bytes: monotone in `size`, and equal to the number of units
/// below [`EXACT`]. Without branches, because real programs' sizes would mispredict them.
#[inline(always)]
pub(crate) const fn bin_of(size: u64) -> usize {
    let units = size / GRAIN;
    // Below `EXACT` the shift is 0, and the bin is the number of units. Above, the top seven bits
    // of `units` choose the step within the octave, and each octave adds as many bins as an octave
    // has steps.
    let shift = (units | (EXACT / 2)).ilog2() - STEPS_LOG2;
    // The remainder never changes the value (asserted above for the largest size), and tells the
    // compiler that the bin is in bounds.
    (((shift as usize) << STEPS_LOG2) + (units >> shift) as usize) % BINS
}

/// Returns the bin in the width that [`BlockEntry::bin`](crate::heap::block::BlockEntry::bin) has.
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
