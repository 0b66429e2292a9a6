//! Sizes that are powers of two or midpoints between them: two classes an octave, found and divided by in a few instructions.
//!
//! Every size is a multiple of [`UNIT`], because every block begins at one; so 768 is none.

use crate::units::UNIT;

/// The next size from `bytes` on, which is positive and at most 2^62.
#[inline(always)]
pub(crate) const fn round_up(bytes: u64) -> u64 {
    let last = (bytes - 1) | (UNIT - 1);
    (last | ((1 << (last.ilog2() - 1)) - 1)) + 1
}

/// The last size up to `bytes`, which are at least [`UNIT`].
pub(super) const fn round_down(bytes: u64) -> u64 {
    let half = 1 << (bytes.ilog2() - 1);
    bytes & !(half - 1) & !(UNIT - 1)
}

/// The number of a size, from 0 on.
#[inline(always)]
pub(super) const fn class_of(size: u64) -> usize {
    // No size is 0, and so none is taken for it.
    let log2 = (size | 1).ilog2();
    // The first two bits are 2 or 3.
    (log2 * 2) as usize + (size >> (log2 - 1)) as usize - (UNIT.ilog2() * 2 + 2) as usize
}

/// How many whole `size`s, which is one, are in `bytes`.
#[inline(always)]
pub(super) const fn divide(bytes: u64, size: u64) -> u64 {
    // A size is 2 or 3 halves of a power of two, and to divide by a constant is a multiplication.
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
        // 768 would be number 1.
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
