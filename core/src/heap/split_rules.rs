//! The rules of placement, as one heap applies them: which free block may serve a request, and whether to split it.

use crate::config::rounding::{PoolKind, SMALL_MAX};
use crate::config::{Config, Policy};
use crate::units::{GRAIN, UNIT};

/// What a heap needs of the configuration and of its pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    pub kind: PoolKind,
    /// Blocks of this many bytes or more are oversize: never split, and kept for oversize requests.
    pub max_split: u64,
    /// How much larger than an oversize request the block may be that serves it, in bytes; exclusive.
    max_non_split_rounding: u64,
    /// The least that is worth splitting off, in bytes.
    min_rest: u64,
    /// At least as much as the request, or as this, is worth splitting off, in bytes; 0 if the request does not matter.
    ample_rest: u64,
    /// Requests of this many bytes or more are given whole blocks.
    whole_from: u64,
    /// The setting: new segments are expandable, and every remainder is split off.
    pub expandable: bool,
    /// The pool never splits.
    pub no_split: bool,
    /// Free blocks carry their age, for garbage collection.
    pub ages: bool,
}

impl Rules {
    /// The rules of the caching policy with its defaults, for a heap that has no stream yet.
    pub(crate) fn unset(kind: PoolKind) -> Self {
        Self::new(&Config::default(), kind, false, false, false)
    }

    pub(crate) fn new(config: &Config, kind: PoolKind, no_split: bool, ages: bool, expandable: bool) -> Self {
        let max_split = config.max_split_size().unwrap_or(u64::MAX);
        let mut ample_rest = 0;
        let (min_rest, whole_from) = if no_split {
            (u64::MAX, 0)
        } else if let Policy::Bfc(bfc) = config.policy() {
            ample_rest = bfc.max_internal_fragmentation;
            (GRAIN, u64::MAX)
        } else if expandable || kind == PoolKind::Small {
            (UNIT, u64::MAX)
        } else {
            (SMALL_MAX + 1, max_split)
        };
        let max_non_split_rounding = config.max_non_split_rounding();
        Self { kind, max_split, max_non_split_rounding, min_rest, ample_rest, whole_from, expandable, no_split, ages }
    }

    /// Whether a free block of `block` bytes is large enough for `size` but must not serve it: it is oversize and the
    /// request is not, or both are and too much would be wasted.
    #[inline]
    pub(crate) fn refuse(&self, block: u64, size: u64) -> bool {
        block >= self.max_split && (size < self.max_split || block >= size + self.max_non_split_rounding)
    }

    /// Whether the `remaining` bytes behind the first `size` of a free block become a block of their own.
    #[inline]
    pub(crate) fn should_split(&self, remaining: u64, size: u64) -> bool {
        remaining >= self.min_rest.max(size.min(self.ample_rest)) && size < self.whole_from
    }

    /// Whether a block of this size counts as oversize.
    #[inline]
    pub(crate) fn is_oversize(&self, size: u64) -> bool {
        size >= self.max_split
    }
}
