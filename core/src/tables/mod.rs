//! Tables for the allocator's own records: growing on the host's heap ([`Growable`]), or in arrays
//! of fixed capacity ([`Fixed`]).
//!
//! The rest of the crate is written once, over the traits [`Storage`], [`Table`], [`Lazy`] and
//! [`OnceTable`]. An operation that needs a new entry makes room first and changes nothing before,
//! so a full table is an error of that operation and leaves the allocator as it was.

pub(crate) mod atomic_map;
pub(crate) mod hash_index;
pub(crate) mod indexed_list;
pub(crate) mod page_table;
pub(crate) mod radix_tree;
pub(crate) mod slot_table;

use atomic_map::{AtomicMap, Cells, FixedCells};
use core::ops::{Deref, DerefMut};
use page_table::PageTable;
use spin::Once;

/// A table has no entry left. The operation that needed the entry has changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CapacityError;

/// A growable table. An index stays valid until its entry is popped.
pub trait Table<T>: Default + DerefMut<Target = [T]> {
    /// Makes room for `extra` further entries. Returns false, and changes nothing, if they do not
    /// fit.
    fn make_room(&mut self, extra: usize) -> bool;

    /// Adds an entry at the end. Never allocates: the caller has called
    /// [`make_room`](Self::make_room).
    ///
    /// # Panics
    /// If a table of fixed capacity is full.
    fn add(&mut self, entry: T);

    /// Removes the last entry and returns it. Keeps the room: `len` may grow back without an
    /// allocation.
    fn pop(&mut self) -> Option<T>;

    /// Removes all entries and releases their memory to the host. Returns false, and changes
    /// nothing, where the capacity is fixed.
    fn drop_entries(&mut self) -> bool;
}

/// A value created on first use. Dereferencing panics before the value was created.
pub trait Lazy<T>: Default + DerefMut<Target = T> {
    /// Returns whether the value was created.
    fn is_made(&self) -> bool;

    /// Returns the value, and creates a default one if there is none yet.
    fn get_or_make(&mut self) -> &mut T;

    /// Drops a value on the host's heap. A value stored in place stays unchanged.
    fn drop_value(&mut self);
}

/// A table shared between threads. Entries are written once and never move.
pub trait OnceTable<T>: Default {
    /// Returns the entry at `index`, or `None` if it has not been set.
    fn get(&self, index: u32) -> Option<&T>;

    /// Returns the entry at `index`, and sets it to `make()` if it is empty. `None` if `index` is
    /// beyond the table's capacity.
    fn get_or_set(&self, index: u32, make: impl FnOnce() -> T) -> Option<&T>;
}

mod sealed {
    /// Keeps other crates from implementing [`Storage`](super::Storage): its table types are
    /// private.
    pub trait SealedStorage {}
}

/// A choice of table types. Only [`Fixed`] and [`Growable`] implement it.
pub trait Storage: sealed::SealedStorage + Clone + Default + 'static {
    /// Tables inside a heap: blocks, index nodes, segments.
    type Table<T: Clone + Send + 'static>: Table<T> + Clone + Send;
    /// Large values inside a heap that an empty heap does not need.
    type Lazy<T: Clone + Default + Send + 'static>: Lazy<T> + Clone + Send;
    /// The devices of an allocator.
    type Devices<T: 'static>: Table<T>;
    /// Heaps and pools. Threads share references into this table, so no entry moves.
    type OnceTable<T: 'static>: OnceTable<T>;
    /// The cells of the index of streams, which is read without a lock.
    type Cells: Cells;
    /// The table of the page map, which is read without a lock.
    type Pages: PageTable;
    /// The event queues of the groups of streams: one group in fixed tables, where each takes as much
    /// room as all, else 16.
    type Groups<T: Send + Sync + 'static>: AsRef<[T]> + Send + Sync;

    /// Makes the groups.
    fn make_groups<T: Send + Sync + 'static>(make: impl FnMut() -> T) -> Self::Groups<T>;
}

/// Tables of fixed capacity, for hosts without a heap.
///
/// - `DEVICES`: devices.
/// - `HEAPS`: heaps of one device: two for each pair of stream and pool, for small and for large
///   blocks; also the number of private pools.
/// - `BLOCKS`: blocks in a heap, live and free ones.
/// - `PAGES`: pages of 2 MiB of device memory, and streams, in the lock-free maps.
///
/// A full table is [`Error::TableFull`](crate::Error::TableFull) with the name of the table, and
/// changes nothing.
///
/// # Size
/// All tables lie in the [`Allocator`](crate::Allocator) itself. On 64-bit hosts, without the
/// feature `alloc`, its size is to within 5 %, in bytes:
///
/// ```text
/// DEVICES · (8,770 + HEAPS · (35,740 + 650 · BLOCKS + 16 · PAGES) + 2,316 · BLOCKS + 32 · PAGES)
/// ```
///
/// | tables | size |
/// |---|---|
/// | `Fixed<1, 2, 16, 64>` | 138 KiB |
/// | `Fixed<1, 4, 32, 64>` | 307 KiB |
/// | `Fixed<1, 8, 64, 512>` | 837 KiB |
/// | `Fixed<1, 8, 512, 4096>` | 4.6 MiB |
///
/// `size_of` tells the size of any other choice at compile time. The example
/// `core/examples/no_heap.rs` is a whole program without a heap, with the device that it needs.
#[derive(Clone, Default, Debug)]
pub struct Fixed<const DEVICES: usize, const HEAPS: usize, const BLOCKS: usize, const PAGES: usize>;

