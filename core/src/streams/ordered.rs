//! Freed blocks whose uses have events of their own.
//!
//! A block stays here with its uses until all the events are complete, or until the block's own stream
//! is ordered behind them. The thread that works on a block takes the block, since the device is
//! called with no lock held.
//!
//! ```text
//!                       by use                           by age
//! heap   stream 2 │ use 5 ─▶ use 9 ─▶ use 10        free 1 ─▶ free 4 ─▶ free 7
//!        stream 3 │ use 7                           the order in which the own stream is ordered
//!                   └ the only event of the stream that is asked after
//! ```
//!
//! A block is *watched* at one of its uses, of which the event is not known to be complete. The events of a stream
//! complete in the order of their recording, so one question after the first block watched on a stream answers for
//! all of them, however many they are. Once the event is complete, the block is watched at its next use.

use crate::streams::fences::Fence;
use crate::tables::busy_list::BusyList;
use crate::tables::radix_tree::{Key, Link, RadixTree};
use crate::tables::slot_table::{NONE, SlotTable, Vacant};
use crate::tables::{CapacityError, Storage};
use crate::units::StreamId;

/// A use of a block with a fence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UseFence {
    /// Recorded at the use, on the using stream.
    pub fence: Fence,
    /// The next use of the block, or [`NONE`].
    pub next: u32,
}

/// A pending block whose uses have events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OrderedBlock {
    /// The slot of the block's heap.
    pub heap: u32,
    /// The index of the block in the heap.
    pub block: u32,
    /// The use at which the block is watched. The events of all uses before this one are complete.
    pub watched: UseFence,
    /// The number of the free: a later one is higher.
    pub age: u64,
    /// The queue of the heap.
    queue: u32,
}

/// The blocks of one heap. There is a queue ⟺ there is a block.
#[derive(Clone, Copy, Debug)]
struct HeapQueue {
    /// The slot of the heap; the next vacant entry, if this one is vacant.
    slot: u32,
    /// The age under which the queue stands in [`OrderedBlocks::oldest`]: that of the oldest block of the heap, or an
    /// earlier one.
    oldest: u64,
    /// Root of the set of the blocks, by age.
    by_age: Link,
    /// Root of the set of the blocks, by stream and number of the watched use.
    by_use: Link,
}

impl Vacant for HeapQueue {
    fn vacant(next: u32) -> Self {
        Self { slot: next, oldest: 0, by_age: Link::EMPTY, by_use: Link::EMPTY }
    }

    fn vacate(&mut self, next: u32) {
        *self = Self::vacant(next);
    }

    fn next_vacant(&self) -> u32 {
        self.slot
    }
}

/// The freed blocks of a device whose uses have events.
#[derive(Clone)]
pub(crate) struct OrderedBlocks<S: Storage> {
    /// The blocks in the order of the frees.
    blocks: BusyList<OrderedBlock, S>,
    queues: SlotTable<HeapQueue, S>,
    /// Root of the set of the queues, by the slots of their heaps.
    by_slot: Link,
    /// Root of the set of the queues, by [`HeapQueue::oldest`].
    oldest: Link,
    /// The nodes of all sets.
    nodes: RadixTree<S>,
    /// Number of frees so far.
    frees: u64,
}

/// The most nodes that a further block adds: one in each of the four sets.
const NODES_OF_BLOCK: u32 = 4;

impl<S: Storage> Default for OrderedBlocks<S> {
    fn default() -> Self {
        Self {
            blocks: BusyList::default(),
            queues: SlotTable::default(),
            by_slot: Link::EMPTY,
            oldest: Link::EMPTY,
            nodes: RadixTree::default(),
            frees: 0,
        }
    }
}

/// Returns the key of an age, or of a slot.
fn single(minor: u64) -> Key {
    Key { major: 0, minor }
}

/// Returns a function that orders queues by slot.
fn by_slot<S: Storage>(queues: &SlotTable<HeapQueue, S>) -> impl Fn(u32) -> Key {
    |queue| single(u64::from(queues[queue].slot))
}

/// Returns a function that orders queues by their oldest block.
fn by_oldest<S: Storage>(queues: &SlotTable<HeapQueue, S>) -> impl Fn(u32) -> Key {
    |queue| single(queues[queue].oldest)
}

/// Returns the key of a block among the blocks of its heap, by age.
fn age_of(block: &OrderedBlock) -> Key {
    single(block.age)
}

/// Returns the key of a block among the blocks of its heap, by the stream and the number of the watched use.
fn use_of(block: &OrderedBlock) -> Key {
    Key { major: block.watched.fence.stream.0, minor: block.watched.fence.number }
}

