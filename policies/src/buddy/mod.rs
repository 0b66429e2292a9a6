//! The buddy policy: blocks of powers of two, split into halves and merged with their siblings.
//!
//! ```text
//! tree        for every arena, an implicit tree of bits: free or not
//! bitmap      for every order, the arenas with a free block of the order
//! free trees  both, and for every order the first free block of all arenas
//! remainder   a run of free blocks in no tree: the rest of the block that was split last
//!
//!             |■■■■■■■■|■■|□□|□□□□|□□□□□□□□|  bit k of `rest`: a block of order k, smallest first
//!                      ^front                  `rest` is also the number of leaves
//! ```
//!
//! The trees and the remainder together have exactly the free blocks of a buddy system that splits
//! and merges at once. But splitting a block down to a small one costs a single subtraction from
//! `rest`, and the first free that merges costs a single addition, instead of a bit for each level.

use alloc::boxed::Box;
use cachalot_core::config::{OptionReference, Suballocation};
use cachalot_core::records::NONE;
use cachalot_core::suballoc::CapacityError;
use cachalot_core::suballoc::{FreeDelta, SubAllocator, SubBlock};
use cachalot_core::{Growable, MIB, Storage};

mod free_trees;
mod order_bitmap;
#[cfg(test)]
mod tests;
mod tree;

use free_trees::{BlockRef, FreeTrees};
use tree::MAX_ORDER;

/// The size in bytes of the smallest block, a leaf: twice [`UNIT`](cachalot_core::UNIT).
pub(crate) const MIN_BLOCK: u64 = 1 << MIN_BLOCK_LOG2;
const MIN_BLOCK_LOG2: u32 = 10;

/// The size in bytes of the largest arena: 32 TiB. There is no room for a larger request.
pub(crate) const MAX_ARENA: u64 = MIN_BLOCK << MAX_ORDER;

/// The policy: requests are rounded up to powers of two, from 1 KiB. A free block is split into
/// halves until a half fits, and merges with its sibling when both are free. So no memory is wasted
/// between blocks, but up to half of each block is wasted inside it.
pub(crate) const POLICY: Suballocation = Suballocation {
    type_name: "Buddy",
    round: Some(round),
    largest_segment: MAX_ARENA,
    halves_by: Some(1),
    // A choice of this project.
    options: [64 * MIB, 0, 0, 0],
    settings: &[OptionReference {
        key: "arena_mb",
        field: "arena",
        default: "64",
        example: "128",
        unit: MIB,
        accepts: |mib| mib.is_power_of_two() && mib <= 1 << 20,
        accepted: "a power of two in MiB up to 1048576",
        effect: "The size of a segment. A larger request gets a separate segment with the next power of two.",
    }],
    ..Suballocation::new("buddy", |options| Box::new(Buddies::<Growable>::new(options[0])))
};

/// Rounds a positive number of bytes up to the size of a block.
#[inline(always)]
pub(crate) fn round(bytes: u64) -> u64 {
    2 << ((bytes - 1) | (MIN_BLOCK - 1)).ilog2()
}

/// A run of free blocks in no tree, in ascending order: the rest of the block that was split last.
#[derive(Clone, Copy)]
struct Remainder {
    /// The arena of the run; `NONE` iff `rest` is 0, and the run is empty.
    arena: u32,
    /// The leaf at the front of the run.
    front: u64,
    /// The number of leaves in the run. Each set bit is a block.
    rest: u64,
    /// A block that ends at this leaf joins the run. This is `front`, or 0 if the first block is a
    /// left sibling. In this case the run is only the first block, and only its right sibling
    /// joins.
    append_at: u64,
}

impl Remainder {
    const NONE: Self = Self { arena: NONE, front: 0, rest: 0, append_at: 0 };

    /// Returns the run of `rest` leaves from `front` on, which are left after an allocated block.
    fn behind(arena: u32, front: u64, rest: u64) -> Self {
        if rest == 0 { Self::NONE } else { Self { arena, front, rest, append_at: front } }
    }

