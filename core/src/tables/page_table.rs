//! The table of the page map: page → word. It is read without a lock while one writer changes it.
//!
//! On a host with a heap, this is a radix table. Pages have 2 MiB, and a leaf contains the words of
//! 16 GiB:
//!
//! ```text
//! address  [ far 17 bits | leaf 13 bits | page 13 bits | 21 bits ]
//!
//! far = 0:  near[leaf] ─▶ leaf[page]                                       addresses below 2^47: two loads
//! far > 0:  numbers[far, leaf], a hash map ─▶ leaves[number] ─▶ leaf[page]
//! ```
//!
//! A leaf is created when the first range reaches into it, and is kept until the table is dropped.
//! Fixed tables use an [`AtomicMap`] of single pages instead, because a leaf for each distant page
//! would not fit.

use crate::tables::atomic_map::{AtomicMap, Cells};
use core::ops::RangeInclusive;

/// The word of a page that is not in the table.
pub(crate) const VACANT: u32 = u32::MAX;

/// A table from pages to words. Readers only load. A lock of the owner ensures that there is one
/// writer at a time.
pub trait PageTable: Default {
    /// Returns the word of a page, or [`VACANT`] for a page outside the table. Lock-free.
    fn get(&self, page: u64) -> u32;

    /// Makes room for a range. Returns false, and changes no word, if the range does not fit.
    /// Writers only.
    fn make_room(&self, pages: RangeInclusive<u64>) -> bool;

    /// Replaces the word of each page of a range with `new(word)`. If this adds pages, the caller
    /// has made room. Writers only.
    fn change(&self, pages: RangeInclusive<u64>, new: impl Fn(u32) -> u32);

    /// Calls `visit` with every page of the table and its word, in no order. Writers only.
    fn for_each(&self, visit: impl FnMut(u64, u32));
}

impl<C: Cells> PageTable for AtomicMap<C> {
    #[inline(always)]
    fn get(&self, page: u64) -> u32 {
        self.get(page).unwrap_or(VACANT)
    }

    fn make_room(&self, pages: RangeInclusive<u64>) -> bool {
        u32::try_from(pages.end() - pages.start() + 1).is_ok_and(|count| self.make_room(count))
    }

    fn change(&self, pages: RangeInclusive<u64>, new: impl Fn(u32) -> u32) {
        for page in pages {
            self.change(page, |old| Some(new(old.unwrap_or(VACANT))).filter(|&word| word != VACANT));
        }
    }

    fn for_each(&self, visit: impl FnMut(u64, u32)) {
        self.for_each(visit);
    }
}

#[cfg(feature = "alloc")]
mod radix {
    use super::{AtomicMap, PageTable, RangeInclusive, VACANT};
    use crate::sync::{AtomicU32, Ordering};
    use crate::tables::atomic_map::GrowingCells;
    use crate::tables::{GrowingOnceTable, OnceTable, filled};
    use alloc::boxed::Box;
    use core::ops::Range;
    use once_cell::race::OnceBox;

    /// Log2 of the number of pages in a leaf, which has 32 KiB of words. Under loom a leaf has two
    /// pages, so that a model with few steps creates leaves.
    const LEAF_LOG2: u32 = if cfg!(loom) { 1 } else { 13 };
    /// The number of pages in a leaf.
    const LEAF: usize = 1 << LEAF_LOG2;
    /// The number of leaves for the near addresses, which are those below 2^47.
    const NEAR: usize = if cfg!(loom) { 2 } else { 1 << 13 };

    /// The words of adjacent pages.
    type Leaf = [AtomicU32; LEAF];

    /// The [`PageTable`] of [`Growable`](crate::Growable).
    #[derive(Debug)]
    pub struct RadixPages {
        /// The leaves of the near addresses, indexed by the upper bits of the page.
        near: Box<[OnceBox<Leaf>; NEAR]>,
        /// The leaves of all other addresses.
        far: OnceBox<FarLeaves>,
    }

