//! What shows that a partial plan cannot be completed, and what each such failure depends on.

use super::bits::members;
use super::instance::Instance;
use super::span::Span;
use super::state::{NONE, State};

impl State {
    /// Whether somebody may be the lowest of the rest of a section: low enough for all of the rest to fit above.
    pub(super) fn check(&mut self, on: &Instance, section: usize) -> bool {
        let rest = self.rest[section];
        if rest == 0 {
            return true;
        }
        if let Some(limit) = self.capacity.checked_sub(rest) {
            let bottom = self.bottom[section] as usize;
            if bottom != NONE as usize && self.unplaced.holds(bottom) && self.slots[bottom].bound <= limit {
                return true;
            }
            for (index, word) in on.members.row(section) {
                for item in members(index, word & self.unplaced.word(index)) {
                    self.work += 1;
                    if self.slots[item].bound <= limit {
                        self.set_bottom(section, item);
                        return true;
                    }
                }
            }
        }
        let mut failure = Span { first: section as u32, last: section as u32 };
        for (index, word) in on.members.row(section) {
            for item in members(index, word & self.unplaced.word(index)) {
                failure = failure.join(self.slots[item].why);
            }
        }
        self.failure = failure;
        false
    }

    /// Whether every postponed item may still be kept from its lowest offset.
    pub(super) fn all_blocked(&mut self, on: &Instance) -> bool {
        (0..on.items.len().div_ceil(64))
            .all(|index| members(index, self.postponed.word(index)).all(|item| self.blocked(on, item)))
    }

    /// Whether something that is not placed may come to lie so low that this item does not fit at its lowest offset.
    ///
    /// If nothing can, the item lies there in every plan that is of the form that is looked for.
    pub(super) fn blocked(&mut self, on: &Instance, item: usize) -> bool {
        let top = self.slots[item].low + on.items[item].size;
        let blocker = self.blocker[item] as usize;
        if blocker != NONE as usize && self.unplaced.holds(blocker) && self.slots[blocker].bound < top {
            return true;
        }
        for (index, word) in on.beside.row(item) {
            for other in members(index, word & self.unplaced.word(index)) {
                self.work += 1;
                if self.slots[other].bound < top && !on.twins(item, other) {
                    self.blocker[item] = other as u32;
                    return true;
                }
            }
        }
        self.failure = self.around(on, item);
        false
    }

    /// What the bounds of an item and of all beside it depend on.
    pub(super) fn around(&self, on: &Instance, item: usize) -> Span {
        let mut span = self.slots[item].why.join(on.items[item].span);
        for (index, word) in on.beside.row(item) {
            for other in members(index, word & self.unplaced.word(index)) {
                span = span.join(self.slots[other].why).join(on.items[other].span);
            }
        }
        span
    }

    /// Whether nothing that is not placed fits below an item's lowest offset.
    pub(super) fn is_due(&mut self, on: &Instance, item: usize) -> bool {
        let low = self.slots[item].low;
        let fits = |state: &Self, other: usize| state.slots[other].bound + on.items[other].size <= low;
        let below = self.below[item] as usize;
        if below != NONE as usize && self.unplaced.holds(below) && fits(self, below) {
            return false;
        }
        for (index, word) in on.beside.row(item) {
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

    /// What it depends on that an item of a part may be decided upon now.
    pub(super) fn reasons(&mut self, on: &Instance, item: usize, part: Span) -> Span {
        // A postponed item is known to lie higher than its bound says if all that could be under it are: a matter of the part.
        if self.is_due(on, item) { self.around(on, item) } else { part }
    }
}
