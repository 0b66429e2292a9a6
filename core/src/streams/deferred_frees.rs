//! Freed blocks that wait for something of their own.
//!
//! Most blocks give their uses up at the free: from then on they wait in the [queues](crate::streams::event_queue) of the
//! using streams. A block waits here for three reasons:
//!
//! * The uses have fences of their own. The block waits until all are complete, or until the block's own stream
//!   is ordered behind them.
//! * A graph is being captured, so no fence can be recorded. The block is *captured*, and waits for the end of the
//!   capture.
//! * A program that numbers its work has freed the block with the number of the last work that uses the block. From
//!   time to time the program reports up to which number all work is done: the *safe frontier* (`SetSafeFrontier`,
//!   TensorFlow 2.16). The block is free once the frontier has reached the count and the fences behind its uses by other streams
//!   are complete. Until then it serves no request.
//!   TensorFlow differs: short of memory, it hands such blocks to requests without a count.
//!
//! The thread that works on a block takes the block, since the device is called with no lock held.
//!
//! ```text
//!                       by use                           by age
//! heap   stream 2 │ use 5 ─▶ use 9 ─▶ use 10        free 1 ─▶ free 4 ─▶ free 7
//!        stream 3 │ use 7                           the order in which the own stream is ordered
//!                   └ the only event of the stream that is polled
//! captured
//!        stream 2 │ mark 3 ─▶ mark 8                free 2 ─▶ free 3 ─▶ free 8
//!                   └ asked by the own stream          the order in which fences are recorded
//! counted         │ count 4 ─▶ count 9
//!                   └ up to the frontier
//! ```
//!
//! A block is *watched* at a use with an event not known to be complete. The events of a stream
//! complete in the order of their recording, so a question after the first block watched on a stream answers for
//! all blocks watched there. Once the event is complete, the block is watched at the next use.

use crate::device::CaptureMark;
use crate::streams::fences::Fence;
use crate::sync::impl_empty;
use crate::tables::radix_tree::{Key, Link, RadixTree};
use crate::tables::slot_table::{NONE, SlotTable, Vacant, vacant};
use crate::tables::{CapacityError, Storage};
use crate::units::{NO_STREAM, StreamId};
use core::ops::RangeInclusive;

/// A use of a block with a fence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UseFence {
    /// Recorded at the use, on the using stream.
    pub fence: Fence,
    /// The next use of the block, or [`NONE`].
    pub next: u32,
}

/// The end of a block's uses within a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EndOfUses {
    /// Marks the work captured at the free by the block's own stream and all streams in use of the block.
    pub mark: CaptureMark,
    /// The block's own stream.
    pub own: StreamId,
}

/// How a capture holds a block up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Captured {
    /// The capturing stream among the user streams, if known. While the stream captures, no fence is tried.
    pub behind: Option<StreamId>,
    /// Where the uses of the block end in the graph, if all are captured. Work that the block's own
    /// stream captures behind the end may use the block again.
    pub end: Option<EndOfUses>,
}

impl Captured {
    /// Returns whether the block does not wait for the stream `capturing`.
    pub(crate) fn is_ready(&self, capturing: Option<StreamId>) -> bool {
        self.behind.is_none() || self.behind != capturing
    }
}

/// The thing for which a block waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Until {
    /// The fences of the uses from a watched use on. The fences of all uses before are complete.
    Fence(UseFence),
    /// The end of a capture.
    Captured(Captured),
    /// The safe frontier, which is to reach a count.
    Count(u64),
}

/// A pending block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeferredFree {
    /// The slot of the block's heap.
    pub heap: u32,
    /// The index of the block in the heap.
    pub block: u32,
    /// The thing for which the block waits.
    pub until: Until,
    /// The number of the free, or of the last failed attempt to record fences: a later one is higher.
    pub age: u64,
    /// A thread works on the block. Set ⟹ no other thread takes or removes the entry.
    busy: bool,
    /// The queue of the block; in a vacant entry, the next vacant one.
    queue: u32,
}

impl DeferredFree {
    /// Returns the use at which the block is watched; `None` for a captured block.
    pub(crate) fn watched(&self) -> Option<UseFence> {
        if let Until::Fence(watched) = self.until { Some(watched) } else { None }
    }

    /// Returns how a capture holds the block up; `None` if the uses have fences.
    pub(crate) fn captured(&self) -> Option<Captured> {
        if let Until::Captured(captured) = self.until { Some(captured) } else { None }
    }
}

vacant!(DeferredFree, queue, |next| {
    let until = Until::Captured(Captured::default());
    Self { heap: NONE, block: NONE, until, age: 0, busy: false, queue: next }
});

/// In place of the slot of a heap, for the queue of the captured blocks of all heaps.
const CAPTURED: u32 = NONE;

