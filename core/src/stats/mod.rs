//! Statistics: the counters of `torch.cuda.memory_stats()`, with the same names and the same moments of change.
//!
//! Each heap counts for itself, in plain loads and stores under its own lock; sums are made when somebody asks. Peaks of
//! a sum are the difficulty: they are kept exact without a shared counter on the fast path by **leases**. Each heap
//! has, for every statistic, a lease, and the leases of all heaps add up to no more than the peak that is on record: as long
//! as every heap stays within its own, the sum stays below the peak. Only a heap that holds more than it has leased looks
//! at the others: it brings the peak up to date and leases more (`DevicePeaks::settle`).
//!
//! So peaks are exact for calls that follow one another, on whatever threads. While one call settles, others that overlap it
//! do not wait: what they add is missing from the peaks until the next one of their heap, or any that looks at all heaps. What
//! moves from one heap to another while a third settles may be seen in both.

#![allow(clippy::needless_range_loop, reason = "several tables are walked by the same statistic")]

mod peaks;
mod tally;

pub(crate) use peaks::{DevicePeaks, KindCounters};
pub(crate) use tally::HeapCounters;

use crate::config::rounding::PoolKind;
use core::fmt::Write;

/// What is counted by heap. The first nine exist for all, small and large blocks, the last two only for all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(crate) enum Stat {
    /// Blocks the program holds.
    Allocation,
    /// Bytes of those.
    AllocatedBytes,
    /// Blocks held, or freed and still waited for.
    Active,
    /// Bytes of those.
    ActiveBytes,
    /// Free blocks beside others in their segment.
    InactiveSplit,
    /// Bytes of those.
    InactiveSplitBytes,
    /// Bytes the program asked for, of active blocks.
    RequestedBytes,
    /// Segments obtained from the device.
    Segment,
    /// Bytes held from the device.
    ReservedBytes,
    /// Blocks of at least `max_split_size`.
    OversizeAllocations,
    /// Segments of at least `max_split_size`.
    OversizeSegments,
}

/// How many [`Stat`]s there are.
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

/// Of which blocks a number is: all, the small pools', the large pools'.
const ALL: usize = 0;
const BLOCKS: [&str; 3] = ["all", "small_pool", "large_pool"];

fn column(kind: PoolKind) -> usize {
    match kind {
        PoolKind::Small => 1,
        PoolKind::Large => 2,
    }
}

/// Counts of events of a whole device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub(crate) enum Event {
    AllocRetry,
    OutOfMemory,
    SyncAllStreams,
    DeviceAlloc,
    DeviceFree,
    OomRejection,
}

const EVENTS: usize = 6;

const EVENT_NAMES: [&str; EVENTS] = [
    "num_alloc_retries",
    "num_ooms",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
    "num_oom_rejections",
];

/// One statistic.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counter {
    /// How much there is now.
    pub current: i64,
    /// The most there ever was, or since the peaks were reset.
    pub peak: i64,
    /// How much was added in all, or since the accumulated statistics were reset.
    pub allocated: i64,
    /// How much was taken away in all, likewise.
    pub freed: i64,
}

/// The statistics of one device, as they stood when they were asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stats {
    counters: [[Counter; STATS]; 3],
    events: [u64; EVENTS],
    max_split_size: i64,
}

impl Stats {
    /// Bytes of the blocks the program holds.
    pub fn allocated_bytes(&self) -> Counter {
        self.counters[ALL][Stat::AllocatedBytes as usize]
    }

    /// Bytes of the blocks that cannot be reused: held, or freed and still waited for.
    pub fn active_bytes(&self) -> Counter {
        self.counters[ALL][Stat::ActiveBytes as usize]
    }

    /// Bytes the program asked for, of the blocks that cannot be reused.
    pub fn requested_bytes(&self) -> Counter {
        self.counters[ALL][Stat::RequestedBytes as usize]
    }

    /// Bytes held from the device.
    pub fn reserved_bytes(&self) -> Counter {
        self.counters[ALL][Stat::ReservedBytes as usize]
    }

    /// Blocks the program holds.
    pub fn allocations(&self) -> Counter {
        self.counters[ALL][Stat::Allocation as usize]
    }

    /// Segments obtained from the device.
    pub fn segments(&self) -> Counter {
        self.counters[ALL][Stat::Segment as usize]
    }

    /// Calls that obtained memory from the device: segments, and mappings of expandable ones.
    pub fn device_allocs(&self) -> u64 {
        self.events[Event::DeviceAlloc as usize]
    }

    /// Calls that gave memory back to the device.
    pub fn device_frees(&self) -> u64 {
        self.events[Event::DeviceFree as usize]
    }

    /// Requests that failed for want of memory.
    pub fn ooms(&self) -> u64 {
        self.events[Event::OutOfMemory as usize]
    }

    /// Requests that only succeeded, or failed, after the whole cache was released.
    pub fn alloc_retries(&self) -> u64 {
        self.events[Event::AllocRetry as usize]
    }

    /// Calls `visit` with every key of `torch.cuda.memory_stats()`, flattened (`active.all.current`), and its value.
    pub fn for_each(&self, mut visit: impl FnMut(&str, i64)) {
        let mut key = heapless::String::<64>::new();
        let mut tell = |parts: [&str; 3], value: i64| {
            key.clear();
            let [name, blocks, field] = parts;
            let dot = if blocks.is_empty() { "" } else { "." };
            write!(key, "{name}{dot}{blocks}.{field}").expect("no name is longer");
            visit(&key, value);
        };
        for (stat, name) in NAMES.into_iter().enumerate() {
            let split = stat < Stat::OversizeAllocations as usize;
            for (column, blocks) in BLOCKS.into_iter().enumerate().take(if split { 3 } else { 1 }) {
                let counter = self.counters[column][stat];
                let fields = [counter.current, counter.peak, counter.allocated, counter.freed];
                for (field, value) in ["current", "peak", "allocated", "freed"].into_iter().zip(fields) {
                    tell([name, if split { blocks } else { "" }, field], value);
                }
            }
        }
        for (name, value) in EVENT_NAMES.into_iter().zip(self.events) {
            visit(name, value as i64);
        }
        visit("max_split_size", self.max_split_size);
    }

    /// The value of one key of [`for_each`](Self::for_each).
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
