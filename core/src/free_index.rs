//! The free blocks of a heap, found by "smallest that fits, lowest address first" in constant time.
//!
//! ```text
//! summary   1 0 1 …           bit w set ⟺ words[w] ≠ 0
//! words     …0110  …  0001…   bit b set ⟺ bins[b] is not empty
//! bins      · ■ ■ · …         each an ordered set by (size, address): a link into the trie
//! ```
//!
//! A bin holds one size up to 64 KiB, and above that a 64th of an octave. The search looks in the request's own bin for
//! a block that fits, then takes the first of the next occupied bin. Nothing here depends on how many blocks are free.

use crate::block::Block;
use crate::storage::Storage;
use crate::trie::{Key, Link, Trie};
use crate::units::UNIT;

/// Bins an octave, as a power of two.
const STEPS_LOG2: u32 = 6;
/// Sizes below this many units have a bin of their own.
const EXACT: u64 = 2 << STEPS_LOG2;
/// Enough for every size below 2^60 bytes.
const BINS: usize = 46 * 64;
const WORDS: usize = BINS / 64;

const _: () = assert!(bin_of((1 << 60) - UNIT) < BINS);
const _: () = assert!(WORDS <= 64, "one summary word covers all words");

/// The bin of blocks of `size` bytes: monotone in `size`, and its own number of units below [`EXACT`]. Free of branches, which
/// the sizes of a real program would mispredict.
#[inline(always)]
const fn bin_of(size: u64) -> usize {
    let units = size / UNIT;
    let shift = (units | (EXACT / 2)).ilog2() - STEPS_LOG2;
    ((shift as usize) << STEPS_LOG2) + (units >> shift) as usize
}

/// The order of the index.
#[inline]
fn key(blocks: &[Block]) -> impl Fn(u32) -> Key {
    |block| {
        let Block { size, addr, .. } = blocks[block as usize];
        Key::from(size) << 64 | Key::from(addr)
    }
}

/// The index. Blocks are named by their number in the heap's table.
pub(crate) struct FreeIndex<S: Storage> {
    /// Bit `w` is set iff `words[w]` is not 0.
    summary: u64,
    /// Bit `b % 64` of `words[b / 64]` is set iff `bins[b]` is not empty.
    words: [u64; WORDS],
    /// `bins[b]` holds exactly the free blocks whose size falls into bin `b`.
    bins: [Link; BINS],
    trie: Trie<S>,
}

impl<S: Storage> Default for FreeIndex<S> {
    fn default() -> Self {
        Self { summary: 0, words: [0; WORDS], bins: [Link::EMPTY; BINS], trie: Trie::default() }
    }
}

impl<S: Storage> FreeIndex<S> {
    /// Makes sure that `count` blocks fit in all.
    #[inline]
    pub(crate) fn make_room_for(&mut self, count: u32) -> bool {
        self.trie.make_room_for(count)
    }

    /// Adds a free block.
    #[inline(always)]
    pub(crate) fn insert(&mut self, block: u32, blocks: &[Block]) {
        let bin = bin_of(blocks[block as usize].size);
        let root = self.bins[bin];
        if root.is_empty() {
            self.occupy(bin, block);
        } else {
            self.bins[bin] = self.trie.insert(root, block, key(blocks));
        }
    }

    /// Removes a block that is in the index.
    #[inline(always)]
    pub(crate) fn remove(&mut self, block: u32, blocks: &[Block]) {
        let bin = bin_of(blocks[block as usize].size);
        let root = self.bins[bin];
        if root == Link::item(block) {
            self.vacate(bin);
        } else {
            self.bins[bin] = self.trie.remove(root, block, key(blocks));
        }
    }

    /// Changes the size or address of a block that is in the index and stays there. Alone in its bin before and after, it
    /// costs next to nothing.
    #[inline(always)]
    pub(crate) fn resize(&mut self, block: u32, blocks: &mut [Block], change: impl FnOnce(&mut Block)) {
        let old = bin_of(blocks[block as usize].size);
        if self.bins[old] == Link::item(block) {
            let entry = &mut blocks[block as usize];
            change(entry);
            let new = bin_of(entry.size);
            if new != old {
                self.vacate(old);
                self.insert(block, blocks);
            }
        } else {
            self.bins[old] = self.trie.remove(self.bins[old], block, key(blocks));
            change(&mut blocks[block as usize]);
            self.insert(block, blocks);
        }
    }

    /// An empty bin gets its first block.
    #[inline(always)]
    fn occupy(&mut self, bin: usize, block: u32) {
        self.bins[bin] = Link::item(block);
        self.words[bin / 64] |= 1 << (bin % 64);
        self.summary |= 1 << (bin / 64);
    }

    /// A bin loses its only block.
    #[inline(always)]
    fn vacate(&mut self, bin: usize) {
        self.bins[bin] = Link::EMPTY;
        self.words[bin / 64] &= !(1 << (bin % 64));
        self.summary &= !(u64::from(self.words[bin / 64] == 0) << (bin / 64));
    }

