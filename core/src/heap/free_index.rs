//! The free blocks of a heap. Best fit finds one in constant time: the smallest size that fits, and
//! of these the lowest address.
//!
//! ```text
//! summary   1 0 1 …           bit w set ⟺ words[w] ≠ 0
//! words     …0110  …  0001…   bit b set ⟺ bins[b] is not empty
//! bins      · ■ ■ · …         each a list sorted by (size, address)
//! ```
//!
//! Up to 64 KiB, a bin contains a single size; above that, a 64th of an octave. A search first
//! tries the bin of the request's size, then takes the first block of the next occupied bin.
//! Averaged over many operations, the cost does not depend on the number of free blocks.

use crate::heap::bins::{BINS, WORDS, bin_of};
use crate::heap::block::BlockEntry;
use crate::sync::impl_empty;
use crate::tables::Storage;
use crate::tables::indexed_list::{Linked, List, Lists};
use crate::tables::radix_tree::Key;
use crate::tables::slot_table::NONE;
use crate::units::GRAIN;
use core::hint::select_unpredictable;

/// Returns the bin that a free block is in.
#[inline(always)]
fn bin_in(blocks: &[BlockEntry], block: u32) -> usize {
    usize::from(blocks[block as usize].bin) % BINS
}

/// Returns the position of a block in the order of the index, in units. No two blocks start in the
/// same unit, because every block is at least one unit long.
#[inline(always)]
const fn place(size: u64, addr: u64) -> Key {
    Key { major: size / GRAIN, minor: addr.div_ceil(GRAIN) }
}

impl Linked for BlockEntry {
    #[inline(always)]
    fn key(&self) -> Key {
        place(self.size, self.addr)
    }

    #[inline(always)]
    fn links(&self) -> (u32, u32) {
        (self.before, self.chain)
    }

    #[inline(always)]
    fn set_before(&mut self, before: u32) {
        self.before = before;
    }

    #[inline(always)]
    fn set_after(&mut self, after: u32) {
        self.chain = after;
    }
}

/// The index of free blocks. A block is identified by the number of its entry in the heap's table.
#[derive(Clone)]
pub(crate) struct FreeIndex<S: Storage> {
    /// Bit `w` is set iff `words[w]` is not 0.
    summary: u64,
    /// Bit `b % 64` of `words[b / 64]` is set iff `bins[b]` is not empty.
    words: [u64; WORDS],
    /// `bins[b]` contains exactly the free blocks with a size that falls into bin `b`.
    bins: [List; BINS],
    /// The skip pointers of the long lists in `bins`.
    lists: Lists<S>,
}

/// Empty bins. They take 32 KiB, and are a constant even under loom.
#[expect(clippy::large_const_arrays, reason = "each use is a new value")]
const NO_BLOCKS: [List; BINS] = [List::EMPTY; BINS];

impl_empty! { [S: Storage] FreeIndex<S> { summary, words, bins: NO_BLOCKS, lists } }

impl<S: Storage> FreeIndex<S> {
    /// Makes room for all blocks with numbers below `count`. Returns false if the table is full.
    pub(crate) fn make_room_for(&mut self, count: u32) -> bool {
        self.lists.make_room_for(count)
    }

    /// Adds a free block.
    #[inline(always)]
    pub(crate) fn insert(&mut self, block: u32, blocks: &mut [BlockEntry]) {
        debug_assert!(blocks[block as usize].is_free(), "the index holds free blocks only");
        debug_assert_eq!(
            bin_in(blocks, block),
            bin_of(blocks[block as usize].size),
            "a block knows the bin of its size"
        );
        blocks[block as usize].set_after(NONE);
        self.insert_into(bin_in(blocks, block), block, blocks);
    }

    /// Adds a free block to `bin`, whose link to the next block says that there is none. An empty
    /// bin is the common case, and needs no search.
    #[inline(always)]
    fn insert_into(&mut self, bin: usize, block: u32, blocks: &mut [BlockEntry]) {
        if self.bins[bin].first().is_none() {
            self.occupy(bin, block);
        } else {
            self.insert_beside(bin, block, blocks);
        }
    }

