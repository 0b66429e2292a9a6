//! Where the tables live: growing on the heap ([`Growable`]), or in arrays of a fixed capacity ([`Fixed`]).
//!
//! Everything above is written once, over these traits. A table that is full is an error of the operation
//! that needed the entry, found before anything was changed.

pub(crate) mod atomic_map;
pub(crate) mod hash_index;
pub(crate) mod indexed_list;
pub(crate) mod radix_tree;
pub(crate) mod slot_table;

use atomic_map::{Cells, FixedCells};
use core::ops::{Deref, DerefMut};
use spin::Once;

/// A table has no entry left. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CapacityError;

/// A table that an entry can be added to; indices stay valid.
pub trait Table<T>: Default + DerefMut<Target = [T]> {
    /// Makes sure that `extra` further entries fit. False if they cannot; then nothing has changed.
    fn make_room(&mut self, extra: usize) -> bool;

    /// Adds an entry.
    ///
    /// # Panics
    /// If there is no room: the caller has asked [`make_room`](Self::make_room).
    fn add(&mut self, entry: T);

    /// Takes the last entry out.
    fn pop(&mut self) -> Option<T>;

    /// Gives the table's memory back to the host and is empty then. False, and nothing changes, where the capacity is fixed.
    fn drop_entries(&mut self) -> bool;
}

/// A value that is made when it is first needed. To dereference it before that panics.
pub trait Lazy<T>: Default + DerefMut<Target = T> {
    /// Whether the value was made.
    fn is_made(&self) -> bool;

    /// The value, made if it was not yet.
    fn get_or_make(&mut self) -> &mut T;

    /// Drops the value and the memory it takes, where that came from the host. Else nothing changes.
    fn drop_value(&mut self);
}

/// A table shared between threads whose entries are set once and never move.
pub trait OnceTable<T>: Default {
    /// The entry at `index`, if it has been set.
    fn get(&self, index: u32) -> Option<&T>;

    /// Sets the entry at `index` unless it is set already. `None` if the table cannot hold that many.
    fn get_or_set(&self, index: u32, make: impl FnOnce() -> T) -> Option<&T>;
}

mod sealed {
    /// Keeps [`Storage`](super::Storage) from being implemented by other crates: its tables are no part of the interface.
    pub trait Sealed {}
}

/// A choice of tables. Only [`Fixed`] and [`Growable`] implement it.
pub trait Storage: sealed::Sealed + 'static {
    /// Tables inside one heap: blocks, index nodes, segments.
    type Table<T: Send + 'static>: Table<T> + Send;
    /// Large values inside one heap that an empty heap does not need.
    type Lazy<T: Default + Send + 'static>: Lazy<T> + Send;
    /// The devices of one allocator.
    type Devices<T: 'static>: Table<T>;
    /// Heaps and pools: shared, never moved.
    type OnceTable<T: 'static>: OnceTable<T>;
    /// The cells of the maps that are read without a lock.
    type Cells: Cells;
}

/// Tables of fixed capacity, for hosts without a heap.
///
/// `DEVICES` devices; `HEAPS` pairs of (stream, pool) a device, small and large counted apart, and as many private
/// pools; `BLOCKS` blocks a heap; `PAGES` pages of 2 MiB of device memory, and streams, that can be looked up.
#[derive(Debug)]
pub struct Fixed<const DEVICES: usize, const HEAPS: usize, const BLOCKS: usize, const PAGES: usize>;

impl<const DEVICES: usize, const HEAPS: usize, const BLOCKS: usize, const PAGES: usize> sealed::Sealed
    for Fixed<DEVICES, HEAPS, BLOCKS, PAGES>
{
}

impl<const DEVICES: usize, const HEAPS: usize, const BLOCKS: usize, const PAGES: usize> Storage
    for Fixed<DEVICES, HEAPS, BLOCKS, PAGES>
{
    type Table<T: Send + 'static> = heapless::Vec<T, BLOCKS>;
    type Lazy<T: Default + Send + 'static> = InPlace<T>;
    type Devices<T: 'static> = heapless::Vec<T, DEVICES>;
    type OnceTable<T: 'static> = FixedOnceTable<T, HEAPS>;
    type Cells = FixedCells<PAGES>;
}

impl<T, const N: usize> Table<T> for heapless::Vec<T, N> {
    fn make_room(&mut self, extra: usize) -> bool {
        N - self.len() >= extra
    }

    fn add(&mut self, entry: T) {
        assert!(self.push(entry).is_ok(), "room was not made");
    }

    fn pop(&mut self) -> Option<T> {
        Self::pop(self)
    }

    fn drop_entries(&mut self) -> bool {
        false
    }
}

/// The [`Lazy`] of [`Fixed`]: the value itself, made from the start.
#[derive(Default, Debug)]
pub struct InPlace<T>(T);

impl<T> Deref for InPlace<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for InPlace<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: Default> Lazy<T> for InPlace<T> {
    #[inline(always)]
    fn is_made(&self) -> bool {
        true
    }

    #[inline(always)]
    fn get_or_make(&mut self) -> &mut T {
        &mut self.0
    }

    fn drop_value(&mut self) {}
}

/// The [`OnceTable`] of [`Fixed`]: an array.
#[derive(Debug)]
pub struct FixedOnceTable<T, const N: usize>([Once<T>; N]);

impl<T, const N: usize> Default for FixedOnceTable<T, N> {
    fn default() -> Self {
        Self([const { Once::new() }; N])
    }
}

