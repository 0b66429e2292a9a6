//! A table that reuses its entries: vacant entries form a list that runs through the entries
//! themselves.

use crate::sync::impl_empty;
use crate::tables::{Storage, Table};
use core::ops::{Index, IndexMut};

/// The index that means "no entry". No table has that many entries.
pub const NONE: u32 = u32::MAX;

/// An entry that can store a link while it is vacant.
pub trait Vacant: Clone + Send + 'static {
    /// Creates a vacant entry that links to the vacant entry `next`.
    fn vacant(next: u32) -> Self;
    /// Makes an occupied entry vacant, and links it to the vacant entry `next`.
    fn vacate(&mut self, next: u32) {
        *self = Self::vacant(next);
    }

    /// Returns the link of a vacant entry, or [`NONE`] at the end of the list.
    fn next_vacant(&self) -> u32;
}

/// Makes a type an entry of a table, given the field for the link and the vacant entry. If `keeps`
/// is given, only the link of an entry changes when it becomes vacant; otherwise it is replaced by
/// the vacant entry.
macro_rules! vacant {
    ($Entry:ty, $link:ident $(, $keeps:ident)?, |$next:ident| $vacant:expr) => {
        impl $crate::tables::slot_table::Vacant for $Entry {
            fn vacant($next: u32) -> Self {
                $vacant
            }

            $(
                fn vacate(&mut self, $keeps: u32) {
                    self.$link = $keeps;
                }
            )?

            fn next_vacant(&self) -> u32 {
                self.$link
            }
        }
    };
}
pub(crate) use vacant;

/// A table of `T` with reusable indices. Room is made in advance, for many entries at a time, so
/// that occupying an entry takes a few instructions and cannot fail.
#[derive(Clone)]
pub struct SlotTable<T: Vacant, S: Storage> {
    /// Every entry, occupied or vacant.
    table: S::Table<T>,
    /// The list of the vacant entries in `table`.
    vacancies: Vacancies,
}

impl_empty! { [T: Vacant, S: Storage] SlotTable<T, S> { table, vacancies: Vacancies { first: NONE, count: 0 } } }

/// The list of the vacant entries of a table.
#[derive(Clone)]
pub(crate) struct Vacancies {
    /// The first vacant entry; `NONE` ⟺ `count` is 0.
    first: u32,
    /// The length of the list.
    count: u32,
}

impl Vacancies {
    /// Takes the first vacant entry off the list. The caller has made room, and fills the entry at
    /// once.
    #[inline(always)]
    pub(crate) fn occupy<T: Vacant>(&mut self, entries: &[T]) -> u32 {
        // Last in, first out: the entry that was vacated last is the most likely to be in the
        // cache.
        let index = self.first;
        self.first = entries[index as usize].next_vacant();
        // Room was made, so the list is not empty, and the count does not wrap.
        self.count -= 1;
        index
    }

    /// Puts the entry at `index` at the head of the list.
    #[inline(always)]
    pub(crate) fn vacate<T: Vacant>(&mut self, index: u32, entries: &mut [T]) {
        entries[index as usize].vacate(self.first);
        self.first = index;
        self.count += 1;
    }
}

impl<T: Vacant, S: Storage> SlotTable<T, S> {
    /// Returns whether `extra` more entries fit without growing the table.
    #[inline]
    pub fn has_room(&self, extra: u32) -> bool {
        extra <= self.vacancies.count
    }

    /// Makes room for `extra` more entries. Returns false, and changes nothing, if they do not fit.
    #[inline]
    pub fn make_room(&mut self, extra: u32) -> bool {
        self.has_room(extra) || self.grow(extra - self.vacancies.count)
    }

    /// Adds at least `missing` vacant entries. Doubles the table if there is enough memory, and
    /// otherwise adds half as many, a quarter, and so on.
    #[cold]
    fn grow(&mut self, missing: u32) -> bool {
        let mut more = (self.table.len() as u32).max(missing);
        while more >= missing && !self.table.make_room(more as usize) {
            more /= 2;
        }
        if more < missing && !self.table.make_room(missing as usize) {
            return false;
        }
        // The last call of `make_room` was for this many entries, and succeeded.
        for _ in 0..more.max(missing) {
            self.table.add(T::vacant(self.vacancies.first));
            self.vacancies.first = self.table.len() as u32 - 1;
            self.vacancies.count += 1;
        }
        true
    }

