//! The trees of all arenas, and the first free block of every order among them.
//!
//! A block that becomes the only free one of its order is put into no tree until there is a second one: to take it and to give
//! it back is to change one place and one bit, whatever the height of its tree.

use super::MIN_BLOCK;
use super::order_bitmap::{ORDERS, OrderBitmap};
use super::tree::{MAX_ORDER, Tree};
use crate::heap::suballoc::segment_table::{SegmentEntry, SegmentTable};
use crate::tables::slot_table::NONE;
use crate::tables::{Storage, Table};
use core::mem;

/// A segment that is cut up.
#[derive(Clone, Copy)]
pub(super) struct Arena {
    /// The address that leaf 0 would have; the arena's own leaves begin with [`Tree::first_leaf`].
    pub origin: u64,
    /// How many of its blocks are free, in the tree or not.
    pub free: u32,
    /// How many blocks are taken: 0 ⟺ it is one free block.
    pub taken: u32,
    pub tree: Tree,
}

impl SegmentEntry for Arena {
    const VACANT: Self = Self { origin: 0, free: 0, taken: 0, tree: Tree::NONE };
}

/// A block of an arena, ordered as blocks of one size are taken: by the arena's number, then by the node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HeapRef(u64);

const NODE_BITS: u32 = MAX_ORDER + 1;

impl HeapRef {
    /// After every block.
    const NONE: Self = Self(u64::MAX);

    #[inline(always)]
    pub(super) fn new(arena: u32, node: u64) -> Self {
        Self(u64::from(arena) << NODE_BITS | node)
    }

    #[inline(always)]
    pub(super) fn arena(self) -> u32 {
        (self.0 >> NODE_BITS) as u32
    }

    #[inline(always)]
    pub(super) fn node(self) -> u64 {
        self.0 & !(!0 << NODE_BITS)
    }

    /// The first of the blocks whose bits are in the word of this one.
    #[inline(always)]
    fn first_of(self, bits: u64) -> Self {
        Self(self.0 & !63 | u64::from(bits.trailing_zeros()))
    }
}

/// The trees of any number of arenas.
pub(super) struct FreeTrees<S: Storage> {
    holders: OrderBitmap<S>,
    /// For each order the first free block; `HeapRef::NONE` iff there is none. As many as a `u64` has bits, to be indexed by one.
    firsts: [HeapRef; 64],
    /// Bit `k` is set iff `firsts[k]` is in no tree; it is the only free block of its order then.
    apart: u64,
    pub arenas: SegmentTable<Arena, S>,
    /// The bits of all arenas. The words of a removed one are zero, but for the first.
    pub words: S::Table<u64>,
    /// For each order the words of a removed arena, the first of which says where those of the next one are; else `NONE`.
    vacant: [u32; ORDERS],
}

impl<S: Storage> Default for FreeTrees<S> {
    fn default() -> Self {
        Self {
            holders: OrderBitmap::default(),
            firsts: [HeapRef::NONE; 64],
            apart: 0,
            arenas: SegmentTable::default(),
            words: Default::default(),
            vacant: [NONE; ORDERS],
        }
    }
}

impl<S: Storage> FreeTrees<S> {
    /// Makes sure that a further arena of `order` fits.
    pub(super) fn make_room(&mut self, order: u32) -> bool {
        let words = Tree::words(order);
        self.arenas.make_room()
            && self.holders.make_room_for(self.arenas.entries().len())
            && (self.vacant[order as usize] != NONE
                || self.words.len() + words < NONE as usize && self.words.make_room(words))
    }

    /// Adds an arena, all free; room was made.
    pub(super) fn add(&mut self, arena: u32, base: u64, order: u32) {
        let vacant = &mut self.vacant[order as usize];
        let mut start = *vacant;
        if start == NONE {
            start = self.words.len() as u32;
            (0..Tree::words(order)).for_each(|_| self.words.add(0));
        } else {
            *vacant = mem::take(&mut self.words[start as usize]) as u32;
        }
        let tree = Tree::at(start, order);
        let origin = base.wrapping_sub(tree.first_leaf() * MIN_BLOCK);
        self.arenas.insert(arena, Arena { origin, free: 1, taken: 0, tree });
        self.insert(arena, 1, order);
    }

    /// Forgets an arena of which no block is free.
    pub(super) fn forget(&mut self, arena: u32) {
        let tree = self.arenas[arena].tree;
        self.arenas.remove(arena);
        let vacant = &mut self.vacant[tree.order() as usize];
        self.words[tree.start() as usize] = u64::from(mem::replace(vacant, tree.start()));
    }

    /// The orders of which there is a free block, as bits.
    #[inline(always)]
    pub(super) fn orders(&self) -> u64 {
        self.holders.orders() | self.apart
    }

    /// The first free block of `order`. A place after every block, if there is none.
    #[inline(always)]
    pub(super) fn first(&self, order: u32) -> HeapRef {
        self.firsts[order as usize % 64]
    }

    /// Whether a block of `order` is free.
    #[inline(always)]
    pub(super) fn holds(&self, arena: u32, node: u64, order: u32) -> bool {
        let first = self.first(order);
        first != HeapRef::NONE
            && (first == HeapRef::new(arena, node) || self.arenas[arena].tree.holds(node, &self.words))
    }

    #[inline(always)]
    pub(super) fn insert(&mut self, arena: u32, node: u64, order: u32) {
        let (place, first) = (HeapRef::new(arena, node), self.first(order));
        self.firsts[order as usize % 64] = place.min(first);
        if first == HeapRef::NONE {
            self.apart |= 1 << order;
            return;
        }
        if self.is_apart(order) {
            self.plant(first, order);
        }
        self.put(arena, node, order);
    }

