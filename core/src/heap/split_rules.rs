//! The placement rules of a heap: which free block may serve a request, and whether the block is
//! split.

use crate::config::rounding::{LARGE_SEGMENT, PoolKind, SMALL_MAX};
use crate::config::{Config, Policy};
use crate::heap::block::BlockEntry;
use crate::pool::PoolOptions;
use crate::units::{GRAIN, UNIT};

/// Where the new memory of a heap comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    /// Segments that the device allocates.
    Device,
    /// Segments that the host supplies for the heap's pool.
    Host,
    /// Pages of virtual memory, under the heap's [`PageRules`].
    Pages,
}

/// How a heap on pages grows, and whether its free pages may leave it. The policy of the device
/// decides this for all heaps on pages, and it never changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PageRules {
    /// The pages have one length and do not move, as in `PyTorch`'s expandable segments. The heap
    /// grows in its lowest gaps, and a request prefers the free block that can grow.
    Stay,
    /// The pages have any length and move, as in the stitched policy. The heap grows where it last
    /// grew, around its addresses, and free pages of any heap can be used.
    Move,
}

/// The purpose of a pool's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(crate) enum PoolMemory {
    /// Only for blocks of the pool.
    Plain,
    /// The host supplies the segments.
    Supplied,
    /// The memory can be parked under the pool's tag, or lies on the host.
    Paged,
}

impl PoolMemory {
    /// The number of values.
    pub(crate) const COUNT: usize = 3;
    /// All values, in the order of their numbers.
    pub(crate) const ALL: [Self; Self::COUNT] = [Self::Plain, Self::Supplied, Self::Paged];
}

impl PageRules {
    /// Returns the rules under a policy.
    pub(crate) fn of(policy: Policy) -> Self {
        if policy.traits().moves_pages { Self::Move } else { Self::Stay }
    }
}

impl Source {
    /// Returns whether the heap maps pages, instead of allocating whole segments.
    #[inline]
    pub(crate) fn maps_pages(self) -> bool {
        self == Self::Pages
    }
}

/// The settings of the configuration and of the pool that matter for placement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Whether the heap serves small or large requests.
    pub kind: PoolKind,
    /// A block of at least this many bytes is oversize: it is never split, and is reserved for
    /// oversize requests.
    pub max_split: u64,
    /// An oversize block may be larger than the oversize request that it serves by less than this
    /// many bytes.
    max_non_split_rounding: u64,
    /// The size in bytes of the smallest block that any rule refuses to a smaller request. At most
    /// `max_split`; lower iff `compact`.
    pub refuse_from: u64,
    /// The smallest rest that is worth splitting off, in bytes. It has 32 bits so that a heap and
    /// its counters fit in 512 bytes.
    min_rest: u32,
    /// A rest that is smaller than both the request and `ample_rest` bytes is not split off. 0
    /// means that the size of the request does not matter.
    ample_rest: u64,
    /// A request of at least this many bytes gets a whole block. 0 means that the pool never splits
    /// blocks.
    whole_from: u64,
    /// Where new memory comes from. Segments that the heap already has may be of another kind.
    pub source: Source,
    /// The rules of the heap's pages, even if new memory is not on pages.
    pub pages: PageRules,
    /// Whether free blocks are stamped with their age, for garbage collection.
    pub ages: bool,
    /// Whether and how the setting `compact` is active for the heap.
    pub compact: Compacting,
}

/// How the setting `compact` is active for a heap. It is one byte, so that a heap and its counters
/// fit in 512 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Compacting {
    /// Not active.
    No,
    /// Active. Blocks share segments.
    Shared,
    /// Active. Each large block has a separate segment of exactly its size (`exact_segments`).
    Exact,
    /// Active with a budget of at least a quarter. Each large block gets a whole segment.
    Whole,
}

impl Compacting {
    /// Returns whether each large block has a separate segment.
    pub(crate) fn parts_segments(self) -> bool {
        matches!(self, Self::Exact | Self::Whole)
    }
}

