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
#[cfg(feature = "alloc")]
use alloc::boxed::Box;

pub(crate) mod buddy;
mod geometric_classes;
#[cfg(feature = "alloc")]
pub(crate) mod planned;
mod segment_table;
pub(crate) mod size_class;
pub(crate) mod slab;
mod sub_blocks;

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

/// The sub-allocator of a heap. Boxed, because most heaps have none; the discriminant lies in the
/// heap, so the kind is known before the box is read.
#[derive(Clone)]
#[repr(u8)]
pub(crate) enum AnySubAllocator<S: Storage> {
    #[cfg(feature = "alloc")]
    Buddy(Box<buddy::Buddies<S>>),
    #[cfg(feature = "alloc")]
    SizeClass(Box<size_class::SizeClasses<S>>),
    #[cfg(feature = "alloc")]
    Slab(Box<slab::Slabs<S>>),
    #[cfg(feature = "alloc")]
    Planned(Box<crate::heap::suballoc::planned::PlanSegment<S>>),
    /// Stands for all sub-allocators in a build without `alloc`, where their tables would lie in
    /// every heap. Has no value.
    #[cfg(not(feature = "alloc"))]
    None(core::convert::Infallible, core::marker::PhantomData<fn(S)>),
}

// Evaluates `$call` with the sub-allocator of any kind.
macro_rules! on_any {
    ($any:ident, $suballocator:ident => $call:expr) => {
        match $any {
            #[cfg(feature = "alloc")]
            Self::Buddy($suballocator) => $call,
            #[cfg(feature = "alloc")]
            Self::SizeClass($suballocator) => $call,
            #[cfg(feature = "alloc")]
            Self::Slab($suballocator) => $call,
            #[cfg(feature = "alloc")]
            Self::Planned($suballocator) => $call,
            #[cfg(not(feature = "alloc"))]
            Self::None(never, _) => match *never {},
        }
    };
}

/// A sub-allocator of a kind known at compile time.
pub(crate) trait Kind<S: Storage>: SubAllocator<S> + Sized {
    /// Returns the sub-allocator of a heap, if of this kind.
    fn of(any: &mut Option<AnySubAllocator<S>>) -> Option<&mut Self>;
}

#[cfg(feature = "alloc")]
macro_rules! kind {
    ($Any:ident, $SubAllocator:ty) => {
        impl<S: Storage> Kind<S> for $SubAllocator {
            #[inline(always)]
            fn of(any: &mut Option<AnySubAllocator<S>>) -> Option<&mut Self> {
                if let Some(AnySubAllocator::$Any(suballocator)) = any { Some(suballocator) } else { None }
            }
        }
    };
}

#[cfg(feature = "alloc")]
kind!(Buddy, buddy::Buddies<S>);
#[cfg(feature = "alloc")]
kind!(SizeClass, size_class::SizeClasses<S>);
#[cfg(feature = "alloc")]
kind!(Slab, slab::Slabs<S>);
#[cfg(feature = "alloc")]
kind!(Planned, crate::heap::suballoc::planned::PlanSegment<S>);

/// Evaluates `$call` with `$SubAllocator<S>` as the kind of a sub-allocator. Compiles the hot path
/// once for each kind: each copy then has all registers to itself.
macro_rules! for_kind {
    ($any:expr, $SubAllocator:ident => $call:expr) => {
        match $any {
            #[cfg(feature = "alloc")]
            $crate::heap::suballoc::AnySubAllocator::Buddy(_) => {
                type $SubAllocator<S> = $crate::heap::suballoc::buddy::Buddies<S>;
                $call
            }
            #[cfg(feature = "alloc")]
            $crate::heap::suballoc::AnySubAllocator::SizeClass(_) => {
                type $SubAllocator<S> = $crate::heap::suballoc::size_class::SizeClasses<S>;
                $call
            }
            #[cfg(feature = "alloc")]
            $crate::heap::suballoc::AnySubAllocator::Slab(_) => {
                type $SubAllocator<S> = $crate::heap::suballoc::slab::Slabs<S>;
                $call
            }
            #[cfg(feature = "alloc")]
            $crate::heap::suballoc::AnySubAllocator::Planned(_) => {
                type $SubAllocator<S> = $crate::heap::suballoc::planned::PlanSegment<S>;
                $call
            }
            #[cfg(not(feature = "alloc"))]
            $crate::heap::suballoc::AnySubAllocator::None(never, _) => match *never {},
        }
    };
}
pub(crate) use for_kind;

#[cfg_attr(not(feature = "alloc"), allow(unused_variables, reason = "there is none to be called"))]
impl<S: Storage> AnySubAllocator<S> {
    /// Whether the segment belongs to a lane of the planned policy.
    pub(crate) fn is_planned(&self) -> bool {
        #[cfg(feature = "alloc")]
        return matches!(self, Self::Planned(_));
        #[cfg(not(feature = "alloc"))]
        on_any!(self, suballocator => suballocator)
    }
}

/// Dispatches the rare calls dynamically. The hot path uses [`for_kind`] instead.
impl<S: Storage> core::ops::Deref for AnySubAllocator<S> {
    type Target = dyn SubAllocator<S>;

    fn deref(&self) -> &Self::Target {
        on_any!(self, suballocator => &**suballocator)
    }
}

impl<S: Storage> core::ops::DerefMut for AnySubAllocator<S> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        on_any!(self, suballocator => &mut **suballocator)
    }
}
