//! The seeded source of all random choices of the emulator: delays, step order, percentages of the
//! fault plan.

/// `SplitMix64`: small, and equal on every machine for equal seeds.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Creates the sequence of `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`, or zero for a bound of zero.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next().checked_rem(bound).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn equal_seeds_give_equal_sequences_within_bounds() {
        let (mut left, mut right) = (Random::new(7), Random::new(7));
        for bound in 0..100 {
            let value = left.below(bound);
            assert_eq!(value, right.below(bound));
            assert!(value < bound.max(1));
        }
    }
}