    /// Returns the first leaf of the run's block of `order`, if the run has one.
    #[inline(always)]
    fn leaf(self, order: u32) -> u64 {
        self.front + (self.rest & !(!0 << order))
    }

    /// Splits off the first block, which is the smallest. Returns the block as (leaf, order), and
    /// the rest of the run.
    fn split_first(self) -> Option<((u64, u32), Self)> {
        let order = self.rest.trailing_zeros();
        (self.rest != 0).then(|| {
            let leaves = 1 << order;
            ((self.front, order), Self { front: self.front + leaves, rest: self.rest - leaves, ..self })
        })
    }
}

/// A buddy system over any number of arenas. A request takes the smallest block that is large
/// enough. Of several, it takes one in the arena with the lowest number, and there the one at the
/// lowest address.
#[derive(Clone)]
pub(crate) struct Buddies<S: Storage = Growable> {
    /// The least number of bytes to allocate from the device at a time: a power of two.
    arena_bytes: u64,
    /// The rest of the block that was split last.
    remainder: Remainder,
    /// All free blocks outside the remainder.
    trees: FreeTrees<S>,
}

/// Returns the order of a rounded size.
#[inline(always)]
fn order_of(size: u64) -> u32 {
    size.trailing_zeros() - MIN_BLOCK_LOG2
}

/// Returns the order of an arena of `bytes`.
fn arena_order(bytes: u64) -> u32 {
    (bytes / MIN_BLOCK).max(1).ilog2()
}

impl<S: Storage> Buddies<S> {
    /// Creates the sub-allocator of a heap, without arenas.
    pub(crate) fn new(arena_bytes: u64) -> Self {
        let arena_bytes = arena_bytes.clamp(MIN_BLOCK, MAX_ARENA).next_power_of_two();
        Self { arena_bytes, remainder: Remainder::NONE, trees: FreeTrees::default() }
    }

    /// Moves the blocks of `run` into the trees.
    #[inline(never)]
    fn flush(&mut self, mut run: Remainder) {
        while let Some(((leaf, order), left)) = run.split_first() {
            self.trees.insert(run.arena, leaf >> order, order);
            run = left;
        }
    }

    /// Returns the first leaf of the remainder's block of `order`, if it has one and this is before
    /// `first`.
    #[inline(always)]
    fn remainder_before(&self, first: BlockRef, order: u32) -> Option<u64> {
        let leaf = self.remainder.leaf(order);
        let before =
            self.remainder.rest >> order & 1 == 1 && BlockRef::new(self.remainder.arena, leaf >> order) < first;
        before.then_some(leaf)
    }

    /// Allocates a block of `order` from the remainder. The smallest block there that is large
    /// enough has order `found` and starts at `leaf`. The smaller blocks before `leaf` move into
    /// the trees.
    #[inline(always)]
    fn take_from_remainder(&mut self, leaf: u64, found: u32, order: u32) -> (SubBlock, FreeDelta) {
        let run = self.remainder;
        let (passed, leaves) = (leaf - run.front, 1 << order);
        self.remainder = Remainder::behind(run.arena, leaf + leaves, run.rest - passed - leaves);
        if passed != 0 {
            self.flush(Remainder { rest: passed, ..run });
        }
        self.count_allocation(run.arena, leaf, found - order)
    }

    /// Allocates a block of `order` from the first free block of the larger order `found`. The rest
    /// becomes the remainder, and the previous remainder moves into the trees.
    #[inline(never)]
    fn take_from_tree(&mut self, found: u32, order: u32) -> (SubBlock, FreeDelta) {
        let first = self.trees.first(found);
        let (arena, leaf) = (first.arena(), first.node() << found);
        self.trees.remove_first(first, found);
        let last = self.remainder;
        let leaves = 1 << order;
        self.remainder = Remainder::behind(arena, leaf + leaves, (1 << found) - leaves);
        if last.rest != 0 {
            self.flush(last);
        }
        self.count_allocation(arena, leaf, found - order)
    }