impl Rules {
    /// Returns the rules of the caching policy with default settings, for a heap that has no
    /// stream.
    pub(crate) const fn unset(kind: PoolKind) -> Self {
        let min_rest = match kind {
            PoolKind::Small => UNIT,
            PoolKind::Large => SMALL_MAX + 1,
        };
        Self {
            kind,
            max_split: u64::MAX,
            max_non_split_rounding: LARGE_SEGMENT,
            refuse_from: u64::MAX,
            min_rest: min_rest as u32,
            ample_rest: 0,
            whole_from: u64::MAX,
            source: Source::Device,
            pages: PageRules::Stay,
            ages: false,
            compact: Compacting::No,
        }
    }

    /// Derives the rules of a heap from the configuration, for a pool with default options.
    /// `config` has `expandable_segments` only if the device has virtual memory.
    pub(crate) fn new(config: &Config, kind: PoolKind, ages: bool, source: Source) -> Self {
        // Free neighbours in an expandable segment are merged into one block. If this block were
        // oversize, it could serve none of the requests that it was freed by, and the segment would
        // grow with each of them (pytorch issue 123548).
        let splits = config.parity() || !source.maps_pages();
        let max_split = config.max_split_size().filter(|_| splits).unwrap_or(u64::MAX);
        // PyTorch splits off every rest wherever the setting is active, even in a pool without
        // expandable segments.
        let expandable = config.expandable_segments() && source == Source::Host;
        let mut ample_rest = 0;
        let (min_rest, whole_from) = if let Policy::Bfc(bfc) = config.policy() {
            ample_rest = bfc.max_internal_fragmentation;
            (GRAIN, u64::MAX)
        } else if source.maps_pages() || expandable || kind == PoolKind::Small {
            (UNIT, u64::MAX)
        } else {
            (SMALL_MAX + 1, max_split)
        };
        let max_non_split_rounding = config.max_non_split_rounding();
        let is_compact = config.compact().is_some()
            && config.policy().traits().follows_pytorch
            && kind == PoolKind::Large
            && !source.maps_pages();
        let compact = match (config.compact().filter(|_| is_compact), config.exact_segments()) {
            (None, _) => Compacting::No,
            (Some(_), false) => Compacting::Shared,
            (Some(budget), true) if budget < 0.25 => Compacting::Exact,
            (Some(_), true) => Compacting::Whole,
        };
        let refuse_from = match compact {
            Compacting::No => max_split,
            // A segment for several blocks may be cut for any of them.
            Compacting::Shared => max_split.min(config.large_segment_size() + 1),
            Compacting::Exact | Compacting::Whole => max_split.min(SMALL_MAX + 1),
        };
        Self {
            kind,
            max_split,
            max_non_split_rounding,
            refuse_from,
            min_rest: min_rest as u32,
            ample_rest,
            whole_from,
            source,
            pages: PageRules::of(config.policy()),
            ages,
            compact,
        }
    }

    /// Applies the options of a pool to the rules returned by [`new`](Self::new).
    pub(crate) fn in_pool(self, options: PoolOptions) -> Self {
        if !options.no_split {
            return self;
        }
        // Every request is large enough to get a whole block.
        Self { whole_from: 0, ..self }
    }

    /// Returns whether the rules are those of a [plain](crate::heap::Heap::plain) heap: every free
    /// block may serve every request that fits, no block is oversize, and whether a rest is split
    /// off does not depend on the size of the request. Blocks are in whole segments, and do not
    /// age.
    pub(crate) fn are_plain(&self) -> bool {
        // An oversize block is refused to smaller requests, so this covers `max_split` as well.
        let refuses = self.refuse_from != u64::MAX;
        let splits = self.ample_rest == 0 && self.whole_from == u64::MAX;
        splits && !refuses && !self.ages && !self.source.maps_pages()
    }

    /// Returns whether the pool never splits blocks.
    #[inline]
    pub(crate) fn no_split(&self) -> bool {
        self.whole_from == 0
    }