/// Returns a function that orders entries by the keys of their blocks.
fn by<S: Storage>(key: fn(&OrderedBlock) -> Key, blocks: &BusyList<OrderedBlock, S>) -> impl Fn(u32) -> Key {
    move |entry| key(&blocks[entry])
}

impl<S: Storage> OrderedBlocks<S> {
    /// Returns whether there is no block.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Returns whether a thread works on a block.
    pub(crate) fn is_at_work(&self) -> bool {
        self.blocks.is_at_work()
    }

    /// Adds a block, watched at its first use with an event, and takes it. Returns the entry.
    ///
    /// # Errors
    /// [`CapacityError`] if a table is full.
    pub(crate) fn add(&mut self, heap: u32, block: u32, watched: UseFence) -> Result<u32, CapacityError> {
        if !self.blocks.make_room(1) || !self.queues.make_room(1) || !self.nodes.make_room(NODES_OF_BLOCK) {
            return Err(CapacityError);
        }
        self.frees += 1;
        let age = self.frees;
        let queue = self.queue_of(heap).unwrap_or_else(|| self.add_queue(heap, age));
        let entry = self.blocks.add_taken(OrderedBlock { heap, block, watched, age, queue });
        let of_heap = &mut self.queues[queue];
        of_heap.by_age = self.nodes.insert(of_heap.by_age, entry, by(age_of, &self.blocks));
        of_heap.by_use = self.nodes.insert(of_heap.by_use, entry, by(use_of, &self.blocks));
        Ok(entry)
    }

    /// Returns the queue of the heap in `slot`.
    fn queue_of(&self, slot: u32) -> Option<u32> {
        self.queue_from(slot).filter(|&queue| self.queues[queue].slot == slot)
    }

    /// Returns the queue of the heap with the lowest slot from `slot` on.
    fn queue_from(&self, slot: u32) -> Option<u32> {
        self.nodes.at_least(self.by_slot, single(u64::from(slot)), by_slot(&self.queues))
    }

    /// Adds the queue of the heap in `slot`, whose oldest block has the age `oldest`. Room was made.
    fn add_queue(&mut self, slot: u32, oldest: u64) -> u32 {
        let queue = self.queues.insert(HeapQueue { slot, oldest, ..HeapQueue::vacant(NONE) });
        self.by_slot = self.nodes.insert(self.by_slot, queue, by_slot(&self.queues));
        self.oldest = self.nodes.insert(self.oldest, queue, by_oldest(&self.queues));
        queue
    }

    /// Returns the block of an entry that the caller has taken.
    pub(crate) fn block(&self, entry: u32) -> OrderedBlock {
        self.blocks[entry]
    }

    /// Returns the lowest slot from `slot` on of a heap with a block.
    pub(crate) fn next_heap(&self, slot: u32) -> Option<u32> {
        self.queue_from(slot).map(|queue| self.queues[queue].slot)
    }

    /// Takes the oldest block of all heaps, and returns the entry. The caller ends with [`keep`](Self::keep),
    /// [`watch`](Self::watch) or [`remove`](Self::remove).
    pub(crate) fn take_first(&mut self) -> Option<u32> {
        self.blocks.take_first(|_| true)
    }

