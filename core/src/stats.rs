//! Statistics: the counters of `torch.cuda.memory_stats()`, with the same names and the same moments of change.
//!
//! Each heap counts for itself, in plain loads and stores under its own lock; sums are made when somebody asks. Peaks of
//! a sum are the difficulty: they are kept exact without a shared counter on the fast path by **leases**. Each heap
//! has, for every statistic, a lease, and the leases of all heaps add up to no more than the peak that is on record: as long
//! as every heap stays within its own, the sum stays below the peak. Only a heap that holds more than it has leased looks
//! at the others: it brings the peak up to date and leases more (`Totals::settle`).
//!
//! So peaks are exact for calls that follow one another, on whatever threads. While one call settles, others that overlap it
//! do not wait: what they add is missing from the peaks until the next one of their heap, or any that looks at all heaps. What
//! moves from one heap to another while a third settles may be seen in both.

#![allow(clippy::needless_range_loop, reason = "several tables are walked by the same statistic")]

use crate::rounding::PoolKind;
use crate::sync::{
    AtomicI64, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
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

const _: () = assert!(Stat::Allocation as usize == 0 && Stat::AllocatedBytes as usize == 1, "`Tally::allocated_lease`");

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

/// One heap's counters. Written only under the heap's lock, except `ceiling`; read by anyone.
///
/// Of an active block only what makes it differ from an allocated one is counted apart, that it is pending: the rows of
/// [`Stat::Active`] and [`Stat::ActiveBytes`] hold pending blocks, and [`Tally::current`] adds the allocated ones.
#[derive(Debug)]
pub(crate) struct Tally {
    /// How much was ever added.
    added: [AtomicU64; STATS],
    /// How much was ever taken away.
    removed: [AtomicU64; STATS],
    /// As far as `added − removed` may rise before the peaks must be settled: the heap's lease, of which the leases of all heaps
    /// add up to no more than the peak. Of the first two rows, if that is less, what the lease on active blocks leaves to allocated
    /// ones. Changed only when peaks are settled.
    ceiling: [AtomicI64; STATS],
    /// The leases of the first two rows, [`Stat::Allocation`] and [`Stat::AllocatedBytes`].
    allocated_lease: [AtomicI64; 2],
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            added: core::array::from_fn(|_| AtomicU64::new(0)),
            removed: core::array::from_fn(|_| AtomicU64::new(0)),
            ceiling: core::array::from_fn(|_| AtomicI64::new(0)),
            allocated_lease: core::array::from_fn(|_| AtomicI64::new(0)),
        }
    }
}

/// The row whose blocks count as `stat` too.
const fn included(stat: usize) -> Option<usize> {
    const ACTIVE: usize = Stat::Active as usize;
    const ACTIVE_BYTES: usize = Stat::ActiveBytes as usize;
    match stat {
        ACTIVE => Some(Stat::Allocation as usize),
        ACTIVE_BYTES => Some(Stat::AllocatedBytes as usize),
        _ => None,
    }
}

/// The row in which the pending blocks among those that `row` counts too are counted.
const fn active_of(row: usize) -> Option<usize> {
    const ALLOCATION: usize = Stat::Allocation as usize;
    const ALLOCATED_BYTES: usize = Stat::AllocatedBytes as usize;
    match row {
        ALLOCATION => Some(Stat::Active as usize),
        ALLOCATED_BYTES => Some(Stat::ActiveBytes as usize),
        _ => None,
    }
}

impl Tally {
    /// Adds `amount`. True if the peaks must be settled.
    #[inline]
    #[must_use]
    pub(crate) fn up(&self, stat: Stat, amount: u64) -> bool {
        self.up_to(stat, amount) < 0
    }

    /// Adds `amount`. How much more may be added; below 0 the peaks must be settled.
    #[inline]
    #[must_use]
    pub(crate) fn up_to(&self, stat: Stat, amount: u64) -> i64 {
        let row = stat as usize;
        let added = self.added[row].load(Relaxed) + amount;
        // Whoever sees what was added sees what had been taken away before: sums may lack something, but count nothing twice.
        self.added[row].store(added, Release);
        self.removed[row].load(Relaxed) as i64 + self.ceiling[row].load(Relaxed) - added as i64
    }

    /// Takes `amount` away.
    #[inline]
    pub(crate) fn down(&self, stat: Stat, amount: u64) {
        let removed = &self.removed[stat as usize];
        removed.store(removed.load(Relaxed) + amount, Relaxed);
    }

    /// `amount` was not taken away after all.
    pub(crate) fn undo_down(&self, stat: Stat, amount: u64) {
        let removed = &self.removed[stat as usize];
        removed.store(removed.load(Relaxed) - amount, Relaxed);
    }

    /// What is counted here, `amount` of it, is counted by `other` from now on, as if it always had been. True if the peaks must
    /// be settled.
    #[cfg(feature = "alloc")]
    pub(crate) fn hand_over(&self, other: &Self, stat: Stat, amount: u64) -> bool {
        let added = &self.added[stat as usize];
        added.store(added.load(Relaxed) - amount, Relaxed);
        other.up(stat, amount)
    }

