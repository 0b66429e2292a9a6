//! The differences between the policies: rounding of requests, choice of heap, size of segments,
//! and the sub-allocator that divides segments.

use crate::config::rounding::{
    EXACT_STEP, OWN_SEGMENT_MIN, PoolKind, SEGMENT_STEP, SMALL_MAX, SMALL_SEGMENT, round_up,
};
use crate::config::{Bfc, Config, Policy, Suballocation};
use crate::heap::split_rules::{PoolMemory, Source};
use crate::heap::suballocator::AnySubAllocator;
use crate::tables::Storage;
use crate::units::{GRAIN, MAX_REQUEST, UNIT};

impl Policy {
    /// Returns the unit of sizes in bytes: a power of two that divides every block size.
    pub(crate) fn unit(self) -> u64 {
        match self {
            Self::Bfc(_) => GRAIN,
            Self::Suballocated(own) => own.rules.unit,
            Self::Caching | Self::Stitched(_) | Self::Direct => UNIT,
        }
    }

    /// Returns the row of a policy of the host.
    pub(super) fn rules(self) -> Option<&'static Suballocation> {
        if let Self::Suballocated(own) = self { Some(own.rules) } else { None }
    }

    /// Returns the largest block size of small heaps in bytes, or 0 if the policy has no small
    /// heaps.
    pub(crate) fn small_max(self) -> u64 {
        match self {
            Self::Caching | Self::Stitched(_) | Self::Direct => SMALL_MAX,
            Self::Suballocated(own) => own.rules.largest.map_or(0, |largest| largest(&own.options)),
            Self::Bfc(_) => 0,
        }
    }

    /// Returns whether a sub-allocator divides the segments of heaps of `kind`.
    pub(crate) fn suballocates(self, kind: PoolKind) -> bool {
        self.traits().suballocated == Some(kind)
    }

    /// Returns where new memory comes from for heaps of `kind`, in pools with this kind of
    /// `memory`. `virtual_memory` is true if the device has any.
    pub(crate) fn source(self, kind: PoolKind, config: &Config, virtual_memory: bool, memory: PoolMemory) -> Source {
        match (self, memory) {
            (_, PoolMemory::Supplied) => Source::Host,
            _ if !virtual_memory => Source::Device,
            // Of the other pools, only those on pages can be parked, if the policy knows how to
            // place blocks on pages.
            (Self::Stitched(_), _) | (Self::Caching, PoolMemory::Paged) => Source::Pages,
            _ if config.expandable_segments() && !self.suballocates(kind) => Source::Pages,
            _ => Source::Device,
        }
    }

    /// Returns whether pools with this kind of `memory` place blocks on pages, on a device with
    /// virtual memory. Only pages can be parked.
    pub(crate) fn uses_pages(self, config: &Config, memory: PoolMemory) -> bool {
        let kinds: &[PoolKind] =
            if self.small_max() > 0 { &[PoolKind::Small, PoolKind::Large] } else { &[PoolKind::Large] };
        let mut sources = kinds.iter().map(|&kind| self.source(kind, config, true, memory));
        // Direct mode allocates each block separately, whatever the source.
        self.traits().caches && sources.any(Source::maps_pages)
    }

    /// Makes the sub-allocator of a new heap of `kind`. Returns `None` if the heap divides segments
    /// itself, by its split rules, and in a build without the feature `alloc`.
    pub(crate) fn suballocator<S: Storage>(self, kind: PoolKind) -> Option<AnySubAllocator<S>> {
        if self.suballocates(kind) { AnySubAllocator::of(self) } else { None }
    }

    /// Returns the size in bytes of the segment to allocate for a block of `size`, in a heap
    /// without a sub-allocator and without growing regions.
    pub(crate) fn segment_bytes(self, size: u64, config: &Config) -> u64 {
        match self {
            // The sub-allocator serves the small sizes. A size above its largest goes to the large
            // heap, and shares its segments with large blocks.
            Self::Suballocated(_) => segment_size(size.max(SMALL_MAX + UNIT), config),
            _ => segment_size(size, config),
        }
    }

    /// Returns the size in bytes of a heap's first region, or 0 if regions do not grow.
    pub(crate) fn first_region(self) -> u64 {
        let Self::Bfc(Bfc { first_region, .. }) = self else { return 0 };
        first_region.clamp(GRAIN, MAX_REQUEST).next_multiple_of(GRAIN)
    }

    /// Returns whether wholly free segments are released when a request cannot be served otherwise.
    pub(crate) fn releases_cache(self) -> bool {
        !matches!(self, Self::Bfc(Bfc { region_garbage_collection: false, .. }))
    }

    /// Returns the microseconds that a request may spend in mapping, or `u64::MAX` without a bound.
    pub(crate) fn max_stall_us(self) -> u64 {
        if let Self::Stitched(options) = self { options.max_stall_us.into() } else { u64::MAX }
    }

    /// Returns the size in bytes of the largest segment that the policy can manage.
    pub(crate) fn max_segment_bytes(self) -> u64 {
        if let Self::Suballocated(own) = self { own.rules.largest_segment } else { MAX_REQUEST }
    }

    /// Returns the next segment size to try after the device refused `bytes`, for a request that
    /// needs `needed` bytes. Returns `None` if the policy has only one size, or if no smaller size
    /// is enough.
    ///
    /// Best fit with coalescing tries nine tenths (`kBackpedalFactor`, TensorFlow 2.16) and finally
    /// `needed`, a size that TensorFlow omits. Policies with a sub-allocator try half, if any.
    pub(crate) fn smaller_segment(self, bytes: u64, needed: u64) -> Option<u64> {
        let (smaller, least) = match self {
            // Rounding up could return `bytes` again, so the result is capped at one grain below
            // `bytes`.
            Self::Bfc(_) => ((bytes / 10 * 9).next_multiple_of(GRAIN).min(bytes.saturating_sub(GRAIN)), needed),
            Self::Suballocated(own) => {
                let step = own.rules.halves_by?;
                ((bytes / 2).next_multiple_of(step), needed.next_multiple_of(step))
            }
            Self::Caching | Self::Stitched(_) | Self::Direct => return None,
        };
        (bytes > least).then_some(smaller.max(least))
    }
}

/// Returns the size in bytes of the segment to allocate from the device for a block of `size`
/// bytes, as rounded by [`round_size`](crate::config::rounding::round_size), if no cached block can
/// serve the request. It is at least `size`.
#[inline]
#[must_use]
pub const fn segment_size(size: u64, config: &Config) -> u64 {
    if size <= SMALL_MAX {
        SMALL_SEGMENT
    } else if config.exact_segments() {
        round_up(size, EXACT_STEP)
    } else if size < OWN_SEGMENT_MIN {
        config.large_segment_size()
    } else {
        round_up(size, SEGMENT_STEP)
    }
}
