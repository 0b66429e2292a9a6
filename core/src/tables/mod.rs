//! Tables for the allocator's own records: either they grow on the host's heap ([`Growable`]), or
//! they are arrays of fixed capacity ([`Fixed`]).
//!
//! The rest of the crate is written once, over the traits [`Storage`], [`Table`], [`Lazy`],
//! [`OnceTable`] and [`Devices`]. An operation that needs a new entry makes room before it changes
//! anything. If a table is full, the operation therefore returns an error and leaves the allocator
//! as it was.

pub(crate) mod atomic_map;
pub(crate) mod hash_index;
pub(crate) mod indexed_list;
pub(crate) mod page_table;
pub(crate) mod radix_tree;
pub(crate) mod slot_table;

pub(crate) use crate::suballoc::CapacityError;
#[cfg(feature = "alloc")]
use crate::suballoc::{SubAllocator, SubAllocators};
use crate::sync::{AtomicU32, Empty, Ordering, empty, empty_by, impl_empty};
#[cfg(feature = "alloc")]
use alloc::boxed::Box;
use atomic_map::{AtomicMap, Cells, FixedCells};
use core::ops::{Deref, DerefMut};
use page_table::PageTable;
use spin::Once;

/// A growable table. An index is valid until its entry is popped.
pub trait Table<T>: Empty + Default + DerefMut<Target = [T]> {
    /// Makes room for `extra` more entries. Returns false, and changes nothing, if they do not
    /// fit.
    fn make_room(&mut self, extra: usize) -> bool;

    /// Adds an entry at the end. Never allocates: the caller has called
    /// [`make_room`](Self::make_room).
    ///
    /// # Panics
    /// If a table of fixed capacity is full.
    fn add(&mut self, entry: T);

    /// Removes the last entry and returns it. The room is kept, so `len` may grow back without an
    /// allocation.
    fn pop(&mut self) -> Option<T>;

    /// Removes all entries, and keeps the room.
    fn clear(&mut self);

    /// Removes all entries and gives their memory back to the host. Returns false, and changes
    /// nothing, if the capacity is fixed.
    fn drop_entries(&mut self) -> bool;
}

/// A value that is created on first use. Dereferencing panics before that.
pub trait Lazy<T>: Empty + DerefMut<Target = T> {
    /// Returns whether the value was created.
    fn is_made(&self) -> bool;

    /// Returns the value. Creates an empty one if there is none yet.
    fn get_or_make(&mut self) -> &mut T;

    /// Drops a value on the host's heap. Does nothing if the value is stored in place.
    fn drop_value(&mut self);
}

/// A table that threads share. Entries are set once and never move.
pub trait OnceTable<T>: Empty {
    /// Returns the entry at `index`, or `None` if it has not been set.
    fn get(&self, index: u32) -> Option<&T>;

    /// Returns the entry at `index`, as [`get`](Self::get) does, but does not ask whether one that
    /// is stored in place has been set. If it has not, it is an empty value.
    fn peek(&self, index: u32) -> Option<&T> {
        self.get(index)
    }

    /// Returns the entry at `index`. If it has not been set, an empty value is created, and `set`
    /// changes it before any thread gets it. `None` if `index` is beyond the table's capacity.
    fn get_or_set(&self, index: u32, set: impl FnOnce(&T)) -> Option<&T>;
}

/// The devices of an allocator: places that are created empty, and published once each has its
/// device.
pub trait Devices<T>: Sized {
    /// Creates `count` empty places. `None` if there is no room for them.
    fn with_places(count: usize) -> Option<Self>;

    /// Returns all places.
    fn places(&self) -> &[T];

    /// Returns all places, mutably.
    fn places_mut(&mut self) -> &mut [T];

    /// Publishes the first `count` places.
    fn publish(&self, count: usize);

    /// Returns the published places.
    fn published(&self) -> &[T];

    /// Returns the published place at `index`.
    fn get(&self, index: usize) -> Option<&T>;
}

