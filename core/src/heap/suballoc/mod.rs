//! Policies that cut segments into pieces of their own making: buddy, size class, slab.
//!
//! ```text
//! heap      blocks the program holds, by address; streams, statistics, states      the same for every policy
//! suballocator    which parts of its segments are free, and which of them comes next     one file each
//! ```
//!
//! The boundary tags of the caching heap say where free space is by listing every block; a suballocator says it by bits and lists
//! that need no entry for what is free. It knows addresses, sizes and its segments' numbers, no streams and no statistics.

use crate::tables::{CapacityError, Storage};
#[cfg(feature = "alloc")]
use alloc::boxed::Box;

pub(crate) mod buddy;
mod geometric_classes;
mod pieces;
#[cfg(feature = "alloc")]
pub(crate) mod planned;
mod segment_table;
pub(crate) mod size_class;
pub(crate) mod slab;

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests_model;
#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests_size_class;
#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests_slab;

/// A piece that was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SubBlock {
    /// Its first byte.
    pub addr: u64,
    /// The segment it lies in.
    pub segment: u32,
    /// What the suballocator knows it by, where that is more than the address.
    pub number: u32,
}

/// How many pieces of a segment were free, and are now. While none is taken they may count as what they were cut from, or not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Free {
    /// No piece of the segment is taken but the one that this is about.
    pub alone: bool,
    pub before: u32,
    pub now: u32,
}

/// Cuts the segments of one heap into pieces, and knows which are free. Deterministic: the same calls take the same pieces.
pub(crate) trait SubAllocator<S: Storage>: Send {
    /// The bytes to obtain from the device for a piece of `size`, as its policy rounds requests: at least `size`.
    fn segment_bytes(&self, size: u64) -> u64;

    /// Makes sure that a further segment of `bytes` for pieces of `size`, and the first piece taken from it, cannot run out of entries.
    /// False if they could; then nothing has changed.
    fn make_room(&mut self, bytes: u64, size: u64) -> bool;

    /// Adds a segment, wholly free, that was obtained for pieces of `size`; room was made. `segment` is its number among the heap's:
    /// small, and given again once it was removed.
    fn add_segment(&mut self, segment: u32, base: u64, bytes: u64, size: u64);

    /// Forgets a segment, which is wholly free.
    fn remove_segment(&mut self, segment: u32);

    /// Takes a piece of `size`, as its policy rounds requests, and says what that changes in its segment. `None` if no segment has one.
    fn take(&mut self, size: u64) -> Result<Option<(SubBlock, Free)>, CapacityError>;

    /// The address of the piece that [`take`](Self::take) would take now, as long as no table is full.
    fn peek(&self, size: u64) -> Option<u64>;

    /// Gives back a piece that was taken with `size`, and says what that changes in its segment.
    fn give(&mut self, piece: SubBlock, size: u64) -> Free;

    /// Calls `visit` with the address and length of every free piece of the segment, in address order. Those and the taken ones
    /// tile the segment.
    fn visit_free(&self, segment: u32, visit: &mut dyn FnMut(u64, u64));

    /// Checks every invariant, for tests: it visits everything.
    fn check(&self) -> Result<(), &'static str>;
}

/// The suballocator of a heap, in a place of its own: most heaps have none. Its kind is known before that place is looked at.
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
    /// Without the host's heap there are no sub-allocators: their tables would lie in every heap.
    #[cfg(not(feature = "alloc"))]
    None(core::convert::Infallible, core::marker::PhantomData<fn(S)>),
}

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

/// A suballocator whose kind is known.
pub(crate) trait Kind<S: Storage>: SubAllocator<S> + Sized {
    /// The suballocator of a heap, if it is of this kind.
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

/// Evaluates an expression with `$SubAllocator<S>` as the kind that a suballocator is of: what is often called is compiled for each kind, and
/// each has the registers for itself.
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
    /// Whether the segment is a lane's of the planned policy.
    pub(crate) fn is_planned(&self) -> bool {
        #[cfg(feature = "alloc")]
        return matches!(self, Self::Planned(_));
        #[cfg(not(feature = "alloc"))]
        on_any!(self, suballocator => suballocator)
    }
}

/// What is called seldom needs no dispatch of its own.
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