/// In place of the slot of a heap, for the queue of the blocks of all heaps that wait for a count.
const COUNTED: u32 = NONE - 1;

/// The blocks of one heap whose uses have fences, or all captured or counted blocks. There is a queue ⟺ there is a block.
#[derive(Clone, Copy, Debug)]
struct BlockQueue {
    /// The slot of the heap, [`CAPTURED`] or [`COUNTED`]; in a vacant entry, the next vacant one.
    slot: u32,
    /// The age under which the queue stands in [`DeferredFrees::oldest`]: that of the oldest block of the heap, or an
    /// earlier one.
    oldest: u64,
    /// Root of the set of the blocks, by age.
    by_age: Link,
    /// Root of the set of the blocks, by stream and number of the watched use; of captured blocks by own stream, if the
    /// end of the uses is marked, and age; of counted blocks by count and age.
    by_use: Link,
}

vacant!(BlockQueue, slot, |next| Self { slot: next, oldest: 0, by_age: Link::EMPTY, by_use: Link::EMPTY });

/// The freed blocks of a device that wait here.
#[derive(Clone)]
pub(crate) struct DeferredFrees<S: Storage> {
    blocks: SlotTable<DeferredFree, S>,
    queues: SlotTable<BlockQueue, S>,
    /// Root of the set of the queues, by the slots of their heaps.
    by_slot: Link,
    /// Root of the set of the queues, by [`BlockQueue::oldest`].
    oldest: Link,
    /// The nodes of all sets.
    nodes: RadixTree<S>,
    /// Number of ages given so far.
    ages: u64,
    /// All work of the program up to this count is done. Never decreases.
    pub reached: u64,
    /// Number of busy blocks.
    busy: u32,
}

impl_empty! { [S: Storage] DeferredFrees<S> { blocks, queues, by_slot, oldest, nodes, ages, reached, busy } }

/// The most nodes that another block adds: one in each of the four sets.
const NODES_OF_BLOCK: u32 = 4;

/// Returns the key of an age, or of a slot.
fn single(minor: u64) -> Key {
    Key { major: 0, minor }
}

/// Returns a function that orders queues by slot.
fn by_slot<S: Storage>(queues: &SlotTable<BlockQueue, S>) -> impl Fn(u32) -> Key {
    |queue| single(u64::from(queues[queue].slot))
}

/// Returns a function that orders queues by their oldest block.
fn by_oldest<S: Storage>(queues: &SlotTable<BlockQueue, S>) -> impl Fn(u32) -> Key {
    |queue| single(queues[queue].oldest)
}

/// Returns the key of a block in its queue, by age.
fn age_of(block: &DeferredFree) -> Key {
    single(block.age)
}

/// Returns the key of a block in its queue, by the stream and the number of the watched use, or by the own stream and
/// the age.
fn use_of(block: &DeferredFree) -> Key {
    match block.until {
        Until::Fence(watched) => Key { major: watched.fence.stream.0, minor: watched.fence.number },
        Until::Captured(captured) => Key { major: captured.end.map_or(NO_STREAM, |end| end.own).0, minor: block.age },
        Until::Count(count) => Key { major: count, minor: block.age },
    }
}

/// Returns a function that orders entries by the keys of their blocks.
fn by<S: Storage>(key: fn(&DeferredFree) -> Key, blocks: &SlotTable<DeferredFree, S>) -> impl Fn(u32) -> Key {
    move |entry| key(&blocks[entry])
}

impl<S: Storage> DeferredFrees<S> {
    /// Returns whether the uses of any block have fences.
    pub(crate) fn has_ordered(&self) -> bool {
        self.next_heap(0).is_some()
    }

    /// Returns whether any block is captured.
    pub(crate) fn has_captured(&self) -> bool {
        self.queue_of(CAPTURED).is_some()
    }

    /// Returns whether a thread works on a block.
    pub(crate) fn is_at_work(&self) -> bool {
        self.busy > 0
    }

    /// Forgets which threads work on blocks, in a copy without threads. How far a thread has come with a captured or a
    /// counted block is not known: the block leaves, and stays pending in the copy.
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
    pub(crate) fn add(&mut self, heap: u32, block: u32, until: Until) -> Result<u32, CapacityError> {
        if !self.blocks.make_room(1) || !self.queues.make_room(1) || !self.nodes.make_room(NODES_OF_BLOCK) {
            return Err(CapacityError);
        }
        self.ages += 1;
        let age = self.ages;
        let slot = match until {
            Until::Fence(_) => heap,
            Until::Captured(_) => CAPTURED,
            Until::Count(_) => COUNTED,
        };
        let queue = self.queue_of(slot).unwrap_or_else(|| self.add_queue(slot, age));
        let entry = self.blocks.insert(DeferredFree { heap, block, until, age, busy: false, queue });
        self.take(entry);
        self.list(entry);
        Ok(entry)
    }

