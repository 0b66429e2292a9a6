//! The trees of all arenas, with the first free block of every order in them.
//!
//! If an order has only one free block, this block may be in no tree (*unplanted*) until a second
//! block of the order becomes free. Allocating and freeing an unplanted block changes a single
//! entry of `firsts` and a single bit, whatever the height of the tree.

use super::MIN_BLOCK;
use super::order_bitmap::{ORDERS, OrderBitmap};
use super::tree::{MAX_ORDER, Tree};
use crate::segment_table::{SegmentEntry, SegmentTable};
use cachalot_core::Storage;
use cachalot_core::records::NONE;
use cachalot_core::records::Table;
use core::mem;

/// A segment of the buddy policy.
#[derive(Clone, Copy)]
pub(super) struct BuddySegment {
    /// The address of leaf 0, before the arena. The arena's own leaves start with
    /// [`Tree::first_leaf`].
    pub origin: u64,
    /// The number of free blocks: in the tree, unplanted, or in the remainder.
    pub free: u32,
    /// The number of live blocks; 0 ⟺ the arena is a single free block.
    pub live: u32,
    /// The position of the arena's bits.
    pub tree: Tree,
}

impl SegmentEntry for BuddySegment {
    const VACANT: Self = Self { origin: 0, free: 0, live: 0, tree: Tree::NONE };
}

/// A block of an arena. Blocks of the same size are allocated in the order of `BlockRef`: by the
/// number of the arena, then by node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct BlockRef(u64);

const NODE_BITS: u32 = MAX_ORDER + 1;

impl BlockRef {
    /// No block. It compares greater than every block.
    const NONE: Self = Self(u64::MAX);

    /// Packs the arena's number above the node.
    #[inline(always)]
    pub(super) fn new(arena: u32, node: u64) -> Self {
        Self(u64::from(arena) << NODE_BITS | node)
    }

    /// Returns the number of the arena.
    #[inline(always)]
    pub(super) fn arena(self) -> u32 {
        (self.0 >> NODE_BITS) as u32
    }

    /// Returns the node in the arena's tree.
    #[inline(always)]
    pub(super) fn node(self) -> u64 {
        self.0 & !(!0 << NODE_BITS)
    }

    /// Returns the first block of those that `bits` has in the word of this block.
    #[inline(always)]
    fn first_of(self, bits: u64) -> Self {
        Self(self.0 & !63 | u64::from(bits.trailing_zeros()))
    }
}

/// The free blocks of any number of arenas, except for the remainder.
#[derive(Clone)]
pub(super) struct FreeTrees<S: Storage> {
    /// For each order, the arenas with a free block in the tree.
    arenas_by_order: OrderBitmap<S>,
    /// The first free block of each order; `BlockRef::NONE` iff no block is free. There is an entry
    /// for each bit of a `u64`, so that an order needs no bounds check.
    firsts: [BlockRef; 64],
    /// Bit `k` is set iff `firsts[k]` is a block in no tree. In this case order `k` has no other
    /// free block.
    unplanted: u64,
    /// The arenas, by the numbers of their segments.
    pub arenas: SegmentTable<BuddySegment, S>,
    /// The bits of all arenas. The words of a removed arena are zero, except the first.
    pub words: S::Table<u64>,
    /// For each order, the words of a removed arena, or `NONE`. The first of these words links to
    /// the next removed arena.
    vacant: [u32; ORDERS],
}

impl<S: Storage> Default for FreeTrees<S> {
    fn default() -> Self {
        Self {
            arenas_by_order: OrderBitmap::default(),
            firsts: [BlockRef::NONE; 64],
            unplanted: 0,
            arenas: SegmentTable::default(),
            words: S::Table::default(),
            vacant: [NONE; ORDERS],
        }
    }
}

impl<S: Storage> FreeTrees<S> {
    /// Makes room for another arena of `order`. Returns false if a table is full.
    pub(super) fn make_room(&mut self, order: u32) -> bool {
        let words = Tree::words(order);
        self.arenas.make_room()
            && self.arenas_by_order.make_room_for(self.arenas.entries().len())
            && (self.vacant[order as usize] != NONE
                || self.words.len() + words < NONE as usize && self.words.make_room(words))
    }