    /// Whether the only free block of `order` is in no tree.
    #[inline(always)]
    fn is_apart(&self, order: u32) -> bool {
        self.apart >> order & 1 == 1
    }

    /// Puts the only free block of `order` into its tree: there is to be another one.
    #[cold]
    fn plant(&mut self, only: HeapRef, order: u32) {
        self.apart &= !(1 << order);
        self.put(only.arena(), only.node(), order);
    }

    /// Puts a block into its tree.
    #[inline(always)]
    fn put(&mut self, arena: u32, node: u64, order: u32) {
        if !self.arenas[arena].tree.insert(node, &mut self.words) {
            self.inserted(arena, node, order);
        }
    }

    #[inline(never)]
    fn inserted(&mut self, arena: u32, node: u64, order: u32) {
        if self.arenas[arena].tree.inserted(node, &mut self.words) {
            self.holders.insert(order, arena);
        }
    }

    /// Removes the first block of `order`. If another one is in the same word, that is the next.
    #[inline(always)]
    pub(super) fn remove_first(&mut self, first: HeapRef, order: u32) {
        if self.is_apart(order) {
            self.apart &= !(1 << order);
            self.firsts[order as usize % 64] = HeapRef::NONE;
            return;
        }
        let tree = &self.arenas[first.arena()].tree;
        tree.remove(first.node(), &mut self.words);
        let beside = tree.beside(first.node(), &self.words);
        self.firsts[order as usize % 64] =
            if beside != 0 { first.first_of(beside) } else { self.first_behind(first, order) };
    }

    /// The first block of `order` after one was removed that was alone in its word.
    #[inline(never)]
    fn first_behind(&mut self, removed: HeapRef, order: u32) -> HeapRef {
        self.removed(removed.arena(), removed.node(), order);
        self.find_first(order)
    }

    pub(super) fn remove(&mut self, arena: u32, node: u64, order: u32) {
        let place = HeapRef::new(arena, node);
        if self.first(order) == place {
            return self.remove_first(place, order);
        }
        let tree = &self.arenas[arena].tree;
        tree.remove(node, &mut self.words);
        if tree.beside(node, &self.words) == 0 {
            self.removed(arena, node, order);
        }
    }

    #[inline(always)]
    fn removed(&mut self, arena: u32, node: u64, order: u32) {
        if self.arenas[arena].tree.removed(node, &mut self.words) {
            self.holders.remove(order, arena);
        }
    }

    fn find_first(&self, order: u32) -> HeapRef {
        if self.holders.orders() >> order & 1 == 0 {
            return HeapRef::NONE;
        }
        let arena = self.holders.first(order);
        HeapRef::new(arena, self.arenas[arena].tree.first(order, &self.words))
    }

    /// The free blocks of an arena, in address order: their first leaves and orders.
    pub(super) fn blocks(&self, arena: u32) -> impl Iterator<Item = (u64, u32)> {
        let tree = self.arenas[arena].tree;
        let next = move |order, node| {
            let found = if self.is_apart(order) {
                Some(self.first(order))
                    .filter(|&only| only >= HeapRef::new(arena, node))
                    .filter(|only| only.arena() == arena)
                    .map(HeapRef::node)
            } else {
                tree.next(tree.order() - order, node, &self.words)
            };
            found.map_or((u64::MAX, order), |node| (node << order, order))
        };
        let mut heads = [(u64::MAX, 0); ORDERS];
        for order in 0..=tree.order() {
            heads[order as usize] = next(order, tree.first_leaf() >> order);
        }
        core::iter::from_fn(move || {
            let (leaf, order) = heads.iter().copied().min().filter(|head| head.0 != u64::MAX)?;
            heads[order as usize] = next(order, (leaf >> order) + 1);
            Some((leaf, order))
        })
    }

    /// Checks all that says what is free. `open` are the orders of blocks of `opened` that are free but in no tree.
    pub(super) fn check(&self, opened: u32, open: u64) -> Result<(), &'static str> {
        if !self.holders.check() {
            return Err("a summary of the arenas disagrees with what it summarises");
        }
        for order in 0..=MAX_ORDER {
            let (first, in_trees) = (self.first(order), self.find_first(order));
            let agree =
                if self.is_apart(order) { in_trees == HeapRef::NONE && first != in_trees } else { first == in_trees };
            if !agree {
                return Err("another block is said to be the first of its order");
            }
        }
        for (arena, entry) in (0..).zip(self.arenas.entries()) {
            let mut held = 0_u64;
            let mut count = if arena == opened { open.count_ones() } else { 0 };
            if entry.free > 0 {
                self.blocks(arena).for_each(|(_, order)| (held, count) = (held | 1 << order, count + 1));
            }
            if count != entry.free {
                return Err("an arena's free blocks are not as many as were counted");
            }
            let whole = entry.free == 1 && (held | if arena == opened { open } else { 0 }) == 1 << entry.tree.order();
            if entry.free > 0 && whole != (entry.taken == 0) {
                return Err("an arena of which nothing is taken is not one free block, or the other way round");
            }
            let in_tree = held & !self.apart;
            if (0..=MAX_ORDER).any(|order| (in_tree >> order & 1 == 1) != self.holders.holds(order, arena)) {
                return Err("an arena has a free block of another order than is said");
            }
            if entry.free > 0 && !entry.tree.check(&self.words) {
                return Err("a summary of an arena's tree disagrees with what it summarises");
            }
        }
        Ok(())
    }
}