mod sealed {
    /// Prevents other crates from implementing [`Storage`](super::Storage), because its table types
    /// are private.
    pub trait SealedStorage {}
}

/// A choice of table types. Only [`Fixed`] and [`Growable`] implement it.
pub trait Storage: sealed::SealedStorage + Clone + Default + 'static {
    /// Tables inside a heap: blocks, index nodes, segments.
    type Table<T: Clone + Send + 'static>: Table<T> + Clone + Send;
    /// Large values inside a heap. An empty heap does not need them.
    type Lazy<T: Clone + Empty + Send + 'static>: Lazy<T> + Clone + Send;
    /// Records of events that are stored together.
    type Chunk<T: Clone + Send + 'static>: Table<T> + Clone + Send;
    /// The capacity of a [`Chunk`](Self::Chunk). With 128 records, threads seldom wait for the ring
    /// to which chunks are handed. Fixed tables have as many chunks as other entries, so that a
    /// chunk is a single record.
    const CHUNK: usize;
    /// Values for the devices of an allocator, one for each.
    type ForDevices<T>: Table<T>;
    /// The devices of an allocator.
    type Devices<T: Empty + 'static>: Devices<T>;
    /// Pools. Threads share references to entries of this table, so no entry moves.
    type OnceTable<T: Empty + 'static>: OnceTable<T>;
    /// Heaps. Those of most programs are in place: every request and every free looks one up, and
    /// comes from its number to its address without a load.
    type InPlaceTable<T: Empty + 'static>: OnceTable<T>;
    /// The cells of the index of streams, which is read without a lock.
    type Cells: Cells;
    /// The table of the page map, which is read without a lock.
    type Pages: PageTable;
    /// The number of groups of streams. Each group has separate event queues. Fixed tables have one
    /// group, because each takes as much room as all together; otherwise there are 16.
    const GROUPS: u32;
    /// The event queues of the groups.
    type Groups<T: Empty + Send + Sync + 'static>: AsRef<[T]> + Empty + Send + Sync;
    /// The sub-allocators of the policies that cut segments by themselves.
    #[cfg(feature = "alloc")]
    type SubAllocators: SubAllocators;
}

/// Tables of fixed capacity, for hosts without a heap.
///
/// - `DEVICES`: devices.
/// - `HEAPS`: heaps of one device. Each pair of stream and pool has two, for small and for large
///   blocks. This is also the number of private pools.
/// - `BLOCKS`: blocks in one heap, both live and free.
/// - `PAGES`: pages of 2 MiB of device memory, and streams, in the lock-free maps.
///
/// If a table is full, the operation returns [`Error::TableFull`](crate::Error::TableFull) with the
/// name of the table, and changes nothing.
///
/// # Size
/// All tables are part of the [`Allocator`](crate::Allocator) itself. On 64-bit hosts, without the
/// feature `alloc`, its size in bytes is, to within 5 %:
///
/// ```text
/// DEVICES · (9,800 + HEAPS · (35,740 + 650 · BLOCKS + 16 · PAGES) + 2,316 · BLOCKS + 32 · PAGES)
/// ```
///
/// | tables | size |
/// |---|---|
/// | `Fixed<1, 2, 16, 64>` | 140 KiB |
/// | `Fixed<1, 4, 32, 64>` | 309 KiB |
/// | `Fixed<1, 8, 64, 512>` | 840 KiB |
/// | `Fixed<1, 8, 512, 4096>` | 4.7 MiB |
///
/// Use `size_of` to compute the size of any other choice at compile time. The example
/// `core/examples/no_heap.rs` is a complete program without a heap, including the device that it
/// needs.
///
/// # Stack
/// An allocator in a static, [`Allocator::empty`](crate::Allocator::empty), is created by the
/// compiler, and [`start`](crate::Allocator::start) sets it up in place. This way no table has to
/// be on the stack. In an unoptimised build, `Fixed<1, 2, 64, 64>` takes 11 KiB of stack for the
/// start, 26 KiB for the first request of a stream, and 34 KiB for a request that finds no memory.
/// [`Allocator::new`](crate::Allocator::new) returns the allocator by value, and takes 11 times its
/// size.
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
    type Lazy<T: Clone + Empty + Send + 'static> = InPlace<T>;
    type Chunk<T: Clone + Send + 'static> = heapless::Vec<T, 1>;
    const CHUNK: usize = 1;
    type ForDevices<T> = heapless::Vec<T, DEVICES>;
    type Devices<T: Empty + 'static> = FixedDevices<T, DEVICES>;
    type OnceTable<T: Empty + 'static> = FixedOnceTable<T, HEAPS>;
    type InPlaceTable<T: Empty + 'static> = FixedOnceTable<T, HEAPS>;
    type Cells = FixedCells<PAGES>;
    type Pages = AtomicMap<FixedCells<PAGES>>;
    const GROUPS: u32 = 1;
    type Groups<T: Empty + Send + Sync + 'static> = [T; 1];
    #[cfg(feature = "alloc")]
    type SubAllocators = Box<dyn SubAllocator>;
}