    /// Takes the oldest block of the heap in `slot`, as [`take_first`](Self::take_first) does.
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
            if let Some(entry) = self.take_oldest_of(queue) {
                return Some((entry, age));
            }
            age += 1;
        }
    }

    fn take_oldest_of(&mut self, queue: u32) -> Option<u32> {
        let root = self.queues[queue].by_age;
        self.take_free_from(root, Key::default(), age_of)
    }

    /// Takes the first block of the heap in `slot` by the watched use, from the use `number` of `stream` on, as
    /// [`take_first`](Self::take_first) does. No use has the number `u64::MAX`.
    pub(crate) fn take_watched(&mut self, slot: u32, (stream, number): (StreamId, u64)) -> Option<u32> {
        let queue = self.queue_of(slot)?;
        let bound = Key { major: stream.0, minor: number };
        self.take_free_from(self.queues[queue].by_use, bound, use_of)
    }

    /// Takes the first entry of a set by `key`, from `bound` on, that no other thread has taken.
    fn take_free_from(&mut self, root: Link, mut bound: Key, key: fn(&OrderedBlock) -> Key) -> Option<u32> {
        loop {
            let entry = self.nodes.at_least(root, bound, by(key, &self.blocks))?;
            if !self.blocks.is_busy(entry) {
                self.blocks.take(entry);
                return Some(entry);
            }
            bound = key(&self.blocks[entry]);
            bound.minor += 1;
        }
    }

    /// Keeps a taken block, which still waits.
    pub(crate) fn keep(&mut self, entry: u32) {
        self.blocks.keep(entry);
    }

    /// Keeps a taken block, which is watched at a later use from now on: the events of all uses before are complete.
    pub(crate) fn watch(&mut self, entry: u32, watched: UseFence) {
        // Without a node the block stays where it is, and is asked after a little too often.
        if self.nodes.make_room(1) {
            let queue = &mut self.queues[self.blocks[entry].queue];
            queue.by_use = self.nodes.remove(queue.by_use, entry, by(use_of, &self.blocks));
            self.blocks[entry].watched = watched;
            queue.by_use = self.nodes.insert(queue.by_use, entry, by(use_of, &self.blocks));
        }
        self.blocks.keep(entry);
    }

    /// Removes a taken block, which is about to become free.
    pub(crate) fn remove(&mut self, entry: u32) {
        let number = self.blocks[entry].queue;
        let queue = &mut self.queues[number];
        queue.by_age = self.nodes.remove(queue.by_age, entry, by(age_of, &self.blocks));
        queue.by_use = self.nodes.remove(queue.by_use, entry, by(use_of, &self.blocks));
        self.blocks.remove(entry);
        let Some(first) = self.nodes.first(queue.by_age) else {
            self.oldest = self.nodes.remove(self.oldest, number, by_oldest(&self.queues));
            self.by_slot = self.nodes.remove(self.by_slot, number, by_slot(&self.queues));
            self.queues.remove(number);
            return;
        };
        let age = self.blocks[first].age;
        // Without a node the queue keeps its earlier place.
        if queue.oldest != age && self.nodes.make_room(1) {
            self.oldest = self.nodes.remove(self.oldest, number, by_oldest(&self.queues));
            self.queues[number].oldest = age;
            self.oldest = self.nodes.insert(self.oldest, number, by_oldest(&self.queues));
        }
    }
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests {
    use super::*;
    use crate::device::Event;
    use crate::tables::{Fixed, Growable};
    use proptest::prelude::*;
    use std::vec::Vec;

    fn use_of(stream: u64, number: u64) -> UseFence {
        UseFence { fence: Fence { stream: StreamId(stream), number, event: Event(number) }, next: NONE }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Add { heap: u32, stream: u64, number: u64 },
        Oldest(u32),
        OldestFrom(u64),
        Watched { heap: u32, stream: u64, number: u64 },
        First,
        Keep(usize),
        Watch { of: usize, stream: u64, number: u64 },
        Remove(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let at = || (0_u32..3, 0_u64..3, 0_u64..64);
        let step = prop_oneof![
            3 => at().prop_map(|(heap, stream, number)| Step::Add { heap, stream, number }),
            1 => (0_u32..3).prop_map(Step::Oldest),
            1 => (0_u64..40).prop_map(Step::OldestFrom),
            2 => at().prop_map(|(heap, stream, number)| Step::Watched { heap, stream, number }),
            1 => Just(Step::First),
            1 => (0_usize..8).prop_map(Step::Keep),
            1 => (0_usize..8, 0_u64..3, 0_u64..64).prop_map(|(of, stream, number)| Step::Watch { of, stream, number }),
            2 => (0_usize..8).prop_map(Step::Remove),
        ];
        prop::collection::vec(step, 1..200)
    }

    /// A block in the model: as in the list, and whether a thread has taken it.
    #[derive(Clone, Copy)]
    struct Known {
        heap: u32,
        age: u64,
        watched: UseFence,
        busy: bool,
    }

    /// What the model takes.
    fn lowest<K: Ord>(known: &mut [Known], key: impl Fn(&Known) -> Option<K>) -> Option<&mut Known> {
        let waits = known.iter_mut().filter(|known| !known.busy && key(known).is_some());
        waits.min_by_key(|known| key(known))
    }

    /// Runs the steps beside a vector. Returns how many blocks did not fit.
    fn agrees_with_a_vector<S: Storage>(steps: &[Step]) -> Result<u32, TestCaseError> {
        let (mut blocks, mut known, mut taken) = (OrderedBlocks::<S>::default(), Vec::<Known>::new(), Vec::new());
        let (mut ages, mut refused) = (0, 0);
        for &step in steps {
            let is_new = |known: &[Known], of: UseFence| !known.iter().any(|known| known.watched.fence == of.fence);
            // The entry that the list has taken, and the age of what the model has taken.
            let (found, expected) = match step {
                Step::Add { heap, stream, number } => {
                    let watched = use_of(stream, number);
                    if is_new(&known, watched) {
                        match blocks.add(heap, ages as u32, watched) {
                            Ok(entry) => {
                                ages += 1;
                                known.push(Known { heap, age: ages, watched, busy: true });
                                taken.push((entry, ages));
                            }
                            Err(CapacityError) => refused += 1,
                        }
                    }
                    continue;
                }
                Step::Oldest(heap) => {
                    let key = |known: &Known| (known.heap == heap).then_some(known.age);
                    (blocks.take_oldest(heap), lowest(&mut known, key))
                }
                Step::OldestFrom(age) => {
                    // The heaps come in the order of their oldest blocks, busy or not.
                    let oldest: Vec<u64> = (0..3)
                        .map(|heap| known.iter().filter(|of| of.heap == heap).map(|of| of.age).min().unwrap_or(0))
                        .collect();
                    let key = |known: &Known| {
                        Some((oldest[known.heap as usize], known.age)).filter(|(oldest, _)| *oldest >= age)
                    };
                    let found = blocks.take_oldest_from(age);
                    let expected = lowest(&mut known, key);
                    prop_assert_eq!(
                        found.map(|(_, at)| at),
                        expected.as_ref().map(|known| oldest[known.heap as usize])
                    );
                    (found.map(|(entry, _)| entry), expected)
                }
                Step::Watched { heap, stream, number } => {
                    let from = (StreamId(stream), number);
                    let key = |known: &Known| {
                        let at = (known.watched.fence.stream, known.watched.fence.number);
                        (known.heap == heap && at >= from).then_some(at)
                    };
                    (blocks.take_watched(heap, from), lowest(&mut known, key))
                }
                Step::First => (blocks.take_first(), lowest(&mut known, |known| Some(known.age))),
                Step::Keep(of) | Step::Watch { of, .. } | Step::Remove(of) => {
                    if taken.is_empty() {
                        continue;
                    }
                    let (entry, age) = taken.swap_remove(of % taken.len());
                    let at = known.iter().position(|known| known.age == age).unwrap();
                    known[at].busy = false;
                    match step {
                        Step::Watch { stream, number, .. } if is_new(&known, use_of(stream, number)) => {
                            known[at].watched = use_of(stream, number);
                            blocks.watch(entry, known[at].watched);
                            // A table without room leaves the block where it was.
                            known[at].watched = blocks.block(entry).watched;
                        }
                        Step::Remove(_) => {
                            blocks.remove(entry);
                            known.remove(at);
                        }
                        _ => blocks.keep(entry),
                    }
                    continue;
                }
            };
            prop_assert_eq!(found.map(|entry| blocks.block(entry).age), expected.as_ref().map(|known| known.age));
            if let (Some(entry), Some(known)) = (found, expected) {
                known.busy = true;
                taken.push((entry, known.age));
            }
            prop_assert_eq!((blocks.is_empty(), blocks.is_at_work()), (known.is_empty(), !taken.is_empty()));
            let heaps: Vec<u32> =
                core::iter::successors(blocks.next_heap(0), |&slot| blocks.next_heap(slot + 1)).collect();
            let expected: Vec<u32> = (0..3).filter(|&heap| known.iter().any(|known| known.heap == heap)).collect();
            prop_assert_eq!(heaps, expected);
        }
        Ok(refused)
    }

    proptest! {
        #[test]
        fn every_step_finds_what_a_search_of_all_blocks_finds(steps in steps()) {
            prop_assert_eq!(agrees_with_a_vector::<Growable>(&steps)?, 0);
        }
    }

    #[test]
    fn a_full_table_refuses_a_block_and_loses_none() {
        type Small = OrderedBlocks<Fixed<1, 8, 8, 64>>;
        let mut blocks = Small::default();
        let entries: Vec<u32> = (0..)
            .map_while(|number| {
                // Numbers far apart need a node each.
                let added = blocks.add(number % 2, number, use_of(1, 1 << (5 * number)));
                added.inspect(|&entry| blocks.keep(entry)).ok()
            })
            .collect();
        assert!((3..=8).contains(&entries.len()), "{}", entries.len());
        // Every block is watched elsewhere, where there is room, and found.
        for number in 0..entries.len() as u32 {
            blocks.blocks.take(entries[number as usize]);
            blocks.watch(entries[number as usize], use_of(2, 1 << (5 * number)));
        }
        let mut left = entries.len();
        for heap in [0, 1] {
            while let Some(entry) = blocks.take_oldest(heap) {
                blocks.remove(entry);
                left -= 1;
            }
        }
        assert!(left == 0 && blocks.is_empty() && blocks.next_heap(0).is_none());
    }
}
