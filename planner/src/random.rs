//! Pseudo-random numbers by `SplitMix64` (Steele, Lea, Flood: Fast splittable pseudorandom number
//! generators, 2014). The same seed gives the same plan.

/// A generator, which starts from its seed.
pub(super) struct SplitMix64(pub(super) u64);

impl SplitMix64 {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Draws a number below `bound`; `bound` is not 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Draws a number from 0 up to, but not including, 1.
    pub(super) fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Draws an item of an iterator. Returns `None` if the iterator is empty.
    pub(super) fn one_of(&mut self, mut some: impl Iterator<Item = u32> + Clone) -> Option<u32> {
        let count = some.clone().count() as u64;
        if count == 0 {
            return None;
        }
        some.nth(self.below(count) as usize)
    }
}