impl<T, const N: usize> OnceTable<T> for FixedOnceTable<T, N> {
    fn get(&self, index: u32) -> Option<&T> {
        self.0.get(index as usize)?.get()
    }

    fn get_or_set(&self, index: u32, make: impl FnOnce() -> T) -> Option<&T> {
        Some(self.0.get(index as usize)?.call_once(make))
    }
}

#[cfg(feature = "alloc")]
mod growable {
    use super::atomic_map::GrowingCells;
    use super::{Lazy, OnceTable, Storage, Table};
    use alloc::boxed::Box;
    use alloc::vec::Vec;
    use core::ops::{Deref, DerefMut};
    use once_cell::race::OnceBox;

    /// Tables that grow on the host's heap.
    #[derive(Debug)]
    pub struct Growable;

    impl super::sealed::Sealed for Growable {}

    impl Storage for Growable {
        type Table<T: Send + 'static> = Vec<T>;
        type Lazy<T: Default + Send + 'static> = WhenNeeded<T>;
        type Devices<T: 'static> = Vec<T>;
        type OnceTable<T: 'static> = GrowingOnceTable<T>;
        type Cells = GrowingCells;
    }

    impl<T> Table<T> for Vec<T> {
        fn make_room(&mut self, extra: usize) -> bool {
            self.try_reserve(extra).is_ok()
        }

        fn add(&mut self, entry: T) {
            self.push(entry);
        }

        fn pop(&mut self) -> Option<T> {
            Self::pop(self)
        }

        fn drop_entries(&mut self) -> bool {
            *self = Self::new();
            true
        }
    }

    /// The [`Lazy`] of [`Growable`]: a place on the host's heap.
    #[derive(Debug)]
    pub struct WhenNeeded<T>(Option<Box<T>>);

    /// What a value that is used before it was made panics with.
    const NOT_MADE: &str = "a value is made before it is used";

    impl<T> Default for WhenNeeded<T> {
        fn default() -> Self {
            Self(None)
        }
    }

    impl<T> Deref for WhenNeeded<T> {
        type Target = T;

        #[inline(always)]
        fn deref(&self) -> &T {
            self.0.as_deref().expect(NOT_MADE)
        }
    }

    impl<T> DerefMut for WhenNeeded<T> {
        #[inline(always)]
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_deref_mut().expect(NOT_MADE)
        }
    }

    impl<T: Default> Lazy<T> for WhenNeeded<T> {
        #[inline(always)]
        fn is_made(&self) -> bool {
            self.0.is_some()
        }

        #[inline(always)]
        fn get_or_make(&mut self) -> &mut T {
            self.0.get_or_insert_with(Box::default)
        }

        fn drop_value(&mut self) {
            self.0 = None;
        }
    }

    /// Entries in place: as many as most devices need.
    const FIRST: usize = 64;
    /// Entries a chunk.
    const CHUNK: usize = 128;
    /// The most chunks: 262,208 entries a device.
    const CHUNKS: usize = 2048;

    type Chunk<T> = [OnceBox<T>; CHUNK];

    /// The [`OnceTable`] of [`Growable`]: some entries, and chunks of further ones, each allocated when first needed.
    #[derive(Debug)]
    pub struct GrowingOnceTable<T> {
        first: [OnceBox<T>; FIRST],
        further: Box<[OnceBox<Chunk<T>>]>,
    }

    impl<T> Default for GrowingOnceTable<T> {
        fn default() -> Self {
            Self { first: [const { OnceBox::new() }; FIRST], further: (0..CHUNKS).map(|_| OnceBox::new()).collect() }
        }
    }

    impl<T> GrowingOnceTable<T> {
        /// The chunk of an entry that is not in place, and where in that.
        fn chunk_of(&self, index: usize) -> Option<(&OnceBox<Chunk<T>>, usize)> {
            let index = index - FIRST;
            Some((self.further.get(index / CHUNK)?, index % CHUNK))
        }

        #[inline(never)]
        fn get_further(&self, index: usize) -> Option<&T> {
            let (chunk, at) = self.chunk_of(index)?;
            chunk.get()?[at].get()
        }
    }

    impl<T> OnceTable<T> for GrowingOnceTable<T> {
        #[inline(always)]
        fn get(&self, index: u32) -> Option<&T> {
            let index = index as usize;
            match self.first.get(index) {
                Some(entry) => entry.get(),
                None => self.get_further(index),
            }
        }

        fn get_or_set(&self, index: u32, make: impl FnOnce() -> T) -> Option<&T> {
            let index = index as usize;
            let entry = if index < FIRST {
                &self.first[index]
            } else {
                let (chunk, at) = self.chunk_of(index)?;
                &chunk.get_or_init(|| Box::new([const { OnceBox::new() }; CHUNK]))[at]
            };
            Some(entry.get_or_init(|| Box::new(make())))
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn entries_are_set_once_and_stay() {
            let shelf = GrowingOnceTable::<u32>::default();
            assert_eq!(shelf.get(1000), None);
            assert_eq!(shelf.get_or_set(1000, || 7), Some(&7));
            assert_eq!(shelf.get_or_set(1000, || 8), Some(&7));
            assert_eq!(shelf.get(1000), Some(&7));
            assert_eq!(shelf.get(999), None);
            assert_eq!(shelf.get_or_set((FIRST + CHUNK * CHUNKS) as u32, || 7), None);
        }
    }
}

#[cfg(feature = "alloc")]
pub use growable::Growable;
