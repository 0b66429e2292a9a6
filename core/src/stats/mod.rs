//! Statistics: the counters of `torch.cuda.memory_stats()`. They have PyTorch's names, and change
//! when PyTorch's change.
//!
//! Each heap keeps its own counts, with plain loads and stores under its lock. Sums over heaps are
//! computed when somebody reads the statistics. The peak of a sum is harder, because a heap does
//! not know the sum. **Leases** keep peaks exact without a shared counter on the fast path. A lease
//! is a quota: each heap has one for every statistic, and the leases of all heaps add up to at most
//! the recorded peak. While every heap stays within its lease, the sum cannot exceed the peak. A
//! heap that exceeds its lease reads the counters of the other heaps, raises the peak if the sum is
//! higher, and takes a larger lease (`DevicePeaks::reconcile`).
//!
//! A heap is *clean* if each of its leases equals its current value, and *dirty* otherwise. Only
//! dirty heaps have to be read to compute the current sum.
//!
//! So peaks are exact for calls that follow one another, on any threads. Calls that overlap do not
//! wait for the thread that reconciles the peaks: what they add is missing from the peaks until
//! their heap reconciles next, or until another thread reads all heaps. A block that moves between
//! two heaps during the sum may be counted in both.

#![allow(clippy::needless_range_loop, reason = "several tables are walked by the same statistic")]

mod counters;
mod memory_calls;
mod peaks;
mod planned;
mod reclaim;

pub(crate) use counters::HeapCounters;
pub use memory_calls::{CallCount, MemoryCalls};
pub(crate) use memory_calls::{MemoryCall, MemoryCallCounters};
pub(crate) use peaks::{DevicePeaks, KindCounters};
pub use planned::{PlannedReport, Stage};
pub use reclaim::ReclaimStats;

use crate::config::rounding::PoolKind;
use core::fmt::Write;

/// The statistics of a heap. The first nine are reported for all blocks, for small and for large
/// ones; the last two only for all blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(crate) enum Stat {
    /// Blocks in use by the program.
    Allocation,
    /// Bytes of the blocks in use by the program.
    AllocatedBytes,
    /// Blocks in use, or freed and pending: waiting for events or for the frontier.
    Active,
    /// Bytes of the active blocks.
    ActiveBytes,
    /// Free blocks that have a neighbour in their segment.
    InactiveSplit,
    /// Bytes of the free blocks that have a neighbour in their segment.
    InactiveSplitBytes,
    /// Bytes requested for the active blocks.
    RequestedBytes,
    /// Segments allocated from the device.
    Segment,
    /// Bytes allocated from the device.
    ReservedBytes,
    /// Blocks of at least `max_split_size`.
    OversizeAllocations,
    /// Segments of at least `max_split_size`.
    OversizeSegments,
}

/// The number of statistics in [`Stat`].
const STATS: usize = 11;

const _: () =
    assert!(Stat::Allocation as usize == 0 && Stat::AllocatedBytes as usize == 1, "`HeapCounters::allocated_lease`");

/// The names in the order of [`Stat`], as `torch.cuda.memory_stats()` spells them (2.0–2.15).
const NAMES: [&str; STATS] = [
    "allocation",
    "allocated_bytes",
    "active",
    "active_bytes",
    "inactive_split",
    "inactive_split_bytes",
    "requested_bytes",
    "segment",
    "reserved_bytes",
    "oversize_allocations",
    "oversize_segments",
];

/// The column with the sums over all blocks, in tables with three columns: all, small pools, large
/// pools.
const ALL: usize = 0;
/// The names of the columns in PyTorch's keys.
const BLOCKS: [&str; 3] = ["all", "small_pool", "large_pool"];

/// Returns the column of a kind of pools.
fn column(kind: PoolKind) -> usize {
    match kind {
        PoolKind::Small => 1,
        PoolKind::Large => 2,
    }
}

/// The events that are counted for a device as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(crate) enum Occurrence {
    /// A request released the whole cache before its last attempt.
    AllocRetry,
    /// A request failed because neither the cache nor the device had the memory.
    OutOfMemory,
    /// A thread waited for all streams of the device.
    SyncAllStreams,
    /// A call allocated memory from the device.
    DeviceAlloc,
    /// A call released memory to the device.
    DeviceFree,
    /// A request failed because of the memory limit, with `throw_on_cudamalloc_oom`.
    OomRejection,
}

/// The number of counts in [`Occurrence`].
const EVENTS: usize = 6;

