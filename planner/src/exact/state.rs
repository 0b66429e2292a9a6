//! The state of a search, with three moves: place a buffer, postpone a buffer, undo.
//!
//! The search considers only canonical plans, in which every buffer is as low as the buffers below
//! it allow, and no buffer fits into a gap below itself. The plan with the smallest sum of offsets
//! is canonical, so this loses no solution.
//!
//! The placed buffers give each unplaced buffer a lowest offset. A buffer is due if no unplaced
//! buffer fits below its lowest offset. A due buffer is exactly there, or it is higher. In the
//! second case it is *postponed* until another one is placed below it. Three facts follow for a
//! postponed buffer:
//!
//! 1. It is on top of an unplaced buffer, so its bound rises.
//! 2. An unplaced buffer is in the way of its lowest offset, because otherwise it would be there.
//! 3. In each of its sections, another unplaced buffer is the lowest.

use super::bits::{Bits, members};
use super::instance::Instance;
use super::span::Span;
use crate::problem::align_up;
use alloc::vec;
use alloc::vec::Vec;

/// The number that means no item.
pub(super) const NONE: u32 = u32::MAX;

/// What is known about an unplaced item. For a placed item, this is what was known just before it
/// was placed, so `low` is its final offset.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    /// The lowest offset that the placed items leave free.
    pub(super) low: u64,
    /// The lower bound of the offset. It is `low` unless the item is postponed.
    pub(super) bound: u64,
    /// The sections on which `bound` depends. They are the item's own span unless it is postponed.
    pub(super) why: Span,
}

/// An entry of the undo trail: a change with the old value.
enum Undo {
    /// An item with its old slot, and whether it was postponed.
    Slot(u32, Slot, bool),
    /// A section with its old hint.
    Bottom(u32, u32),
    /// An item that was placed.
    Placed(u32),
}

/// A partial plan.
pub(super) struct State {
    /// For each item, the highest offset within the capacity.
    pub(super) limit: Vec<u64>,
    /// The capacity in units.
    pub(super) capacity: u64,
    /// The items without a place yet.
    pub(super) unplaced: Bits,
    /// The number of unplaced items.
    pub(super) left: usize,
    /// The items that are known to be higher than `low`. Never contains a placed item or an item
    /// with a fixed offset.
    pub(super) postponed: Bits,
    /// For each item, what is known about its offset.
    pub(super) slots: Vec<Slot>,
    /// For each section, the sum of the sizes of the unplaced items.
    pub(super) rest: Vec<u64>,
    /// For each section, the number of unplaced items that continue into the next section.
    pub(super) across: Vec<u32>,
    /// For each section, an item that was low enough for the bound of the section. This is a hint,
    /// which may be out of date.
    pub(super) bottom: Vec<u32>,
    /// For each item, an item that kept it from its lowest offset. This is a hint, which may be out
    /// of date.
    pub(super) blocker: Vec<u32>,
    /// For each item, an item that fitted below its lowest offset. This is a hint, which may be out
    /// of date.
    pub(super) below: Vec<u32>,
    /// The section that the last pick found tightest.
    pub(super) tightest: usize,
    /// Whether a part may have fallen apart or become shorter since the flag was last cleared.
    pub(super) split: bool,
    /// The sections on which the last failure depends. No decision in other sections could have
    /// avoided it.
    pub(super) failure: Span,
    /// The number of items that all runs have examined.
    pub(super) work: u64,
    /// All changes since the start, the oldest first.
    trail: Vec<Undo>,
}

impl State {
    /// Creates a state without placed items.
    pub(super) fn new(instance: &Instance) -> Self {
        let (items, sections) = (instance.items.len(), instance.load.len());
        let mut across = vec![0; sections];
        for item in &instance.items {
            across[item.span.first as usize..item.span.last as usize].iter_mut().for_each(|across| *across += 1);
        }
        Self {
            limit: vec![0; items],
            capacity: 0,
            unplaced: Bits::all(items),
            left: items,
            postponed: Bits::none(items),
            slots: instance.items.iter().map(|item| Slot { low: 0, bound: 0, why: item.span }).collect(),
            rest: instance.load.clone(),
            across,
            bottom: vec![NONE; sections],
            blocker: vec![NONE; items],
            below: vec![NONE; items],
            tightest: 0,
            split: true,
            failure: Span { first: 0, last: 0 },
            work: 0,
            trail: Vec::new(),
        }
    }

    /// Restarts with a capacity in bytes. Returns false if the items cannot fit.
    pub(super) fn begin(&mut self, instance: &Instance, capacity: u64) -> bool {
        // This is cheaper than a new state, because it undoes only the changes of the last run.
        self.undo(instance, 0);
        self.split = true;
        self.tightest = 0;
        self.capacity = 0;
        // Limits come first, because `lowest` reads them.
        for (index, item) in instance.items.iter().enumerate() {
            let Some(room) = capacity.checked_sub(item.bytes) else { return false };
            self.limit[index] = room / instance.unit;
            self.capacity = self.capacity.max(self.limit[index] + item.size);
        }
        for index in 0..instance.items.len() {
            let Some(low) = self.lowest(instance, index, 0) else { return false };
            self.slots[index] = Slot { low, bound: low, why: instance.items[index].span };
        }
        (0..instance.load.len()).all(|section| self.check(instance, section))
    }