    /// Counts a block that was allocated with `splits` splits. Returns the sub-block, and the
    /// change of the number of free blocks in the arena.
    #[inline(always)]
    fn count_allocation(&mut self, segment: u32, leaf: u64, splits: u32) -> (SubBlock, FreeDelta) {
        let entry = &mut self.trees.arenas[segment];
        let before = entry.free;
        entry.free = before + splits - 1;
        entry.live += 1;
        let free = FreeDelta { alone: entry.live == 1, before, now: entry.free };
        (SubBlock { addr: entry.origin.wrapping_add(leaf * MIN_BLOCK), segment, number: NONE }, free)
    }

    /// Frees a block that has a free sibling: merges the two, then the merged block with its
    /// sibling, and so on. Returns the number of merges.
    #[inline(never)]
    fn merge(&mut self, arena: u32, mut node: u64, mut order: u32) -> u32 {
        let given = order;
        while !self.joins_remainder(arena, node, order) {
            if !self.trees.holds(arena, node ^ 1, order) {
                self.trees.insert(arena, node, order);
                return order - given;
            }
            self.trees.remove(arena, node ^ 1, order);
            (node, order) = (node / 2, order + 1);
        }
        order - given + self.add_to_remainder(node << order, order)
    }

    /// Returns whether a block ends where the remainder starts and may join it, or is the sibling
    /// of the remainder's only block.
    #[inline(always)]
    fn joins_remainder(&self, arena: u32, node: u64, order: u32) -> bool {
        let Remainder { arena: other, front, rest, append_at } = self.remainder;
        other == arena && ((node + 1) << order == append_at || (node ^ 1) << order == front && rest == 1 << order)
    }

    /// Adds a block to the remainder. If the sibling of the first block is now free in a tree, adds
    /// this sibling, too, and so on. Returns the number of merges.
    #[inline(always)]
    fn add_to_remainder(&mut self, leaf: u64, given: u32) -> u32 {
        let Remainder { arena, front, rest, .. } = self.remainder;
        // The addition merges blocks of the run, once for each bit that carries.
        let (front, rest) = (front.min(leaf), rest + (1 << given));
        let order = rest.trailing_zeros();
        let first = front >> order;
        let append_at = if first & 1 == 1 { front } else { 0 };
        self.remainder = Remainder { arena, front, rest, append_at };
        let merged = order - given;
        if self.trees.holds(arena, first ^ 1, order) { merged + self.absorb(first ^ 1, order) } else { merged }
    }

    /// Moves the sibling of the remainder's first block from the trees to the remainder. Returns
    /// the number of merges.
    #[inline(never)]
    fn absorb(&mut self, sibling: u64, order: u32) -> u32 {
        self.trees.remove(self.remainder.arena, sibling, order);
        self.add_to_remainder(sibling << order, order)
    }
}

impl<S: Storage> SubAllocator for Buddies<S> {
    fn segment_bytes(&self, size: u64) -> u64 {
        size.max(self.arena_bytes)
    }

    fn make_room(&mut self, bytes: u64, _size: u64) -> bool {
        bytes <= MAX_ARENA && self.trees.make_room(arena_order(bytes))
    }

    fn add_segment(&mut self, segment: u32, base: u64, bytes: u64, _size: u64) {
        self.trees.add(segment, base, arena_order(bytes));
    }

    fn remove_segment(&mut self, segment: u32) {
        if self.remainder.arena == segment {
            self.remainder = Remainder::NONE;
        } else {
            self.trees.remove(segment, 1, self.trees.arenas[segment].tree.order());
        }
        self.trees.forget(segment);
    }

