//! Sizes in a geometric progression: the powers of two and the midpoints between them, two classes
//! for each doubling.
//!
//! Every size is a multiple of [`UNIT`], because every block starts at a multiple of [`UNIT`]. This
//! is why the midpoint 768 is not a size.

use cachalot_core::UNIT;

/// Returns the smallest size that is at least `bytes`. `bytes` is positive and at most 2^62.
#[inline(always)]
pub(crate) const fn round_up(bytes: u64) -> u64 {
    // This sets every bit below the second highest one, so the next number is a power of two or a
    // midpoint.
    let last = (bytes - 1) | (UNIT - 1);
    (last | ((1 << (last.ilog2() - 1)) - 1)) + 1
}

/// Returns the largest size that is at most `bytes`. `bytes` is at least [`UNIT`].
pub(super) const fn round_down(bytes: u64) -> u64 {
    let half = 1 << (bytes.ilog2() - 1);
    bytes & !(half - 1) & !(UNIT - 1)
}

/// Returns the number of the class of `size`. Numbers start at 0 and grow with the sizes.
#[inline(always)]
pub(super) const fn class_of(size: u64) -> usize {
    // Sizes are never 0. Setting the lowest bit shows this to the compiler, which saves the check
    // in `ilog2`.
    let log2 = (size | 1).ilog2();
    // The two highest bits are 2 for a power of two and 3 for a midpoint.
    (log2 * 2) as usize + (size >> (log2 - 1)) as usize - (UNIT.ilog2() * 2 + 2) as usize
}

/// Returns how many times `size`, the size of a class, fits into `bytes`.
#[inline(always)]
pub(super) const fn divide(bytes: u64, size: u64) -> u64 {
    // A size is 2 or 3 times a power of two, and a division by a constant compiles to a
    // multiplication.
    let half_log2 = size.ilog2() - 1;
    let halves = bytes >> half_log2;
    if size >> half_log2 & 1 == 1 { halves / 3 } else { halves / 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_numbered_in_order_and_stand_for_themselves() {
        let mut size = UNIT;
        // 768 would be class 1.
        for class in (0..100).filter(|&class| class != 1) {
            assert_eq!((class_of(size), round_up(size), round_down(size)), (class, size, size));
            let next = round_up(size + 1);
            assert_eq!((round_down(next - 1), round_down(next + UNIT - 1)), (size, next));
            assert!(next == size * 2 || next == size / 2 * 3 || next == size / 3 * 4, "{next} after {size}");
            size = next;
        }
    }

    #[test]
    fn division_is_exact() {
        for size in (0..21).map(|log2| UNIT << log2).flat_map(|power| [power * 2, power * 3]) {
            for bytes in (0..5000).flat_map(|times| [times * size, times * size + 1, (times + 1) * size - 1]) {
                assert_eq!(divide(bytes, size), bytes / size, "{bytes} by {size}");
            }
        }
    }
}