    /// Adds a free block to a bin that already has blocks. Not inlined, because it searches the
    /// sorted list.
    #[inline(never)]
    fn insert_beside(&mut self, bin: usize, block: u32, blocks: &mut [BlockEntry]) {
        self.lists.insert(&mut self.bins[bin], block, blocks);
    }

    /// Removes a block from the index.
    #[inline(always)]
    pub(crate) fn remove(&mut self, block: u32, blocks: &mut [BlockEntry]) {
        let bin = bin_in(blocks, block);
        if self.bins[bin].has_several() {
            self.remove_from_among(bin, block, blocks);
        } else {
            self.vacate(bin, block);
        }
    }

    /// Removes a block from a bin that also has other blocks.
    #[inline(never)]
    fn remove_from_among(&mut self, bin: usize, block: u32, blocks: &mut [BlockEntry]) {
        self.lists.remove(&mut self.bins[bin], block, blocks);
    }

    /// Changes the size of a block in the index. `change` may change the address. If the block is
    /// alone in its bin and remains in it, the index does not change.
    #[inline(always)]
    pub(crate) fn resize(
        &mut self,
        block: u32,
        size: u64,
        blocks: &mut [BlockEntry],
        change: impl FnOnce(&mut BlockEntry),
    ) {
        debug_assert!(blocks[block as usize].is_free(), "the index holds free blocks only");
        let (old, new) = (bin_in(blocks, block), bin_of(size));
        // The keys of a sorted list must not change, so a block with neighbours leaves the list
        // first.
        let alone = !self.bins[old].has_several();
        if !alone {
            self.remove_from_among(old, block, blocks);
            blocks[block as usize].set_after(NONE);
        }
        let entry = &mut blocks[block as usize];
        entry.resize(size);
        change(entry);
        if alone {
            if new == old {
                return;
            }
            self.vacate(old, block);
        }
        self.insert_into(new, block, blocks);
    }

    /// Puts a block into an empty bin, and sets the bits of the bin.
    #[inline(always)]
    fn occupy(&mut self, bin: usize, block: u32) {
        debug_assert!(self.bins[bin] == List::EMPTY, "the bin was empty");
        self.bins[bin] = List::of(block);
        self.words[bin / 64] |= 1 << (bin % 64);
        self.summary |= 1 << (bin / 64);
    }

    /// Empties a bin in which `block` was alone, and clears the bits of the bin.
    #[inline(always)]
    fn vacate(&mut self, bin: usize, block: u32) {
        debug_assert!(self.bins[bin] == List::of(block), "the bin held the block alone");
        self.bins[bin] = List::EMPTY;
        self.words[bin / 64] &= !(1 << (bin % 64));
        // No branch, because it is hard to predict whether the word became 0.
        self.summary &= !(u64::from(self.words[bin / 64] == 0) << (bin / 64));
    }

    /// Finds the smallest block of at least `size` bytes. If there are several, the one at the
    /// lowest address.
    #[inline(always)]
    pub(crate) fn best_fit(&mut self, size: u64, blocks: &[BlockEntry]) -> Option<u32> {
        let found = self.best_or_none(size, blocks);
        // The bounds check replaces a comparison with `NONE`, and saves the caller one.
        blocks.get(found as usize).map(|_| found)
    }

    /// Finds the same block as [`best_fit`](Self::best_fit), or returns [`NONE`].
    #[inline(always)]
    fn best_or_none(&mut self, size: u64, blocks: &[BlockEntry]) -> u32 {
        let bin = bin_of(size);
        // Try the head of the bin for this size before the bitmaps. It fits most of the time, and
        // this load does not depend on `summary` and `words`, which every free has just written.
        if let Some(first) = self.bins[bin].first() {
            if blocks[first as usize].size >= size {
                return first;
            }
            if let Some(found) = self.find_in(bin, size, 0, blocks) {
                return found;
            }
        }
        self.first_from(bin + 1).unwrap_or(NONE)
    }

