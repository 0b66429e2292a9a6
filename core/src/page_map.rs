//! The page map: finds the heap that owns an address, without a lock. It is a table over pages of 2
//! MiB, for all devices of an allocator together.
//!
//! If several segments share a page, the page does not say which heap owns an address, and the
//! caller tries every heap. Segments are that small while nothing is cached, in private pools that
//! do not split segments, and in host memory. The map counts the segments on a shared page. When
//! all of them are gone, the page is as good as new.

use crate::error::Error;
use crate::sync::{Lock, MutexGuard, Rank, Ranked};
use crate::tables::Storage;
use crate::tables::page_table::{PageTable, VACANT};
use crate::units::DevicePtr;

/// Log2 of a page in bytes: the smallest segment of the caching policy, and the granularity of
/// virtual memory.
const PAGE_LOG2: u32 = 21;

/// The number of bits of a packed owner that hold the number of the heap. The bits above
/// hold the number of the device.
const NUMBER_BITS: u32 = 24;

/// The bit of a packed owner that is set for heaps with plans and for [`SHARED`], and clear for
/// other heaps. It is the highest bit, so a word with it seems to name a device above all others.
const NO_HEAP: u32 = 1 << 31;
const _: () = assert!(NO_HEAP >> NUMBER_BITS > MAX_DEVICES as u32);

/// The words of pages shared by segments. The low bits count the segments. No heap packs
/// to these values, because no device has the number [`MAX_DEVICES`].
const SHARED: u32 = NO_HEAP | (MAX_DEVICES as u32) << NUMBER_BITS;

/// The most segments on a page that are counted. A page with more remains shared forever.
const MOST_SHARING: u32 = (1 << NUMBER_BITS) - 2;

/// The word of an address that nobody owns.
const NO_OWNER: u32 = u32::MAX;
const _: () = assert!(SHARED | MOST_SHARING < NO_OWNER);
const _: () = assert!(NO_OWNER == VACANT, "a page outside the table has no owner");

/// The most devices an allocator can have: their numbers fit between the number of a heap and
/// [`NO_HEAP`].
pub(crate) const MAX_DEVICES: usize = 127;

/// A heap, among the heaps of all devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HeapRef {
    /// The number of the device.
    pub device: u32,
    /// The slot of the heap on the device.
    pub heap: u32,
}

/// The owner of the addresses on a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// A heap. No other heap owns an address on the page.
    Heap(HeapRef),
    /// A heap that serves the page from a plan, so that it has no entries for some of the blocks.
    Planned(HeapRef),
    /// Several segments share the page, so any heap may own the address.
    Shared,
    /// No heap owns the address.
    None,
}

/// An [`Owner`] in one word, as the page map stores it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct OwnerWord(u32);

impl OwnerWord {
    fn new(owner: Owner) -> Self {
        let (bit, device, number) = match owner {
            Owner::Heap(HeapRef { device, heap }) => (0, device, heap),
            Owner::Planned(HeapRef { device, heap }) => (NO_HEAP, device, heap),
            Owner::Shared => return Self(SHARED | 2),
            Owner::None => return Self(NO_OWNER),
        };
        debug_assert!(number < 1 << NUMBER_BITS && (device as usize) < MAX_DEVICES);
        Self(bit | device << NUMBER_BITS | number)
    }

    /// Returns the heap that owns the address, if the whole page belongs to one without a plan, and
    /// otherwise one of a device that no allocator has. So a free, which looks the device up, needs
    /// no test of the word.
    #[inline(always)]
    pub(crate) fn unplanned(self) -> HeapRef {
        HeapRef { device: self.0 >> NUMBER_BITS, heap: self.0 & ((1 << NUMBER_BITS) - 1) }
    }

    /// Returns the heap that owns the address, if the whole page belongs to one without a plan.
    fn heap(self) -> Option<HeapRef> {
        (self.0 & NO_HEAP == 0).then(|| self.unplanned())
    }

    /// Returns the owner that the word encodes.
    pub(crate) fn owner(self) -> Owner {
        match (self.heap(), self.0) {
            (Some(heap), _) => Owner::Heap(heap),
            (None, NO_OWNER) => Owner::None,
            (None, word) if is_shared(word) => Owner::Shared,
            (None, word) => {
                let device = (word & !NO_HEAP) >> NUMBER_BITS;
                Owner::Planned(HeapRef { device, heap: word & ((1 << NUMBER_BITS) - 1) })
            }
        }
    }
}

