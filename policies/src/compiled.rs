//! The sub-allocators of this crate's policies, by value.

use crate::buddy::{self, Buddies};
use crate::size_class::{self, SizeClasses};
use crate::slab::{self, Slabs};
use alloc::boxed::Box;
use cachalot_core::Growable;
use cachalot_core::config::{Suballocated, Suballocation};
use cachalot_core::suballoc::{CapacityError, FreeDelta, SubAllocator, SubAllocators, SubBlock, User};

/// The tables of an allocator that compiles this crate's policies into the paths of `malloc` and
/// `free`. If the compiler cannot see through the call of a sub-allocator, a pair costs 11 to 20 %
/// more instructions.
pub type Tables = Growable<Compiled>;

/// A sub-allocator of this crate by value, or any other one through `dyn`.
#[derive(Clone)]
pub struct Compiled(Kind);

/// The kinds of sub-allocators. They are boxed, because most heaps have none.
#[derive(Clone)]
enum Kind {
    Buddy(Box<Buddies<Growable>>),
    SizeClass(Box<SizeClasses<Growable>>),
    Slab(Box<Slabs<Growable>>),
    Other(Box<Box<dyn SubAllocator>>),
}

// Evaluates `$call` with the sub-allocator of any kind.
macro_rules! on_any {
    ($any:expr, $own:ident => $call:expr) => {
        match $any {
            Kind::Buddy($own) => $call,
            Kind::SizeClass($own) => $call,
            Kind::Slab($own) => $call,
            Kind::Other($own) => $call,
        }
    };
}

/// The number of the rule by which the buddy policy rounds sizes.
const BUDDY: u32 = 0;
/// The number of the rule by which the slab policy rounds sizes.
const SLAB: u32 = 1;

impl SubAllocators for Compiled {
    fn of(own: Suballocated) -> Self {
        let Suballocated { rules, options } = own;
        Self(if *rules == buddy::POLICY {
            Kind::Buddy(Box::new(Buddies::new(options[0])))
        } else if *rules == size_class::POLICY {
            Kind::SizeClass(Box::new(SizeClasses::new(options[0])))
        } else if *rules == slab::POLICY {
            Kind::Slab(Box::default())
        } else {
            Kind::Other(Box::new((rules.make)(&options)))
        })
    }

    fn rounding(rules: &'static Suballocation) -> Option<u32> {
        match () {
            () if *rules == buddy::POLICY => Some(BUDDY),
            () if *rules == slab::POLICY => Some(SLAB),
            () => None,
        }
    }

    #[inline(always)]
    fn round(rounding: u32, bytes: u64, largest: impl FnOnce() -> u64) -> Option<u64> {
        match rounding {
            BUDDY => Some(buddy::round(bytes)),
            _ => (bytes <= largest()).then(|| slab::round(bytes)),
        }
    }

    #[inline(always)]
    fn lend<U: User>(&mut self, user: U) -> Option<U::Output> {
        match &mut self.0 {
            Kind::Buddy(own) => Some(user.with(&mut **own)),
            Kind::SizeClass(own) => Some(user.with(&mut **own)),
            Kind::Slab(own) => Some(user.with(&mut **own)),
            Kind::Other(_) => None,
        }
    }
}

impl SubAllocator for Compiled {
    fn segment_bytes(&self, size: u64) -> u64 {
        on_any!(&self.0, own => own.segment_bytes(size))
    }

    fn make_room(&mut self, bytes: u64, size: u64) -> bool {
        on_any!(&mut self.0, own => own.make_room(bytes, size))
    }

    fn add_segment(&mut self, segment: u32, base: u64, bytes: u64, size: u64) {
        on_any!(&mut self.0, own => own.add_segment(segment, base, bytes, size));
    }

    fn remove_segment(&mut self, segment: u32) {
        on_any!(&mut self.0, own => own.remove_segment(segment));
    }

    #[inline(always)]
    fn allocate(&mut self, size: u64) -> Result<Option<(SubBlock, FreeDelta)>, CapacityError> {
        on_any!(&mut self.0, own => own.allocate(size))
    }

    fn peek(&self, size: u64) -> Option<u64> {
        on_any!(&self.0, own => own.peek(size))
    }

    #[inline(always)]
    fn free(&mut self, sub_block: SubBlock, size: u64) -> FreeDelta {
        on_any!(&mut self.0, own => own.free(sub_block, size))
    }

    fn visit_free(&self, segment: u32, visit: &mut dyn FnMut(u64, u64)) {
        on_any!(&self.0, own => own.visit_free(segment, visit));
    }

    fn copy(&self) -> Box<dyn SubAllocator> {
        on_any!(&self.0, own => own.copy())
    }

    fn check(&self) -> Result<(), &'static str> {
        on_any!(&self.0, own => own.check())
    }
}
