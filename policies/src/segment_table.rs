//! A table with an entry for each segment of a sub-allocator, indexed by the segment's number in
//! the heap.

use cachalot_core::Storage;
use cachalot_core::records::Table;
use core::ops::{Index, IndexMut};

/// An entry of [`SegmentTable`].
pub(crate) trait SegmentEntry: Clone + Send + 'static {
    /// The entry of a number without a segment.
    const VACANT: Self;
}

/// A table of `T`, indexed by segment number.
#[derive(Clone)]
pub(crate) struct SegmentTable<T: SegmentEntry, S: Storage> {
    /// The entries of all numbers up to the highest ever used.
    table: S::Table<T>,
    /// The number of segments in the table.
    count: u32,
    /// Whether another segment fits, whichever number the heap chooses for it.
    ready: bool,
}

impl<T: SegmentEntry, S: Storage> Default for SegmentTable<T, S> {
    fn default() -> Self {
        Self { table: S::Table::default(), count: 0, ready: false }
    }
}

impl<T: SegmentEntry, S: Storage> SegmentTable<T, S> {
    /// Returns whether another segment fits without growing the table.
    #[inline(always)]
    pub(crate) fn is_ready(&self) -> bool {
        self.ready
    }

    /// Makes room for another segment. Returns false if the table is full.
    #[cold]
    pub(crate) fn make_room(&mut self) -> bool {
        // The heap reuses numbers. They come from a table that doubles, or that has no more entries
        // than this table can have, so the next number is below `wanted`.
        let wanted = (self.count as usize + 1) * 2;
        while self.table.len() < wanted && self.table.make_room(1) {
            self.table.add(T::VACANT);
        }
        self.ready = self.table.len() > self.count as usize;
        self.ready
    }

    /// Sets the entry of a number without a segment. Room was made.
    pub(crate) fn insert(&mut self, segment: u32, entry: T) {
        while self.table.len() <= segment as usize {
            self.table.add(T::VACANT);
        }
        self.table[segment as usize] = entry;
        self.count += 1;
        self.ready = false;
    }

    /// Resets the entry of `segment` to vacant.
    pub(crate) fn remove(&mut self, segment: u32) {
        debug_assert!(self.count > 0, "the table has the segment");
        self.table[segment as usize] = T::VACANT;
        self.count -= 1;
    }

    /// Returns the number of segments.
    pub(crate) fn len(&self) -> u32 {
        self.count
    }

    /// Returns the entry of a number, vacant or not. Returns `None` above the highest number ever
    /// used.
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, segment: u32) -> Option<&mut T> {
        self.table.get_mut(segment as usize)
    }

    /// Returns the entries of all numbers, vacant or not.
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
