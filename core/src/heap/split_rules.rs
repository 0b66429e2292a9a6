//! The placement rules of one heap: which free block may serve a request, and whether to split the
//! block.

use crate::config::rounding::{PoolKind, SMALL_MAX};
use crate::config::{Config, Policy};
use crate::heap::block::Backing;
use crate::pool::PoolOptions;
use crate::units::{GRAIN, UNIT};

/// The settings of the configuration and of the pool that placement depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Whether the heap serves small or large requests.
    pub kind: PoolKind,
    /// Bytes from which a block is oversize: never split, and reserved for oversize requests.
    pub max_split: u64,
    /// Bytes by which an oversize block may exceed the oversize request that the block serves;
    /// exclusive.
    max_non_split_rounding: u64,
    /// The smallest rest worth splitting off, in bytes.
    min_rest: u64,
    /// A rest smaller than both the request and this number of bytes is not split off. 0: the
    /// request's size does not matter.
    ample_rest: u64,
    /// Requests of at least this number of bytes receive whole blocks.
    whole_from: u64,
    /// What new segments are made of. In virtual memory, every rest is split off.
    pub backing: Backing,
    /// Whether the pool never splits blocks.
    pub no_split: bool,
    /// Whether free blocks carry their age, for garbage collection.
    pub ages: bool,
}

impl Rules {
    /// Returns the rules of the caching policy with default settings, for a heap without a stream.
    pub(crate) fn unset(kind: PoolKind) -> Self {
        Self::new(&Config::default(), kind, false, Backing::Ordinary)
    }

    /// Derives the rules of a heap from the configuration, for a pool with the default options.
    pub(crate) fn new(config: &Config, kind: PoolKind, ages: bool, backing: Backing) -> Self {
        let max_split = config.max_split_size().unwrap_or(u64::MAX);
        let mut ample_rest = 0;
        let (min_rest, whole_from) = if let Policy::Bfc(bfc) = config.policy() {
            ample_rest = bfc.max_internal_fragmentation;
            (GRAIN, u64::MAX)
        } else if backing != Backing::Ordinary || kind == PoolKind::Small {
            (UNIT, u64::MAX)
        } else {
            (SMALL_MAX + 1, max_split)
        };
        let max_non_split_rounding = config.max_non_split_rounding();
        let no_split = false;
        Self { kind, max_split, max_non_split_rounding, min_rest, ample_rest, whole_from, backing, no_split, ages }
    }

    /// Returns the rules with the options of a pool applied to the rules of [`new`](Self::new).
    pub(crate) fn in_pool(self, options: PoolOptions) -> Self {
        if !options.no_split {
            return self;
        }
        // No rest is large enough, and every request is large enough for a whole block.
        Self { no_split: true, min_rest: u64::MAX, whole_from: 0, ..self }
    }

    /// Whether a free block of `block` bytes must not serve a request of `size` bytes, although
    /// large enough. True if only the block is oversize, or if both are and too much would be
    /// wasted.
    #[inline]
    pub(crate) fn refuse(&self, block: u64, size: u64) -> bool {
        block >= self.max_split && (size < self.max_split || block >= size + self.max_non_split_rounding)
    }

    /// Whether the `remaining` bytes behind the first `size` bytes of a free block become a block.
    #[inline]
    pub(crate) fn should_split(&self, remaining: u64, size: u64) -> bool {
        remaining >= self.min_rest.max(size.min(self.ample_rest)) && size < self.whole_from
    }

    /// Whether a block of `size` bytes counts as oversize.
    #[inline]
    pub(crate) fn is_oversize(&self, size: u64) -> bool {
        size >= self.max_split
    }
}
