//! Freed blocks that wait for their own fences, for the end of a capture, or for a count.
//!
//! Most blocks do not wait here: at the free they give up their uses, and wait in the
//! [queues](crate::streams::event_queue) of the streams that use them. A block waits here for one
//! of three reasons:
//!
//! * Its uses have separate fences. The block waits until all of them are complete, or until the
//!   stream on which it was allocated (its *own* stream) is ordered after them.
//! * A graph is being captured, so no fence can be recorded. The block is *captured*, and waits for
//!   the end of the capture.
//! * A program that numbers its work freed the block with the number of the last work that uses it
//!   (its *count*). From time to time, the program reports up to which number all work is done: the
//!   *safe frontier* (`SetSafeFrontier`, TensorFlow 2.16). The block is free once the frontier has
//!   reached the count and the fences after its uses by other streams are complete. Until then it
//!   serves no request. This differs from TensorFlow, which gives such blocks to requests without a
//!   count when memory is short.
//!
//! A thread that works on a block takes it first, because the device is called with no lock held.
//!
//! ```text
//!                       by use                           by age
//! heap   stream 2 │ use 5 ─▶ use 9 ─▶ use 10        free 1 ─▶ free 4 ─▶ free 7
//!        stream 3 │ use 7                           the order in which the own stream is ordered
//!                   └ the only event of the stream that is polled
//! captured
//!        stream 2 │ mark 3 ─▶ mark 8                free 2 ─▶ free 3 ─▶ free 8
//!                   └ polled by the own stream         the order in which fences are recorded
//! counted         │ count 4 ─▶ count 9
//!                   └ up to the frontier
//! ```
//!
//! A block is *watched* at the first use with an event that is not known to be complete. The events
//! of a stream complete in the order in which they were recorded, so polling the event of the first
//! block that is watched on a stream is enough for all blocks that are watched there. When the
//! event is complete, the block is watched at its next use.
//!
//! The queues are not suitable for these blocks. A queue polls its oldest event, for all heaps, so
//! a heap that looks for its own blocks would first poll the earlier events of all other heaps.
//! Besides, the queues of each group of streams have a separate lock, but these blocks have one
//! order over all streams.

use crate::device::CaptureMark;
use crate::streams::fences::Fence;
use crate::streams::pending::PendingBlock;
use crate::sync::{empty, impl_empty};
use crate::tables::radix_tree::{Key, Link, RadixTree};
use crate::tables::slot_table::{NONE, SlotTable, vacant};
use crate::tables::{CapacityError, Storage};
use crate::units::{NO_STREAM, StreamId};
use core::ops::RangeInclusive;

/// A use of a block that has a fence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UseFence {
    /// The fence, which was recorded at the use on the stream that uses the block.
    pub fence: Fence,
    /// The next use of the block, or [`NONE`].
    pub next: u32,
}

/// Where the uses of a block end within a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EndOfUses {
    /// Marks the work that the block's own stream and all streams that use the block had captured
    /// at the free.
    pub mark: CaptureMark,
    /// The stream on which the block was allocated.
    pub own: StreamId,
}

/// How a capture keeps a block pending.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Captured {
    /// The stream that uses the block and captures, if known. While it captures, no fence is tried.
    pub by: Option<StreamId>,
    /// Where the uses of the block end in the graph, if all of them are captured. Work that the
    /// block's own stream captures after this may use the block again.
    pub end: Option<EndOfUses>,
}

impl Captured {
    /// Returns whether the block does not wait for the stream `capturing`.
    pub(crate) fn is_ready(&self, capturing: Option<StreamId>) -> bool {
        self.by.is_none() || self.by != capturing
    }
}

/// The condition that a block waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Until {
    /// The fences of the uses, starting with the watched use. The fences of all earlier uses are
    /// complete.
    Fence(UseFence),
    /// The end of a capture.
    Captured(Captured),
    /// The safe frontier, which must reach this count.
    Count(u64),
}

/// A block that waits here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeferredFree {
    /// The block.
    pub block: PendingBlock,
    /// The condition that it waits for.
    pub until: Until,
    /// The number of the free, or of the last failed attempt to record fences. Later ones have
    /// higher numbers.
    pub age: u64,
    /// Whether a thread works on the block. Set ⟹ no other thread takes or removes the entry.
    busy: bool,
    /// The heap in [`Waiting`], if the uses have fences. In a vacant entry, the next vacant entry.
    heap: u32,
}