    /// Leaves that are found through a hash map.
    #[derive(Debug)]
    struct FarLeaves {
        /// Upper bits of the page → index in `leaves`.
        numbers: AtomicMap<GrowingCells>,
        leaves: GrowingOnceTable<Leaf>,
        /// The number of leaves in use. Only the writer accesses it.
        count: AtomicU32,
    }

    fn vacant() -> AtomicU32 {
        AtomicU32::new(VACANT)
    }

    impl Default for RadixPages {
        fn default() -> Self {
            Self { near: filled(OnceBox::new), far: OnceBox::new() }
        }
    }

    impl FarLeaves {
        fn new() -> Self {
            Self { numbers: AtomicMap::default(), leaves: GrowingOnceTable::default(), count: AtomicU32::new(0) }
        }

        fn get(&self, number: u64) -> Option<&Leaf> {
            self.leaves.get(self.numbers.get(number)?)
        }

        /// Creates the leaf if there is none. Returns false if it does not fit. Writers only.
        fn make(&self, number: u64) -> bool {
            if self.numbers.get(number).is_some() {
                return true;
            }
            let index = self.count.load(Ordering::Relaxed);
            let has_room = self.numbers.make_room(1) && self.leaves.get_or_make(index, || filled(vacant)).is_some();
            if has_room {
                self.count.store(index + 1, Ordering::Relaxed);
                // A reader that finds the number also finds the leaf, because the map publishes the
                // number after the leaf was set.
                self.numbers.insert(number, index);
            }
            has_room
        }
    }

    /// Splits a range of pages by leaf: the upper bits, and the positions in the leaf.
    fn parts(pages: RangeInclusive<u64>) -> impl Iterator<Item = (u64, Range<usize>)> {
        let (first, last) = pages.into_inner();
        (first >> LEAF_LOG2..=last >> LEAF_LOG2).map(move |number| {
            let begin = first.max(number << LEAF_LOG2);
            let end = last.min(number << LEAF_LOG2 | (LEAF as u64 - 1));
            (number, begin as usize % LEAF..end as usize % LEAF + 1)
        })
    }

    impl RadixPages {
        /// Returns the leaf with these upper bits of the page, if it was created.
        #[inline(always)]
        fn leaf(&self, number: u64) -> Option<&Leaf> {
            match self.near.get(number as usize) {
                Some(leaf) => leaf.get(),
                None => self.far_leaf(number),
            }
        }

        /// Looks up a far leaf. Kept out of line so that a look-up is only a few instructions.
        #[cold]
        fn far_leaf(&self, number: u64) -> Option<&Leaf> {
            self.far.get()?.get(number)
        }
    }

    impl PageTable for RadixPages {
        #[inline(always)]
        fn get(&self, page: u64) -> u32 {
            let leaf = self.leaf(page >> LEAF_LOG2);
            leaf.map_or(VACANT, |leaf| leaf[page as usize % LEAF].load(Ordering::Acquire))
        }

        fn make_room(&self, pages: RangeInclusive<u64>) -> bool {
            parts(pages).all(|(number, _)| match self.near.get(number as usize) {
                Some(leaf) => {
                    leaf.get_or_init(|| filled(vacant));
                    true
                }
                None => self.far.get_or_init(|| Box::new(FarLeaves::new())).make(number),
            })
        }

        fn change(&self, pages: RangeInclusive<u64>, new: impl Fn(u32) -> u32) {
            for (number, places) in parts(pages) {
                let Some(leaf) = self.leaf(number) else {
                    assert!(new(VACANT) == VACANT, "room was made");
                    continue;
                };
                for word in &leaf[places] {
                    word.store(new(word.load(Ordering::Relaxed)), Ordering::Release);
                }
            }
        }

