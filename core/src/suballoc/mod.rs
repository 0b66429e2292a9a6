//! The contract of a sub-allocator: it cuts the segments of a heap into sub-blocks.
//!
//! ```text
//! heap            live blocks by address, streams, counters, states           shared by all policies
//! sub-allocator   which parts of its segments are free, and which comes next  one for each policy
//! ```
//!
//! The heaps of `PyTorch`'s policy list every block, free or not, by boundary tags. A sub-allocator
//! knows addresses, sizes and segment numbers, but no streams and no counters, and records free
//! memory as it likes. A policy with a sub-allocator is a
//! [`Suballocation`], which a host passes to
//! [`Config::parse_with`](crate::Config::parse_with). `core/examples/own_policy.rs` is one in a
//! hundred lines, and the crate `cachalot-policies` has three that are fast.
//! [`records`](crate::records) has the core's own tables, for the records of a sub-allocator.

mod row;

pub use row::{OptionReference, Options, Suballocated, Suballocation};

#[cfg(feature = "alloc")]
use alloc::boxed::Box;

/// A table has no entry left. The operation that needed the entry has changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CapacityError;

/// An allocated sub-block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SubBlock {
    /// Address of the first byte.
    pub addr: u64,
    /// The segment of the sub-block.
    pub segment: u32,
    /// The sub-allocator's number for the sub-block, which comes back with the free;
    /// [`NONE`](crate::records::NONE) where the address suffices.
    pub number: u32,
}

/// The number of free sub-blocks of a segment, before and after an operation. Both numbers are
/// arbitrary while the segment has no live sub-block: the free memory then counts as a single whole
/// segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreeDelta {
    /// Whether the operation's sub-block is the only live sub-block of the segment.
    pub alone: bool,
    /// Free sub-blocks before the operation.
    pub before: u32,
    /// Free sub-blocks after the operation.
    pub now: u32,
}

/// Cuts the segments of one heap into sub-blocks.
///
/// The heap is locked during each call, so a call sees no other thread. It must neither block nor
/// panic, and never calls the allocator or the device.
///
/// * *Deterministic*: equal calls allocate equal sub-blocks, whatever the addresses of the host.
/// * *Sizes* are rounded before every call, as the policy's
///   [`Suballocation`] says. The size of a free is that of its
///   allocation.
/// * *Order of calls*: [`allocate`](Self::allocate) finds nothing, then
///   [`make_room`](Self::make_room) succeeds, then the heap obtains a segment from the device and
///   passes it to [`add_segment`](Self::add_segment), and then [`allocate`](Self::allocate) must
///   find room for the same size.
/// * *Tiling*: the live sub-blocks and those of [`visit_free`](Self::visit_free) cover each segment
///   exactly, without an overlap. A segment without a live sub-block is a single free one.
/// * *No half-done call*: a call that fails has changed nothing that another call could see.
pub trait SubAllocator: Send {
    /// Returns the bytes of the segment to allocate for a sub-block of `size`. At least `size`.
    fn segment_bytes(&self, size: u64) -> u64;

    /// Makes room in the sub-allocator's own records for a segment of `bytes`, for sub-blocks of
    /// `size`, and for the first sub-block of the new segment. Returns false if the host has no
    /// memory for them.
    fn make_room(&mut self, bytes: u64, size: u64) -> bool;

    /// Adds a wholly free segment that was obtained for sub-blocks of `size`. Room was made.
    ///
    /// `segment` is its number in the heap: small, and reused after the segment was removed.
    /// `bytes` may be more than [`segment_bytes`](Self::segment_bytes), and less where the policy's
    /// segments shrink.
    fn add_segment(&mut self, segment: u32, base: u64, bytes: u64, size: u64);

    /// Removes a wholly free segment, which goes back to the device.
    fn remove_segment(&mut self, segment: u32);

    /// Allocates a sub-block of `size`, and reports how the free sub-blocks of its segment change.
    /// `None` if no segment has room.
    ///
    /// # Errors
    /// [`CapacityError`] if the host has no memory for the records.
    fn allocate(&mut self, size: u64) -> Result<Option<(SubBlock, FreeDelta)>, CapacityError>;

    /// Returns the address of the next sub-block from [`allocate`](Self::allocate), if that does
    /// not fail.
    fn peek(&self, size: u64) -> Option<u64>;

