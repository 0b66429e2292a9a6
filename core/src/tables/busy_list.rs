//! A list of which a thread takes one entry at a time, to work on it with no lock held.
//!
//! ```text
//! first ─▶ entry ⇄ busy ⇄ entry ⇄ busy ⇄ entry        in the order of addition
//!            │ take  ▲
//!            └─ work ┴─ keep · remove · move to the end
//! ```
//!
//! A taken entry is *busy*: it keeps its place, and no other thread takes it. So a walk goes on behind an
//! entry as long as the walk's own thread has taken it, whatever the rest add and remove. Every operation
//! takes the same time for any number of entries; a search also passes the busy entries, of which a
//! thread has a few, and the entries that the caller does not want.

use crate::tables::Storage;
use crate::tables::slot_table::{NONE, SlotTable, Vacant};

/// A value with its place in the list.
#[derive(Clone, Copy, Debug)]
struct BusyEntry<T> {
    /// The value; `None` ⟺ the entry is vacant.
    value: Option<T>,
    /// A thread works on the entry. Set ⟹ no other thread takes, moves or removes the entry.
    busy: bool,
    /// The entry before, or [`NONE`].
    before: u32,
    /// The entry behind, or [`NONE`]; for a vacant entry, the next vacant one.
    after: u32,
}

impl<T: Copy + Send + 'static> Vacant for BusyEntry<T> {
    fn vacant(next: u32) -> Self {
        Self { value: None, busy: false, before: NONE, after: next }
    }

    fn vacate(&mut self, next: u32) {
        *self = Self::vacant(next);
    }

    fn next_vacant(&self) -> u32 {
        self.after
    }
}

/// A list of values, each at work of one thread at most. An entry has the same number as long as it is in the list.
pub(crate) struct BusyList<T: Copy + Send + 'static, S: Storage> {
    entries: SlotTable<BusyEntry<T>, S>,
    /// The entry at the begin, or [`NONE`]. From there, `after` leads through every entry not vacant.
    first: u32,
    /// The entry at the end, or [`NONE`].
    last: u32,
    /// Number of busy entries.
    busy: u32,
}

impl<T: Copy + Send + 'static, S: Storage> Default for BusyList<T, S> {
    fn default() -> Self {
        Self { entries: SlotTable::default(), first: NONE, last: NONE, busy: 0 }
    }
}

impl<T: Copy + Send + 'static, S: Storage> Clone for BusyList<T, S> {
    /// Returns a list with the same entries. No thread works on an entry of the copy.
    fn clone(&self) -> Self {
        let mut entries = self.entries.clone();
        entries.entries_mut().iter_mut().for_each(|entry| entry.busy = false);
        Self { entries, first: self.first, last: self.last, busy: 0 }
    }
}

impl<T: Copy + Send + 'static, S: Storage> core::ops::Index<u32> for BusyList<T, S> {
    type Output = T;
    fn index(&self, entry: u32) -> &T {
        self.entries[entry].value.as_ref().expect("the entry is in the list")
    }
}

impl<T: Copy + Send + 'static, S: Storage> core::ops::IndexMut<u32> for BusyList<T, S> {
    fn index_mut(&mut self, entry: u32) -> &mut T {
        self.entries[entry].value.as_mut().expect("the entry is in the list")
    }
}