/// Returns whether this is the word of a shared page.
fn is_shared(word: u32) -> bool {
    word & SHARED == SHARED && word != NO_OWNER
}

/// The owner of every page, for all devices of an allocator together. Lookups take no lock.
pub(crate) struct PageMap<R: Lock, S: Storage> {
    /// Page number → packed owner.
    pages: S::Pages,
    /// Held by every operation that changes `pages`, so there is one writer at a time.
    writer: Ranked<R, ()>,
}

impl<R: Lock, S: Storage> Default for PageMap<R, S> {
    fn default() -> Self {
        Self::with(S::Pages::default())
    }
}

impl<R: Lock, S: Storage> PageMap<R, S> {
    /// Returns a map over an empty table.
    pub(crate) const fn with(pages: S::Pages) -> Self {
        Self { pages, writer: Ranked::new(Rank::PageMapWriter, ()) }
    }
}

/// Returns the numbers of the pages that contain the `bytes > 0` bytes from `base` on.
fn pages(base: DevicePtr, bytes: u64) -> core::ops::RangeInclusive<u64> {
    debug_assert!(bytes > 0, "a range has a last byte");
    base.0 >> PAGE_LOG2..=(base.0 + (bytes - 1)) >> PAGE_LOG2
}

impl<R: Lock, S: Storage> PageMap<R, S> {
    /// Returns the owner of the page that contains `ptr`. Lock-free.
    #[inline]
    pub(crate) fn owner(&self, ptr: DevicePtr) -> Owner {
        self.word(ptr).owner()
    }

    /// Returns the owner of `ptr` as one word. Lock-free.
    #[inline(always)]
    pub(crate) fn word(&self, ptr: DevicePtr) -> OwnerWord {
        OwnerWord(self.pages.get(ptr.0 >> PAGE_LOG2))
    }

    /// Enters the owner of a range. This is called before any address of the range is handed out.
    ///
    /// # Errors
    /// [`Error::TableFull`] if the pages do not fit. The map is unchanged then.
    pub(crate) fn insert(&self, base: DevicePtr, bytes: u64, owner: Owner) -> Result<(), Error> {
        let _writer = self.writer.lock();
        let pages = pages(base, bytes);
        // Make room for all pages first, so that no page is entered if one of them does not fit.
        if !self.pages.make_room(pages.clone()) {
            return Err(Error::TableFull("pages"));
        }
        let word = OwnerWord::new(owner).0;
        self.pages.change(pages, |taken| match taken {
            NO_OWNER => word,
            _ if is_shared(taken) => (taken + 1).min(SHARED | MOST_SHARING),
            _ => SHARED | 2,
        });
        Ok(())
    }

    /// Changes the owner of a range. A lookup on another thread finds either the old owner or the
    /// new one.
    pub(crate) fn change(&self, base: DevicePtr, bytes: u64, owner: Owner) {
        let _writer = self.writer.lock();
        let word = OwnerWord::new(owner).0;
        // A shared page remains shared, because the other segment has not changed.
        self.pages.change(pages(base, bytes), |old| if is_shared(old) { old } else { word });
    }