empty_by!([T, const N: usize] heapless::Vec<T, N> = Self::new());

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

    fn clear(&mut self) {
        Self::clear(self);
    }

    fn drop_entries(&mut self) -> bool {
        false
    }
}

/// The [`Lazy`] of [`Fixed`]: the value itself, which is created with the table.
#[derive(Clone, Debug)]
pub struct InPlace<T>(T);

empty_by!([T: Empty] InPlace<T> = Self(empty!()));

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

impl<T: Empty> Lazy<T> for InPlace<T> {
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

/// The [`OnceTable`] of [`Fixed`]: an array of `N` entries. The values are in the table from the
/// start, so they are never moved over the stack.
#[derive(Debug)]
pub struct FixedOnceTable<T, const N: usize> {
    /// Initialized ⟺ the value with this index has been set.
    are_set: [Once<()>; N],
    values: [T; N],
}

impl_empty! { [T: Empty, const N: usize] FixedOnceTable<T, N> { are_set: [const { Once::new() }; N], values } }

impl<T: Empty, const N: usize> OnceTable<T> for FixedOnceTable<T, N> {
    #[inline(always)]
    fn get(&self, index: u32) -> Option<&T> {
        let is_set = self.are_set.get(index as usize)?.is_completed();
        is_set.then(|| &self.values[index as usize])
    }

    #[inline(always)]
    fn peek(&self, index: u32) -> Option<&T> {
        self.values.get(index as usize)
    }

    fn get_or_set(&self, index: u32, set: impl FnOnce(&T)) -> Option<&T> {
        let value = self.values.get(index as usize)?;
        self.are_set[index as usize].call_once(|| set(value));
        Some(value)
    }
}

/// The [`Devices`] of [`Fixed`]: `N` places, of which the first ones are published.
#[derive(Debug)]
pub struct FixedDevices<T, const N: usize> {
    places: [T; N],
    /// The number of published places; at most `N`.
    published: AtomicU32,
}

impl_empty! { [T: Empty, const N: usize] FixedDevices<T, N> { places, published } }

impl<T: Empty, const N: usize> Devices<T> for FixedDevices<T, N> {
    fn with_places(count: usize) -> Option<Self> {
        if count <= N { Some(empty!()) } else { None }
    }

    fn places(&self) -> &[T] {
        &self.places
    }

    fn places_mut(&mut self) -> &mut [T] {
        &mut self.places
    }

    fn publish(&self, count: usize) {
        // `Release` pairs with `Acquire`: a thread that finds a place published also finds its
        // device.
        self.published.store(count as u32, Ordering::Release);
    }

    fn published(&self) -> &[T] {
        &self.places[..self.published.load(Ordering::Acquire) as usize]
    }

