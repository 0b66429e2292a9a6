//! The free blocks of a heap, found by "smallest that fits, lowest address first" in constant time.
//!
//! ```text
//! summary   1 0 1 …           bit w set ⟺ words[w] ≠ 0
//! words     …0110  …  0001…   bit b set ⟺ bins[b] is not empty
//! bins      · ■ ■ · …         each a list sorted by (size, address)
//! ```
//!
//! A bin holds one size up to 64 KiB, and above that a 64th of an octave. The search looks in the request's own bin for
//! a block that fits, then takes the first of the next occupied bin. Over many operations it does not matter how many blocks are free.

use crate::heap::bins::{BINS, WORDS, bin_of};
use crate::heap::block::Block;
use crate::tables::Storage;
use crate::tables::indexed_list::{Linked, List, Lists};
use crate::tables::radix_tree::Key;
use crate::tables::slot_table::NONE;
use crate::units::GRAIN;
use core::hint::select_unpredictable;

/// The bin that a free block is in.
#[inline(always)]
fn bin_in(blocks: &[Block], block: u32) -> usize {
    usize::from(blocks[block as usize].bin) % BINS
}

/// A place in the order of the index, in units. Blocks are a unit long at least, so no two of them share the unit they begin in.
#[inline(always)]
const fn place(size: u64, addr: u64) -> Key {
    Key { major: size / GRAIN, minor: addr.div_ceil(GRAIN) }
}

impl Linked for Block {
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

/// The index. Blocks are named by their number in the heap's table.
pub(crate) struct FreeIndex<S: Storage> {
    /// Bit `w` is set iff `words[w]` is not 0.
    summary: u64,
    /// Bit `b % 64` of `words[b / 64]` is set iff `bins[b]` is not empty.
    words: [u64; WORDS],
    /// `bins[b]` holds exactly the free blocks whose size falls into bin `b`.
    bins: [List; BINS],
    lists: Lists<S>,
}

impl<S: Storage> Default for FreeIndex<S> {
    #[expect(clippy::large_stack_arrays, reason = "33 KiB on the stack while a heap is made, once a stream and pool")]
    fn default() -> Self {
        Self { summary: 0, words: [0; WORDS], bins: [List::EMPTY; BINS], lists: Lists::default() }
    }
}

impl<S: Storage> FreeIndex<S> {
    /// Makes sure that all blocks below `count` fit.
    pub(crate) fn make_room_for(&mut self, count: u32) -> bool {
        self.lists.make_room_for(count)
    }

    /// Adds a free block.
    #[inline(always)]
    pub(crate) fn insert(&mut self, block: u32, blocks: &mut [Block]) {
        self.insert_into(bin_in(blocks, block), block, blocks);
    }

    #[inline(always)]
    fn insert_into(&mut self, bin: usize, block: u32, blocks: &mut [Block]) {
        if self.bins[bin] == List::EMPTY {
            blocks[block as usize].set_after(NONE);
            self.occupy(bin, block);
        } else {
            self.insert_beside(bin, block, blocks);
        }
    }

    /// Adds a free block to a bin that is not empty.
    #[inline(never)]
    fn insert_beside(&mut self, bin: usize, block: u32, blocks: &mut [Block]) {
        self.lists.insert(&mut self.bins[bin], block, blocks);
    }

    /// Removes a block that is in the index.
    #[inline(always)]
    pub(crate) fn remove(&mut self, block: u32, blocks: &mut [Block]) {
        let bin = bin_in(blocks, block);
        if self.bins[bin] == List::of(block) {
            self.vacate(bin);
        } else {
            self.remove_from_among(bin, block, blocks);
        }
    }

    /// Removes a block that is not alone in its bin.
    #[inline(never)]
    fn remove_from_among(&mut self, bin: usize, block: u32, blocks: &mut [Block]) {
        self.lists.remove(&mut self.bins[bin], block, blocks);
    }

    /// Changes the size, and perhaps the address, of a block that is in the index and stays there. Alone in its bin before and
    /// after, it costs next to nothing.
    #[inline(always)]
    pub(crate) fn resize(&mut self, block: u32, size: u64, blocks: &mut [Block], change: impl FnOnce(&mut Block)) {
        let (old, new) = (bin_in(blocks, block), bin_of(size));
        let alone = self.bins[old] == List::of(block);
        if !alone {
            self.remove_from_among(old, block, blocks);
        }
        let entry = &mut blocks[block as usize];
        entry.resize(size);
        change(entry);
        if alone {
            if new == old {
                return;
            }
            self.vacate(old);
        }
        self.insert_into(new, block, blocks);
    }

    /// An empty bin gets its first block.
    #[inline(always)]
    fn occupy(&mut self, bin: usize, block: u32) {
        self.bins[bin] = List::of(block);
        self.words[bin / 64] |= 1 << (bin % 64);
        self.summary |= 1 << (bin / 64);
    }

    /// A bin loses its only block.
    #[inline(always)]
    fn vacate(&mut self, bin: usize) {
        self.bins[bin] = List::EMPTY;
        self.words[bin / 64] &= !(1 << (bin % 64));
        self.summary &= !(u64::from(self.words[bin / 64] == 0) << (bin / 64));
    }