    /// The smallest block of at least `size` bytes; of several, the one at the lowest address.
    #[inline(always)]
    pub(crate) fn best_fit(&self, size: u64, blocks: &[Block]) -> Option<u32> {
        self.at_least(size, 0, blocks)
    }

    /// The next block after `block` in the order of (size, address).
    pub(crate) fn next(&self, block: u32, blocks: &[Block]) -> Option<u32> {
        self.after((blocks[block as usize].size, blocks[block as usize].addr), blocks)
    }

    /// The first block behind a place in the order of (size, address).
    pub(crate) fn after(&self, (size, addr): (u64, u64), blocks: &[Block]) -> Option<u32> {
        self.at_least(size, addr + 1, blocks)
    }

    /// The block before `block` in the order of (size, address).
    pub(crate) fn previous(&self, block: u32, blocks: &[Block]) -> Option<u32> {
        let bin = bin_of(blocks[block as usize].size);
        let bound = key(blocks)(block) - 1;
        if let Some(found) = self.trie.at_most(self.bins[bin], bound, key(blocks)) {
            return Some(found);
        }
        let (word, bit) = (bin / 64, bin % 64);
        let mut word_at = word;
        let mut bits = self.words[word] & !(!0 << bit);
        if bits == 0 {
            let words = self.summary & !(!0 << word);
            word_at = 63_usize.checked_sub(words.leading_zeros() as usize)?;
            bits = self.words[word_at];
        }
        self.trie.last(self.bins[word_at * 64 + 63 - bits.leading_zeros() as usize])
    }

    /// The first block in the order of (size, address).
    pub(crate) fn first(&self) -> Option<u32> {
        let word = self.summary.trailing_zeros() as usize;
        let bits = self.words.get(word)?;
        self.trie.first(self.bins[word * 64 + bits.trailing_zeros() as usize])
    }

    /// The last block in the order of (size, address): the largest.
    pub(crate) fn last(&self) -> Option<u32> {
        let word = 63_usize.checked_sub(self.summary.leading_zeros() as usize)?;
        let bits = self.words[word];
        self.trie.last(self.bins[word * 64 + 63 - bits.leading_zeros() as usize])
    }

    /// The first block of at least (`size`, `addr`).
    #[inline(always)]
    fn at_least(&self, size: u64, addr: u64, blocks: &[Block]) -> Option<u32> {
        let bin = bin_of(size);
        let first = self.occupied_from(bin)?;
        let root = self.bins[first];
        if let Some(alone) = root.as_item() {
            let Block { size: alone_size, addr: alone_addr, .. } = blocks[alone as usize];
            if (alone_size, alone_addr) >= (size, addr) {
                return Some(alone);
            }
        } else if first > bin || bin < EXACT as usize && addr == 0 {
            return self.trie.first(root);
        } else if let Some(found) = self.trie.at_least(root, Key::from(size) << 64 | Key::from(addr), key(blocks)) {
            return Some(found);
        }
        // The request's own bin holds nothing that fits.
        self.trie.first(self.bins[self.occupied_from(bin + 1)?])
    }

    /// The first bin at or after `bin` that is not empty.
    #[inline(always)]
    fn occupied_from(&self, bin: usize) -> Option<usize> {
        let own = bin / 64;
        let mask = !0 << (bin % 64);
        let further = (self.summary & (!1 << own)).trailing_zeros() as usize;
        let here = self.words.get(own)? & mask != 0;
        let (word, mask) = if here { (own, mask) } else { (further, !0) };
        let bits = self.words.get(word)? & mask;
        Some((word * 64 + bits.trailing_zeros() as usize) % BINS)
    }

    /// Every free block is in its bin, and nothing else is; the bitmaps say so. `count` is how many are free.
    pub(crate) fn check(&self, count: u32, blocks: &[Block]) -> Result<(), &'static str> {
        for (bin, root) in self.bins.iter().enumerate() {
            if root.is_empty() == (self.words[bin / 64] >> (bin % 64) & 1 == 1) {
                return Err("a bin's bit disagrees with the bin");
            }
        }
        if (0..WORDS).any(|word| (self.words[word] == 0) == (self.summary >> word & 1 == 1)) {
            return Err("a summary bit disagrees with its word");
        }
        let mut seen = 0;
        let mut at = self.first();
        while let Some(block) = at {
            seen += 1;
            if seen > count || !blocks[block as usize].is_free() {
                return Err("the index holds a block that is not free");
            }
            at = self.next(block, blocks);
        }
        if seen == count { Ok(()) } else { Err("a free block is missing from the index") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_are_monotone_and_leave_no_gap() {
        let mut last = bin_of(UNIT);
        let mut units = 1_u64;
        while units < 1 << 51 {
            let bin = bin_of(units * UNIT);
            assert!(bin == last || bin == last + 1, "{units} units: bin {bin} after {last}");
            last = bin;
            units += (units >> 9).max(1);
        }
        assert_eq!(bin_of((1 << 60) - UNIT), BINS - 1);
    }
}
