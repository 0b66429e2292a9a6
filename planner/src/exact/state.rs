//! Where a search stands, and the three moves it makes: place a buffer, postpone it, take both back.
//!
//! Plans are looked for in one form only: every buffer as low as those below it allow, and no buffer fits into a gap below
//! itself. A plan of the smallest sum of offsets is of this form, so nothing is lost.
//!
//! A buffer that is not placed has a lowest offset, from those that are placed, and is decided upon when none that is not
//! placed fits below it: either it lies exactly there, or higher. In the second case it is *postponed* until
//! something is placed below it, and three things follow: it lies on top of another that is not placed yet (its bound
//! rises), one of those keeps it from its lowest offset (else it would lie there), and each of its sections needs
//! somebody else to be the lowest of the rest.

use super::bits::{Bits, members};
use super::instance::Instance;
use super::span::Span;
use crate::problem::align_up;
use alloc::vec;
use alloc::vec::Vec;

/// Nobody.
pub(super) const NONE: u32 = u32::MAX;

/// What is known of an item that is not placed; of one that is, what was last.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    /// The lowest offset that those placed leave it.
    pub(super) low: u64,
    /// It lies here or above: `low`, or more ⟸ it is postponed.
    pub(super) bound: u64,
    /// What `bound` depends on. Its own span, or more ⟸ it is postponed.
    pub(super) why: Span,
}

/// What a move has changed.
enum Undo {
    Slot(u32, Slot, bool),
    Bottom(u32, u32),
    Placed(u32),
}

/// A partial plan.
pub(super) struct State {
    /// The highest offset that each item may have at this capacity.
    pub(super) limit: Vec<u64>,
    /// The capacity in units.
    pub(super) capacity: u64,
    pub(super) unplaced: Bits,
    pub(super) left: usize,
    /// Items that lie higher than `low`. Never a placed one, never one whose place is fixed.
    pub(super) postponed: Bits,
    pub(super) slots: Vec<Slot>,
    /// For each section, the sum of the sizes of its items that are not placed.
    pub(super) rest: Vec<u64>,
    /// For each section, how many items that are not placed it shares with the next.
    pub(super) across: Vec<u32>,
    /// For each section, an item that may be the lowest of the rest; or one that once could.
    pub(super) bottom: Vec<u32>,
    /// For each postponed item, one that may keep it from its lowest offset; or one that once could.
    pub(super) blocker: Vec<u32>,
    /// For each item, one that may fit below its lowest offset; or one that once did.
    pub(super) below: Vec<u32>,
    /// The section that was tightest when that was last asked.
    pub(super) tightest: usize,
    /// Whether a part may have fallen apart, or become shorter, since this was last set to false.
    pub(super) split: bool,
    /// What the last failure depends on: nothing else that is decided differently could have avoided it.
    pub(super) failure: Span,
    /// How many items have been looked at, in all runs.
    pub(super) work: u64,
    trail: Vec<Undo>,
}

