//! Baseline of the benchmarks: the rules of `PyTorch`'s allocator over a `BTreeSet`, in the usual
//! implementation.
//!
//! ```text
//! stream ─hash─▶ two heaps, small and large: free blocks by (size, address)
//! pointer ─hash─▶ block ◀─prev / next─▶ neighbours
//! ```
//!
//! The implementation is meant to be fast. All blocks are in one table, and a pair allocates no
//! host memory except inside the `BTreeSet`. The hash tables use the fastest hash for integers, and
//! each operation takes a single uncontended lock. The baseline makes the decisions of the default
//! configuration, `roundup_power2_divisions` and `max_split_size_mb`, and keeps the same
//! statistics. Events, private pools, limits and expandable segments are not supported.

use crate::settings::{CAPACITY, Settings};
use crate::subject::Subject;
use cachalot::HeapLock;
use cachalot_core::rounding::{SMALL_MAX, round_size, segment_size};
use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{Config, PoolKind, Segments, UNIT};
use lock_api::Mutex;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A statistic, counted for all blocks and for the blocks of each pool.
#[derive(Clone, Copy)]
#[repr(usize)]
enum Stat {
    Allocation,
    AllocatedBytes,
    Active,
    ActiveBytes,
    InactiveSplit,
    InactiveSplitBytes,
    RequestedBytes,
    Segment,
    ReservedBytes,
    OversizeAllocations,
    OversizeSegments,
}

/// Names in the order of [`Stat`], as in `torch.cuda.memory_stats()`, and whether the statistic
/// exists per pool.
const STATS: [(&str, bool); 11] = [
    ("allocation", true),
    ("allocated_bytes", true),
    ("active", true),
    ("active_bytes", true),
    ("inactive_split", true),
    ("inactive_split_bytes", true),
    ("requested_bytes", true),
    ("segment", true),
    ("reserved_bytes", true),
    ("oversize_allocations", false),
    ("oversize_segments", false),
];

const POOLS: [&str; 3] = ["all", "small_pool", "large_pool"];

#[derive(Clone, Copy, Default)]
struct Counter {
    current: i64,
    peak: i64,
    allocated: i64,
    freed: i64,
}

#[derive(Default)]
struct Stats([[Counter; STATS.len()]; 3]);

impl Stats {
    fn up(&mut self, kind: PoolKind, stat: Stat, amount: u64) {
        for pool in [0, 1 + kind as usize] {
            let counter = &mut self.0[pool][stat as usize];
            counter.current += amount as i64;
            counter.peak = counter.peak.max(counter.current);
            counter.allocated += amount as i64;
        }
    }

    fn down(&mut self, kind: PoolKind, stat: Stat, amount: u64) {
        for pool in [0, 1 + kind as usize] {
            let counter = &mut self.0[pool][stat as usize];
            counter.current -= amount as i64;
            counter.freed += amount as i64;
        }
    }

    fn change(&mut self, kind: PoolKind, stat: Stat, amount: i64) {
        if amount >= 0 {
            self.up(kind, stat, amount.unsigned_abs());
        } else {
            self.down(kind, stat, amount.unsigned_abs());
        }
    }
}

/// The index of no block.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Block {
    addr: u64,
    size: u64,
    requested: u64,
    prev: u32,
    next: u32,
    heap: u32,
    free: bool,
}

impl Block {
    fn is_split(&self) -> bool {
        self.prev != NONE || self.next != NONE
    }
}

struct Heap {
    kind: PoolKind,
    /// The free blocks: size, address and table index.
    free: BTreeSet<(u64, u64, u32)>,
}

struct State {
    device: SimulatedDevice,
    config: Config,
    max_split: u64,
    /// The heaps: small heaps have even indices, large heaps odd indices.
    heaps: Vec<Heap>,
    /// Index of the small heap of each stream.
    by_stream: FxHashMap<u64, u32>,
    blocks: Vec<Block>,
    vacant: Vec<u32>,
    /// The live blocks, by address.
    live: FxHashMap<u64, u32>,
    stats: Stats,
}

impl State {
    fn heap(&mut self, stream: u64, kind: PoolKind) -> u32 {
        let heaps = &mut self.heaps;
        let small = *self.by_stream.entry(stream).or_insert_with(|| {
            heaps.extend([PoolKind::Small, PoolKind::Large].map(|kind| Heap { kind, free: BTreeSet::new() }));
            heaps.len() as u32 - 2
        });
        small + kind as u32
    }