    /// Returns the block that comes after `block` in the order of (size, address).
    pub(crate) fn next(&self, block: u32, blocks: &[BlockEntry]) -> Option<u32> {
        let after = blocks[block as usize].chain;
        if after == NONE { self.first_from(bin_in(blocks, block) + 1) } else { Some(after) }
    }

    /// Returns the first block after a position in the order of (size, address). There need not be
    /// a block at the position.
    pub(crate) fn after(&mut self, (size, addr): (u64, u64), blocks: &[BlockEntry]) -> Option<u32> {
        let bin = bin_of(size);
        self.find_in(bin, size, addr + 1, blocks).or_else(|| self.first_from(bin + 1))
    }

    /// Returns the block that comes before `block` in the order of (size, address).
    pub(crate) fn previous(&self, block: u32, blocks: &[BlockEntry]) -> Option<u32> {
        let before = blocks[block as usize].before;
        if before == NONE { self.last_to(bin_in(blocks, block), blocks) } else { Some(before) }
    }

    /// Returns the first block in the order of (size, address), which is the smallest.
    #[cfg(all(test, feature = "alloc", not(loom)))]
    pub(crate) fn first(&self) -> Option<u32> {
        self.first_from(0)
    }

    /// Returns the last block in the order of (size, address), which is the largest.
    pub(crate) fn last(&self, blocks: &[BlockEntry]) -> Option<u32> {
        self.last_to(BINS, blocks)
    }

    /// Finds the first block of a bin that is at or after the position (`size`, `addr`).
    #[inline(never)]
    fn find_in(&mut self, bin: usize, size: u64, addr: u64, blocks: &[BlockEntry]) -> Option<u32> {
        self.lists.at_least(&mut self.bins[bin], place(size, addr), blocks)
    }

    /// Returns the first block in the bins from `bin` on.
    #[inline(always)]
    fn first_from(&self, bin: usize) -> Option<u32> {
        self.bins[self.occupied_from(bin)?].first()
    }

    /// Returns the last block in the bins before `bin`.
    fn last_to(&self, bin: usize, blocks: &[BlockEntry]) -> Option<u32> {
        let (mut word, mut bits) = (bin / 64, 0);
        // `bin` may be `BINS`, one past the last word.
        if word < WORDS {
            bits = self.words[word] & !(!0 << (bin % 64));
        }
        if bits == 0 {
            let words = self.summary & !(!0_u64).checked_shl(word as u32).unwrap_or(0);
            word = 63_usize.checked_sub(words.leading_zeros() as usize)?;
            bits = self.words[word];
        }
        self.lists.last(self.bins[word * 64 + 63 - bits.leading_zeros() as usize], blocks)
    }

    /// Returns the first bin from `bin` on that is not empty.
    #[inline(always)]
    fn occupied_from(&self, bin: usize) -> Option<usize> {
        let own = bin / 64 % WORDS;
        let here = self.words[own] & !0 << (bin % 64);
        let further = self.summary & !1 << own;
        // It cannot be predicted whether this word or a later one has the bit, but it can be
        // predicted whether any has it. So there is one branch here, and conditional moves below.
        if here | further == 0 {
            return None;
        }
        let word = select_unpredictable(here == 0, further.trailing_zeros() as usize % WORDS, own);
        let bits = select_unpredictable(here == 0, self.words[word], here);
        Some(word * 64 + bits.trailing_zeros() as usize % 64)
    }

