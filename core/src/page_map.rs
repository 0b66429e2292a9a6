//! From an address to the heap that owns it, without a lock: a table over pages of 2 MiB, for all devices together.
//!
//! An address on a page that two segments share leads nowhere in particular; the caller then asks every heap. That takes a
//! device whose segments are smaller than a page, which none of the known ones obtain while caching.

use crate::error::Error;
use crate::sync::{Lock, Rank, Ranked};
use crate::tables::Storage;
use crate::tables::atomic_map::AtomicMap;
use crate::units::DevicePtr;

/// Log2 of the bytes of a page: the smallest segment of the caching policy, and the granularity of virtual memory.
const PAGE_LOG2: u32 = 21;

/// Bits of a packed owner that number the heap or the lane. The bits above them number the device.
const NUMBER_BITS: u32 = 24;

/// The bit of a packed owner that tells lanes and [`SHARED`] from heaps. A free looks at this bit alone to find a heap.
const NO_HEAP: u32 = 1 << 31;

/// The value of a page that two segments share. No heap and no lane packs to it.
const SHARED: u32 = u32::MAX - 1;

/// The most devices one allocator can have: their numbers fit between the number of a heap and [`NO_HEAP`].
pub(crate) const MAX_DEVICES: usize = 127;

/// A heap among all heaps of all devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HeapRef {
    pub device: u32,
    /// The slot of the heap.
    pub heap: u32,
}

/// A lane of the planned policy, among the lanes of all devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LaneRef {
    pub device: u32,
    pub lane: u32,
}

/// What serves the addresses of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// If any heap owns the address, this one does.
    Heap(HeapRef),
    /// A plan serves the page. The lane knows which of its blocks its heap cares for.
    Lane(LaneRef),
    /// Two segments share the page: any heap may own the address.
    Shared,
    /// No heap and no lane owns the address.
    None,
}

impl Owner {
    /// The word that stands for a heap or a lane.
    fn pack(self) -> u32 {
        let (bit, device, number) = match self {
            Self::Heap(HeapRef { device, heap }) => (0, device, heap),
            Self::Lane(LaneRef { device, lane }) => (NO_HEAP, device, lane),
            Self::Shared | Self::None => return SHARED,
        };
        debug_assert!(number < 1 << NUMBER_BITS && (device as usize) < MAX_DEVICES);
        bit | device << NUMBER_BITS | number
    }

    #[inline(always)]
    fn unpack(packed: u32) -> Self {
        let number = packed & ((1 << NUMBER_BITS) - 1);
        let device = (packed & !NO_HEAP) >> NUMBER_BITS;
        if packed & NO_HEAP == 0 {
            Self::Heap(HeapRef { device, heap: number })
        } else if packed == SHARED {
            Self::Shared
        } else {
            Self::Lane(LaneRef { device, lane: number })
        }
    }
}

/// The owner of every page, for all devices of an allocator together. Read without a lock; one writer at a time.
pub(crate) struct PageMap<R: Lock, S: Storage> {
    pages: AtomicMap<S::Cells>,
    /// Held by the one writer.
    writer: Ranked<R, ()>,
}

impl<R: Lock, S: Storage> Default for PageMap<R, S> {
    fn default() -> Self {
        Self { pages: AtomicMap::default(), writer: Ranked::new(Rank::PageMapWriter, ()) }
    }
}

fn pages(base: DevicePtr, bytes: u64) -> core::ops::RangeInclusive<u64> {
    base.0 >> PAGE_LOG2..=(base.0 + bytes - 1) >> PAGE_LOG2
}

impl<R: Lock, S: Storage> PageMap<R, S> {
    /// Who owns `ptr`. Lock-free.
    #[inline]
    pub(crate) fn owner(&self, ptr: DevicePtr) -> Owner {
        self.pages.get(ptr.0 >> PAGE_LOG2).map_or(Owner::None, Owner::unpack)
    }

    /// Enters a range, before anything of it is handed out.
    pub(crate) fn insert(&self, base: DevicePtr, bytes: u64, owner: Owner) -> Result<(), Error> {
        let _writer = self.writer.lock();
        let pages = pages(base, bytes);
        let count = u32::try_from(pages.end() - pages.start() + 1);
        if !count.is_ok_and(|count| self.pages.make_room(count)) {
            return Err(Error::TableFull("pages"));
        }
        for page in pages {
            self.pages.change(page, |taken| Some(if taken.is_some() { SHARED } else { owner.pack() }));
        }
        Ok(())
    }

    /// Gives a range that was entered to another owner. A lookup at the same time finds the old owner or the new one.
    #[cfg(feature = "alloc")]
    pub(crate) fn change(&self, base: DevicePtr, bytes: u64, owner: Owner) {
        let _writer = self.writer.lock();
        for page in pages(base, bytes) {
            self.pages.change(page, |old| old.filter(|&old| old == SHARED).or(Some(owner.pack())));
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