    fn add_block(&mut self, block: Block) -> u32 {
        if let Some(entry) = self.vacant.pop() {
            self.blocks[entry as usize] = block;
            return entry;
        }
        self.blocks.push(block);
        self.blocks.len() as u32 - 1
    }

    /// Takes the smallest free block that fits, if the block may serve the request.
    fn take_best_fit(&mut self, heap: u32, size: u64) -> Option<u32> {
        let free = &mut self.heaps[heap as usize].free;
        let best = *free.range((size, 0, 0)..).next()?;
        // With `max_split_size_mb`, a smaller request never takes an oversize block, and an
        // oversize request takes one only with little waste.
        let refused = best.0 >= self.max_split
            && (size < self.max_split || best.0 >= size + self.config.max_non_split_rounding());
        if refused {
            return None;
        }
        free.remove(&best);
        Some(best.2)
    }

    fn obtain_segment(&mut self, heap: u32, size: u64) -> Option<u32> {
        let bytes = segment_size(size, &self.config);
        let base = self.device.obtain(bytes).ok()?;
        let kind = self.heaps[heap as usize].kind;
        self.stats.up(kind, Stat::Segment, 1);
        self.stats.up(kind, Stat::ReservedBytes, bytes);
        if bytes >= self.max_split {
            self.stats.up(kind, Stat::OversizeSegments, 1);
        }
        Some(self.add_block(Block {
            addr: base.0,
            size: bytes,
            requested: 0,
            prev: NONE,
            next: NONE,
            heap,
            free: false,
        }))
    }

    fn should_split(&self, kind: PoolKind, remaining: u64, size: u64) -> bool {
        match kind {
            PoolKind::Small => remaining >= UNIT,
            PoolKind::Large => size < self.max_split && remaining > SMALL_MAX,
        }
    }

    /// Splits `block` after the first `size` bytes; the remainder becomes free.
    fn split(&mut self, block: u32, size: u64) {
        let front = self.blocks[block as usize];
        let (addr, rest_size) = (front.addr + size, front.size - size);
        let rest = self.add_block(Block { addr, size: rest_size, requested: 0, prev: block, free: true, ..front });
        if front.next != NONE {
            self.blocks[front.next as usize].prev = rest;
        }
        let front = &mut self.blocks[block as usize];
        front.size = size;
        front.next = rest;
        self.heaps[front.heap as usize].free.insert((rest_size, addr, rest));
    }

    fn malloc(&mut self, bytes: u64, stream: u64) -> Option<u64> {
        let size = round_size(bytes, self.config.roundup_power2_divisions())?;
        let kind = PoolKind::of(size);
        let heap = self.heap(stream, kind);
        let block = match self.take_best_fit(heap, size) {
            Some(block) => block,
            None => self.obtain_segment(heap, size)?,
        };
        let Block { addr, size: whole, .. } = self.blocks[block as usize];
        // The statistics of inactive split blocks depend on the state before the split.
        let was_split = self.blocks[block as usize].is_split();
        let mut given = whole;
        if self.should_split(kind, whole - size, size) {
            self.split(block, size);
            given = size;
            if was_split {
                self.stats.down(kind, Stat::InactiveSplitBytes, size);
            } else {
                self.stats.up(kind, Stat::InactiveSplit, 1);
                self.stats.up(kind, Stat::InactiveSplitBytes, whole - size);
            }
        } else if was_split {
            self.stats.down(kind, Stat::InactiveSplit, 1);
            self.stats.down(kind, Stat::InactiveSplitBytes, whole);
        }
        let entry = &mut self.blocks[block as usize];
        entry.free = false;
        entry.requested = bytes;
        self.live.insert(addr, block);
        self.stats.up(kind, Stat::Allocation, 1);
        self.stats.up(kind, Stat::AllocatedBytes, given);
        self.stats.up(kind, Stat::Active, 1);
        self.stats.up(kind, Stat::ActiveBytes, given);
        self.stats.up(kind, Stat::RequestedBytes, bytes);
        if given >= self.max_split {
            self.stats.up(kind, Stat::OversizeAllocations, 1);
        }
        Some(addr)
    }

