//! The buddy policy: blocks of powers of two, split into halves and merged with their siblings.
//!
//! ```text
//! tree       for every arena, an implicit tree of bits: free or not
//! holders    for every order, the arenas that have a free block of it
//! forest     both, and for every order the first free block of all
//! open       a run of free blocks that are in no tree: what is left of the block that was split last
//!
//!            |■■■■■■■■|■■|□□|□□□□|□□□□□□□□|    bit k of `rest` is set iff a block of order k lies there, the smallest first:
//!                     ^front                   `rest` is also how many leaves the run has
//! ```
//!
//! Trees and run together hold the blocks that a buddy system holds which splits and merges at once, and no others. But a
//! block that is split all the way down costs one subtraction from `rest`, and one addition when its first piece comes back,
//! instead of a bit for each of its levels.

use super::{Free, SubAllocator, SubBlock};
use crate::config;
use crate::tables::slot_table::NONE;
use crate::tables::{CapacityError, Storage};

mod free_trees;
mod order_bitmap;
#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests;
mod tree;

use free_trees::{FreeTrees, HeapRef};
use tree::MAX_ORDER;

/// The smallest block, a leaf, in bytes: twice [`UNIT`](crate::units::UNIT).
pub(crate) const MIN_BLOCK: u64 = 1 << MIN_BLOCK_LOG2;
const MIN_BLOCK_LOG2: u32 = 10;

/// The largest arena, in bytes: 32 TiB. Larger requests find no room.
pub(crate) const MAX_ARENA: u64 = MIN_BLOCK << MAX_ORDER;

/// What a request of `bytes`, positive, is rounded to.
#[inline(always)]
pub(crate) fn round(bytes: u64) -> u64 {
    2 << ((bytes - 1) | (MIN_BLOCK - 1)).ilog2()
}

/// A run of free blocks that are not in the tree, in ascending order; what is left of the block that was split last.
#[derive(Clone, Copy)]
struct Open {
    /// The arena it lies in; `NONE` iff `rest` is 0: then nothing is open.
    arena: u32,
    /// The node of its first leaf.
    front: u64,
    /// How many leaves it has: for each bit a block.
    rest: u64,
    /// What ends here is given back to the run: its front, or 0 if that begins a block whose sibling lies behind it, in which
    /// case it is the only one.
    joint: u64,
}

impl Open {
    const NONE: Self = Self { arena: NONE, front: 0, rest: 0, joint: 0 };

    /// The part of a block, or of a run, that is left when what lies before `front` is taken.
    fn behind(arena: u32, front: u64, rest: u64) -> Self {
        if rest == 0 { Self::NONE } else { Self { arena, front, rest, joint: front } }
    }

    /// The first leaf of its block of `order`, if it has one.
    #[inline(always)]
    fn leaf(self, order: u32) -> u64 {
        self.front + (self.rest & !(!0 << order))
    }

    /// Its first block, which is the smallest, and what is left without that.
    fn split_first(self) -> Option<((u64, u32), Self)> {
        let order = self.rest.trailing_zeros();
        (self.rest != 0).then(|| {
            let leaves = 1 << order;
            ((self.front, order), Self { front: self.front + leaves, rest: self.rest - leaves, ..self })
        })
    }
}

/// A buddy system over any number of arenas. It takes the smallest block that fits; of several, the one in the arena of the
/// lowest number, and there the one at the lowest address.
pub(crate) struct Buddies<S: Storage> {
    /// Bytes to obtain from the device at a time, at least: a power of two.
    arena_bytes: u64,
    open: Open,
    forest: FreeTrees<S>,
}

/// The order of a size that was rounded.
#[inline(always)]
fn order_of(size: u64) -> u32 {
    size.trailing_zeros() - MIN_BLOCK_LOG2
}

/// The order of an arena of so many bytes.
fn arena_order(bytes: u64) -> u32 {
    (bytes / MIN_BLOCK).max(1).ilog2()
}

impl<S: Storage> Buddies<S> {
    pub(crate) fn new(options: config::Buddy) -> Self {
        let arena_bytes = options.arena.clamp(MIN_BLOCK, MAX_ARENA).next_power_of_two();
        Self { arena_bytes, open: Open::NONE, forest: FreeTrees::default() }
    }

    /// Puts what is open into the tree.
    #[inline(never)]
    fn settle(&mut self, mut open: Open) {
        while let Some(((leaf, order), left)) = open.split_first() {
            self.forest.insert(open.arena, leaf >> order, order);
            open = left;
        }
    }