    #[inline(always)]
    fn get(&self, index: usize) -> Option<&T> {
        // A published place is below `N`, so the remainder changes nothing. It saves a second
        // bounds check.
        (index < self.published.load(Ordering::Acquire) as usize).then(|| &self.places[index % N])
    }
}

#[cfg(feature = "alloc")]
mod growable {
    use super::atomic_map::GrowingCells;
    use super::page_table::RadixPages;
    use super::{Devices, FixedOnceTable, Lazy, OnceTable, Storage, Table};
    use crate::suballoc::{SubAllocator, SubAllocators};
    use crate::sync::{Empty, empty, empty_by, impl_empty};
    use alloc::boxed::Box;
    use alloc::vec::Vec;
    use core::marker::PhantomData;
    use core::ops::{Deref, DerefMut};
    use once_cell::race::OnceBox;

    /// Tables that grow on the host's heap. `A` has the sub-allocators of the policies that cut
    /// segments by themselves.
    #[derive(Debug)]
    pub struct Growable<A = Box<dyn SubAllocator>>(PhantomData<fn(A)>);

    impl<A> Clone for Growable<A> {
        fn clone(&self) -> Self {
            Self(PhantomData)
        }
    }

    impl<A> Default for Growable<A> {
        fn default() -> Self {
            Self(PhantomData)
        }
    }

    impl<A> super::sealed::SealedStorage for Growable<A> {}

    impl<A: SubAllocators> Storage for Growable<A> {
        type Table<T: Clone + Send + 'static> = Vec<T>;
        type Lazy<T: Clone + Empty + Send + 'static> = WhenNeeded<T>;
        type Chunk<T: Clone + Send + 'static> = heapless::Vec<T, 128>;
        const CHUNK: usize = 128;
        type ForDevices<T> = Vec<T>;
        type Devices<T: Empty + 'static> = Vec<T>;
        type OnceTable<T: Empty + 'static> = GrowingOnceTable<T>;
        type InPlaceTable<T: Empty + 'static> = GrowingInPlaceTable<T>;
        type Cells = GrowingCells;
        type Pages = RadixPages;
        const GROUPS: u32 = 16;
        type Groups<T: Empty + Send + Sync + 'static> = [T; 16];
        type SubAllocators = A;
    }

    empty_by!([T] Vec<T> = Self::new());

    impl<T> Table<T> for Vec<T> {
        fn make_room(&mut self, extra: usize) -> bool {
            self.try_reserve(extra).is_ok()
        }

        fn add(&mut self, entry: T) {
            // `make_room` reserved the capacity, so this does not allocate.
            self.push(entry);
        }

        fn pop(&mut self) -> Option<T> {
            Self::pop(self)
        }

        fn clear(&mut self) {
            Self::clear(self);
        }

        fn drop_entries(&mut self) -> bool {
            *self = Self::new();
            true
        }
    }

    impl<T: Empty> Devices<T> for Vec<T> {
        fn with_places(count: usize) -> Option<Self> {
            let mut places = Self::new();
            places.try_reserve_exact(count).ok()?;
            places.resize_with(count, || empty!());
            Some(places)
        }

        fn places(&self) -> &[T] {
            self
        }

        fn places_mut(&mut self) -> &mut [T] {
            self
        }

        fn publish(&self, count: usize) {
            debug_assert_eq!(count, self.len(), "each place gets its device before the allocator is there");
        }

        fn published(&self) -> &[T] {
            self
        }

        #[inline(always)]
        fn get(&self, index: usize) -> Option<&T> {
            self.as_slice().get(index)
        }
    }

    /// The [`Lazy`] of [`Growable`]: a value on the host's heap, which is allocated on first use.
    #[derive(Clone, Debug)]
    pub struct WhenNeeded<T>(Option<Box<T>>);

    /// The panic message for a value that is used before it is created.
    const NOT_MADE: &str = "a value is made before it is used";

    empty_by!([T] WhenNeeded<T> = Self(None));

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