impl State {
    /// Nothing is placed.
    pub(super) fn new(on: &Instance) -> Self {
        let (items, sections) = (on.items.len(), on.load.len());
        let mut across = vec![0; sections];
        for item in &on.items {
            across[item.span.first as usize..item.span.last as usize].iter_mut().for_each(|across| *across += 1);
        }
        Self {
            limit: vec![0; items],
            capacity: 0,
            unplaced: Bits::all(items),
            left: items,
            postponed: Bits::none(items),
            slots: on.items.iter().map(|item| Slot { low: 0, bound: 0, why: item.span }).collect(),
            rest: on.load.clone(),
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

    /// Begins anew, with a capacity in bytes. False if the items cannot fit.
    pub(super) fn begin(&mut self, on: &Instance, capacity: u64) -> bool {
        self.undo(on, 0);
        self.split = true;
        self.tightest = 0;
        self.capacity = 0;
        for (index, item) in on.items.iter().enumerate() {
            let Some(room) = capacity.checked_sub(item.bytes) else { return false };
            self.limit[index] = room / on.unit;
            self.capacity = self.capacity.max(self.limit[index] + item.size);
        }
        for index in 0..on.items.len() {
            let Some(low) = self.lowest(on, index, 0) else { return false };
            self.slots[index] = Slot { low, bound: low, why: on.items[index].span };
        }
        (0..on.load.len()).all(|section| self.check(on, section))
    }

    /// The lowest offset from `offset` on at which an item may lie; `None` if it may at none.
    pub(super) fn lowest(&self, on: &Instance, index: usize, offset: u64) -> Option<u64> {
        let item = &on.items[index];
        let mut low = align_up(offset, item.alignment);
        if let Some(fixed) = item.fixed {
            return (low <= fixed && fixed <= self.limit[index]).then_some(fixed);
        }
        // Above what is fixed and would be in the way; the order of those makes no difference.
        while low <= self.limit[index] {
            let above = on.fixed.iter().find_map(|&fixed| {
                let settled = &on.items[fixed as usize];
                let (at, top) = (settled.fixed?, settled.fixed?.saturating_add(settled.size));
                (settled.span.meets(item.span) && low < top && at < low + item.size).then_some(top)
            });
            let Some(top) = above else { return Some(low) };
            low = align_up(top, item.alignment);
        }
        None
    }

    /// Puts an item at its lowest offset. False if that leads nowhere.
    pub(super) fn place(&mut self, on: &Instance, index: usize) -> bool {
        let item = &on.items[index];
        let top = self.slots[index].low + item.size;
        self.trail.push(Undo::Placed(index as u32));
        self.unplaced.remove(index);
        self.left -= 1;
        for rest in &mut self.rest[item.span.indices()] {
            *rest -= item.size;
            self.split |= *rest == 0;
        }
        for across in &mut self.across[item.span.first as usize..item.span.last as usize] {
            *across -= 1;
            self.split |= *across == 0;
        }
        let mut changed = item.span;
        for (word_index, word) in on.beside.row(index) {
            for other in members(word_index, word & self.unplaced.word(word_index)) {
                if self.slots[other].low >= top {
                    continue;
                }
                let Some(low) = self.lowest(on, other, top) else {
                    self.failure = on.items[other].span;
                    return false;
                };
                self.remember(other);
                self.postponed.remove(other);
                self.slots[other] = Slot { low, bound: low, why: on.items[other].span };
                changed = changed.join(on.items[other].span);
            }
        }
        changed.indices().all(|section| self.check(on, section)) && self.all_blocked(on)
    }

    /// Decides that an item lies higher than its lowest offset. False if that leads nowhere.
    pub(super) fn postpone(&mut self, on: &Instance, index: usize) -> bool {
        let (under, why) = self.support(on, index);
        let Some(bound) = self.lowest(on, index, under.max(self.slots[index].low + 1)) else {
            self.failure = why;
            return false;
        };
        // Twins are interchangeable: if the lowest of them lies higher, all do.
        let mut twin = index;
        loop {
            if self.unplaced.holds(twin) {
                self.remember(twin);
                self.postponed.insert(twin);
                self.slots[twin] = Slot { bound, why, ..self.slots[twin] };
            }
            twin = on.items[twin].twin as usize;
            if twin == index {
                break;
            }
        }
        self.all_blocked(on) && on.items[index].span.indices().all(|section| self.check(on, section))
    }

    /// The lowest top of those that a postponed item may come to lie on, and what that depends on.
    fn support(&self, on: &Instance, index: usize) -> (u64, Span) {
        let (mut lowest, mut why) = (u64::MAX, on.items[index].span);
        for (word_index, word) in on.beside.row(index) {
            for other in members(word_index, word & self.unplaced.word(word_index)) {
                why = why.join(self.slots[other].why);
                if !on.twins(index, other) {
                    lowest = lowest.min(self.slots[other].bound.saturating_add(on.items[other].size));
                }
            }
        }
        (lowest, why)
    }

    /// Takes back every move since there were `mark` changes.
    pub(super) fn undo(&mut self, on: &Instance, mark: usize) {
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
                    let item = &on.items[index as usize];
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

    /// How many changes there are to take back.
    pub(super) fn mark(&self) -> usize {
        self.trail.len()
    }

    fn remember(&mut self, index: usize) {
        self.trail.push(Undo::Slot(index as u32, self.slots[index], self.postponed.holds(index)));
    }

    /// Makes an item the one that may be the lowest of the rest of a section.
    pub(super) fn set_bottom(&mut self, section: usize, index: usize) {
        self.trail.push(Undo::Bottom(section as u32, self.bottom[section]));
        self.bottom[section] = index as u32;
    }
}