impl<const DEVICES: usize, const HEAPS: usize, const BLOCKS: usize, const PAGES: usize> sealed::SealedStorage
    for Fixed<DEVICES, HEAPS, BLOCKS, PAGES>
{
}

impl<const DEVICES: usize, const HEAPS: usize, const BLOCKS: usize, const PAGES: usize> Storage
    for Fixed<DEVICES, HEAPS, BLOCKS, PAGES>
{
    type Table<T: Clone + Send + 'static> = heapless::Vec<T, BLOCKS>;
    type Lazy<T: Clone + Default + Send + 'static> = InPlace<T>;
    type Devices<T: 'static> = heapless::Vec<T, DEVICES>;
    type OnceTable<T: 'static> = FixedOnceTable<T, HEAPS>;
    type Cells = FixedCells<PAGES>;
    type Pages = AtomicMap<FixedCells<PAGES>>;
    type Groups<T: Send + Sync + 'static> = [T; 1];

    fn make_groups<T: Send + Sync + 'static>(mut make: impl FnMut() -> T) -> [T; 1] {
        [make()]
    }
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

/// The [`Lazy`] of [`Fixed`]: the value itself, created with the table.
#[derive(Clone, Default, Debug)]
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

/// The [`OnceTable`] of [`Fixed`]: an array of `N` entries.
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
    use super::page_table::RadixPages;
    use super::{Lazy, OnceTable, Storage, Table};
    use alloc::boxed::Box;
    use alloc::vec::Vec;
    use core::ops::{Deref, DerefMut};
    use once_cell::race::OnceBox;

    /// Tables growing on the host's heap.
    #[derive(Clone, Default, Debug)]
    pub struct Growable;

    impl super::sealed::SealedStorage for Growable {}

    impl Storage for Growable {
        type Table<T: Clone + Send + 'static> = Vec<T>;
        type Lazy<T: Clone + Default + Send + 'static> = WhenNeeded<T>;
        type Devices<T: 'static> = Vec<T>;
        type OnceTable<T: 'static> = GrowingOnceTable<T>;
        type Cells = GrowingCells;
        type Pages = RadixPages;
        type Groups<T: Send + Sync + 'static> = [T; 16];

        fn make_groups<T: Send + Sync + 'static>(mut make: impl FnMut() -> T) -> [T; 16] {
            core::array::from_fn(|_| make())
        }
    }

    impl<T> Table<T> for Vec<T> {
        fn make_room(&mut self, extra: usize) -> bool {
            self.try_reserve(extra).is_ok()
        }

        fn add(&mut self, entry: T) {
            // `make_room` reserved the capacity, so this push does not allocate.
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

    /// The [`Lazy`] of [`Growable`]: a value on the host's heap, allocated on first use.
    #[derive(Clone, Debug)]
    pub struct WhenNeeded<T>(Option<Box<T>>);

    /// The panic message for a value used before its creation.
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

    /// Entries stored in place: enough for most devices.
    const FIRST: usize = 64;
    /// Entries in a chunk.
    const CHUNK: usize = 128;
    /// The most chunks. With the entries in place they make 262,208 entries for each device.
    const CHUNKS: usize = 2048;

    /// Entries allocated together.
    type TableChunk<T> = [OnceBox<T>; CHUNK];

    /// The [`OnceTable`] of [`Growable`]: [`FIRST`] entries in place, and chunks of further
    /// entries, each allocated when its first entry is set.
    #[derive(Debug)]
    pub struct GrowingOnceTable<T> {
        /// Entries 0 to `FIRST − 1`. `malloc` and `free` of most programs touch no other.
        first: [OnceBox<T>; FIRST],
        /// Chunk `n` has the entries from `FIRST + n * CHUNK` on.
        further: Box<[OnceBox<TableChunk<T>>]>,
    }

    impl<T> Default for GrowingOnceTable<T> {
        fn default() -> Self {
            Self { first: [const { OnceBox::new() }; FIRST], further: (0..CHUNKS).map(|_| OnceBox::new()).collect() }
        }
    }

    impl<T> GrowingOnceTable<T> {
        /// Returns the chunk of the entry `index ≥ FIRST`, and the entry's place in the chunk.
        fn chunk_of(&self, index: usize) -> Option<(&OnceBox<TableChunk<T>>, usize)> {
            // Both callers have compared `index` with `FIRST`, so the difference does not wrap.
            let index = index - FIRST;
            Some((self.further.get(index / CHUNK)?, index % CHUNK))
        }

        /// Looks an entry up in the chunks. Kept out of line so `get` stays a few
        /// instructions.
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
            let table = GrowingOnceTable::<u32>::default();
            assert_eq!(table.get(1000), None);
            assert_eq!(table.get_or_set(1000, || 7), Some(&7));
            assert_eq!(table.get_or_set(1000, || 8), Some(&7));
            assert_eq!(table.get(1000), Some(&7));
            assert_eq!(table.get(999), None);
            assert_eq!(table.get_or_set((FIRST + CHUNK * CHUNKS) as u32, || 7), None);
        }
    }
}

#[cfg(feature = "alloc")]
pub use growable::Growable;
#[cfg(feature = "alloc")]
pub(crate) use growable::GrowingOnceTable;