impl DeferredFree {
    /// Returns the use at which the block is watched, or `None` if its uses have no fences.
    pub(crate) fn watched(&self) -> Option<UseFence> {
        if let Until::Fence(watched) = self.until { Some(watched) } else { None }
    }

    /// Returns how a capture keeps the block pending, or `None` if no capture does.
    pub(crate) fn captured(&self) -> Option<Captured> {
        if let Until::Captured(captured) = self.until { Some(captured) } else { None }
    }
}

vacant!(DeferredFree, heap, |next| {
    let (block, until) = (PendingBlock { slot: NONE, index: NONE }, Until::Captured(Captured::default()));
    Self { block, until, age: 0, busy: false, heap: next }
});

/// A subset of the blocks, in two orders.
#[derive(Clone, Copy, Debug)]
struct Orders {
    /// The root of the set of the blocks by age.
    by_age: Link,
    /// The root of a second set. Blocks with fences are sorted by the stream and number of the
    /// watched use; captured blocks by their own stream, if the end of their uses is marked, and
    /// age; counted blocks by count and age.
    by_use: Link,
}

impl_empty! { Orders { by_age: Link::EMPTY, by_use: Link::EMPTY } }

/// The blocks of one heap that have uses with fences. There is at least one.
#[derive(Clone, Copy, Debug)]
struct HeapBlocks {
    /// The slot of the heap. In a vacant entry, the next vacant entry.
    slot: u32,
    /// The age under which the heap is found in [`DeferredFrees::oldest`]: the age of its oldest
    /// block, or a lower one.
    oldest: u64,
    /// The blocks.
    blocks: Orders,
}

vacant!(HeapBlocks, slot, |next| Self { slot: next, oldest: 0, blocks: empty!() });

/// The blocks, by what they wait for.
#[derive(Clone)]
struct Waiting<S: Storage> {
    /// The blocks that wait for the fences of their uses, by heap.
    heaps: SlotTable<HeapBlocks, S>,
    /// The blocks that wait for the end of a capture.
    captured: Orders,
    /// The blocks that wait for a count.
    counted: Orders,
}

impl_empty! { [S: Storage] Waiting<S> { heaps, captured, counted } }

impl<S: Storage> Waiting<S> {
    /// Returns the orders that contain a block.
    fn of(&mut self, block: &DeferredFree) -> &mut Orders {
        match block.until {
            Until::Fence(_) => &mut self.heaps[block.heap].blocks,
            Until::Captured(_) => &mut self.captured,
            Until::Count(_) => &mut self.counted,
        }
    }
}

/// The freed blocks of a device that wait here.
#[derive(Clone)]
pub(crate) struct DeferredFrees<S: Storage> {
    blocks: SlotTable<DeferredFree, S>,
    waiting: Waiting<S>,
    /// The root of the set of the heaps by slot.
    by_slot: Link,
    /// The root of the set of the heaps by [`HeapBlocks::oldest`].
    oldest: Link,
    /// The nodes of all sets.
    nodes: RadixTree<S>,
    /// The number of ages given so far.
    ages: u64,
    /// All work of the program up to this count is done. Never decreases.
    pub reached: u64,
    /// The number of busy blocks.
    busy: u32,
}

impl_empty! { [S: Storage] DeferredFrees<S> { blocks, waiting, by_slot, oldest, nodes, ages, reached, busy } }

/// The most nodes that one more block adds: one in each of the four sets.
const NODES_OF_BLOCK: u32 = 4;

/// Returns the key of an age or a slot.
fn single(minor: u64) -> Key {
    Key { major: 0, minor }
}

/// Returns a function that orders heaps by slot.
fn by_slot<S: Storage>(heaps: &SlotTable<HeapBlocks, S>) -> impl Fn(u32) -> Key {
    |heap| single(u64::from(heaps[heap].slot))
}

/// Returns a function that orders heaps by the age of their oldest block.
fn by_oldest<S: Storage>(heaps: &SlotTable<HeapBlocks, S>) -> impl Fn(u32) -> Key {
    |heap| single(heaps[heap].oldest)
}

/// Returns the key that sorts a block by age.
fn age_of(block: &DeferredFree) -> Key {
    single(block.age)
}

