//! What each policy does in its own way: what requests are rounded to, which kind of heap serves them, how much is obtained for
//! them, and what cuts it.

use crate::config::rounding::{OWN_SEGMENT_MIN, PoolKind, SEGMENT_STEP, SMALL_MAX, SMALL_SEGMENT, round_up};
use crate::config::{Config, Policy};
use crate::heap::suballoc::{AnySubAllocator, buddy, size_class, slab};
use crate::tables::Storage;
use crate::units::{GRAIN, MAX_REQUEST, UNIT};
#[cfg(feature = "alloc")]
use alloc::boxed::Box;

impl Policy {
    /// What every size is a multiple of, in bytes: a power of two.
    pub(crate) fn unit(self) -> u64 {
        match self {
            Self::Bfc(_) => GRAIN,
            Self::SizeClass(_) => size_class::CLASS_STEP,
            Self::Caching | Self::Buddy(_) | Self::Slab(_) | Self::Direct => UNIT,
        }
    }

    /// Whether it rounds requests otherwise than to its [`unit`](Self::unit).
    pub(crate) fn rounds_otherwise(self) -> bool {
        matches!(self, Self::Buddy(_) | Self::Slab(_))
    }

    /// What a request of `bytes`, positive, is rounded to; `small_max` is [the policy's own](Self::small_max).
    #[inline(always)]
    pub(crate) fn round(self, bytes: u64, small_max: u64) -> u64 {
        match self {
            Self::Buddy(_) => buddy::round(bytes),
            Self::Slab(_) if bytes <= small_max => slab::round(bytes),
            _ => bytes.next_multiple_of(self.unit()),
        }
    }

    /// The largest size that the small heaps serve, in bytes; 0 if there are none.
    pub(crate) fn small_max(self) -> u64 {
        match self {
            Self::Caching | Self::Direct => SMALL_MAX,
            Self::Slab(options) => slab::largest(options.largest_object),
            Self::Bfc(_) | Self::Buddy(_) | Self::SizeClass(_) => 0,
        }
    }

    /// Whether a suballocator cuts the segments of heaps of this kind.
    pub(crate) fn suballocates(self, kind: PoolKind) -> bool {
        match self {
            Self::Buddy(_) | Self::SizeClass(_) => kind == PoolKind::Large,
            Self::Slab(_) => kind == PoolKind::Small,
            Self::Caching | Self::Bfc(_) | Self::Direct => false,
        }
    }

    /// Whether this build has it: those that carve need the `alloc` feature.
    pub(crate) fn is_available(self) -> bool {
        cfg!(feature = "alloc") || !(self.suballocates(PoolKind::Small) || self.suballocates(PoolKind::Large))
    }

    /// What cuts the segments of a new heap, unless that is its rules; never anything in a build that has no such policy.
    pub(crate) fn suballocator<S: Storage>(self, kind: PoolKind) -> Option<AnySubAllocator<S>> {
        match self {
            _ if !self.suballocates(kind) => None,
            #[cfg(feature = "alloc")]
            Self::Buddy(options) => Some(AnySubAllocator::Buddy(Box::new(buddy::Buddies::new(options)))),
            #[cfg(feature = "alloc")]
            Self::SizeClass(options) => {
                Some(AnySubAllocator::SizeClass(Box::new(size_class::SizeClasses::new(options))))
            }
            #[cfg(feature = "alloc")]
            Self::Slab(_) => Some(AnySubAllocator::Slab(Box::default())),
            _ => None,
        }
    }

    /// The bytes to obtain for a block of `size`, by a policy that does not let them grow, in a heap that nothing suballocates.
    pub(crate) fn segment_bytes(self, size: u64, config: &Config) -> u64 {
        match self {
            // What is small elsewhere shares segments with the rest where slabs serve the smallest.
            Self::Slab(_) => segment_size(size.max(SMALL_MAX + UNIT), config),
            _ => segment_size(size, config),
        }
    }

    /// The largest segment that it can manage, in bytes.
    pub(crate) fn max_segment_bytes(self) -> u64 {
        if matches!(self, Self::Buddy(_)) { buddy::MAX_ARENA } else { MAX_REQUEST }
    }

    /// How many bytes to try after the device did not give `bytes`, of which `needed` are. `None` if the policy knows one size only, or
    /// no smaller one will do. Best fit with coalescing takes nine tenths (`kBackpedalFactor`, TensorFlow 2.16), and at last what is
    /// needed, which TensorFlow passes over; the others half.
    pub(crate) fn smaller_segment(self, bytes: u64, needed: u64) -> Option<u64> {
        let less = match self {
            Self::Bfc(_) => (bytes / 10 * 9).next_multiple_of(GRAIN).min(bytes.saturating_sub(GRAIN)),
            Self::Buddy(_) => bytes / 2,
            Self::SizeClass(_) => (bytes / 2).next_multiple_of(size_class::CHUNK_STEP),
            Self::Caching | Self::Slab(_) | Self::Direct => return None,
        };
        let least =
            if matches!(self, Self::SizeClass(_)) { needed.next_multiple_of(size_class::CHUNK_STEP) } else { needed };
        (bytes > least).then_some(less.max(least))
    }
}

/// The bytes to obtain from the device for a block of `size` bytes, as [`round_size`] returned it, that no
/// cached block can serve. At least `size`.
#[inline]
#[must_use]
pub const fn segment_size(size: u64, config: &Config) -> u64 {
    if size <= SMALL_MAX {
        SMALL_SEGMENT
    } else if size < OWN_SEGMENT_MIN {
        config.large_segment_size()
    } else {
        round_up(size, SEGMENT_STEP)
    }
}