    #[inline(always)]
    fn allocate(&mut self, size: u64) -> Result<Option<(SubBlock, FreeDelta)>, CapacityError> {
        let order = order_of(size);
        let fitting = (self.trees.orders() | self.remainder.rest) >> order;
        if fitting & 1 == 1 {
            // This load does not depend on the comparison with the remainder, so the processor does
            // both in parallel.
            let first = self.trees.first(order);
            if let Some(leaf) = self.remainder_before(first, order) {
                return Ok(Some(self.take_from_remainder(leaf, order, order)));
            }
            self.trees.remove_first(first, order);
            return Ok(Some(self.count_allocation(first.arena(), first.node() << order, 0)));
        }
        if fitting == 0 {
            return Ok(None);
        }
        let found = order + fitting.trailing_zeros();
        let leaf = self.remainder_before(self.trees.first(found), found);
        Ok(Some(match leaf {
            Some(leaf) => self.take_from_remainder(leaf, found, order),
            None => self.take_from_tree(found, order),
        }))
    }

    fn peek(&self, size: u64) -> Option<u64> {
        let order = order_of(size);
        let fitting = (self.trees.orders() | self.remainder.rest) >> order;
        if fitting == 0 {
            return None;
        }
        let found = order + fitting.trailing_zeros();
        let first = self.trees.first(found);
        let (arena, leaf) = match self.remainder_before(first, found) {
            Some(leaf) => (self.remainder.arena, leaf),
            None => (first.arena(), first.node() << found),
        };
        Some(self.trees.arenas[arena].origin.wrapping_add(leaf * MIN_BLOCK))
    }

    #[inline(always)]
    fn free(&mut self, sub_block: SubBlock, size: u64) -> FreeDelta {
        let SubBlock { addr, segment, .. } = sub_block;
        let order = order_of(size);
        let node = (addr.wrapping_sub(self.trees.arenas[segment].origin) / MIN_BLOCK) >> order;
        let merged = if self.joins_remainder(segment, node, order) {
            self.add_to_remainder(node << order, order)
        } else if self.trees.holds(segment, node ^ 1, order) {
            self.merge(segment, node, order)
        } else {
            self.trees.insert(segment, node, order);
            0
        };
        let entry = &mut self.trees.arenas[segment];
        let before = entry.free;
        entry.free = before + 1 - merged;
        entry.live -= 1;
        FreeDelta { alone: entry.live == 0, before, now: entry.free }
    }

    fn visit_free(&self, segment: u32, visit: &mut dyn FnMut(u64, u64)) {
        let origin = self.trees.arenas[segment].origin;
        let mut visit = |(leaf, order)| visit(origin.wrapping_add(leaf * MIN_BLOCK), MIN_BLOCK << order);
        let mut run = if self.remainder.arena == segment { self.remainder } else { Remainder::NONE };
        for block in self.trees.blocks(segment) {
            while let Some((first, left)) = run.split_first().filter(|(first, _)| *first < block) {
                visit(first);
                run = left;
            }
            visit(block);
        }
        while let Some((first, left)) = run.split_first() {
            visit(first);
            run = left;
        }
    }

    fn copy(&self) -> Box<dyn SubAllocator> {
        Box::new(self.clone())
    }

    fn check(&self) -> Result<(), &'static str> {
        let Remainder { arena, rest, .. } = self.remainder;
        if (arena == NONE) != (rest == 0) {
            return Err("the remainder is empty in an arena, or not empty in none");
        }
        self.trees.check(arena, rest)?;
        for (segment, entry) in (0..).zip(self.trees.arenas.entries()).filter(|(_, entry)| entry.free > 0) {
            let base = entry.origin.wrapping_add(entry.tree.first_leaf() * MIN_BLOCK);
            let (mut end, mut last, mut disjoint, mut merged) = (0, (u64::MAX, 0), true, true);
            self.visit_free(segment, &mut |addr, bytes| {
                let at = addr.wrapping_sub(base);
                disjoint &= at >= end && at.is_multiple_of(bytes);
                merged &= last != (at ^ bytes, bytes);
                (end, last) = (at + bytes, (at, bytes));
            });
            if !disjoint || end > MIN_BLOCK << entry.tree.order() {
                return Err("free blocks overlap, or reach beyond their arena");
            }
            if !merged {
                return Err("a free block and its sibling were not merged");
            }
        }
        Ok(())
    }
}