    /// Returns whether the free block must not serve a request of `size` bytes, although it is
    /// large enough.
    #[inline]
    pub(crate) fn refuse(&self, block: &BlockEntry, size: u64) -> bool {
        self.refuse_oversize(block.size, size) || self.refuse_segment(block, size)
    }

    /// Returns whether a free block of `block` bytes must not serve a request of `size` bytes. This
    /// is true if only the block is oversize, or if both are and too much would be wasted.
    #[inline]
    pub(crate) fn refuse_oversize(&self, block: u64, size: u64) -> bool {
        block >= self.max_split && (size < self.max_split || block >= size + self.max_non_split_rounding)
    }

    /// Returns whether the free block is a whole segment, and too much of it would be wasted. The
    /// limit is a quarter of `size`. For a segment that was allocated for a single block, it is a
    /// 128th if the budget is small, or if the waste would be split off. Once cut, the segment
    /// could neither serve a large request nor be released. A segment that is already cut serves
    /// any request.
    #[inline]
    fn refuse_segment(&self, block: &BlockEntry, size: u64) -> bool {
        let rest = block.size - size;
        let lost = match self.compact {
            Compacting::No => return false,
            Compacting::Whole if self.should_split(rest, size) => size / 128,
            Compacting::Shared | Compacting::Whole => size / 4,
            Compacting::Exact => size / 128,
        };
        block.size >= self.refuse_from && !block.is_split() && rest > lost
    }

    /// Returns whether the `remaining` bytes after the first `size` bytes of a free block become a
    /// separate block.
    #[inline]
    pub(crate) fn should_split(&self, remaining: u64, size: u64) -> bool {
        remaining >= u64::from(self.min_rest).max(size.min(self.ample_rest)) && size < self.whole_from
    }

    /// Does what [`should_split`](Self::should_split) does, for [plain](Self::are_plain) rules.
    #[inline]
    pub(crate) fn should_split_plainly(&self, remaining: u64) -> bool {
        remaining >= u64::from(self.min_rest)
    }