    impl<T: Empty> Lazy<T> for WhenNeeded<T> {
        #[inline(always)]
        fn is_made(&self) -> bool {
            self.0.is_some()
        }

        #[inline(always)]
        fn get_or_make(&mut self) -> &mut T {
            self.0.get_or_insert_with(|| Box::write(Box::new_uninit(), empty!()))
        }

        fn drop_value(&mut self) {
            self.0 = None;
        }
    }

    /// Entries, or their boxes, that are stored in place: enough for most devices.
    const FIRST: usize = 64;
    /// Entries in a chunk.
    const CHUNK: usize = 128;
    /// The most chunks. Together with the entries in place, this allows 262,208 entries for each
    /// device.
    const CHUNKS: usize = 2048;

    /// Entries that are allocated together.
    type TableChunk<T> = [OnceBox<T>; CHUNK];

    /// All chunks of a table. The array is allocated with the first chunk.
    type Chunks<T> = OnceBox<[OnceBox<TableChunk<T>>; CHUNKS]>;

    /// The [`OnceTable`] of [`Growable`]: [`FIRST`] entries in place, and chunks of more entries. A
    /// chunk is allocated when its first entry is set.
    #[derive(Debug)]
    pub struct GrowingOnceTable<T> {
        /// Entries 0 to `FIRST − 1`.
        first: [OnceBox<T>; FIRST],
        /// Chunk `n` contains the entries from `FIRST + n * CHUNK` on.
        further: Chunks<T>,
    }

    impl_empty! {
        [T] GrowingOnceTable<T> { first: [const { OnceBox::new() }; FIRST], further: OnceBox::new() }
    }

    /// The table of heaps of [`Growable`].
    #[derive(Debug)]
    pub struct GrowingInPlaceTable<T> {
        /// Entries 0 to `FIRST − 1`. In most programs, `malloc` and `free` use no others.
        first: FixedOnceTable<T, FIRST>,
        /// The entries from `FIRST` on.
        further: GrowingOnceTable<T>,
    }

    impl_empty! { [T: Empty] GrowingInPlaceTable<T> { first, further } }

    impl<T: Empty> GrowingInPlaceTable<T> {
        /// Looks up an entry from `FIRST` on. Kept out of line so that the others are only a few
        /// instructions.
        #[cold]
        fn get_further(&self, index: u32) -> Option<&T> {
            self.further.get(index - FIRST as u32)
        }
    }

    impl<T: Empty> OnceTable<T> for GrowingInPlaceTable<T> {
        #[inline(always)]
        fn get(&self, index: u32) -> Option<&T> {
            if (index as usize) < FIRST { self.first.get(index) } else { self.get_further(index) }
        }

        #[inline(always)]
        fn peek(&self, index: u32) -> Option<&T> {
            if (index as usize) < FIRST { self.first.peek(index) } else { self.get_further(index) }
        }

        fn get_or_set(&self, index: u32, set: impl FnOnce(&T)) -> Option<&T> {
            match index.checked_sub(FIRST as u32) {
                Some(further) => self.further.get_or_set(further, set),
                None => self.first.get_or_set(index, set),
            }
        }
    }