/// Returns the key that sorts a block in [`Orders::by_use`].
fn use_of(block: &DeferredFree) -> Key {
    match block.until {
        Until::Fence(watched) => Key { major: watched.fence.stream.0, minor: watched.fence.number },
        Until::Captured(captured) => Key { major: captured.end.map_or(NO_STREAM, |end| end.own).0, minor: block.age },
        Until::Count(count) => Key { major: count, minor: block.age },
    }
}

/// Returns a function that orders entries by a key of their blocks.
fn by<S: Storage>(key: fn(&DeferredFree) -> Key, blocks: &SlotTable<DeferredFree, S>) -> impl Fn(u32) -> Key {
    move |entry| key(&blocks[entry])
}

impl<S: Storage> DeferredFrees<S> {
    /// Returns whether there are blocks with uses that have fences.
    pub(crate) fn has_ordered(&self) -> bool {
        !self.waiting.heaps.is_empty()
    }

    /// Returns whether any block is captured.
    pub(crate) fn has_captured(&self) -> bool {
        !self.waiting.captured.by_age.is_empty()
    }

    /// Returns whether a thread works on a block.
    pub(crate) fn is_at_work(&self) -> bool {
        self.busy > 0
    }

    /// Forgets which threads work on blocks, in a copy that has no threads. A block with fences is
    /// pending as long as it is listed, and waits on in the copy. It is not known what a thread has
    /// already done with a captured or a counted block, so these blocks are removed, and remain
    /// pending in the copy.
    pub(crate) fn forget_threads(&mut self) {
        for entry in 0..self.blocks.capacity() {
            let DeferredFree { busy, until, .. } = self.blocks[entry];
            match until {
                Until::Captured(_) | Until::Count(_) if busy => self.remove(entry),
                _ => self.blocks[entry].busy = false,
            }
        }
        self.busy = 0;
    }

    /// Adds a block, and takes it. Returns the entry.
    ///
    /// # Errors
    /// [`CapacityError`] if a table is full.
    pub(crate) fn add(&mut self, block: PendingBlock, until: Until) -> Result<u32, CapacityError> {
        if !self.blocks.make_room(1) || !self.waiting.heaps.make_room(1) || !self.nodes.make_room(NODES_OF_BLOCK) {
            return Err(CapacityError);
        }
        self.ages += 1;
        let age = self.ages;
        let heap = match until {
            Until::Fence(_) => self.heap_in(block.slot).unwrap_or_else(|| self.add_heap(block.slot, age)),
            Until::Captured(_) | Until::Count(_) => NONE,
        };
        let entry = self.blocks.insert(DeferredFree { block, until, age, busy: false, heap });
        self.take(entry);
        self.list(entry);
        Ok(entry)
    }

    /// Adds an entry to its sets. The caller has made room.
    fn list(&mut self, entry: u32) {
        let orders = self.waiting.of(&self.blocks[entry]);
        orders.by_age = self.nodes.insert(orders.by_age, entry, by(age_of, &self.blocks));
        orders.by_use = self.nodes.insert(orders.by_use, entry, by(use_of, &self.blocks));
    }

    /// Removes an entry from its sets.
    fn unlist(&mut self, entry: u32) {
        let orders = self.waiting.of(&self.blocks[entry]);
        orders.by_age = self.nodes.remove(orders.by_age, entry, by(age_of, &self.blocks));
        orders.by_use = self.nodes.remove(orders.by_use, entry, by(use_of, &self.blocks));
    }

    /// Returns the heap in `slot`.
    fn heap_in(&self, slot: u32) -> Option<u32> {
        self.heap_from(slot).filter(|&heap| self.waiting.heaps[heap].slot == slot)
    }

    /// Returns the heap with the lowest slot that is at least `slot`.
    fn heap_from(&self, slot: u32) -> Option<u32> {
        self.nodes.at_least(self.by_slot, single(u64::from(slot)), by_slot(&self.waiting.heaps))
    }

    /// Adds the heap in `slot`. Its oldest block has the age `oldest`. The caller has made room.
    fn add_heap(&mut self, slot: u32, oldest: u64) -> u32 {
        let heap = self.waiting.heaps.insert(HeapBlocks { slot, oldest, blocks: empty!() });
        self.by_slot = self.nodes.insert(self.by_slot, heap, by_slot(&self.waiting.heaps));
        self.oldest = self.nodes.insert(self.oldest, heap, by_oldest(&self.waiting.heaps));
        heap
    }