impl<T: Copy + Send + 'static, S: Storage> BusyList<T, S> {
    /// Makes room for `extra` further entries. Returns false if they do not fit.
    pub(crate) fn make_room(&mut self, extra: u32) -> bool {
        self.entries.make_room(extra)
    }

    /// Adds a value at the end, and returns the number of the entry. Room was made.
    pub(crate) fn add(&mut self, value: T) -> u32 {
        let entry = self.entries.insert(BusyEntry { value: Some(value), busy: false, before: NONE, after: NONE });
        self.link_last(entry);
        entry
    }

    /// Adds a value at the end as a busy entry of the caller, and returns the number of the entry. Room was made.
    pub(crate) fn add_taken(&mut self, value: T) -> u32 {
        let entry = self.add(value);
        self.take(entry);
        entry
    }

    /// Returns whether the list has no entry.
    pub(crate) fn is_empty(&self) -> bool {
        self.first == NONE
    }

    /// Returns whether a thread works on an entry.
    pub(crate) fn is_at_work(&self) -> bool {
        self.busy > 0
    }

    /// Returns the entries on which threads work, in no order.
    pub(crate) fn busy_entries(&self) -> impl Iterator<Item = u32> {
        (0..).zip(self.entries.entries()).filter(|(_, entry)| entry.busy).map(|(number, _)| number)
    }

    /// Returns whether a thread works on `entry`.
    pub(crate) fn is_busy(&self, entry: u32) -> bool {
        self.entries[entry].busy
    }

    /// Takes the first entry not busy and for which `wanted` returns true. The caller ends its work
    /// with [`keep`](Self::keep), [`remove`](Self::remove) or [`move_to_end`](Self::move_to_end).
    pub(crate) fn take_first(&mut self, wanted: impl Fn(&T) -> bool) -> Option<u32> {
        self.take_from(self.first, wanted)
    }

    /// Takes the first entry behind `entry`, which the caller has taken, as [`take_first`](Self::take_first) does.
    pub(crate) fn take_after(&mut self, entry: u32, wanted: impl Fn(&T) -> bool) -> Option<u32> {
        debug_assert!(self.entries[entry].busy, "other threads may remove an entry that is not taken");
        self.take_from(self.entries[entry].after, wanted)
    }

    fn take_from(&mut self, mut at: u32, wanted: impl Fn(&T) -> bool) -> Option<u32> {
        while at != NONE && (self.entries[at].busy || !wanted(&self[at])) {
            at = self.entries[at].after;
        }
        if at == NONE {
            return None;
        }
        self.take(at);
        Some(at)
    }

    /// Takes `entry`, which is not busy.
    pub(crate) fn take(&mut self, entry: u32) {
        debug_assert!(!self.entries[entry].busy, "one thread works on an entry");
        self.entries[entry].busy = true;
        self.busy += 1;
    }

    /// Ends the work on an entry, which keeps its place.
    pub(crate) fn keep(&mut self, entry: u32) {
        debug_assert!(self.entries[entry].busy, "the caller has taken the entry");
        self.entries[entry].busy = false;
        self.busy -= 1;
    }

    /// Ends the work on an entry, and removes it from the list.
    pub(crate) fn remove(&mut self, entry: u32) -> T {
        self.keep(entry);
        self.unlink(entry);
        let value = self[entry];
        self.entries.remove(entry);
        value
    }

    /// Ends the work on an entry, which moves to the end of the list.
    pub(crate) fn move_to_end(&mut self, entry: u32) {
        self.keep(entry);
        self.unlink(entry);
        self.link_last(entry);
    }

    fn link_last(&mut self, entry: u32) {
        let before = core::mem::replace(&mut self.last, entry);
        (self.entries[entry].before, self.entries[entry].after) = (before, NONE);
        if before == NONE {
            self.first = entry;
        } else {
            self.entries[before].after = entry;
        }
    }

    fn unlink(&mut self, entry: u32) {
        let BusyEntry { before, after, .. } = self.entries[entry];
        if before == NONE {
            self.first = after;
        } else {
            self.entries[before].after = after;
        }
        if after == NONE {
            self.last = before;
        } else {
            self.entries[after].before = before;
        }
    }
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests {
    use super::*;
    use crate::tables::{Fixed, Growable};
    use proptest::prelude::*;
    use std::vec::Vec;

    /// The list from begin to end.
    fn all<S: Storage>(list: &BusyList<u32, S>) -> Vec<u32> {
        let some = |at: u32| Some(at).filter(|&at| at != NONE);
        let numbers = core::iter::successors(some(list.first), |&at| some(list.entries[at].after));
        let values: Vec<u32> = numbers.map(|at| list[at]).collect();
        let back = core::iter::successors(some(list.last), |&at| some(list.entries[at].before));
        let mut reversed: Vec<u32> = back.map(|at| list[at]).collect();
        reversed.reverse();
        assert_eq!(values, reversed, "both directions agree");
        values
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Add,
        AddTaken,
        TakeFirst(u32),
        TakeAfter(u32),
        Keep(usize),
        Remove(usize),
        MoveToEnd(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            Just(Step::Add),
            Just(Step::AddTaken),
            (1_u32..4).prop_map(Step::TakeFirst),
            (1_u32..4).prop_map(Step::TakeAfter),
            (0_usize..8).prop_map(Step::Keep),
            (0_usize..8).prop_map(Step::Remove),
            (0_usize..8).prop_map(Step::MoveToEnd),
        ];
        prop::collection::vec(step, 1..300)
    }

    /// Runs the steps on a list beside a vector of (value, busy).
    fn agrees_with_a_vector<S: Storage>(steps: &[Step], capacity: usize) -> Result<(), TestCaseError> {
        let mut list = BusyList::<u32, S>::default();
        let mut model: Vec<(u32, bool)> = Vec::new();
        // The entries taken by the only thread, and their values.
        let mut taken: Vec<(u32, u32)> = Vec::new();
        for (value, &step) in (0..).zip(steps) {
            let place = |model: &[(u32, bool)], value| model.iter().position(|&(of, _)| of == value).unwrap();
            match step {
                Step::Add | Step::AddTaken => {
                    let room = list.make_room(1);
                    prop_assert_eq!(room, model.len() < capacity);
                    let is_taken = matches!(step, Step::AddTaken);
                    if room {
                        let entry = if is_taken { list.add_taken(value) } else { list.add(value) };
                        taken.extend(is_taken.then_some((entry, value)));
                        model.push((value, is_taken));
                    }
                }
                Step::TakeFirst(every) | Step::TakeAfter(every) => {
                    let after = taken.last().copied().filter(|_| matches!(step, Step::TakeAfter(_)));
                    let from = after.map_or(0, |(_, value)| place(&model, value) + 1);
                    let wanted = |value: &u32| value.is_multiple_of(every);
                    let found = match after {
                        Some((entry, _)) => list.take_after(entry, wanted),
                        None => list.take_first(wanted),
                    };
                    let expected = model[from..].iter_mut().find(|(value, busy)| !busy && wanted(value));
                    prop_assert_eq!(found.map(|entry| list[entry]), expected.as_ref().map(|(value, _)| *value));
                    if let (Some(entry), Some((value, busy))) = (found, expected) {
                        *busy = true;
                        taken.push((entry, *value));
                    }
                }
                Step::Keep(of) | Step::Remove(of) | Step::MoveToEnd(of) => {
                    if taken.is_empty() {
                        continue;
                    }
                    let (entry, value) = taken.swap_remove(of % taken.len());
                    let at = place(&model, value);
                    match step {
                        Step::Keep(_) => {
                            list.keep(entry);
                            model[at].1 = false;
                        }
                        Step::Remove(_) => {
                            prop_assert_eq!(list.remove(entry), value);
                            model.remove(at);
                        }
                        _ => {
                            list.move_to_end(entry);
                            model.remove(at);
                            model.push((value, false));
                        }
                    }
                }
            }
            let values: Vec<u32> = model.iter().map(|&(value, _)| value).collect();
            prop_assert_eq!(all(&list), values);
            prop_assert_eq!((list.len() as usize, list.is_empty()), (model.len(), model.is_empty()));
            prop_assert_eq!(list.is_at_work(), !taken.is_empty());
            prop_assert!(taken.iter().all(|&(entry, _)| list.is_busy(entry)));
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn every_step_does_to_the_list_what_it_does_to_a_vector(steps in steps()) {
            agrees_with_a_vector::<Growable>(&steps, usize::MAX)?;
            agrees_with_a_vector::<Fixed<1, 8, 5, 64>>(&steps, 5)?;
        }
    }

    #[test]
    fn no_entry_of_a_copy_is_busy() {
        let mut list = BusyList::<u32, Growable>::default();
        assert!(list.make_room(2));
        list.add_taken(0);
        list.add(1);
        let mut copy = list.clone();
        assert_eq!((all(&copy), copy.is_at_work(), list.is_at_work()), ([0, 1].to_vec(), false, true));
        let first = copy.take_first(|_| true).unwrap();
        assert_eq!(copy.remove(first), 0);
    }

    #[test]
    fn a_walk_goes_on_behind_an_entry_whatever_else_is_removed() {
        let mut list = BusyList::<u32, Growable>::default();
        assert!(list.make_room(4));
        (0..4).for_each(|value| _ = list.add(value));
        let mine = list.take_first(|_| true).unwrap();
        let other = list.take_first(|_| true).unwrap();
        assert_eq!((list[mine], list[other]), (0, 1));
        list.remove(other);
        assert!(list.make_room(1));
        assert_eq!(list.add(9), other, "the entry is used again, at the end");
        let next = list.take_after(mine, |_| true).unwrap();
        assert_eq!(list[next], 2, "and not where the walk goes on");
    }
}
