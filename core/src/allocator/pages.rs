//! The pages of virtual memory of a device: upkeep, the use of the pages, and the memory under a
//! block.

use crate::allocator::{Allocator, On};
use crate::arena::paging::extents::{self, Extent, Extents};
use crate::device::{Descriptor, DeviceMemory};
use crate::error::Error;
use crate::stats::{MemoryCalls, ReclaimStats};
use crate::sync::{Lock, Ordering};
use crate::tables::Storage;
use crate::units::{DeviceIndex, DevicePtr};
use core::borrow::Borrow;

/// The use of a device's pages in bytes, at a single moment, and the calls of virtual memory so
/// far.
///
/// The bytes held from the device are the bytes of ordinary segments, `mapped`, `spare`, and leaked
/// bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PageStats {
    /// Bytes of the pages mapped where blocks can use them.
    pub mapped: u64,
    /// Bytes of the unused pages, which serve the next mapping, and of the parts of pages beside
    /// guarded blocks. Work before the decommit of an elastic range may still use some of the
    /// pages.
    pub spare: u64,
    /// Bytes of addresses with moved pages still mapped, until the work on the addresses is
    /// complete. The addresses hold no memory.
    pub stale: u64,
    /// Bytes of parked memory: addresses without memory of the device.
    pub parked: u64,
    /// Bytes of the pinned pages, which neither move nor go back to the device.
    pub pinned: u64,
    /// Bytes of all pages moved since the allocator was created.
    pub moved: u64,
    /// Bytes of all pages mapped in place of shorter pages since the allocator was created.
    pub consolidated: u64,
    /// Bytes of the addresses that are reserved, with memory or without: for segments on pages,
    /// elastic ranges and guarded blocks.
    pub reserved_addresses: u64,
    /// The calls of the device's virtual memory since the allocator was created.
    pub calls: MemoryCalls,
    /// Requests, and commits of elastic ranges, under the stitched policy for which mapping took
    /// longer than [`max_stall_us`](crate::config::Stitched::max_stall_us). 0 without a clock.
    pub stalls: u64,
    /// The longest time of mapping for a request or commit, under every policy, in microseconds:
    /// the calls of virtual memory by which the heap or range grew, and waiting for another thread
    /// to map. 0 without a clock.
    pub longest_stall_us: u64,
}

view! {
    /// The pages of a device: a view of an [`Allocator`], returned by [`Allocator::pages`].
    Pages,
    /// Returns the pages of virtual memory of `device`.
    pages
}