    /// A block of `bytes` that was allocated is pending now. It stays active, so what is allocated may rise less: unless it is
    /// pending no longer at once, [`follow_pending`](Self::follow_pending) comes next.
    pub(crate) fn pend(&self, bytes: u64) {
        for (row, amount) in [(Stat::Active, 1), (Stat::ActiveBytes, bytes)] {
            let added = &self.added[row as usize];
            added.store(added.load(Relaxed) + amount, Release);
        }
    }

    /// The ceilings follow what has become pending. The lock of the one who settles is held: ceilings are set under it alone, for
    /// whoever sets them without may overwrite what others make of the leases meanwhile.
    pub(crate) fn follow_pending(&self) {
        self.set_ceiling(Stat::Allocation as usize);
        self.set_ceiling(Stat::AllocatedBytes as usize);
    }

    /// The lease of a row. Where nothing lowers the ceiling it is the ceiling.
    fn lease(&self, row: usize) -> &AtomicI64 {
        self.allocated_lease.get(row).unwrap_or(&self.ceiling[row])
    }

    /// The ceiling of one of the first two rows follows from its lease, and from that on active blocks.
    fn set_ceiling(&self, row: usize) {
        let Some(active) = active_of(row) else { return };
        let pending = self.added[active].load(Acquire) as i64 - self.removed[active].load(Relaxed) as i64;
        let left = self.lease(active).load(Relaxed) - pending;
        self.ceiling[row].store(self.lease(row).load(Relaxed).min(left), Relaxed);
    }

    /// A block of `bytes` is pending no longer.
    pub(crate) fn unpend(&self, bytes: u64) {
        self.down(Stat::Active, 1);
        self.down(Stat::ActiveBytes, bytes);
    }

    /// How much of `stat` this heap has ever counted.
    pub(crate) fn ever_added(&self, stat: Stat) -> u64 {
        self.added[stat as usize].load(Relaxed)
    }

    /// How much there is of `stat` in this heap.
    pub(crate) fn current(&self, stat: Stat) -> i64 {
        self.current_of(stat as usize)
    }

    fn current_of(&self, stat: usize) -> i64 {
        // All that was added before anything that was removed, pending blocks first: what moves between the rows meanwhile may be
        // missing, but never counts twice.
        let rows = [Some(stat), included(stat)];
        let added: i64 = rows.iter().flatten().map(|&row| self.added[row].load(Acquire) as i64).sum();
        let removed: i64 = rows.iter().flatten().map(|&row| self.removed[row].load(Relaxed) as i64).sum();
        added - removed
    }

    /// How much of `stat` was ever added.
    fn added_of(&self, stat: usize) -> i64 {
        self.added[included(stat).unwrap_or(stat)].load(Relaxed) as i64
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

/// One device's peaks and event counts, and what the resets subtract.
#[derive(Debug)]
pub(crate) struct Totals {
    /// The highest sums on record, by [`ALL`], small, large.
    peak: [[AtomicI64; STATS]; 3],
    /// The sums of all leases, likewise; no higher than the peak while every heap is settled.
    leased: [[AtomicI64; STATS]; 3],
    /// What had ever been added when the accumulated statistics were last reset.
    allocated_before: [[AtomicU64; STATS]; 3],
    /// What had ever been taken away then.
    freed_before: [[AtomicU64; STATS]; 3],
    events: [AtomicU64; EVENTS],
    /// `max_split_size` when the allocator was made, as PyTorch reports it: −1 for none.
    max_split_size: i64,
}

impl Totals {
    pub(crate) fn new(max_split_size: Option<u64>) -> Self {
        let zeros = || core::array::from_fn(|_| core::array::from_fn(|_| AtomicU64::new(0)));
        let sums = || core::array::from_fn(|_| core::array::from_fn(|_| AtomicI64::new(0)));
        Self {
            peak: sums(),
            leased: sums(),
            allocated_before: zeros(),
            freed_before: zeros(),
            events: core::array::from_fn(|_| AtomicU64::new(0)),
            max_split_size: max_split_size.map_or(-1, |bytes| bytes as i64),
        }
    }

    /// Counts one event.
    pub(crate) fn count(&self, event: Event) {
        self.events[event as usize].fetch_add(1, Relaxed);
    }

    /// Leases the heap that asks as much as it holds: from what nobody has leased, else from half of what room the heaps `near`
    /// have, else from everyone's, after the peaks were brought up to date. One caller at a time (the owner's lock).
    pub(crate) fn settle<'a, I, N>(&self, heaps: &I, asking: Party<'a>, near: &N)
    where
        I: Iterator<Item = Party<'a>> + Clone,
        N: Iterator<Item = Party<'a>> + Clone,
    {
        // What was pending when the ceilings were set may not be any longer.
        asking.1.follow_pending();
        let is_other = |other: &Party<'_>| !core::ptr::eq(other.1, asking.1);
        for stat in 0..STATS {
            let lacking = asking.1.current_of(stat) - asking.1.lease(stat).load(Relaxed);
            if lacking <= 0 {
                continue;
            }
            let short = || lacking - self.unleased(stat, asking.0);
            for other in near.clone().filter(is_other).take_while(|_| short() > 0) {
                let left = room_of(other.1, stat);
                self.lease(other, stat, (left - short().min(left)) / 2);
            }
            if short() > 0 {
                self.recall(stat, asking, heaps.clone().filter(is_other));
            }
            self.lease(asking, stat, (-short()).max(0));
        }
    }

    /// How much of a statistic a heap of `kind` may lease without anyone giving anything up.
    fn unleased(&self, stat: usize, kind: PoolKind) -> i64 {
        let below = |of: usize| self.peak[of][stat].load(Relaxed) - self.leased[of][stat].load(Relaxed);
        below(ALL).min(below(column(kind)))
    }

    /// Brings the peaks of one statistic up to date, and takes the other heaps all of their room: heaps that rise in turn get it
    /// back from each other without anyone looking at the rest.
    fn recall<'a>(&self, stat: usize, asking: Party<'a>, others: impl Iterator<Item = Party<'a>>) {
        let wanted = asking.1.current_of(stat);
        let (mut all, mut alike) = (wanted, wanted);
        for other in others {
            let held = other.1.current_of(stat);
            all += held;
            alike += if other.0 == asking.0 { held } else { 0 };
            self.lease(other, stat, 0);
        }
        self.peak[ALL][stat].fetch_max(all, Relaxed);
        self.peak[column(asking.0)][stat].fetch_max(alike, Relaxed);
    }

