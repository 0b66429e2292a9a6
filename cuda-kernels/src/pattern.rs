//! Host version of the pattern that the kernels write and check.

/// The life of a block, from allocation to free. Every life has a pattern of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Life {
    /// Number of the block, different from the numbers of all other blocks.
    pub block: u64,
    /// Number of earlier lives of the block.
    pub generation: u64,
}

/// 2^64 divided by the golden ratio, odd.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes the bits of `value`: every input bit changes about half of the output bits (the finaliser
/// of `SplitMix64`).
const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl Life {
    /// Returns bytes `8 * word` to `8 * word + 7` of the pattern, as a little-endian number.
    #[must_use]
    pub const fn word(self, word: u64) -> u64 {
        let seed = mix(self.block.wrapping_add(GOLDEN.wrapping_mul(self.generation.wrapping_add(1))));
        (seed ^ word).wrapping_mul(GOLDEN)
    }

    /// Returns the pattern's byte at an offset.
    #[must_use]
    pub const fn byte(self, offset: u64) -> u8 {
        (self.word(offset / 8) >> (offset % 8 * 8)) as u8
    }
}

/// Returns the sum that the checksum kernel adds for these bytes.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u64 {
    let (words, tail) = bytes.as_chunks::<8>();
    let place = |index: usize| mix(index as u64 + 1);
    let whole = words
        .iter()
        .enumerate()
        .fold(0_u64, |sum, (index, word)| sum.wrapping_add(mix(u64::from_le_bytes(*word).wrapping_add(place(index)))));
    if tail.is_empty() {
        return whole;
    }
    let mut last = [0; 8];
    last[..tail.len()].copy_from_slice(tail);
    let last = mix(u64::from_le_bytes(last).wrapping_add(place(words.len())));
    whole.wrapping_add(last).wrapping_add(tail.len() as u64)
}