    /// The first leaf of the open block of `order`, if there is one and it comes before `first`.
    #[inline(always)]
    fn open_before(&self, first: HeapRef, order: u32) -> Option<u64> {
        let leaf = self.open.leaf(order);
        let before = self.open.rest >> order & 1 == 1 && HeapRef::new(self.open.arena, leaf >> order) < first;
        before.then_some(leaf)
    }

    /// Takes a block of `order` from what is open, where the smallest that fits is of order `found` and begins at `leaf`. Those before
    /// it, too small, go into the tree.
    #[inline(always)]
    fn take_from_open(&mut self, leaf: u64, found: u32, order: u32) -> (SubBlock, Free) {
        let open = self.open;
        let (passed, leaves) = (leaf - open.front, 1 << order);
        self.open = Open::behind(open.arena, leaf + leaves, open.rest - passed - leaves);
        if passed != 0 {
            self.settle(Open { rest: passed, ..open });
        }
        self.taken(open.arena, leaf, found - order)
    }

    /// Takes a block of `order` from the first free one of order `found`, which is larger: what is left of it is open now.
    #[inline(never)]
    fn take_from_tree(&mut self, found: u32, order: u32) -> (SubBlock, Free) {
        let first = self.forest.first(found);
        let (arena, leaf) = (first.arena(), first.node() << found);
        self.forest.remove_first(first, found);
        let last = self.open;
        let leaves = 1 << order;
        self.open = Open::behind(arena, leaf + leaves, (1 << found) - leaves);
        if last.rest != 0 {
            self.settle(last);
        }
        self.taken(arena, leaf, found - order)
    }

    /// A piece that was taken from a block which was split so many times, and what that changes in its arena.
    #[inline(always)]
    fn taken(&mut self, segment: u32, leaf: u64, splits: u32) -> (SubBlock, Free) {
        let entry = &mut self.forest.arenas[segment];
        let before = entry.free;
        entry.free = before + splits - 1;
        entry.taken += 1;
        let free = Free { alone: entry.taken == 1, before, now: entry.free };
        (SubBlock { addr: entry.origin.wrapping_add(leaf * MIN_BLOCK), segment, number: NONE }, free)
    }

    /// Merges a block with its sibling, which is free, and so on: so many times.
    #[inline(never)]
    fn merge(&mut self, arena: u32, mut node: u64, mut order: u32) -> u32 {
        let given = order;
        while !self.joins_open(arena, node, order) {
            if !self.forest.holds(arena, node ^ 1, order) {
                self.forest.insert(arena, node, order);
                return order - given;
            }
            self.forest.remove(arena, node ^ 1, order);
            (node, order) = (node / 2, order + 1);
        }
        order - given + self.give_to_open(node << order, order)
    }

    /// Whether a block ends where what is open begins, or is the sibling of all that is open.
    #[inline(always)]
    fn joins_open(&self, arena: u32, node: u64, order: u32) -> bool {
        let Open { arena: other, front, rest, joint } = self.open;
        other == arena && ((node + 1) << order == joint || (node ^ 1) << order == front && rest == 1 << order)
    }

    /// Adds a block to what is open, and the sibling of what is now the first block there, if it is free, and so on. How often blocks
    /// merged.
    #[inline(always)]
    fn give_to_open(&mut self, leaf: u64, given: u32) -> u32 {
        let Open { arena, front, rest, .. } = self.open;
        // The addition merges what is open: once for each bit that is carried.
        let (front, rest) = (front.min(leaf), rest + (1 << given));
        let order = rest.trailing_zeros();
        let first = front >> order;
        let joint = if first & 1 == 1 { front } else { 0 };
        self.open = Open { arena, front, rest, joint };
        let merged = order - given;
        if self.forest.holds(arena, first ^ 1, order) { merged + self.absorb(first ^ 1, order) } else { merged }
    }

    /// Moves the sibling of the first open block from the tree to what is open. How often blocks merged.
    #[inline(never)]
    fn absorb(&mut self, sibling: u64, order: u32) -> u32 {
        self.forest.remove(self.open.arena, sibling, order);
        self.give_to_open(sibling << order, order)
    }
}

impl<S: Storage> SubAllocator<S> for Buddies<S> {
    fn segment_bytes(&self, size: u64) -> u64 {
        size.max(self.arena_bytes)
    }

    fn make_room(&mut self, bytes: u64, _size: u64) -> bool {
        bytes <= MAX_ARENA && self.forest.make_room(arena_order(bytes))
    }