    /// Returns an entry, which the caller has taken.
    pub(crate) fn get(&self, entry: u32) -> DeferredFree {
        self.blocks[entry]
    }

    /// Returns the lowest slot, from `slot` on, of a heap that has blocks with fences for their
    /// uses.
    pub(crate) fn next_heap(&self, slot: u32) -> Option<u32> {
        self.heap_from(slot).map(|heap| self.waiting.heaps[heap].slot)
    }

    /// Takes the oldest block of the heap in `slot` that has fences for its uses, and returns the
    /// entry. The caller ends with [`put_back`](Self::put_back), [`watch`](Self::watch) or
    /// [`remove`](Self::remove).
    pub(crate) fn take_oldest(&mut self, slot: u32) -> Option<u32> {
        let heap = self.heap_in(slot)?;
        self.take_oldest_of(heap)
    }

    /// Takes the oldest block of a heap. Heaps come in the order of the ages of their oldest
    /// blocks, starting at `age`. Returns the entry, and the age of the heap's oldest block. If the
    /// caller continues with a later age than that, heaps that still have their oldest block are
    /// skipped, and a heap that lost it comes up again.
    pub(crate) fn take_oldest_from(&mut self, mut age: u64) -> Option<(u32, u64)> {
        loop {
            let heap = self.nodes.at_least(self.oldest, single(age), by_oldest(&self.waiting.heaps))?;
            age = self.waiting.heaps[heap].oldest;
            if let Some(entry) = self.take_oldest_of(heap) {
                return Some((entry, age));
            }
            age += 1;
        }
    }

    fn take_oldest_of(&mut self, heap: u32) -> Option<u32> {
        let root = self.waiting.heaps[heap].blocks.by_age;
        self.take_free_from(root, single(0)..=single(u64::MAX), age_of, |_| true)
    }

    /// Takes the first block of the heap in `slot`, in the order of the watched uses, from the use
    /// `number` of `stream` on. The caller continues as after [`take_oldest`](Self::take_oldest).
    /// Also returns the fence of the use. No use has the number `u64::MAX`.
    pub(crate) fn take_watched(&mut self, slot: u32, (stream, number): (StreamId, u64)) -> Option<(u32, UseFence)> {
        let root = self.waiting.heaps[self.heap_in(slot)?].blocks.by_use;
        let uses = Key { major: stream.0, minor: number }..=Key { major: u64::MAX, minor: u64::MAX };
        let entry = self.take_free_from(root, uses, use_of, |_| true)?;
        Some((entry, self.blocks[entry].watched()?))
    }

    /// Takes the oldest captured block that is at least as late as `age` and does not wait for the
    /// stream `capturing`. Returns the entry. The caller ends with
    /// [`put_back_by`](Self::put_back_by), [`move_to_end`](Self::move_to_end),
    /// [`put_back`](Self::put_back) or [`remove`](Self::remove).
    pub(crate) fn take_captured(&mut self, age: u64, capturing: Option<StreamId>) -> Option<u32> {
        let is_ready = |block: &DeferredFree| block.captured().is_some_and(|captured| captured.is_ready(capturing));
        self.take_free_from(self.waiting.captured.by_age, single(age)..=single(u64::MAX), age_of, is_ready)
    }

    /// Takes the oldest captured block, from `age` on, that was allocated on the stream `own` and
    /// has a marked end of its uses. The caller continues as after
    /// [`take_captured`](Self::take_captured). Also returns the mark.
    pub(crate) fn take_marked(&mut self, own: StreamId, age: u64) -> Option<(u32, CaptureMark)> {
        let of_stream = |minor: u64| Key { major: own.0, minor };
        let marked = of_stream(age)..=of_stream(u64::MAX);
        let entry = self.take_free_from(self.waiting.captured.by_use, marked, use_of, |_| true)?;
        Some((entry, self.blocks[entry].captured()?.end?.mark))
    }

    /// Takes a block with a count that the frontier has reached, the lowest count first. Returns
    /// the entry.
    pub(crate) fn take_reached(&mut self) -> Option<u32> {
        let reached = Key::default()..=Key { major: self.reached, minor: u64::MAX };
        self.take_free_from(self.waiting.counted.by_use, reached, use_of, |_| true)
    }

