//! Policies for cutting segments into sub-blocks: buddy, size class, slab, and the segments of plans.
//!
//! ```text
//! heap            live blocks by address, streams, counters, states         shared by all policies
//! sub-allocator   which parts of its segments are free, and which comes next   one file per policy
//! ```
//!
//! The caching heap lists every block, free or not, by boundary tags. A sub-allocator records free memory by bitmaps
//! and lists without an entry for a free sub-block. A sub-allocator knows addresses, sizes and segment numbers, but
//! no streams and no counters.

use crate::tables::{CapacityError, Storage};

#[cfg_attr(not(feature = "alloc"), path = "no_any.rs")]
mod any;
pub(crate) mod buddy;
mod geometric_classes;
#[cfg(feature = "alloc")]
pub(crate) mod planned;
mod segment_table;
pub(crate) mod size_class;
pub(crate) mod slab;
mod sub_blocks;

pub(crate) use any::{AnySubAllocator, for_kind};

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests_model;
#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests_size_class;
#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests_slab;

/// An allocated sub-block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SubBlock {
    /// Address of the first byte.
    pub addr: u64,
    /// The segment of the sub-block.
    pub segment: u32,
    /// The sub-allocator's number for the sub-block; `NONE` where the address suffices.
    pub number: u32,
}

/// The number of free sub-blocks of a segment, before and after an operation. Both numbers are arbitrary while the
/// segment has no live sub-block: the free memory then counts as a single whole segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FreeDelta {
    /// Whether the operation's sub-block is the only live sub-block of the segment.
    pub alone: bool,
    /// Free sub-blocks before the operation.
    pub before: u32,
    /// Free sub-blocks after the operation.
    pub now: u32,
}

/// Cuts the segments of a heap into sub-blocks. Deterministic: equal calls allocate equal sub-blocks.
pub(crate) trait SubAllocator<S: Storage>: Send {
    /// Returns the bytes of the segment to allocate for a sub-block of `size`, as the policy rounds
    /// requests. At least `size`.
    fn segment_bytes(&self, size: u64) -> u64;

    /// Makes room for a segment of `bytes`, for sub-blocks of `size`, and for the first sub-block of the new segment.
    /// Returns false if a table is full; nothing has changed then.
    fn make_room(&mut self, bytes: u64, size: u64) -> bool;

    /// Adds a wholly free segment allocated for sub-blocks of `size`. Room was made.
    /// `segment` is the segment's number in the heap: small, and reused after the segment was
    /// removed.
    fn add_segment(&mut self, segment: u32, base: u64, bytes: u64, size: u64);

    /// Removes a wholly free segment.
    fn remove_segment(&mut self, segment: u32);

    /// Allocates a sub-block of `size`, as the policy rounds requests, and tells how the free
    /// sub-blocks of the segment change. Returns `None` if no segment has room.
    fn allocate(&mut self, size: u64) -> Result<Option<(SubBlock, FreeDelta)>, CapacityError>;

    /// Returns the address of the next sub-block from [`allocate`](Self::allocate), provided that no table is full.
    fn peek(&self, size: u64) -> Option<u64>;

    /// Frees a sub-block allocated with `size`, and tells how the free sub-blocks of the
    /// segment change.
    fn free(&mut self, sub_block: SubBlock, size: u64) -> FreeDelta;

    /// Calls `visit` with the address and the bytes of every free sub-block of the segment, in
    /// address order. Free and live sub-blocks tile the segment.
    fn visit_free(&self, segment: u32, visit: &mut dyn FnMut(u64, u64));

    /// Checks every invariant, for tests. Visits every entry.
    fn check(&self) -> Result<(), &'static str>;
}

/// A sub-allocator of a kind known at compile time.
pub(crate) trait Kind<S: Storage>: SubAllocator<S> + Sized {
    /// Returns the sub-allocator of a heap, if of this kind.
    fn of(any: &mut Option<AnySubAllocator<S>>) -> Option<&mut Self>;
}