        fn for_each(&self, mut visit: impl FnMut(u64, u32)) {
            let mut visit_leaf = |number: u64, leaf: &Leaf| {
                for (place, word) in (0..).zip(leaf) {
                    let word = word.load(Ordering::Relaxed);
                    if word != VACANT {
                        visit(number << LEAF_LOG2 | place, word);
                    }
                }
            };
            for (number, leaf) in (0..).zip(self.near.iter()) {
                if let Some(leaf) = leaf.get() {
                    visit_leaf(number, leaf);
                }
            }
            if let Some(far) = self.far.get() {
                far.numbers.for_each(|number, index| {
                    visit_leaf(number, far.leaves.get(index).expect("a number leads to a leaf"));
                });
            }
        }
    }
}

#[cfg(feature = "alloc")]
pub(crate) use radix::RadixPages;

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests {
    use super::*;
    use crate::tables::atomic_map::FixedCells;
    use std::collections::BTreeMap;
    use std::vec::Vec;

    /// The last page of the addresses of 64 bits.
    const LAST: u64 = u64::MAX >> 21;
    /// The first page that is not near.
    const FAR: u64 = 1 << 26;

    fn agrees_with_a_tree(table: &impl PageTable, places: &[u64]) {
        let mut model = BTreeMap::new();
        let mut random = 0x1234_5678_u64;
        for step in 0..2_000_u32 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let first = places[(random >> 33) as usize % places.len()] + (random >> 40) % 8;
            let pages = first..=first + (random >> 50) % 8;
            if random >> 63 == 0 {
                assert!(table.make_room(pages.clone()));
                table.change(pages.clone(), |_| step);
                model.extend(pages.clone().map(|page| (page, step)));
            } else {
                table.change(pages.clone(), |_| VACANT);
                model.retain(|page, _| !pages.contains(page));
            }
            let around = first.saturating_sub(1)..=(pages.end() + 1).min(LAST);
            assert!(around.into_iter().all(|page| table.get(page) == model.get(&page).copied().unwrap_or(VACANT)));
        }
        let mut found = BTreeMap::new();
        table.for_each(|page, word| assert!(found.insert(page, word).is_none()));
        assert_eq!(found, model);
    }

    #[test]
    fn a_radix_table_agrees_with_a_tree_at_the_borders_of_its_levels() {
        let leaf = 1 << 13;
        let places = [0, leaf - 8, 5 * leaf - 3, FAR - 8, FAR, FAR + leaf - 4, LAST - 15];
        agrees_with_a_tree(&RadixPages::default(), &places);
    }

    #[test]
    fn a_fixed_table_agrees_with_a_tree() {
        agrees_with_a_tree(&AtomicMap::<FixedCells<64>>::default(), &[0, 100, LAST - 15]);
    }

    #[test]
    fn no_address_beyond_the_leaves_is_in_a_radix_table() {
        let table = RadixPages::default();
        let absent = [0, 1, FAR - 1, FAR, 1 << 36, LAST, u64::MAX].map(|page| table.get(page));
        assert_eq!(absent, [VACANT; 7]);
        assert!(table.make_room(FAR - 1..=FAR));
        table.change(FAR - 1..=FAR, |_| 7);
        let near: Vec<u32> = (FAR - 2..FAR + 2).map(|page| table.get(page)).collect();
        assert_eq!(near, [VACANT, 7, 7, VACANT]);
        table.change(3 * FAR..=3 * FAR + 9_000, |word| word);
    }

    #[test]
    fn a_full_fixed_table_refuses_a_further_page_and_a_range_longer_than_itself() {
        let table = AtomicMap::<FixedCells<64>>::default();
        assert!(!PageTable::make_room(&table, 0..=64));
        assert!(PageTable::make_room(&table, 0..=63));
        PageTable::change(&table, 0..=63, |_| 7);
        assert!(!PageTable::make_room(&table, 64..=64));
        PageTable::change(&table, 5..=5, |_| VACANT);
        assert!(PageTable::make_room(&table, 64..=64) && !PageTable::make_room(&table, 64..=65));
    }
}
