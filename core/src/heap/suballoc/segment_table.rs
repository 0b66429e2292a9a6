//! What a suballocator keeps of each of its segments, found by the number that the heap gave the segment.

use crate::tables::{Storage, Table};
use core::ops::{Index, IndexMut};

/// An entry of [`SegmentTable`].
pub(crate) trait SegmentEntry: Send + 'static {
    /// What stands for a number that no segment has.
    const VACANT: Self;
}

/// A table of `T` over the numbers of segments.
pub(crate) struct SegmentTable<T: SegmentEntry, S: Storage> {
    table: S::Table<T>,
    /// How many numbers are given.
    count: u32,
    /// A further segment fits, whatever number it is given.
    ready: bool,
}

impl<T: SegmentEntry, S: Storage> Default for SegmentTable<T, S> {
    fn default() -> Self {
        Self { table: S::Table::<T>::default(), count: 0, ready: false }
    }
}

impl<T: SegmentEntry, S: Storage> SegmentTable<T, S> {
    /// Whether a further segment fits as it is.
    #[inline(always)]
    pub(crate) fn is_ready(&self) -> bool {
        self.ready
    }

    /// Makes sure that a further segment fits.
    #[cold]
    pub(crate) fn make_room(&mut self) -> bool {
        // The heap numbers segments by a table that doubles, or that holds no more than this one can.
        let wanted = (self.count as usize + 1) * 2;
        while self.table.len() < wanted && self.table.make_room(1) {
            self.table.add(T::VACANT);
        }
        self.ready = self.table.len() > self.count as usize;
        self.ready
    }

    /// Gives a number that no segment has; room was made.
    pub(crate) fn insert(&mut self, segment: u32, entry: T) {
        while self.table.len() <= segment as usize {
            self.table.add(T::VACANT);
        }
        self.table[segment as usize] = entry;
        self.count += 1;
        self.ready = false;
    }

    /// Takes a number back.
    pub(crate) fn remove(&mut self, segment: u32) {
        self.table[segment as usize] = T::VACANT;
        self.count -= 1;
    }

    /// How many segments there are.
    pub(crate) fn len(&self) -> u32 {
        self.count
    }

    /// The entry of a number, given or not, up to the highest that ever was.
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, segment: u32) -> Option<&mut T> {
        self.table.get_mut(segment as usize)
    }

    /// The entries of all numbers, given or not.
    #[inline(always)]
    pub(crate) fn entries(&self) -> &[T] {
        &self.table
    }
}

impl<T: SegmentEntry, S: Storage> Index<u32> for SegmentTable<T, S> {
    type Output = T;
    #[inline(always)]
    fn index(&self, segment: u32) -> &T {
        &self.table[segment as usize]
    }
}

impl<T: SegmentEntry, S: Storage> IndexMut<u32> for SegmentTable<T, S> {
    #[inline(always)]
    fn index_mut(&mut self, segment: u32) -> &mut T {
        &mut self.table[segment as usize]
    }
}