    /// Leases a heap what it holds and `room` beyond.
    fn lease(&self, (kind, tally): Party<'_>, stat: usize, room: i64) {
        let lease = tally.current_of(stat) + room;
        let more = lease - tally.lease(stat).load(Relaxed);
        if more != 0 {
            for of in [ALL, column(kind)] {
                self.leased[of][stat].fetch_add(more, Relaxed);
            }
            tally.lease(stat).store(lease, Relaxed);
            tally.set_ceiling(included(stat).unwrap_or(stat));
        }
    }

    /// Every peak becomes what there is now. The owner's lock is held.
    pub(crate) fn reset_peaks<'a>(&self, heaps: impl Iterator<Item = (PoolKind, &'a Tally)> + Clone) {
        for party in heaps.clone() {
            for stat in 0..STATS {
                self.lease(party, stat, 0);
            }
        }
        let now = self.sums(heaps);
        for column in 0..3 {
            for stat in 0..STATS {
                self.peak[column][stat].store(now[column][stat].current, Relaxed);
            }
        }
    }

    /// Everything ever added or taken away counts as 0 from here on, as do the events. The owner's lock is held.
    pub(crate) fn reset_accumulated<'a>(&self, heaps: impl Iterator<Item = (PoolKind, &'a Tally)>) {
        let now = self.sums(heaps);
        for column in 0..3 {
            for stat in 0..STATS {
                let counter = now[column][stat];
                self.allocated_before[column][stat].fetch_add(counter.allocated as u64, Relaxed);
                self.freed_before[column][stat].fetch_add(counter.freed as u64, Relaxed);
            }
        }
        for event in &self.events {
            event.store(0, Relaxed);
        }
    }

    /// Everything as it stands.
    pub(crate) fn stats<'a>(&self, heaps: impl Iterator<Item = (PoolKind, &'a Tally)>) -> Stats {
        Stats {
            counters: self.sums(heaps),
            events: core::array::from_fn(|event| self.events[event].load(Relaxed)),
            max_split_size: self.max_split_size,
        }
    }

    fn sums<'a>(&self, heaps: impl Iterator<Item = (PoolKind, &'a Tally)>) -> [[Counter; STATS]; 3] {
        let mut sums = [[Counter::default(); STATS]; 3];
        for (kind, tally) in heaps {
            for column in [ALL, column(kind)] {
                for (stat, sum) in sums[column].iter_mut().enumerate() {
                    sum.current += tally.current_of(stat);
                    sum.allocated += tally.added_of(stat);
                }
            }
        }
        for column in 0..3 {
            for stat in 0..STATS {
                let sum = &mut sums[column][stat];
                sum.peak = self.peak[column][stat].load(Relaxed).max(sum.current);
                sum.freed = sum.allocated - sum.current - self.freed_before[column][stat].load(Relaxed) as i64;
                sum.allocated -= self.allocated_before[column][stat].load(Relaxed) as i64;
            }
        }
        sums
    }
}

/// A heap as the peaks see it.
pub(crate) type Party<'a> = (PoolKind, &'a Tally);

/// How much more of a statistic a heap has leased than it holds.
fn room_of(tally: &Tally, stat: usize) -> i64 {
    (tally.lease(stat).load(Relaxed) - tally.current_of(stat)).max(0)
}

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
