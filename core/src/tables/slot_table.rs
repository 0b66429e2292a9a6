//! A table whose entries are given back and handed out again: vacant ones form a list through the entries themselves.

use crate::tables::{Storage, Table};
use core::ops::{Index, IndexMut};

/// The index that stands for "none".
pub(crate) const NONE: u32 = u32::MAX;

/// An entry that can hold a link while it is vacant.
pub(crate) trait Vacant: Send + 'static {
    /// A vacant entry, linked to `next`.
    fn vacant(next: u32) -> Self;
    /// Makes the entry vacant, linked to `next`.
    fn vacate(&mut self, next: u32);
    /// The next vacant entry, of a vacant one.
    fn next_vacant(&self) -> u32;
}

/// A table of `T` with indices that are reused. Room is made ahead, many entries at a time, so that adding one is a few
/// instructions.
pub(crate) struct SlotTable<T: Vacant, S: Storage> {
    /// Every entry, occupied or vacant.
    table: S::Table<T>,
    vacancies: Vacancies,
}

/// The vacant entries of a table.
pub(crate) struct Vacancies {
    /// Head of their list.
    first: u32,
    /// Its length.
    count: u32,
}

impl Vacancies {
    /// Occupies an entry, for which room was made, that the caller fills at once.
    #[inline(always)]
    pub(crate) fn occupy<T: Vacant>(&mut self, entries: &[T]) -> u32 {
        let index = self.first;
        self.first = entries[index as usize].next_vacant();
        self.count -= 1;
        index
    }

    /// Takes the entry at `index` back.
    #[inline(always)]
    pub(crate) fn vacate<T: Vacant>(&mut self, index: u32, entries: &mut [T]) {
        entries[index as usize].vacate(self.first);
        self.first = index;
        self.count += 1;
    }
}

impl<T: Vacant, S: Storage> Default for SlotTable<T, S> {
    fn default() -> Self {
        Self { table: S::Table::<T>::default(), vacancies: Vacancies { first: NONE, count: 0 } }
    }
}

impl<T: Vacant, S: Storage> SlotTable<T, S> {
    /// Whether `extra` further entries fit as it is.
    #[inline]
    pub(crate) fn has_room(&self, extra: u32) -> bool {
        extra <= self.vacancies.count
    }

    /// Makes sure that `extra` further entries fit.
    #[inline]
    pub(crate) fn make_room(&mut self, extra: u32) -> bool {
        self.has_room(extra) || self.grow(extra - self.vacancies.count)
    }

    /// Adds `missing` vacant entries, and as many again as there are if that can be had.
    #[cold]
    fn grow(&mut self, missing: u32) -> bool {
        let mut more = (self.table.len() as u32).max(missing);
        while more >= missing && !self.table.make_room(more as usize) {
            more /= 2;
        }
        if more < missing && !self.table.make_room(missing as usize) {
            return false;
        }
        for _ in 0..more.max(missing) {
            self.table.add(T::vacant(self.vacancies.first));
            self.vacancies.first = self.table.len() as u32 - 1;
            self.vacancies.count += 1;
        }
        true
    }

    /// Adds `entry`, for which room was made, and says where it is.
    #[inline(always)]
    pub(crate) fn insert(&mut self, entry: T) -> u32 {
        let index = self.vacancies.occupy(&self.table);
        self.table[index as usize] = entry;
        index
    }

    /// Gives the entry at `index` back.
    #[inline(always)]
    pub(crate) fn remove(&mut self, index: u32) {
        self.vacancies.vacate(index, &mut self.table);
    }

    /// All entries, and which of them are vacant.
    #[inline(always)]
    pub(crate) fn parts(&mut self) -> (&mut [T], &mut Vacancies) {
        (&mut self.table, &mut self.vacancies)
    }

    /// All entries, occupied and vacant. To keep the slice at hand spares the optimiser from asking where it is again and again.
    #[inline(always)]
    pub(crate) fn entries(&self) -> &[T] {
        &self.table
    }

    #[inline(always)]
    pub(crate) fn entries_mut(&mut self) -> &mut [T] {
        &mut self.table
    }

    /// Gives the memory of a table without occupied entries back to the host, if it came from there.
    pub(crate) fn drop_entries(&mut self) {
        if self.table.drop_entries() {
            self.vacancies = Vacancies { first: NONE, count: 0 };
        }
    }

    /// How many entries are occupied.
    pub(crate) fn len(&self) -> u32 {
        self.capacity() - self.vacancies.count
    }

    /// How many entries there are, occupied or vacant.
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
