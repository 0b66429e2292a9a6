//! From an address to the heap that owns it, without a lock: a table over pages of 2 MiB, for all devices together.
//!
//! An address on a page that two segments share leads nowhere in particular; the caller then asks every heap. That takes a
//! device whose segments are smaller than a page, which none of the known ones obtain while caching.

use crate::error::Error;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::tables::atomic_map::AtomicMap;
use crate::units::DevicePtr;
use lock_api::Mutex;

/// Log2 of the bytes of a page: the smallest segment of the caching policy, and the granularity of virtual memory.
const PAGE_LOG2: u32 = 21;

/// Bits of a place that number the heap; the rest number the device.
const HEAP_BITS: u32 = 24;

/// The most devices one allocator can have.
pub(crate) const MAX_DEVICES: usize = 127;

/// A heap among all heaps of all devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub device: u32,
    pub heap: u32,
}

impl Place {
    fn pack(self) -> u32 {
        debug_assert!(self.heap < 1 << HEAP_BITS && (self.device as usize) < MAX_DEVICES);
        self.device << HEAP_BITS | self.heap
    }

    #[inline]
    fn unpack(packed: u32) -> Self {
        Self { device: packed >> HEAP_BITS, heap: packed & ((1 << HEAP_BITS) - 1) }
    }
}

/// The value of a page that two segments share. No place packs to it.
const SHARED: u32 = u32::MAX - 1;

/// Where an address leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// If any heap owns it, this one does.
    Heap(Place),
    /// Any heap may own it.
    Anyone,
    /// No heap owns it.
    Nobody,
}

pub(crate) struct Directory<R: Lock, S: Storage> {
    pages: AtomicMap<S::Cells>,
    /// Held by the one writer.
    writer: Mutex<R, ()>,
}

impl<R: Lock, S: Storage> Default for Directory<R, S> {
    fn default() -> Self {
        Self { pages: AtomicMap::default(), writer: Mutex::new(()) }
    }
}

fn pages(base: DevicePtr, bytes: u64) -> core::ops::RangeInclusive<u64> {
    base.0 >> PAGE_LOG2..=(base.0 + bytes - 1) >> PAGE_LOG2
}

impl<R: Lock, S: Storage> Directory<R, S> {
    /// Who owns `ptr`. Lock-free.
    #[inline]
    pub(crate) fn owner(&self, ptr: DevicePtr) -> Owner {
        match self.pages.get(ptr.0 >> PAGE_LOG2) {
            None => Owner::Nobody,
            Some(SHARED) => Owner::Anyone,
            Some(packed) => Owner::Heap(Place::unpack(packed)),
        }
    }

    /// Enters a range, before anything of it is handed out.
    pub(crate) fn insert(&self, base: DevicePtr, bytes: u64, place: Place) -> Result<(), Error> {
        let _writer = self.writer.lock();
        let pages = pages(base, bytes);
        let count = u32::try_from(pages.end() - pages.start() + 1);
        if !count.is_ok_and(|count| self.pages.make_room(count)) {
            return Err(Error::TableFull("pages"));
        }
        for page in pages {
            self.pages.change(page, |taken| Some(if taken.is_some() { SHARED } else { place.pack() }));
        }
        Ok(())
    }

    /// Leads a range that was entered elsewhere. Whoever looks meanwhile finds the old place or the new one.
    #[cfg(feature = "alloc")]
    pub(crate) fn change(&self, base: DevicePtr, bytes: u64, place: Place) {
        let _writer = self.writer.lock();
        for page in pages(base, bytes) {
            self.pages.change(page, |old| old.filter(|&old| old == SHARED).or(Some(place.pack())));
        }
    }

    /// Takes a range out, before it is given back: the device may hand its addresses out again at once.
    pub(crate) fn remove(&self, base: DevicePtr, bytes: u64) {
        let _writer = self.writer.lock();
        for page in pages(base, bytes) {
            // Which of its segments are left is not known: a shared page stays shared.
            self.pages.change(page, |old| old.filter(|&old| old == SHARED));
        }
    }
}
