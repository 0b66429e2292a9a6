//! The sub-allocator of a heap, of any kind.

use super::buddy::Buddies;
use super::planned::PlanSegment;
use super::size_class::SizeClasses;
use super::slab::Slabs;
use super::{Kind, SubAllocator};
use crate::config::Policy;
use crate::tables::Storage;
use alloc::boxed::Box;

/// The sub-allocator of a heap. Boxed, because most heaps have none; the discriminant lies in the
/// heap, so the kind is known before the box is read.
#[derive(Clone)]
#[repr(u8)]
pub(crate) enum AnySubAllocator<S: Storage> {
    Buddy(Box<Buddies<S>>),
    SizeClass(Box<SizeClasses<S>>),
    Slab(Box<Slabs<S>>),
    Planned(Box<PlanSegment<S>>),
}

// Evaluates `$call` with the sub-allocator of any kind.
macro_rules! on_any {
    ($any:ident, $own:ident => $call:expr) => {
        match $any {
            Self::Buddy($own) => $call,
            Self::SizeClass($own) => $call,
            Self::Slab($own) => $call,
            Self::Planned($own) => $call,
        }
    };
}

macro_rules! kind {
    ($Any:ident, $Own:ty) => {
        impl<S: Storage> Kind<S> for $Own {
            #[inline(always)]
            fn of(any: &mut Option<AnySubAllocator<S>>) -> Option<&mut Self> {
                if let Some(AnySubAllocator::$Any(own)) = any { Some(own) } else { None }
            }
        }
    };
}

kind!(Buddy, Buddies<S>);
kind!(SizeClass, SizeClasses<S>);
kind!(Slab, Slabs<S>);
kind!(Planned, PlanSegment<S>);

/// Evaluates `$call` with `$Own<S>` as the kind of a sub-allocator. Compiles the hot path once for each kind: each copy then has
/// all registers to itself. A call with the sub-allocator itself costs a pair up to 13 instructions more.
macro_rules! for_kind {
    ($any:expr, $Own:ident => $call:expr) => {
        match $any {
            $crate::heap::suballoc::AnySubAllocator::Buddy(_) => {
                type $Own<S> = $crate::heap::suballoc::buddy::Buddies<S>;
                $call
            }
            $crate::heap::suballoc::AnySubAllocator::SizeClass(_) => {
                type $Own<S> = $crate::heap::suballoc::size_class::SizeClasses<S>;
                $call
            }
            $crate::heap::suballoc::AnySubAllocator::Slab(_) => {
                type $Own<S> = $crate::heap::suballoc::slab::Slabs<S>;
                $call
            }
            $crate::heap::suballoc::AnySubAllocator::Planned(_) => {
                type $Own<S> = $crate::heap::suballoc::planned::PlanSegment<S>;
                $call
            }
        }
    };
}
pub(crate) use for_kind;

impl<S: Storage> AnySubAllocator<S> {
    /// Makes the sub-allocator of a heap whose policy cuts segments into sub-blocks. `None` for any other policy.
    pub(crate) fn of(policy: Policy) -> Option<Self> {
        match policy {
            Policy::Buddy(options) => Some(Self::Buddy(Box::new(Buddies::new(options)))),
            Policy::SizeClass(options) => Some(Self::SizeClass(Box::new(SizeClasses::new(options)))),
            Policy::Slab(_) => Some(Self::Slab(Box::default())),
            _ => None,
        }
    }

    /// Whether the segment belongs to a lane of the planned policy.
    pub(crate) fn is_planned(&self) -> bool {
        matches!(self, Self::Planned(_))
    }
}

/// Dispatches the rare calls dynamically. The hot path uses [`for_kind`] instead.
impl<S: Storage> core::ops::Deref for AnySubAllocator<S> {
    type Target = dyn SubAllocator<S>;

    fn deref(&self) -> &Self::Target {
        on_any!(self, own => &**own)
    }
}

impl<S: Storage> core::ops::DerefMut for AnySubAllocator<S> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        on_any!(self, own => &mut **own)
    }
}