    /// Stores `entry` and returns its index. Room was made for it.
    #[inline(always)]
    pub fn insert(&mut self, entry: T) -> u32 {
        let index = self.vacancies.occupy(&self.table);
        self.table[index as usize] = entry;
        index
    }

    /// Makes the entry at `index` vacant.
    #[inline(always)]
    pub fn remove(&mut self, index: u32) {
        debug_assert!(!self.is_empty(), "an occupied entry is removed");
        self.vacancies.vacate(index, &mut self.table);
    }

    /// Returns all entries, and the list of the vacant ones.
    #[inline(always)]
    pub(crate) fn parts(&mut self) -> (&mut [T], &mut Vacancies) {
        (&mut self.table, &mut self.vacancies)
    }

    /// Returns all entries, occupied and vacant. If the caller holds the slice in a local, the
    /// optimiser does not have to reload the table's pointer and length after every store.
    #[inline(always)]
    pub fn entries(&self) -> &[T] {
        &self.table
    }

    /// Iterates over a list of entries and their indices, starting with the entry `first`. `next`
    /// returns the entry that follows another, or [`NONE`].
    pub(crate) fn chain(&self, first: u32, next: impl Fn(&T) -> u32) -> impl Iterator<Item = (u32, &T)> {
        let at = move |at: u32| (at != NONE).then(|| (at, &self[at]));
        core::iter::successors(at(first), move |(_, entry)| at(next(entry)))
    }

    /// Returns all entries, occupied and vacant, mutably.
    #[inline(always)]
    pub fn entries_mut(&mut self) -> &mut [T] {
        &mut self.table
    }

    /// Gives the memory of a table without occupied entries back to the host. Does nothing if the
    /// capacity is fixed.
    pub(crate) fn drop_entries(&mut self) {
        if self.table.drop_entries() {
            self.vacancies = Vacancies { first: NONE, count: 0 };
        }
    }

    /// Iterates over the vacant entries.
    pub(crate) fn vacant(&self) -> impl Iterator<Item = u32> {
        let first = Some(self.vacancies.first).filter(|&entry| entry != NONE);
        core::iter::successors(first, |&entry| {
            Some(self.table[entry as usize].next_vacant()).filter(|&next| next != NONE)
        })
    }

    /// Returns the number of occupied entries.
    pub fn len(&self) -> u32 {
        self.capacity() - self.vacancies.count
    }

    /// Returns whether no entry is occupied.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of entries, occupied and vacant.
    pub(crate) fn capacity(&self) -> u32 {
        self.table.len() as u32
    }
}

impl<T: Vacant, S: Storage> Index<u32> for SlotTable<T, S> {
    type Output = T;
    #[inline]
    fn index(&self, index: u32) -> &T {
        &self.table[index as usize]
    }
}

impl<T: Vacant, S: Storage> IndexMut<u32> for SlotTable<T, S> {
    #[inline]
    fn index_mut(&mut self, index: u32) -> &mut T {
        &mut self.table[index as usize]
    }
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests {
    use super::*;
    use crate::tables::Growable;
    use std::vec::Vec;

    #[derive(Clone)]
    struct Entry {
        next: u32,
    }

    vacant!(Entry, next, |next| Self { next });

    #[test]
    fn the_vacant_entries_are_those_that_no_one_holds() {
        let mut table = SlotTable::<Entry, Growable>::default();
        assert_eq!(table.vacant().count(), 0);
        assert!(table.make_room(5));
        let held: Vec<u32> = (0..5).map(|_| table.insert(Entry { next: 7 })).collect();
        [held[1], held[4], held[2]].into_iter().for_each(|entry| table.remove(entry));
        let vacant: Vec<u32> = table.vacant().collect();
        assert_eq!(vacant, [held[2], held[4], held[1]], "the latest first");
        assert_eq!((table.len(), table.has_room(3), table.has_room(4)), (2, true, false));
    }
}