    /// Adds an entry to the sets of its queue. Room was made.
    fn list(&mut self, entry: u32) {
        let queue = &mut self.queues[self.blocks[entry].queue];
        queue.by_age = self.nodes.insert(queue.by_age, entry, by(age_of, &self.blocks));
        queue.by_use = self.nodes.insert(queue.by_use, entry, by(use_of, &self.blocks));
    }

    /// Removes an entry from the sets of its queue.
    fn unlist(&mut self, entry: u32) {
        let queue = &mut self.queues[self.blocks[entry].queue];
        queue.by_age = self.nodes.remove(queue.by_age, entry, by(age_of, &self.blocks));
        queue.by_use = self.nodes.remove(queue.by_use, entry, by(use_of, &self.blocks));
    }

    /// Returns the queue of the heap in `slot`.
    fn queue_of(&self, slot: u32) -> Option<u32> {
        self.queue_from(slot).filter(|&queue| self.queues[queue].slot == slot)
    }

    /// Returns the queue with the lowest slot from `slot` on.
    fn queue_from(&self, slot: u32) -> Option<u32> {
        self.nodes.at_least(self.by_slot, single(u64::from(slot)), by_slot(&self.queues))
    }

    /// Adds the queue of `slot`, whose oldest block has the age `oldest`. Room was made.
    fn add_queue(&mut self, slot: u32, oldest: u64) -> u32 {
        let queue = self.queues.insert(BlockQueue { slot, oldest, ..BlockQueue::vacant(NONE) });
        self.by_slot = self.nodes.insert(self.by_slot, queue, by_slot(&self.queues));
        self.oldest = self.nodes.insert(self.oldest, queue, by_oldest(&self.queues));
        queue
    }

    /// Returns the block of an entry that the caller has taken.
    pub(crate) fn block(&self, entry: u32) -> DeferredFree {
        self.blocks[entry]
    }

    /// Returns the lowest slot from `slot` on of a heap with a block whose uses have fences.
    pub(crate) fn next_heap(&self, slot: u32) -> Option<u32> {
        self.queue_from(slot).map(|queue| self.queues[queue].slot).filter(|&slot| slot < COUNTED)
    }

    /// Takes the oldest block of the heap in `slot` whose uses have fences, and returns the entry. The caller ends with
    /// [`keep`](Self::keep), [`watch`](Self::watch) or [`remove`](Self::remove).
    pub(crate) fn take_oldest(&mut self, slot: u32) -> Option<u32> {
        let queue = self.queue_of(slot)?;
        self.take_oldest_of(queue)
    }

    /// Takes the oldest block of the first heap, by the ages of their oldest blocks, whose oldest block is not older than
    /// `age`. Returns the entry, and the age of the heap's oldest block. From behind that age on, heaps left are passed
    /// over, and a heap whose oldest block was removed has another turn.
    pub(crate) fn take_oldest_from(&mut self, mut age: u64) -> Option<(u32, u64)> {
        loop {
            let queue = self.nodes.at_least(self.oldest, single(age), by_oldest(&self.queues))?;
            age = self.queues[queue].oldest;
            let is_of_heap = self.queues[queue].slot < COUNTED;
            if let Some(entry) = is_of_heap.then(|| self.take_oldest_of(queue)).flatten() {
                return Some((entry, age));
            }
            age += 1;
        }
    }

    fn take_oldest_of(&mut self, queue: u32) -> Option<u32> {
        let root = self.queues[queue].by_age;
        self.take_free_from(root, single(0)..=single(u64::MAX), age_of, |_| true)
    }

    /// Takes the first block of the heap in `slot` by the watched use, from the use `number` of `stream` on, as
    /// [`take_oldest`](Self::take_oldest) does. Returns the fence of the use, too. No use has the number `u64::MAX`.
    pub(crate) fn take_watched(&mut self, slot: u32, (stream, number): (StreamId, u64)) -> Option<(u32, UseFence)> {
        let queue = self.queue_of(slot)?;
        let uses = Key { major: stream.0, minor: number }..=Key { major: u64::MAX, minor: u64::MAX };
        let entry = self.take_free_from(self.queues[queue].by_use, uses, use_of, |_| true)?;
        Some((entry, self.blocks[entry].watched()?))
    }