    /// Sets the block of a taken entry that was added before the block was known.
    pub(crate) fn set_block(&mut self, entry: u32, index: u32) {
        self.blocks[entry].block.index = index;
    }

    /// Takes the first entry that is `wanted` and not taken yet, with a `key` in `range`, from a
    /// set sorted by `key`.
    fn take_free_from(
        &mut self,
        root: Link,
        range: RangeInclusive<Key>,
        key: fn(&DeferredFree) -> Key,
        wanted: impl Fn(&DeferredFree) -> bool,
    ) -> Option<u32> {
        let (mut bound, last) = range.into_inner();
        loop {
            let entry = self.nodes.at_least(root, bound, by(key, &self.blocks))?;
            let block = &self.blocks[entry];
            if key(block) > last {
                return None;
            }
            if !block.busy && wanted(block) {
                self.take(entry);
                return Some(entry);
            }
            bound = key(block);
            bound.minor += 1;
        }
    }

    fn take(&mut self, entry: u32) {
        debug_assert!(!self.blocks[entry].busy, "one thread works on a block");
        self.blocks[entry].busy = true;
        self.busy += 1;
    }

    /// Puts back a taken block that still waits.
    pub(crate) fn put_back(&mut self, entry: u32) {
        debug_assert!(self.blocks[entry].busy, "the caller has taken the block");
        self.blocks[entry].busy = false;
        self.busy -= 1;
    }

    /// Puts back a taken captured block, because the stream `by` uses it and captures.
    pub(crate) fn put_back_by(&mut self, entry: u32, by: StreamId) {
        if let Until::Captured(captured) = &mut self.blocks[entry].until {
            captured.by = Some(by);
        }
        self.put_back(entry);
    }

    /// Puts back a taken block as the youngest.
    pub(crate) fn move_to_end(&mut self, entry: u32) {
        // Without room for nodes, the block remains where it was.
        if self.nodes.make_room(2) {
            self.unlist(entry);
            self.ages += 1;
            self.blocks[entry].age = self.ages;
            self.list(entry);
        }
        self.put_back(entry);
    }

    /// Puts back a taken block that is watched at a later use from now on, because the events of
    /// all earlier uses are complete.
    pub(crate) fn watch(&mut self, entry: u32, watched: UseFence) {
        // Without room for a node, the block remains where it is, and is polled a little too often.
        if self.nodes.make_room(1) {
            let orders = self.waiting.of(&self.blocks[entry]);
            orders.by_use = self.nodes.remove(orders.by_use, entry, by(use_of, &self.blocks));
            self.blocks[entry].until = Until::Fence(watched);
            orders.by_use = self.nodes.insert(orders.by_use, entry, by(use_of, &self.blocks));
        }
        self.put_back(entry);
    }

    /// Removes a taken block, which is about to become free or to wait elsewhere.
    pub(crate) fn remove(&mut self, entry: u32) {
        self.put_back(entry);
        self.unlist(entry);
        let DeferredFree { until, heap, .. } = self.blocks[entry];
        self.blocks.remove(entry);
        if let Until::Fence(_) = until {
            self.lost_block(heap);
        }
    }

    /// Removes a heap that has no blocks left, or updates the age of its oldest block.
    fn lost_block(&mut self, heap: u32) {
        let HeapBlocks { oldest, blocks, .. } = self.waiting.heaps[heap];
        let Some(first) = self.nodes.first(blocks.by_age) else {
            self.oldest = self.nodes.remove(self.oldest, heap, by_oldest(&self.waiting.heaps));
            self.by_slot = self.nodes.remove(self.by_slot, heap, by_slot(&self.waiting.heaps));
            self.waiting.heaps.remove(heap);
            return;
        };
        let age = self.blocks[first].age;
        // Without room for a node, the heap remains where it was.
        if oldest != age && self.nodes.make_room(1) {
            self.oldest = self.nodes.remove(self.oldest, heap, by_oldest(&self.waiting.heaps));
            self.waiting.heaps[heap].oldest = age;
            self.oldest = self.nodes.insert(self.oldest, heap, by_oldest(&self.waiting.heaps));
        }
    }
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests;