    /// Finds the lowest offset from `offset` on at which an item avoids the fixed items, or `None`
    /// if none is within the capacity.
    pub(super) fn lowest(&self, instance: &Instance, index: usize, offset: u64) -> Option<u64> {
        let item = &instance.items[index];
        let mut low = align_up(offset, item.alignment);
        if let Some(fixed) = item.fixed {
            return (low <= fixed && fixed <= self.limit[index]).then_some(fixed);
        }
        // The offset rises above each fixed item in the way. The result does not depend on their
        // order.
        while low <= self.limit[index] {
            let above = instance.fixed.iter().find_map(|&fixed| {
                let settled = &instance.items[fixed as usize];
                let (at, top) = (settled.fixed?, settled.fixed?.saturating_add(settled.size));
                (settled.span.meets(item.span) && low < top && at < low + item.size).then_some(top)
            });
            let Some(top) = above else { return Some(low) };
            low = align_up(top, item.alignment);
        }
        None
    }

    /// Places an item at its lowest offset. Returns false if the partial plan cannot be completed.
    pub(super) fn place(&mut self, instance: &Instance, index: usize) -> bool {
        let item = &instance.items[index];
        let top = self.slots[index].low + item.size;
        self.trail.push(Undo::Placed(index as u32));
        self.unplaced.remove(index);
        self.left -= 1;
        // If nothing is left to place in a section, a part may end there, so parts are searched
        // again.
        for rest in &mut self.rest[item.span.indices()] {
            *rest -= item.size;
            self.split |= *rest == 0;
        }
        for across in &mut self.across[item.span.first as usize..item.span.last as usize] {
            *across -= 1;
            self.split |= *across == 0;
        }
        // Only unplaced neighbours below the new top rise. A postponed neighbour that rises is no
        // longer postponed, because it has a new lowest offset.
        let mut changed = item.span;
        for (word_index, word) in instance.beside.row(index) {
            for other in members(word_index, word & self.unplaced.word(word_index)) {
                // An item that is above the new top already is not affected.
                if self.slots[other].low >= top {
                    continue;
                }
                let Some(low) = self.lowest(instance, other, top) else {
                    self.failure = instance.items[other].span;
                    return false;
                };
                self.remember(other);
                self.postponed.remove(other);
                self.slots[other] = Slot { low, bound: low, why: instance.items[other].span };
                changed = changed.join(instance.items[other].span);
            }
        }
        // The cheapest check comes first: usually one comparison for each section, because of the
        // hint.
        changed.indices().all(|section| self.check(instance, section)) && self.all_blocked(instance)
    }

    /// Postpones an item, which means that its offset is above `low`. Returns false if the partial
    /// plan cannot be completed.
    pub(super) fn postpone(&mut self, instance: &Instance, index: usize) -> bool {
        let (under, why) = self.support(instance, index);
        let Some(bound) = self.lowest(instance, index, under.max(self.slots[index].low + 1)) else {
            self.failure = why;
            return false;
        };
        // Twins are interchangeable, so if the lowest twin is higher, all twins are.
        let mut twin = index;
        // A placed twin keeps its offset.
        loop {
            if self.unplaced.holds(twin) {
                self.remember(twin);
                self.postponed.insert(twin);
                self.slots[twin] = Slot { bound, why, ..self.slots[twin] };
            }
            twin = instance.items[twin].twin as usize;
            if twin == index {
                break;
            }
        }
        self.all_blocked(instance) && instance.items[index].span.indices().all(|section| self.check(instance, section))
    }

    /// Finds the lowest top of an unplaced neighbour, below which a postponed item cannot be, and
    /// the sections on which this top depends.
    fn support(&self, instance: &Instance, index: usize) -> (u64, Span) {
        let (mut lowest, mut why) = (u64::MAX, instance.items[index].span);
        for (word_index, word) in instance.beside.row(index) {
            for other in members(word_index, word & self.unplaced.word(word_index)) {
                why = why.join(self.slots[other].why);
                // A twin cannot support the item, because all twins are postponed together.
                if !instance.twins(index, other) {
                    lowest = lowest.min(self.slots[other].bound.saturating_add(instance.items[other].size));
                }
            }
        }
        (lowest, why)
    }

    /// Undoes every change after the first `mark` changes.
    pub(super) fn undo(&mut self, instance: &Instance, mark: usize) {
        while self.trail.len() > mark {
            match self.trail.pop() {
                Some(Undo::Slot(index, slot, postponed)) => {
                    self.slots[index as usize] = slot;
                    if postponed {
                        self.postponed.insert(index as usize);
                    } else {
                        self.postponed.remove(index as usize);
                    }
                }
                Some(Undo::Bottom(section, index)) => self.bottom[section as usize] = index,
                Some(Undo::Placed(index)) => {
                    let item = &instance.items[index as usize];
                    self.unplaced.insert(index as usize);
                    self.left += 1;
                    self.rest[item.span.indices()].iter_mut().for_each(|rest| *rest += item.size);
                    let inner = item.span.first as usize..item.span.last as usize;
                    self.across[inner].iter_mut().for_each(|across| *across += 1);
                }
                None => {}
            }
        }
    }

    /// Returns the length of the undo trail.
    pub(super) fn mark(&self) -> usize {
        self.trail.len()
    }

    /// Records the slot of an item on the undo trail, before a change.
    fn remember(&mut self, index: usize) {
        self.trail.push(Undo::Slot(index as u32, self.slots[index], self.postponed.holds(index)));
    }

    /// Records an item as the hint for the bound of a section.
    pub(super) fn set_bottom(&mut self, section: usize, index: usize) {
        self.trail.push(Undo::Bottom(section as u32, self.bottom[section]));
        self.bottom[section] = index as u32;
    }
}