    /// Checks that the index contains exactly the `count` free blocks, each in its bin, and that
    /// the bitmaps agree with the bins.
    pub(crate) fn check(&self, count: u32, blocks: &[BlockEntry]) -> Result<(), &'static str> {
        let mut listed = 0;
        for (word, &bits) in self.words.iter().enumerate() {
            // Most of the 4,096 bins are empty, so these are only counted.
            let bins = &self.bins[64 * word..][..64];
            let filled = bins.iter().filter(|&&list| list != List::EMPTY).count();
            let (mut left, mut marked) = (bits, 0);
            while left != 0 {
                let list = bins[left.trailing_zeros() as usize];
                listed += self.lists.check(list, count - listed, blocks)?;
                marked += usize::from(list != List::EMPTY);
                left &= left - 1;
            }
            if (filled, bits.count_ones() as usize) != (marked, marked) {
                return Err("a bin's bit disagrees with the bin");
            }
        }
        if (0..WORDS).any(|word| (self.words[word] == 0) == (self.summary >> word & 1 == 1)) {
            return Err("a summary bit disagrees with its word");
        }
        let mut seen = 0;
        for block in core::iter::successors(self.first_from(0), |&block| self.next(block, blocks)) {
            seen += 1;
            let entry = &blocks[block as usize];
            if seen > count || !entry.is_free() || usize::from(entry.bin) != bin_of(entry.size) {
                return Err("the index holds a block that is not free, or in a bin of another size");
            }
        }
        if seen == count { Ok(()) } else { Err("a free block is missing from the index") }
    }
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests {
    use super::*;
    use crate::heap::block::State;
    use crate::tables::Growable;
    use crate::tables::slot_table::Vacant;
    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::vec::Vec;

    /// A few sizes, so that bins fill up and become empty again. Some sizes share a bin, but most
    /// have a bin alone.
    const UNITS: [u64; 8] = [1, 2, 127, 128, 4096, 4097, 4100, 1 << 20];

    #[test]
    fn bins_are_monotone_and_leave_no_gap() {
        let mut last = bin_of(GRAIN);
        let mut units = 1_u64;
        while units < 1 << 51 {
            let bin = bin_of(units * GRAIN);
            assert!(bin == last || bin == last + 1, "{units} units: bin {bin} after {last}");
            last = bin;
            units += (units >> 9).max(1);
        }
    }

    proptest! {
        /// Compares the index with a `BTreeSet` while blocks are added and removed and change their
        /// address or size.
        #[test]
        fn agrees_with_an_ordered_set(steps in prop::collection::vec((0_u32..64, 0_usize..8, any::<bool>()), 1..300)) {
            let mut blocks: Vec<BlockEntry> = (0..64).map(|_| BlockEntry { state: State::Free, ..BlockEntry::vacant(0) }).collect();
            let mut index = FreeIndex::<Growable>::default();
            prop_assert!(index.make_room_for(64));
            let mut model = BTreeSet::new();
            for (block, size, stay) in steps {
                let BlockEntry { size: old_size, addr: old_addr, .. } = blocks[block as usize];
                let (size, addr) = (UNITS[size] * GRAIN, (u64::from(block) + 1) * 9 * GRAIN);
                let held = model.remove(&(old_size, old_addr, block));
                if held && stay {
                    // Move the block up by half a step, or back: the order of two blocks changes
                    // with their addresses.
                    let addr = if old_addr == addr { addr + 40 * 9 * GRAIN + GRAIN } else { addr };
                    index.resize(block, size, &mut blocks, |entry| entry.addr = addr);
                    model.insert((size, addr, block));
                } else if held {
                    index.remove(block, &mut blocks);
                } else {
                    blocks[block as usize].resize(size);
                    blocks[block as usize].addr = addr;
                    index.insert(block, &mut blocks);
                    model.insert((size, addr, block));
                }
                prop_assert_eq!(index.check(model.len() as u32, &blocks), Ok(()));
                prop_assert_eq!(index.first(), model.first().map(|&(.., block)| block));
                prop_assert_eq!(index.last(&blocks), model.last().map(|&(.., block)| block));
                let forwards: Vec<u32> = core::iter::successors(index.first(), |&at| index.next(at, &blocks)).collect();
                prop_assert!(forwards.iter().eq(model.iter().map(|(.., block)| block)));
                let backwards: Vec<u32> = core::iter::successors(index.last(&blocks), |&at| index.previous(at, &blocks)).collect();
                prop_assert!(backwards.iter().rev().eq(&forwards));
                for wanted in UNITS.map(|units| units * GRAIN) {
                    let fits = model.range((wanted, 0, 0)..).next().map(|&(.., block)| block);
                    prop_assert_eq!(index.best_fit(wanted, &blocks), fits);
                }
            }
        }
    }
}