    /// Creates an array directly on the heap, so that it is never copied over the stack.
    #[expect(
        clippy::unnecessary_box_returns,
        reason = "the tables own boxes, and an array by value would pass over the stack"
    )]
    pub(crate) fn filled<T, const N: usize>(make: impl Fn() -> T) -> Box<[T; N]> {
        let array = (0..N).map(|_| make()).collect::<Box<[T]>>().try_into();
        let Ok(array) = array else { unreachable!("the slice has N entries") };
        array
    }

    impl<T> GrowingOnceTable<T> {
        /// Returns the chunk of the entry `index ≥ FIRST`, and its position in the chunk.
        fn place_of(index: usize) -> (usize, usize) {
            // Both callers have compared `index` with `FIRST`, so the difference does not wrap.
            let index = index - FIRST;
            (index / CHUNK, index % CHUNK)
        }

        /// Looks an entry up in the chunks. Kept out of line so that `get` is only a few
        /// instructions.
        #[inline(never)]
        fn get_further(further: &Chunks<T>, index: usize) -> Option<&T> {
            let (chunk, at) = Self::place_of(index);
            further.get()?.get(chunk)?.get()?[at].get()
        }

        /// Returns the entry at `index`. If it has not been set, sets it to `make()` first. `None`
        /// if `index` is beyond the table's capacity.
        pub(super) fn get_or_make(&self, index: u32, make: impl FnOnce() -> Box<T>) -> Option<&T> {
            let index = index as usize;
            let entry = if index < FIRST {
                &self.first[index]
            } else {
                let (chunk, at) = Self::place_of(index);
                let chunk = self.further.get_or_init(|| filled(OnceBox::new)).get(chunk)?;
                &chunk.get_or_init(|| Box::new([const { OnceBox::new() }; CHUNK]))[at]
            };
            Some(entry.get_or_init(make))
        }
    }

    impl<T: Empty> OnceTable<T> for GrowingOnceTable<T> {
        #[inline(always)]
        fn get(&self, index: u32) -> Option<&T> {
            let index = index as usize;
            match self.first.get(index) {
                Some(entry) => entry.get(),
                // Pass only the chunks, not the whole table: their address is then computed in this
                // arm only, which saves the other arm an instruction.
                None => Self::get_further(&self.further, index),
            }
        }

        fn get_or_set(&self, index: u32, set: impl FnOnce(&T)) -> Option<&T> {
            self.get_or_make(index, || {
                let entry = Box::new(empty!());
                set(&entry);
                entry
            })
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::sync::{AtomicU32, Ordering};

        #[test]
        fn entries_are_set_once_and_stay() {
            let table = GrowingOnceTable::<u32>::default();
            assert_eq!(table.get(1000), None);
            assert_eq!(table.get_or_make(1000, || Box::new(7)), Some(&7));
            assert_eq!(table.get_or_set(1000, |_| unreachable!("it is set")), Some(&7));
            assert_eq!(table.get(1000), Some(&7));
            assert_eq!(table.get(999), None);
            assert_eq!(table.get_or_set((FIRST + CHUNK * CHUNKS) as u32, |_| ()), None);
            let last = (FIRST + CHUNK * CHUNKS - 1) as u32;
            assert_eq!(table.get_or_make(last, || Box::new(8)), Some(&8));
            assert_eq!((table.get(last), table.get(last - CHUNK as u32)), (Some(&8), None));
        }

        #[test]
        fn an_entry_in_place_is_empty_until_it_is_set_and_a_further_one_is_not_there() {
            let table = GrowingInPlaceTable::<AtomicU32>::default();
            let load = |entry: Option<&AtomicU32>| entry.map(|entry| entry.load(Ordering::Relaxed));
            for (index, unset) in [(0, Some(0)), (63, Some(0)), (64, None), (1000, None)] {
                assert_eq!((load(table.get(index)), load(table.peek(index))), (None, unset), "{index}");
                let set = table.get_or_set(index, |entry| entry.store(index + 1, Ordering::Relaxed));
                assert_eq!(load(set), Some(index + 1));
                assert_eq!(load(table.get_or_set(index, |_| unreachable!("it is set"))), Some(index + 1));
                assert_eq!((load(table.get(index)), load(table.peek(index))), (load(set), load(set)), "{index}");
            }
        }

        #[test]
        fn a_table_of_the_host_has_the_room_that_it_has_made() {
            let mut table = Vec::<u64>::new();
            assert!(Table::make_room(&mut table, 100));
            assert!(table.capacity() >= 100);
            assert!(!Table::make_room(&mut table, usize::MAX), "no host has so much");
        }
    }
}

#[cfg(feature = "alloc")]
pub use growable::Growable;
#[cfg(feature = "alloc")]
pub(crate) use growable::{GrowingOnceTable, filled};
