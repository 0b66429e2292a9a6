//! Host version of the pattern that the kernels write and check.

/// The life of a block, from allocation to free. Every life has its own pattern.
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

/// Undoes [`mix`]. The factors are the inverses of the factors of `mix`, modulo 2^64.
const fn unmix(value: u64) -> u64 {
    let value = (value ^ (value >> 31) ^ (value >> 62)).wrapping_mul(0x3196_42b2_d24d_8ec3);
    let value = (value ^ (value >> 27) ^ (value >> 54)).wrapping_mul(0x96de_1b17_3f11_9089);
    value ^ (value >> 30) ^ (value >> 60)
}

/// The inverse of [`GOLDEN`], modulo 2^64.
const INVERSE: u64 = 0xf1de_83e1_9937_733d;

impl Life {
    /// Returns the life whose pattern has `actual` at the index `word`, if there is one with a
    /// number of the block below `blocks` and a generation below 1000.
    #[must_use]
    pub fn of_word(word: u64, actual: u64, blocks: u64) -> Option<Self> {
        let sum = unmix(actual.wrapping_mul(INVERSE) ^ word);
        let of = |generation| Self { block: sum.wrapping_sub(GOLDEN.wrapping_mul(generation + 1)), generation };
        (0..1000).map(of).find(|life| life.block < blocks)
    }

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

#[cfg(test)]
mod tests {
    use super::Life;

    #[test]
    fn a_word_tells_its_life() {
        for life in
            [(0, 0), (0x11_0a15, 0), (0x300_0000_004d, 999)].map(|(block, generation)| Life { block, generation })
        {
            for word in [0, 1, 12_345] {
                assert_eq!(Life::of_word(word, life.word(word), 1 << 44), Some(life));
                assert_eq!(Life::of_word(word + 1, life.word(word), 1 << 44), None);
            }
        }
        assert_eq!(Life::of_word(0, 0, 1 << 44), None);
    }
}