    /// The smallest block of at least `size` bytes; of several, the one at the lowest address.
    #[inline(always)]
    pub(crate) fn best_fit(&mut self, size: u64, blocks: &[Block]) -> Option<u32> {
        let bin = bin_of(size);
        // The first of its own bin, mostly: whoever bets on that need not wait for the bitmaps, which change with every free.
        if let Some(first) = self.bins[bin].first() {
            if blocks[first as usize].size >= size {
                return Some(first);
            }
            if let Some(found) = self.find_in(bin, size, 0, blocks) {
                return Some(found);
            }
        }
        self.first_from(bin + 1)
    }

    /// The next block after `block` in the order of (size, address).
    pub(crate) fn next(&self, block: u32, blocks: &[Block]) -> Option<u32> {
        let after = blocks[block as usize].chain;
        if after == NONE { self.first_from(bin_in(blocks, block) + 1) } else { Some(after) }
    }

    /// The first block behind a place in the order of (size, address).
    pub(crate) fn after(&mut self, (size, addr): (u64, u64), blocks: &[Block]) -> Option<u32> {
        let bin = bin_of(size);
        self.find_in(bin, size, addr + 1, blocks).or_else(|| self.first_from(bin + 1))
    }

    /// The block before `block` in the order of (size, address).
    pub(crate) fn previous(&self, block: u32, blocks: &[Block]) -> Option<u32> {
        let before = blocks[block as usize].before;
        if before == NONE { self.last_to(bin_in(blocks, block), blocks) } else { Some(before) }
    }

    /// The first block in the order of (size, address).
    #[cfg(all(test, feature = "alloc", not(loom)))]
    pub(crate) fn first(&self) -> Option<u32> {
        self.first_from(0)
    }

    /// The last block in the order of (size, address): the largest.
    pub(crate) fn last(&self, blocks: &[Block]) -> Option<u32> {
        self.last_to(BINS, blocks)
    }

    /// The first block of a bin that is at least (`size`, `addr`).
    #[inline(never)]
    fn find_in(&mut self, bin: usize, size: u64, addr: u64, blocks: &[Block]) -> Option<u32> {
        self.lists.at_least(&mut self.bins[bin], place(size, addr), blocks)
    }

    /// The first block of the bins from `bin` on.
    #[inline(always)]
    fn first_from(&self, bin: usize) -> Option<u32> {
        self.bins[self.occupied_from(bin)?].first()
    }

    /// The last block of the bins before `bin`.
    fn last_to(&self, bin: usize, blocks: &[Block]) -> Option<u32> {
        let (mut word, mut bits) = (bin / 64, 0);
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

    /// The first bin at or after `bin` that is not empty.
    #[inline(always)]
    fn occupied_from(&self, bin: usize) -> Option<usize> {
        let own = bin / 64 % WORDS;
        let here = self.words[own] & !0 << (bin % 64);
        let further = self.summary & !1 << own;
        // Which of the two it is cannot be predicted, that it is one of them can.
        if here | further == 0 {
            return None;
        }
        let word = select_unpredictable(here == 0, further.trailing_zeros() as usize % WORDS, own);
        let bits = select_unpredictable(here == 0, self.words[word], here);
        Some(word * 64 + bits.trailing_zeros() as usize % 64)
    }

    /// Every free block is in its bin, and nothing else is; the bitmaps say so. `count` is how many are free.
    pub(crate) fn check(&self, count: u32, blocks: &[Block]) -> Result<(), &'static str> {
        let mut listed = 0;
        for (bin, &list) in self.bins.iter().enumerate() {
            if (list == List::EMPTY) == (self.words[bin / 64] >> (bin % 64) & 1 == 1) {
                return Err("a bin's bit disagrees with the bin");
            }
            listed += self.lists.check(list, count - listed, blocks)?;
        }
        if (0..WORDS).any(|word| (self.words[word] == 0) == (self.summary >> word & 1 == 1)) {
            return Err("a summary bit disagrees with its word");
        }
        let mut seen = 0;
        let mut at = self.first_from(0);
        while let Some(block) = at {
            seen += 1;
            let entry = &blocks[block as usize];
            if seen > count || !entry.is_free() || usize::from(entry.bin) != bin_of(entry.size) {
                return Err("the index holds a block that is not free, or in a bin of another size");
            }
            at = self.next(block, blocks);
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

    /// Few sizes, so that bins fill up and run empty: some share a bin of several sizes, most have one of their own.
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
        /// Against a `BTreeSet`: blocks come and go, and change where they are.
        #[test]
        fn agrees_with_an_ordered_set(steps in prop::collection::vec((0_u32..64, 0_usize..8, any::<bool>()), 1..300)) {
            let mut blocks: Vec<Block> = (0..64).map(|_| Block { state: State::Free, ..Block::vacant(0) }).collect();
            let mut index = FreeIndex::<Growable>::default();
            prop_assert!(index.make_room_for(64));
            let mut model = BTreeSet::new();
            for (block, size, stay) in steps {
                let Block { size: old_size, addr: old_addr, .. } = blocks[block as usize];
                let (size, addr) = (UNITS[size] * GRAIN, (u64::from(block) + 1) * 9 * GRAIN);
                let held = model.remove(&(old_size, old_addr, block));
                if held && stay {
                    // Half a step further, and back: the order of two blocks changes with their addresses.
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