/// The names in the order of [`Occurrence`], as `torch.cuda.memory_stats()` spells them.
const EVENT_NAMES: [&str; EVENTS] = [
    "num_alloc_retries",
    "num_ooms",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
    "num_oom_rejections",
];

/// The values of one statistic.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counter {
    /// The current value.
    pub current: i64,
    /// The highest value since the allocator was created, or since the peaks were reset.
    pub peak: i64,
    /// The total increase since the allocator was created, or since the accumulated statistics were
    /// reset.
    pub allocated: i64,
    /// The total decrease since the allocator was created, or since the accumulated statistics were
    /// reset.
    pub freed: i64,
}

/// The statistics of a device at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stats {
    /// Indexed by column ([`ALL`], small, large) and [`Stat`].
    counters: [[Counter; STATS]; 3],
    /// Indexed by [`Occurrence`].
    events: [u64; EVENTS],
    /// The setting `max_split_size` in bytes; −1 if there is no limit.
    max_split_size: i64,
}

impl Stats {
    /// Bytes of the blocks that the program uses.
    pub fn allocated_bytes(&self) -> Counter {
        self.counters[ALL][Stat::AllocatedBytes as usize]
    }

    /// Bytes of the blocks that the program uses, or that it freed and that wait for other streams.
    pub fn active_bytes(&self) -> Counter {
        self.counters[ALL][Stat::ActiveBytes as usize]
    }

    /// Bytes requested for the blocks that the program uses, or that wait for other streams.
    pub fn requested_bytes(&self) -> Counter {
        self.counters[ALL][Stat::RequestedBytes as usize]
    }

    /// Bytes allocated from the device.
    pub fn reserved_bytes(&self) -> Counter {
        self.counters[ALL][Stat::ReservedBytes as usize]
    }

    /// Blocks that the program uses.
    pub fn allocations(&self) -> Counter {
        self.counters[ALL][Stat::Allocation as usize]
    }

    /// Segments allocated from the device.
    pub fn segments(&self) -> Counter {
        self.counters[ALL][Stat::Segment as usize]
    }

    /// Calls to allocate memory from the device: segments, and mappings in expandable segments.
    pub fn device_allocs(&self) -> u64 {
        self.events[Occurrence::DeviceAlloc as usize]
    }

    /// Calls to release memory to the device.
    pub fn device_frees(&self) -> u64 {
        self.events[Occurrence::DeviceFree as usize]
    }

    /// Requests that failed because there was not enough memory.
    pub fn ooms(&self) -> u64 {
        self.events[Occurrence::OutOfMemory as usize]
    }

    /// Requests that released the whole cache before their last attempt, whether or not this
    /// attempt succeeded.
    pub fn alloc_retries(&self) -> u64 {
        self.events[Occurrence::AllocRetry as usize]
    }

    /// Calls `visit` with every key of `torch.cuda.memory_stats()`, flattened
    /// (`active.all.current`), and its value.
    pub fn for_each(&self, mut visit: impl FnMut(&str, i64)) {
        let mut key = heapless::String::<64>::new();
        let mut report = |parts: [&str; 3], value: i64| {
            key.clear();
            let [name, blocks, field] = parts;
            let dot = if blocks.is_empty() { "" } else { "." };
            write!(key, "{name}{dot}{blocks}.{field}").expect("64 bytes hold every key");
            visit(&key, value);
        };
        for (stat, name) in NAMES.into_iter().enumerate() {
            let has_columns = stat < Stat::OversizeAllocations as usize;
            for (column, blocks) in BLOCKS.into_iter().enumerate().take(if has_columns { 3 } else { 1 }) {
                let counter = self.counters[column][stat];
                let fields = [counter.current, counter.peak, counter.allocated, counter.freed];
                for (field, value) in ["current", "peak", "allocated", "freed"].into_iter().zip(fields) {
                    report([name, if has_columns { blocks } else { "" }, field], value);
                }
            }
        }
        for (name, value) in EVENT_NAMES.into_iter().zip(self.events) {
            visit(name, value as i64);
        }
        visit("max_split_size", self.max_split_size);
    }

    /// Returns the value of a key of [`for_each`](Self::for_each), or `None` for an unknown key.
    pub fn get(&self, key: &str) -> Option<i64> {
        let mut found = None;
        self.for_each(|name, value| {
            if name == key {
                found = Some(value);
            }
        });
        found
    }
}