impl<D: DeviceMemory, R: Lock, S: Storage> Pages<'_, D, R, S> {
    /// Returns whether the device has virtual memory, and so pages. Without pages the stitched
    /// policy places blocks as the caching policy does, and segments are never expandable. May open
    /// the device.
    #[must_use]
    pub fn are_supported(&self) -> bool {
        self.arena.driver.device().borrow().virtual_memory().is_some()
    }

    /// Does the work put off by requests under the stitched policy, for about `max_us` microseconds
    /// of the driver's time: removes the old mappings of moved pages, gives memory beyond the
    /// budget back, and replaces pairs of short pages with frequent meetings by longer pages.
    /// Returns true if work is left for another call. Under every policy, some stale mappings of
    /// elastic ranges are removed, too. Under `reclaim:auto`, idle memory goes back to the device
    /// by worth: see [`reclaim_stats`](Self::reclaim_stats).
    ///
    /// A host calls the method when idle, or from a separate thread. Other threads may allocate and
    /// free concurrently.
    ///
    /// Stream order: never waits for the device. Memory is given back once the work on the memory
    /// is complete.
    ///
    /// Device: called, unless no work is left. The time is estimated from the measured costs of the
    /// driver's calls, so a call may take longer on a slower driver.
    ///
    /// # Errors
    /// The first error of the device. Only the memory counted by
    /// [`leaked_bytes`](crate::Statistics::leaked_bytes) is lost; the rest is left to the next call.
    pub fn maintain(&self, max_us: u64) -> Result<bool, Error> {
        let device = self.begin("maintain");
        device.driver.health()?;
        device.holdings().collect_few_departed();
        device.waits.give_spare_events_back(&device.driver);
        let left = device.holdings().give_idle_back(&device.idle, max_us)?;
        device.stitcher().map_or(Ok(left), |stitcher| Ok(left | stitcher.maintain(max_us)?))
    }

    /// Returns the figures of `reclaim:auto`: the memory given back and kept by
    /// [`maintain`](Self::maintain). All figures are 0 without the setting.
    pub fn reclaim_stats(&self) -> ReclaimStats {
        self.arena.idle.lock().stats()
    }

    /// Returns the use and the costs of the pages. Heaps are read in turn, so the sums may disagree
    /// slightly while threads allocate.
    pub fn stats(&self) -> PageStats {
        let arena = self.arena;
        let pool = arena.paging.bytes();
        let mut stats = PageStats {
            mapped: pool.home + pool.guarded_blocks,
            spare: pool.unused(),
            parked: pool.asleep,
            reserved_addresses: arena.paging.address_bytes(),
            moved: arena.paging.moved_bytes.load(Ordering::Relaxed),
            consolidated: arena.paging.consolidated_bytes.load(Ordering::Relaxed),
            calls: arena.driver.in_us(&arena.paging.calls),
            stalls: arena.paging.calls.stalls(),
            longest_stall_us: arena.paging.calls.longest_us(),
            ..PageStats::default()
        };
        for slot in arena.heaps.slot_numbers() {
            let heap = arena.heaps.lock(slot);
            if !heap.is_empty() {
                stats.stale += heap.sets.stale.bytes;
                stats.pinned += heap.sets.pages.pinned();
            }
        }
        stats
    }

    /// Calls `each` with every extent of the block at `ptr`, in the order of addresses. The extents
    /// cover the block, which may be longer than requested. The null address has no extents.
    ///
    /// The extents stay as they are while the block is live, until the block is parked. While the
    /// block is [pinned](Self::pin), the extents also stay after a free or a park. `each` is called
    /// with no lock held, and may call the allocator.
    ///
    /// Device: not called.
    ///
    /// # Errors
    /// [`Error::InvalidPointer`]: the program holds no block of this device with the given first byte.
    pub fn extents(&self, ptr: DevicePtr, mut each: impl FnMut(Extent)) -> Result<(), Error> {
        let _begun = self.begin("extents");
        let mut offset = 0;
        while let Some(extent) = self.extent(ptr, offset)? {
            each(extent);
            offset += extent.bytes;
        }
        Ok(())
    }

    /// Returns the extent of the block at `ptr` from `offset` on, or `None` at the end
    /// of the block.
    fn extent(&self, ptr: DevicePtr, offset: u64) -> Result<Option<Extent>, Error> {
        if ptr == DevicePtr::NULL {
            return Ok(None);
        }
        self.at_heap(ptr, |heap| heap.extent(ptr, offset))
    }

    /// Holds the memory under the block at `ptr` in place: the pages under the block neither move
    /// nor go back to the device, also after the block is freed, until [`unpin`](Self::unpin) was
    /// called as often as `pin`. Other blocks may use the memory after the free. A block of an
    /// ordinary segment keeps the whole segment.
    ///
    /// For memory registered with a network adapter or with another library, which keeps
    /// using the physical memory. Does nothing for the null address.
    ///
    /// Device: not called.
    ///
    /// # Errors
    /// * [`Error::InvalidPointer`]: the program holds no block of this device with the given first
    ///   byte.
    /// * [`Error::Parked`]: a part of the block is parked, or about to be.
    /// * [`Error::TableFull`]. Nothing is pinned then.
    pub fn pin(&self, ptr: DevicePtr) -> Result<(), Error> {
        let _begun = self.begin("pin");
        if ptr == DevicePtr::NULL {
            return Ok(());
        }
        self.at_heap(ptr, |heap| heap.pin(ptr))
    }

    /// Undoes a single [`pin`](Self::pin) of a block with the first byte `ptr`, live or freed.
    /// After the last `unpin` the memory is cached like all memory.
    ///
    /// Several blocks of different lengths may have been pinned at `ptr` over time. The longest
    /// block is then unpinned last. Does nothing for the null address.
    ///
    /// Device: not called.
    ///
    /// # Errors
    /// [`Error::NotPinned`]: every pin of `ptr` was undone before, or `ptr` never was pinned.
    pub fn unpin(&self, ptr: DevicePtr) -> Result<(), Error> {
        let _begun = self.begin("unpin");
        if ptr == DevicePtr::NULL {
            return Ok(());
        }
        Extents::unpin(self.on(), ptr)
    }

    /// Makes a descriptor of the page with the byte at `ptr`, for another process, which imports
    /// the descriptor and maps the page as a whole ([`Extent::memory_bytes`] long). `ptr` is any
    /// byte of [pinned](Self::pin) memory, with the block live or freed.
    ///
    /// The importing process reads and writes the page's bytes, the bytes of other blocks on the
    /// page included. Keep the memory pinned, and the block live, while the importing process uses
    /// the bytes. Without the block, the page serves new requests. Without the pin, the page also
    /// moves to new addresses or goes back to the device, and the device's driver keeps the memory
    /// until the importing process releases the memory.
    ///
    /// Threads: any, concurrently with allocations and frees. No lock is held during the call of
    /// the device.
    ///
    /// Device: called, about 0.5 ms with the CUDA driver.
    ///
    /// # Errors
    /// * [`Error::NotPinned`]: `ptr` lies in no pinned memory of this device.
    /// * [`Error::NotExportable`]: the memory is an ordinary segment.
    /// * [`Error::Device`], with [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the
    ///   device shares no memory between processes. Nothing has changed.
    pub fn export(&self, ptr: DevicePtr) -> Result<Descriptor, Error> {
        extents::export(*self.begin("export"), ptr)
    }

    /// Gives back the addresses kept away from later blocks after the frees of
    /// [guarded](crate::config::Guard) ones, of which [`Allocator::explain`] then knows
    /// nothing. For programs that end their use of a device.
    ///
    /// Device: called for each freed block.
    pub fn end_quarantine(&self) {
        self.begin("end_quarantine").holdings().end_quarantine();
    }

    /// Calls `act` with the heap that owns `ptr` on the device.
    fn at_heap<T>(
        &self,
        ptr: DevicePtr,
        act: impl Fn(Extents<'_, On<D, R, S>>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.allocator.at_owner(ptr, |device, heap| {
            if heap.device != self.arena.number() {
                return Err(Error::foreign(ptr));
            }
            act(Extents::of_heap(&device, heap.heap))
        })
    }
}