    /// Takes the oldest captured block with an age from `age` on, but no block behind the stream `capturing`. Returns
    /// the entry. The caller ends with [`keep_behind`](Self::keep_behind), [`move_to_end`](Self::move_to_end),
    /// [`keep`](Self::keep) or [`remove`](Self::remove).
    pub(crate) fn take_captured(&mut self, age: u64, capturing: Option<StreamId>) -> Option<u32> {
        let queue = self.queue_of(CAPTURED)?;
        let is_ready = |block: &DeferredFree| block.captured().is_some_and(|captured| captured.is_ready(capturing));
        self.take_free_from(self.queues[queue].by_age, single(age)..=single(u64::MAX), age_of, is_ready)
    }

    /// Takes the oldest captured block with an age from `age` on and a marked end of its uses, and with the own stream
    /// `own`, as [`take_captured`](Self::take_captured) does. Returns the mark, too.
    pub(crate) fn take_marked(&mut self, own: StreamId, age: u64) -> Option<(u32, CaptureMark)> {
        let queue = self.queue_of(CAPTURED)?;
        let of_stream = |minor: u64| Key { major: own.0, minor };
        let marked = of_stream(age)..=of_stream(u64::MAX);
        let entry = self.take_free_from(self.queues[queue].by_use, marked, use_of, |_| true)?;
        Some((entry, self.blocks[entry].captured()?.end?.mark))
    }

    /// Takes a block whose count the frontier has reached, the lowest count first. Returns the entry.
    pub(crate) fn take_reached(&mut self) -> Option<u32> {
        let queue = self.queue_of(COUNTED)?;
        let reached = Key::default()..=Key { major: self.reached, minor: u64::MAX };
        self.take_free_from(self.queues[queue].by_use, reached, use_of, |_| true)
    }

    /// Names the block of a taken entry that was added before the block was known.
    pub(crate) fn name(&mut self, entry: u32, block: u32) {
        self.blocks[entry].block = block;
    }

    /// Takes the first `wanted` entry with a `key` in `range` of a set by `key`, not taken yet.
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
            bound = key(&self.blocks[entry]);
            bound.minor += 1;
        }
    }

    fn take(&mut self, entry: u32) {
        debug_assert!(!self.blocks[entry].busy, "one thread works on a block");
        self.blocks[entry].busy = true;
        self.busy += 1;
    }

    /// Keeps a taken block, which still waits.
    pub(crate) fn keep(&mut self, entry: u32) {
        debug_assert!(self.blocks[entry].busy, "the caller has taken the block");
        self.blocks[entry].busy = false;
        self.busy -= 1;
    }

    /// Keeps a taken captured block: the stream `behind` uses it and is capturing.
    pub(crate) fn keep_behind(&mut self, entry: u32, behind: StreamId) {
        if let Until::Captured(captured) = &mut self.blocks[entry].until {
            captured.behind = Some(behind);
        }
        self.keep(entry);
    }

    /// Keeps a taken block behind all others of its queue.
    pub(crate) fn move_to_end(&mut self, entry: u32) {
        // Without nodes the block keeps its place.
        if self.nodes.make_room(2) {
            self.unlist(entry);
            self.ages += 1;
            self.blocks[entry].age = self.ages;
            self.list(entry);
        }
        self.keep(entry);
    }

    /// Keeps a taken block, which is watched at a later use from now on: the events of all uses before are complete.
    pub(crate) fn watch(&mut self, entry: u32, watched: UseFence) {
        // Without a node the block stays where it is, and is polled a little too often.
        if self.nodes.make_room(1) {
            let queue = &mut self.queues[self.blocks[entry].queue];
            queue.by_use = self.nodes.remove(queue.by_use, entry, by(use_of, &self.blocks));
            self.blocks[entry].until = Until::Fence(watched);
            queue.by_use = self.nodes.insert(queue.by_use, entry, by(use_of, &self.blocks));
        }
        self.keep(entry);
    }

    /// Removes a taken block, which is about to become free or to wait elsewhere.
    pub(crate) fn remove(&mut self, entry: u32) {
        self.keep(entry);
        let number = self.blocks[entry].queue;
        self.unlist(entry);
        self.blocks.remove(entry);
        let BlockQueue { oldest, by_age, .. } = self.queues[number];
        let Some(first) = self.nodes.first(by_age) else {
            self.oldest = self.nodes.remove(self.oldest, number, by_oldest(&self.queues));
            self.by_slot = self.nodes.remove(self.by_slot, number, by_slot(&self.queues));
            self.queues.remove(number);
            return;
        };
        let age = self.blocks[first].age;
        // Without a node the queue keeps its earlier place.
        if oldest != age && self.nodes.make_room(1) {
            self.oldest = self.nodes.remove(self.oldest, number, by_oldest(&self.queues));
            self.queues[number].oldest = age;
            self.oldest = self.nodes.insert(self.oldest, number, by_oldest(&self.queues));
        }
    }
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests;