    /// Locks the map against changes. The caller holds all locks of a device.
    pub(crate) fn lock_beside(&self) -> MutexGuard<'_, R, ()> {
        self.writer.lock_beside()
    }

    /// Returns a map of the pages of one device, which becomes device 0 in the copy. The parameter
    /// `_writer` proves that the map does not change meanwhile.
    ///
    /// # Errors
    /// [`Error::TableFull`] if the pages do not fit.
    pub(crate) fn copy_of(&self, number: u32, _writer: &MutexGuard<'_, R, ()>) -> Result<Self, Error> {
        let copy = Self::default();
        let mut is_full = false;
        self.pages.for_each(|page, word| {
            let word = match OwnerWord(word).owner() {
                Owner::Heap(HeapRef { device, heap }) if device == number => {
                    OwnerWord::new(Owner::Heap(HeapRef { device: 0, heap })).0
                }
                Owner::Planned(HeapRef { device, heap }) if device == number => {
                    OwnerWord::new(Owner::Planned(HeapRef { device: 0, heap })).0
                }
                // Segments of other devices are counted as well, so the page may remain shared in
                // the copy.
                Owner::Shared => word,
                Owner::Heap(_) | Owner::Planned(_) | Owner::None => return,
            };
            if copy.pages.make_room(page..=page) {
                copy.pages.change(page..=page, |_| word);
            } else {
                is_full = true;
            }
        });
        if is_full { Err(Error::TableFull("pages")) } else { Ok(copy) }
    }

    /// Removes a range. This is called before the memory is released, because the device may hand
    /// out the addresses again at once.
    pub(crate) fn remove(&self, base: DevicePtr, bytes: u64) {
        let _writer = self.writer.lock();
        // It is unknown which of the segments on a shared page is the last one, so the page remains
        // shared until that one is gone, too.
        let without = |old| if is_shared(old) && old != SHARED | 1 { old - 1 } else { NO_OWNER };
        self.pages.change(pages(base, bytes), |old| if old == SHARED | MOST_SHARING { old } else { without(old) });
    }
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests {
    use super::*;
    use crate::tables::{Fixed, Growable};

    const HEAP: Owner = Owner::Heap(HeapRef { device: 3, heap: 7 });
    const MIB: u64 = 1 << 20;

    fn enters_the_last_addresses<S: Storage>() {
        let map = PageMap::<spin::Mutex<()>, S>::default();
        let last = DevicePtr(u64::MAX - 4 * MIB + 1);
        map.insert(last, 4 * MIB, HEAP).expect("there is room");
        let owners = [u64::MAX, last.0, last.0 - 1, 0].map(|address| map.owner(DevicePtr(address)));
        assert_eq!(owners, [HEAP, HEAP, Owner::None, Owner::None]);
        map.remove(last, 4 * MIB);
        assert_eq!(map.owner(DevicePtr(u64::MAX)), Owner::None);
    }

    #[test]
    fn a_range_that_ends_at_the_end_of_the_addresses_is_entered() {
        enters_the_last_addresses::<Growable>();
        enters_the_last_addresses::<Fixed<1, 1, 1, 8>>();
    }

    #[test]
    fn a_page_of_several_segments_stays_shared_until_the_last_is_gone() {
        let map = PageMap::<spin::Mutex<()>, Growable>::default();
        let owner = |address: u64| map.owner(DevicePtr(address));
        map.insert(DevicePtr(2 * MIB), 3 * MIB, HEAP).expect("there is room");
        map.insert(DevicePtr(5 * MIB), MIB, HEAP).expect("there is room");
        assert_eq!([2, 4, 5, 6].map(|mib| owner(mib * MIB)), [HEAP, Owner::Shared, Owner::Shared, Owner::None]);
        map.change(DevicePtr(2 * MIB), 3 * MIB, Owner::Planned(HeapRef { device: 3, heap: 1 }));
        map.remove(DevicePtr(5 * MIB), MIB);
        assert_eq!(owner(4 * MIB), Owner::Shared);
        assert_eq!(owner(2 * MIB), Owner::Planned(HeapRef { device: 3, heap: 1 }));
        map.insert(DevicePtr(5 * MIB), MIB, HEAP).expect("there is room");
        map.remove(DevicePtr(2 * MIB), 3 * MIB);
        assert_eq!([2, 4].map(|mib| owner(mib * MIB)), [Owner::None, Owner::Shared]);
        map.remove(DevicePtr(5 * MIB), MIB);
        assert_eq!(owner(4 * MIB), Owner::None);
        map.insert(DevicePtr(4 * MIB), MIB, HEAP).expect("there is room");
        assert_eq!(owner(4 * MIB), HEAP, "as if the page had never been shared");
    }

    #[test]
    fn a_copy_has_the_pages_of_one_device_as_those_of_device_0_and_the_shared_ones() {
        let map = PageMap::<spin::Mutex<()>, Growable>::default();
        let of = |device: u32, number: u32| {
            let heap = Owner::Heap(HeapRef { device, heap: number });
            [heap, Owner::Planned(HeapRef { device, heap: number + 1 })]
        };
        let owners = [of(3, 7), of(0, 9), of(4, 5)].concat();
        for (page, &owner) in (0..).zip(&owners) {
            map.insert(DevicePtr(page * 2 * MIB), 2 * MIB, owner).expect("there is room");
        }
        for _ in 0..2 {
            map.insert(DevicePtr(20 * MIB), MIB, HEAP).expect("there is room");
        }
        let copy = map.copy_of(3, &map.lock_beside()).expect("there is room");
        let copied = (0..11).map(|page| copy.owner(DevicePtr(page * 2 * MIB)));
        let expected = of(0, 7).into_iter().chain([Owner::None; 8]).chain([Owner::Shared]);
        assert!(copied.eq(expected));
    }
}