    fn add_segment(&mut self, segment: u32, base: u64, bytes: u64, _size: u64) {
        self.forest.add(segment, base, arena_order(bytes));
    }

    fn remove_segment(&mut self, segment: u32) {
        if self.open.arena == segment {
            self.open = Open::NONE;
        } else {
            self.forest.remove(segment, 1, self.forest.arenas[segment].tree.order());
        }
        self.forest.forget(segment);
    }

    #[inline(always)]
    fn take(&mut self, size: u64) -> Result<Option<(SubBlock, Free)>, CapacityError> {
        let order = order_of(size);
        let fitting = (self.forest.orders() | self.open.rest) >> order;
        if fitting & 1 == 1 {
            // Which block that is waits for nothing that says so.
            let first = self.forest.first(order);
            if let Some(leaf) = self.open_before(first, order) {
                return Ok(Some(self.take_from_open(leaf, order, order)));
            }
            self.forest.remove_first(first, order);
            return Ok(Some(self.taken(first.arena(), first.node() << order, 0)));
        }
        if fitting == 0 {
            return Ok(None);
        }
        let found = order + fitting.trailing_zeros();
        let leaf = self.open_before(self.forest.first(found), found);
        Ok(Some(match leaf {
            Some(leaf) => self.take_from_open(leaf, found, order),
            None => self.take_from_tree(found, order),
        }))
    }

    fn peek(&self, size: u64) -> Option<u64> {
        let order = order_of(size);
        let fitting = (self.forest.orders() | self.open.rest) >> order;
        if fitting == 0 {
            return None;
        }
        let found = order + fitting.trailing_zeros();
        let first = self.forest.first(found);
        let (arena, leaf) = match self.open_before(first, found) {
            Some(leaf) => (self.open.arena, leaf),
            None => (first.arena(), first.node() << found),
        };
        Some(self.forest.arenas[arena].origin.wrapping_add(leaf * MIN_BLOCK))
    }

    #[inline(always)]
    fn give(&mut self, piece: SubBlock, size: u64) -> Free {
        let SubBlock { addr, segment, .. } = piece;
        let order = order_of(size);
        let node = (addr.wrapping_sub(self.forest.arenas[segment].origin) / MIN_BLOCK) >> order;
        let merged = if self.joins_open(segment, node, order) {
            self.give_to_open(node << order, order)
        } else if self.forest.holds(segment, node ^ 1, order) {
            self.merge(segment, node, order)
        } else {
            self.forest.insert(segment, node, order);
            0
        };
        let entry = &mut self.forest.arenas[segment];
        let before = entry.free;
        entry.free = before + 1 - merged;
        entry.taken -= 1;
        Free { alone: entry.taken == 0, before, now: entry.free }
    }

    fn visit_free(&self, segment: u32, visit: &mut dyn FnMut(u64, u64)) {
        let origin = self.forest.arenas[segment].origin;
        let mut visit = |(leaf, order)| visit(origin.wrapping_add(leaf * MIN_BLOCK), MIN_BLOCK << order);
        let mut open = if self.open.arena == segment { self.open } else { Open::NONE };
        for block in self.forest.blocks(segment) {
            while let Some((first, left)) = open.split_first().filter(|(first, _)| *first < block) {
                visit(first);
                open = left;
            }
            visit(block);
        }
        while let Some((first, left)) = open.split_first() {
            visit(first);
            open = left;
        }
    }

    fn check(&self) -> Result<(), &'static str> {
        let Open { arena, rest, .. } = self.open;
        if (arena == NONE) != (rest == 0) {
            return Err("nothing is open in an arena, or something in none");
        }
        self.forest.check(arena, rest)?;
        for (segment, entry) in (0..).zip(self.forest.arenas.entries()).filter(|(_, entry)| entry.free > 0) {
            let base = entry.origin.wrapping_add(entry.tree.first_leaf() * MIN_BLOCK);
            let (mut end, mut last, mut apart, mut merged) = (0, (u64::MAX, 0), true, true);
            self.visit_free(segment, &mut |addr, bytes| {
                let at = addr.wrapping_sub(base);
                apart &= at >= end && at.is_multiple_of(bytes);
                merged &= last != (at ^ bytes, bytes);
                (end, last) = (at + bytes, (at, bytes));
            });
            if !apart || end > MIN_BLOCK << entry.tree.order() {
                return Err("free blocks overlap, or reach beyond their arena");
            }
            if !merged {
                return Err("a free block and its sibling were not merged");
            }
        }
        Ok(())
    }
}
