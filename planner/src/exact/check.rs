//! The pruning tests of the exact search. Each can show that a partial plan cannot be completed,
//! and on which sections this failure depends.

use super::bits::members;
use super::instance::Instance;
use super::span::Span;
use super::state::{NONE, State};

impl State {
    /// Checks the bound of a section: some unplaced item must be low enough that all other unplaced
    /// items fit above it.
    ///
    /// This is MiniMalloc's bound of a section. It fails if every unplaced item is so high that the
    /// sum of the unplaced sizes exceeds the rest of the capacity.
    pub(super) fn check(&mut self, instance: &Instance, section: usize) -> bool {
        let rest = self.rest[section];
        if rest == 0 {
            return true;
        }
        // The hint from the last time is usually right, and saves the scan of the section.
        if let Some(limit) = self.capacity.checked_sub(rest) {
            let bottom = self.bottom[section] as usize;
            if bottom != NONE as usize && self.unplaced.holds(bottom) && self.slots[bottom].bound <= limit {
                return true;
            }
            for (index, word) in instance.members.row(section) {
                for item in members(index, word & self.unplaced.word(index)) {
                    self.work += 1;
                    if self.slots[item].bound <= limit {
                        self.set_bottom(section, item);
                        return true;
                    }
                }
            }
        }
        // No item is low enough. The failure depends on all bounds in the section.
        let mut failure = Span { first: section as u32, last: section as u32 };
        for (index, word) in instance.members.row(section) {
            for item in members(index, word & self.unplaced.word(index)) {
                failure = failure.join(self.slots[item].why);
            }
        }
        self.failure = failure;
        false
    }

    /// Checks for every postponed item that something may still keep it from its lowest offset.
    pub(super) fn all_blocked(&mut self, instance: &Instance) -> bool {
        (0..instance.items.len().div_ceil(64))
            .all(|index| members(index, self.postponed.word(index)).all(|item| self.blocked(instance, item)))
    }

    /// Returns whether an unplaced item may end up so low that `item` does not fit at its
    /// lowest offset.
    ///
    /// If no item may, `item` is at its lowest offset in every canonical plan.
    pub(super) fn blocked(&mut self, instance: &Instance, item: usize) -> bool {
        let top = self.slots[item].low + instance.items[item].size;
        let blocker = self.blocker[item] as usize;
        if blocker != NONE as usize && self.unplaced.holds(blocker) && self.slots[blocker].bound < top {
            return true;
        }
        for (index, word) in instance.beside.row(item) {
            for other in members(index, word & self.unplaced.word(index)) {
                self.work += 1;
                if self.slots[other].bound < top && !instance.twins(item, other) {
                    self.blocker[item] = other as u32;
                    return true;
                }
            }
        }
        self.failure = self.around(instance, item);
        false
    }

    /// Returns the sections on which the bounds of an item and of all its neighbours depend.
    pub(super) fn around(&self, instance: &Instance, item: usize) -> Span {
        let mut span = self.slots[item].why.join(instance.items[item].span);
        for (index, word) in instance.beside.row(item) {
            for other in members(index, word & self.unplaced.word(index)) {
                span = span.join(self.slots[other].why).join(instance.items[other].span);
            }
        }
        span
    }

    /// Returns whether no unplaced item fits below the lowest offset of `item`.
    pub(super) fn is_due(&mut self, instance: &Instance, item: usize) -> bool {
        let low = self.slots[item].low;
        let fits = |state: &Self, other: usize| state.slots[other].bound + instance.items[other].size <= low;
        let below = self.below[item] as usize;
        if below != NONE as usize && self.unplaced.holds(below) && fits(self, below) {
            return false;
        }
        for (index, word) in instance.beside.row(item) {
            for other in members(index, word & self.unplaced.word(index)) {
                self.work += 1;
                if fits(self, other) {
                    self.below[item] = other as u32;
                    return false;
                }
            }
        }
        true
    }

    /// Returns the sections on which the choice of `item` depends. `part` is the part of the
    /// problem that is being completed.
    pub(super) fn reasons(&mut self, instance: &Instance, item: usize, part: Span) -> Span {
        // A postponed item that is not due was raised through the items that could be under it. Any
        // item of the part can be one of these.
        if self.is_due(instance, item) { self.around(instance, item) } else { part }
    }
}