    /// Returns whether a block of `size` bytes counts as oversize.
    #[inline]
    pub(crate) fn is_oversize(&self, size: u64) -> bool {
        size >= self.max_split
    }
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests {
    use super::*;
    use crate::tables::slot_table::{NONE, Vacant};
    use crate::units::MIB;

    fn rules(config: &str, kind: PoolKind, source: Source) -> Rules {
        Rules::new(&Config::parse(config).unwrap(), kind, false, source)
    }

    fn large(config: &str) -> Rules {
        rules(config, PoolKind::Large, Source::Device)
    }

    /// Returns a free block that is a whole segment, or part of one.
    fn block(size: u64, is_part: bool) -> BlockEntry {
        BlockEntry { size, next: if is_part { 1 } else { NONE }, ..BlockEntry::vacant(NONE) }
    }

    #[test]
    fn any_rule_beyond_a_smallest_rest_makes_rules_that_are_not_plain() {
        let plain = large("");
        assert!(plain.are_plain() && rules("", PoolKind::Small, Source::Host).are_plain());
        let special = [
            Rules { ages: true, ..plain },
            Rules { source: Source::Pages, ..plain },
            Rules { ample_rest: 512, ..plain },
            Rules { whole_from: 1 << 40, ..plain },
            Rules { refuse_from: 1 << 40, ..plain },
            plain.in_pool(PoolOptions { no_split: true, ..PoolOptions::default() }),
            large("max_split_size_mb:64"),
            rules("max_split_size_mb:64", PoolKind::Small, Source::Device),
            large("compact:0.1"),
            large("policy:bfc"),
        ];
        for rules in special {
            assert!(!rules.are_plain(), "{rules:?}");
        }
    }

    #[test]
    fn compact_is_in_force_for_large_blocks_of_whole_segments() {
        let of = |config: &str| (large(config).compact, large(config).refuse_from);
        assert_eq!(of(""), (Compacting::No, u64::MAX));
        assert_eq!(of("max_split_size_mb:64"), (Compacting::No, 64 * MIB));
        assert_eq!(of("compact:0.1"), (Compacting::Shared, LARGE_SEGMENT + 1));
        assert_eq!(of("compact:0.9"), (Compacting::Shared, LARGE_SEGMENT + 1));
        assert_eq!(of("compact:0.9,large_segment_size_mb:32").1, 32 * MIB + 1);
        let exact = |budget| of(&std::format!("compact:{budget},exact_segments:True")).0;
        assert_eq!(["0.0", "0.1", "0.24"].map(exact), [Compacting::Exact; 3]);
        assert_eq!(["0.25", "0.5"].map(exact), [Compacting::Whole; 2]);
        assert!(of("compact:0.1,exact_segments:True").1 <= SMALL_MAX + 1);
        for (kind, source) in [(PoolKind::Small, Source::Device), (PoolKind::Large, Source::Pages)] {
            assert_eq!(rules("compact:0.1", kind, source).compact, Compacting::No, "{kind:?}, {source:?}");
        }
        // A budget that is kept under a policy that does not use it.
        let mut config = Config::parse("policy:bfc").unwrap();
        config.set_compact(Some(0.1)).unwrap();
        assert_eq!(Rules::new(&config, PoolKind::Large, false, Source::Device).compact, Compacting::No);
    }

    #[test]
    fn an_oversize_block_serves_an_oversize_request_with_less_to_lose_than_the_rounding() {
        let rules = large("max_split_size_mb:32,max_non_split_rounding_mb:24");
        let refuses = |block: u64, size: u64| rules.refuse_oversize(block, size);
        assert!(!refuses(32 * MIB - 512, 2 * MIB), "not oversize");
        assert!(refuses(32 * MIB, 32 * MIB - 512), "kept for oversize requests");
        assert!(!refuses(32 * MIB, 32 * MIB));
        assert!(!refuses(56 * MIB - 512, 32 * MIB));
        assert!(refuses(56 * MIB, 32 * MIB));
    }

    #[test]
    fn compact_refuses_whole_segments_with_too_much_to_lose() {
        let shared = large("compact:0.1");
        assert!(!shared.refuse(&block(20 * MIB, false), 2 * MIB), "a segment for several blocks");
        assert!(!shared.refuse(&block(30 * MIB, true), 2 * MIB), "cut already");
        assert!(shared.refuse(&block(20 * MIB + 512, false), 2 * MIB));
        assert!(!shared.refuse(&block(30 * MIB, false), 24 * MIB));
        assert!(shared.refuse(&block(30 * MIB + 512, false), 24 * MIB));
        let exact = large("compact:0.1,exact_segments:True");
        assert!(!exact.refuse(&block(129 * MIB, false), 128 * MIB));
        assert!(exact.refuse(&block(129 * MIB + 512, false), 128 * MIB));
        assert!(exact.refuse(&block(20 * MIB, false), 2 * MIB), "each segment is of one block");
        // A rest that would be split off is judged as under a small budget, any other rest by a
        // quarter.
        let whole = large("compact:0.5,exact_segments:True");
        assert!(!whole.refuse(&block(258 * MIB, false), 256 * MIB));
        assert!(whole.refuse(&block(258 * MIB + 512, false), 256 * MIB));
        assert!(!whole.refuse(&block(5 * MIB, false), 4 * MIB));
        assert!(whole.refuse(&block(3 * MIB + 512, false), 2 * MIB));
    }

    #[test]
    fn a_rest_is_split_off_a_supplied_segment_as_where_segments_expand() {
        let splits = |config: &str, source, rest| rules(config, PoolKind::Large, source).should_split(rest, 2 * MIB);
        let expandable = "expandable_segments:True";
        assert!(splits(expandable, Source::Host, UNIT) && splits(expandable, Source::Pages, UNIT));
        for source in [Source::Host, Source::Device] {
            assert!(!splits("", source, SMALL_MAX) && splits("", source, SMALL_MAX + 512));
        }
    }
}
