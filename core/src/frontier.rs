//! Frees that wait for a count. A program that numbers its work frees a block with the number of the last work that uses it, and
//! says from time to time how far all work is done: the safe frontier (`SetSafeFrontier`, TensorFlow 2.16).
//!
//! A block never serves a request before the frontier has reached its count. TensorFlow hands such blocks out when memory runs
//! short, to requests that do not ask for more.

use crate::arena::Arena;
use crate::device::DeviceMemory;
use crate::directory::{Directory, Place};
use crate::error::Error;
use crate::heap::GivenUp;
use crate::sync::Lock;
use crate::tables::slot_table::NONE;
use crate::tables::{CapacityError, Storage, Table};
use crate::trace::CallSite;
use crate::units::DevicePtr;

/// The bit of [`Block::events`](crate::block::Block::events) that stands for the frontier: the block waits for it as for an event.
pub(crate) const AHEAD: u32 = 1 << 31;

/// A block that the frontier has not reached.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Wait {
    count: u64,
    /// The slot of the heap.
    heap: u32,
    block: u32,
}

pub(crate) struct Frontier<S: Storage> {
    /// All work up to this count is done.
    reached: u64,
    /// A binary heap: entry `n` comes before entries `2n + 1` and `2n + 2`, as far as they wait.
    waits: S::Table<Wait>,
    /// How many of `waits` wait; those behind are leftovers.
    len: usize,
    /// Waits to come: room is kept for them.
    promised: usize,
}

impl<S: Storage> Default for Frontier<S> {
    fn default() -> Self {
        Self { reached: 0, waits: S::Table::<Wait>::default(), len: 0, promised: 0 }
    }
}

impl<S: Storage> Frontier<S> {
    /// Keeps room for a block that waits for `count`, until [`push`](Self::push) or [`give_promise_back`](Self::give_promise_back).
    /// False if nothing is to wait for, and nothing is promised.
    fn promise(&mut self, count: u64) -> Result<bool, CapacityError> {
        if count <= self.reached {
            return Ok(false);
        }
        let wanted = self.len + self.promised + 1;
        if !self.waits.make_room(wanted.saturating_sub(self.waits.len())) {
            return Err(CapacityError);
        }
        self.promised += 1;
        Ok(true)
    }

    fn give_promise_back(&mut self) {
        self.promised -= 1;
    }

    /// Lets a block wait, as promised. False if there is nothing to wait for any longer.
    fn push(&mut self, count: u64, heap: u32, block: u32) -> bool {
        self.promised -= 1;
        if count <= self.reached {
            return false;
        }
        let wait = Wait { count, heap, block };
        if self.len == self.waits.len() {
            self.waits.add(wait);
        }
        let mut at = self.len;
        self.len += 1;
        self.waits[at] = wait;
        while let Some(parent) = at.checked_sub(1).map(|below| below / 2).filter(|&parent| wait < self.waits[parent]) {
            self.waits.swap(at, parent);
            at = parent;
        }
        true
    }

    /// Takes out a block that the frontier has reached: heap and block, by ascending counts.
    fn pop(&mut self) -> Option<(u32, u32)> {
        let first = *self.waits[..self.len].first().filter(|wait| wait.count <= self.reached)?;
        self.len -= 1;
        self.waits.swap(0, self.len);
        let waits = &mut self.waits[..self.len];
        let mut at = 0;
        let least = |at: usize, waits: &[Wait]| {
            (2 * at + 1..waits.len().min(2 * at + 3))
                .min_by_key(|&child| waits[child])
                .filter(|&c| waits[c] < waits[at])
        };
        while let Some(child) = least(at, waits) {
            waits.swap(at, child);
            at = child;
        }
        Some((first.heap, first.block))
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Frees the block at `ptr`, if this heap owns it, once the frontier has reached `count` and other streams are done with it.
    pub(crate) fn free_at(
        &self,
        directory: &Directory<R, S>,
        place: Place,
        ptr: DevicePtr,
        count: u64,
    ) -> Result<(), Error> {
        #[cfg(feature = "alloc")]
        self.note_use(ptr);
        #[cfg(feature = "alloc")]
        self.note_free(ptr);
        let promised = self.frontier.lock().promise(count);
        if !promised.map_err(|CapacityError| Error::TableFull("frees at a count"))? {
            return self.free(directory, place, ptr, None);
        }
        match self.give_up_for_now(directory, place.heap, ptr) {
            Ok(block) => {
                let waits = self.frontier.lock().push(count, place.heap, block);
                if !waits {
                    self.reach(directory, place.heap, block);
                }
                Ok(())
            }
            Err(error) => {
                self.frontier.lock().give_promise_back();
                Err(error)
            }
        }
    }

    /// The program gives up the block at `ptr`, which is pending from then on at least until it is [reached](Self::reach).
    fn give_up_for_now(&self, directory: &Directory<R, S>, slot: u32, ptr: DevicePtr) -> Result<u32, Error> {
        let site = self.call_site(CallSite::Free);
        let mut heap = self.lock(slot);
        let tally = &self.slot(slot).tally;
        let (GivenUp::Unused(block) | GivenUp::Used(block)) = heap.give_up(ptr, None, tally) else {
            return Err(Error::InvalidPointer(ptr));
        };
        heap.pend(block, tally);
        heap.blocks[block].events |= AHEAD;
        if heap.blocks[block].uses != NONE {
            drop(heap);
            return self.wait_for_uses(directory, slot, block, site).map(|()| block);
        }
        self.trace_free(&mut heap, block, site);
        drop(heap);
        self.with_totals(|_| tally.follow_pending());
        Ok(block)
    }

    /// The frontier has reached a block that waits for it.
    fn reach(&self, directory: &Directory<R, S>, slot: u32, block: u32) {
        let mut heap = self.lock(slot);
        heap.blocks[block].events &= !AHEAD;
        self.complete_if_unused(directory, slot, heap, block);
    }

    /// Moves the frontier on to `count`, if it is not there yet, and frees what it reaches.
    pub(crate) fn set_safe_frontier(&self, directory: &Directory<R, S>, count: u64) {
        {
            let mut frontier = self.frontier.lock();
            frontier.reached = frontier.reached.max(count);
        }
        loop {
            let reached = self.frontier.lock().pop();
            let Some((heap, block)) = reached else { break };
            self.reach(directory, heap, block);
        }
    }
}
