//! Call stacks of bookings, on demand: each distinct stack once, with the stack's bytes.

use super::caller;
use super::objects::Objects;
use super::view::StackView;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, PoisonError};

/// Greatest number of distinct stacks. A program allocates at some thousands of places.
const STACKS: usize = 4096;

/// The distinct stacks of a book.
#[derive(Default)]
pub(super) struct Stacks(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// Numbers of stacks, counted from 1, by return addresses.
    numbers: HashMap<Vec<usize>, u32>,
    stacks: Vec<StackView>,
    /// Bookings whose stack had no room.
    dropped: u64,
}

impl Stacks {
    /// Counts bytes of a stack, and returns the stack's number: 0 without room.
    pub(super) fn add(&self, objects: &Objects, frames: Vec<usize>, bytes: u64) -> u32 {
        // Described before the lock is taken, since the loader has a lock, too; and only once,
        // while the objects are there.
        let is_known = self.known().numbers.contains_key(&frames);
        let texts =
            if is_known { Vec::new() } else { frames.iter().map(|&at| caller::describe(objects, at)).collect() };
        let mut known = self.known();
        let Known { numbers, stacks, dropped } = &mut *known;
        let number = match numbers.entry(frames) {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(_) if stacks.len() == STACKS => {
                *dropped += 1;
                return 0;
            }
            Entry::Vacant(entry) => {
                stacks.push(StackView { bytes: 0, count: 0, frames: texts });
                *entry.insert(stacks.len() as u32)
            }
        };
        let stack = &mut stacks[number as usize - 1];
        stack.bytes = stack.bytes.saturating_add(bytes);
        stack.count += 1;
        number
    }

    /// Takes bytes from a stack.
    pub(super) fn remove(&self, number: u32, bytes: u64) {
        let mut known = self.known();
        let index = (number as usize).checked_sub(1);
        if let Some(stack) = index.and_then(|at| known.stacks.get_mut(at)) {
            stack.bytes = stack.bytes.saturating_sub(bytes);
            stack.count = stack.count.saturating_sub(1);
        }
    }

    /// Returns the stacks with memory, the greatest first, and the number of bookings without a
    /// stack.
    pub(super) fn view(&self) -> (Vec<StackView>, u64) {
        let known = self.known();
        let mut held: Vec<_> = known.stacks.iter().filter(|stack| stack.count > 0).cloned().collect();
        held.sort_by_key(|stack| std::cmp::Reverse(stack.bytes));
        (held, known.dropped)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