    /// Merges the block `right` into the preceding block `left`. `right` is in no set.
    fn absorb(&mut self, left: u32, right: u32) {
        let Block { size, next, .. } = self.blocks[right as usize];
        let entry = &mut self.blocks[left as usize];
        entry.size += size;
        entry.next = next;
        if next != NONE {
            self.blocks[next as usize].prev = left;
        }
        self.vacant.push(right);
    }

    /// Removes `neighbour` from its set if the block exists and is free. Returns the block's size,
    /// or 0.
    fn take_neighbour(&mut self, neighbour: u32) -> u64 {
        if neighbour == NONE || !self.blocks[neighbour as usize].free {
            return 0;
        }
        let Block { addr, size, heap, .. } = self.blocks[neighbour as usize];
        self.heaps[heap as usize].free.remove(&(size, addr, neighbour));
        size
    }

    fn free(&mut self, addr: u64) -> bool {
        let Some(mut block) = self.live.remove(&addr) else { return false };
        let Block { size, requested, prev, next, heap, .. } = self.blocks[block as usize];
        let kind = self.heaps[heap as usize].kind;
        self.stats.down(kind, Stat::Allocation, 1);
        self.stats.down(kind, Stat::AllocatedBytes, size);
        if size >= self.max_split {
            self.stats.down(kind, Stat::OversizeAllocations, 1);
        }
        let (mut count, mut change) = (0, 0);
        // Merge with the following block first, so that `block` keeps its index.
        let after = self.take_neighbour(next);
        if after > 0 {
            self.absorb(block, next);
            (count, change) = (count - 1, change - after as i64);
        }
        let before = self.take_neighbour(prev);
        if before > 0 {
            self.absorb(prev, block);
            block = prev;
            (count, change) = (count - 1, change - before as i64);
        }
        let entry = &mut self.blocks[block as usize];
        entry.free = true;
        let whole = *entry;
        // A block that fills its segment is free, but not split.
        if whole.is_split() {
            (count, change) = (count + 1, change + whole.size as i64);
        }
        self.heaps[heap as usize].free.insert((whole.size, whole.addr, block));
        self.stats.change(kind, Stat::InactiveSplit, count);
        self.stats.change(kind, Stat::InactiveSplitBytes, change);
        self.stats.down(kind, Stat::Active, 1);
        self.stats.down(kind, Stat::ActiveBytes, size);
        self.stats.down(kind, Stat::RequestedBytes, requested);
        true
    }
}

/// The allocator: state behind one lock. Clones share the state.
#[derive(Clone)]
pub struct BTree(Arc<Mutex<HeapLock, State>>);

impl BTree {
    /// Creates an allocator, or `None` if the settings are not supported.
    ///
    /// # Panics
    /// If the configuration is invalid.
    pub fn new(settings: &Settings) -> Option<Self> {
        let config = cachalot_policies::parse(&settings.config).expect("the configuration is valid");
        if settings.limit.is_some() || config.expandable_segments() {
            return None;
        }
        Some(Self(Arc::new(Mutex::new(State {
            device: SimulatedDevice::new(CAPACITY),
            max_split: config.max_split_size().unwrap_or(u64::MAX),
            config,
            heaps: Vec::new(),
            by_stream: FxHashMap::default(),
            blocks: Vec::new(),
            vacant: Vec::new(),
            live: FxHashMap::default(),
            stats: Stats::default(),
        }))))
    }

    /// Calls `visit` with every statistic, under the keys of `torch.cuda.memory_stats()`.
    pub fn for_each_stat(&self, mut visit: impl FnMut(&str, i64)) {
        let state = self.0.lock();
        for (stat, (name, by_pool)) in STATS.into_iter().enumerate() {
            for (pool, counters) in state.stats.0.iter().enumerate().take(if by_pool { 3 } else { 1 }) {
                let Counter { current, peak, allocated, freed } = counters[stat];
                let of = if by_pool { format!("{name}.{}", POOLS[pool]) } else { name.to_owned() };
                for (field, value) in [("current", current), ("peak", peak), ("allocated", allocated), ("freed", freed)]
                {
                    visit(&format!("{of}.{field}"), value);
                }
            }
        }
    }
}

impl Subject for BTree {
    type Handle = u64;

    #[inline(never)]
    fn malloc(&mut self, bytes: u64, stream: u64) -> Option<u64> {
        self.0.lock().malloc(bytes, stream)
    }

    #[inline(never)]
    fn free(&mut self, addr: u64) {
        assert!(self.0.lock().free(addr), "the block is live");
    }
}
