//! Frees that wait for a count. A program that numbers its work frees a block with the number of the last work that uses it, and
//! says from time to time how far all work is done: the safe frontier (`SetSafeFrontier`, TensorFlow 2.16).
//!
//! A block never serves a request before the frontier has reached its count. TensorFlow hands such blocks out when memory runs
//! short, to requests that do not ask for more.

use crate::tables::{CapacityError, Storage, Table};

/// The bit of [`Block::events`](crate::heap::block::Block::events) that stands for the frontier: the block waits for it as for an event.
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
    pub(crate) fn promise(&mut self, count: u64) -> Result<bool, CapacityError> {
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

    pub(crate) fn give_promise_back(&mut self) {
        self.promised -= 1;
    }

    /// Lets a block wait, as promised. False if there is nothing to wait for any longer.
    pub(crate) fn push(&mut self, count: u64, heap: u32, block: u32) -> bool {
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

    /// Moves the frontier on to `count`, if it is not there yet.
    pub(crate) fn advance(&mut self, count: u64) {
        self.reached = self.reached.max(count);
    }

    /// Takes out a block that the frontier has reached: heap and block, by ascending counts.
    pub(crate) fn pop(&mut self) -> Option<(u32, u32)> {
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