    /// Frees a sub-block that was allocated with `size`, and reports how the free sub-blocks of its
    /// segment change.
    fn free(&mut self, sub_block: SubBlock, size: u64) -> FreeDelta;

    /// Calls `visit` with the address and the bytes of every free sub-block of the segment, in the
    /// order of addresses.
    fn visit_free(&self, segment: u32, visit: &mut dyn FnMut(u64, u64));

    /// Returns a copy: [`would_fit`](crate::Forecasts::would_fit) tries requests on it.
    #[cfg(feature = "alloc")]
    fn copy(&self) -> Box<dyn SubAllocator>;

    /// Checks every invariant, for tests and the feature `paranoid`. It may visit every entry.
    ///
    /// # Errors
    /// The invariant that does not hold.
    fn check(&self) -> Result<(), &'static str> {
        Ok(())
    }
}

/// Code that uses a sub-allocator of any type, compiled once for each.
pub trait User {
    /// What the code returns.
    type Output;

    /// Uses the sub-allocator.
    fn with<A: SubAllocator>(self, own: &mut A) -> Self::Output;
}

/// The sub-allocators of an allocator: of every policy that it may have. Part of the tables,
/// [`Growable`](crate::Growable).
///
/// `Box<dyn SubAllocator>` calls any. A type that lists some by value spares a pair of `malloc` and
/// `free` the calls: the compiler then sees through them.
#[cfg(feature = "alloc")]
pub trait SubAllocators: SubAllocator + Clone + 'static {
    /// Makes the sub-allocator of a new heap.
    fn of(own: Suballocated) -> Self;

    /// Returns the number by which [`round`](Self::round) knows the rule of a policy that has its
    /// own for sizes. `None`, the default: the function of the policy's row is called.
    fn rounding(rules: &'static Suballocation) -> Option<u32> {
        let _ = rules;
        None
    }

    /// Rounds `bytes` up to a size by the rule with a number. `None` if the size is rounded to the
    /// unit: it is above `largest`, if the policy has a largest size.
    #[inline(always)]
    fn round(rounding: u32, bytes: u64, largest: impl FnOnce() -> u64) -> Option<u64> {
        let _ = (rounding, bytes, largest);
        None
    }

    /// Calls `user` with the sub-allocator itself, if it is listed by value. `None`, the default,
    /// if it is not: the caller then calls the methods of this one.
    #[inline(always)]
    fn lend<U: User>(&mut self, user: U) -> Option<U::Output> {
        let _ = user;
        None
    }
}

#[cfg(feature = "alloc")]
impl SubAllocators for Box<dyn SubAllocator> {
    fn of(own: Suballocated) -> Self {
        (own.rules.make)(&own.options)
    }
}

#[cfg(feature = "alloc")]
impl Clone for Box<dyn SubAllocator> {
    fn clone(&self) -> Self {
        self.copy()
    }
}

#[cfg(feature = "alloc")]
impl SubAllocator for Box<dyn SubAllocator> {
    fn segment_bytes(&self, size: u64) -> u64 {
        (**self).segment_bytes(size)
    }

    fn make_room(&mut self, bytes: u64, size: u64) -> bool {
        (**self).make_room(bytes, size)
    }

    fn add_segment(&mut self, segment: u32, base: u64, bytes: u64, size: u64) {
        (**self).add_segment(segment, base, bytes, size);
    }

    fn remove_segment(&mut self, segment: u32) {
        (**self).remove_segment(segment);
    }

    #[inline(always)]
    fn allocate(&mut self, size: u64) -> Result<Option<(SubBlock, FreeDelta)>, CapacityError> {
        (**self).allocate(size)
    }

    fn peek(&self, size: u64) -> Option<u64> {
        (**self).peek(size)
    }

    #[inline(always)]
    fn free(&mut self, sub_block: SubBlock, size: u64) -> FreeDelta {
        (**self).free(sub_block, size)
    }

    fn visit_free(&self, segment: u32, visit: &mut dyn FnMut(u64, u64)) {
        (**self).visit_free(segment, visit);
    }

    fn copy(&self) -> Box<dyn SubAllocator> {
        (**self).copy()
    }

    fn check(&self) -> Result<(), &'static str> {
        (**self).check()
    }
}