    /// Adds a wholly free arena. Room was made.
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
        self.arenas.insert(arena, BuddySegment { origin, free: 1, live: 0, tree });
        self.insert(arena, 1, order);
    }

    /// Removes an arena without free blocks.
    pub(super) fn forget(&mut self, arena: u32) {
        let tree = self.arenas[arena].tree;
        self.arenas.remove(arena);
        let vacant = &mut self.vacant[tree.order() as usize];
        self.words[tree.start() as usize] = u64::from(mem::replace(vacant, tree.start()));
    }

    /// Returns the orders with a free block, as bits.
    #[inline(always)]
    pub(super) fn orders(&self) -> u64 {
        self.arenas_by_order.orders() | self.unplanted
    }

    /// Returns the first free block of `order`, or `BlockRef::NONE`.
    #[inline(always)]
    pub(super) fn first(&self, order: u32) -> BlockRef {
        self.firsts[order as usize % 64]
    }

    /// Returns whether a block of `order` is free.
    #[inline(always)]
    pub(super) fn holds(&self, arena: u32, node: u64, order: u32) -> bool {
        let first = self.first(order);
        first != BlockRef::NONE
            && (first == BlockRef::new(arena, node) || self.arenas[arena].tree.holds(node, &self.words))
    }

    /// Adds a free block of `order`.
    #[inline(always)]
    pub(super) fn insert(&mut self, arena: u32, node: u64, order: u32) {
        let (place, first) = (BlockRef::new(arena, node), self.first(order));
        self.firsts[order as usize % 64] = place.min(first);
        if first == BlockRef::NONE {
            self.unplanted |= 1 << order;
            return;
        }
        if self.is_unplanted(order) {
            self.plant(first, order);
        }
        self.put(arena, node, order);
    }

    /// Returns whether the only free block of `order` is in no tree.
    #[inline(always)]
    fn is_unplanted(&self, order: u32) -> bool {
        self.unplanted >> order & 1 == 1
    }

    /// Puts the only free block of `order` into its tree, because a second block follows.
    #[cold]
    fn plant(&mut self, only: BlockRef, order: u32) {
        self.unplanted &= !(1 << order);
        self.put(only.arena(), only.node(), order);
    }

    /// Puts a block into the tree of its arena.
    #[inline(always)]
    fn put(&mut self, arena: u32, node: u64, order: u32) {
        if !self.arenas[arena].tree.insert(node, &mut self.words) {
            self.inserted(arena, node, order);
        }
    }

    /// Updates the summaries of a tree, and the bitmap of arenas, after a block was added.
    #[inline(never)]
    fn inserted(&mut self, arena: u32, node: u64, order: u32) {
        if self.arenas[arena].tree.inserted(node, &mut self.words) {
            self.arenas_by_order.insert(order, arena);
        }
    }

    /// Removes the first block of `order`. The next block in the same word, if there is one, is the
    /// new first block.
    #[inline(always)]
    pub(super) fn remove_first(&mut self, first: BlockRef, order: u32) {
        debug_assert!(first == self.first(order) && first != BlockRef::NONE, "the first block of the order is free");
        if self.is_unplanted(order) {
            self.unplanted &= !(1 << order);
            self.firsts[order as usize % 64] = BlockRef::NONE;
            return;
        }
        let tree = &self.arenas[first.arena()].tree;
        tree.remove(first.node(), &mut self.words);
        let beside = tree.beside(first.node(), &self.words);
        self.firsts[order as usize % 64] =
            if beside != 0 { first.first_of(beside) } else { self.first_behind(first, order) };
    }

    /// Returns the new first block of `order`, after a block was removed that was alone in its
    /// word.
    #[inline(never)]
    fn first_behind(&mut self, removed: BlockRef, order: u32) -> BlockRef {
        self.removed(removed.arena(), removed.node(), order);
        self.find_first(order)
    }

    /// Removes a free block of `order`.
    pub(super) fn remove(&mut self, arena: u32, node: u64, order: u32) {
        let place = BlockRef::new(arena, node);
        if self.first(order) == place {
            return self.remove_first(place, order);
        }
        let tree = &self.arenas[arena].tree;
        tree.remove(node, &mut self.words);
        if tree.beside(node, &self.words) == 0 {
            self.removed(arena, node, order);
        }
    }

    /// Updates the summaries of a tree, and the bitmap of arenas, after a block was removed.
    #[inline(always)]
    fn removed(&mut self, arena: u32, node: u64, order: u32) {
        if self.arenas[arena].tree.removed(node, &mut self.words) {
            self.arenas_by_order.remove(order, arena);
        }
    }

    /// Finds the first block of `order` in the trees.
    fn find_first(&self, order: u32) -> BlockRef {
        if self.arenas_by_order.orders() >> order & 1 == 0 {
            return BlockRef::NONE;
        }
        let arena = self.arenas_by_order.first(order);
        BlockRef::new(arena, self.arenas[arena].tree.first(order, &self.words))
    }

    /// Returns the free blocks of an arena as (first leaf, order), in address order.
    pub(super) fn blocks(&self, arena: u32) -> impl Iterator<Item = (u64, u32)> {
        let tree = self.arenas[arena].tree;
        let next = move |order, node| {
            let found = if self.is_unplanted(order) {
                Some(self.first(order))
                    .filter(|&only| only >= BlockRef::new(arena, node))
                    .filter(|only| only.arena() == arena)
                    .map(BlockRef::node)
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

    /// Checks the trees, the bitmap, and the counts. `run` has the orders of the remainder's
    /// blocks, which are in `run_arena`.
    pub(super) fn check(&self, run_arena: u32, run: u64) -> Result<(), &'static str> {
        if !self.arenas_by_order.check() {
            return Err("a summary of the arenas disagrees with what it summarises");
        }
        for order in 0..=MAX_ORDER {
            let (first, in_trees) = (self.first(order), self.find_first(order));
            let agree = if self.is_unplanted(order) {
                in_trees == BlockRef::NONE && first != in_trees
            } else {
                first == in_trees
            };
            if !agree {
                return Err("another block is said to be the first of its order");
            }
        }
        for (arena, entry) in (0..).zip(self.arenas.entries()) {
            let mut held = 0_u64;
            let mut count = if arena == run_arena { run.count_ones() } else { 0 };
            if entry.free > 0 {
                self.blocks(arena).for_each(|(_, order)| (held, count) = (held | 1 << order, count + 1));
            }
            if count != entry.free {
                return Err("an arena's free blocks are not as many as were counted");
            }
            let whole = entry.free == 1 && (held | if arena == run_arena { run } else { 0 }) == 1 << entry.tree.order();
            if entry.free > 0 && whole != (entry.live == 0) {
                return Err("an arena of which nothing is live is not one free block, or the other way round");
            }
            let in_tree = held & !self.unplanted;
            if (0..=MAX_ORDER).any(|order| (in_tree >> order & 1 == 1) != self.arenas_by_order.holds(order, arena)) {
                return Err("an arena has a free block of another order than is said");
            }
            if entry.free > 0 && !entry.tree.check(&self.words) {
                return Err("a summary of an arena's tree disagrees with what it summarises");
            }
        }
        Ok(())
    }
}
