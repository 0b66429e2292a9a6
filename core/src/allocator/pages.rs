//! The pages of virtual memory of a device: their upkeep and use, and the memory under a block.

use crate::allocator::{Allocator, On};
use crate::arena::debug;
use crate::arena::paging::extents::{self, Extent, Extents};
use crate::arena::paging::moves::Advice;
use crate::device::{Descriptor, DeviceMemory};
use crate::error::Error;
use crate::stats::{MemoryCalls, ReclaimStats};
use crate::sync::{Lock, Ordering};
use crate::tables::Storage;
use crate::units::{DeviceIndex, DevicePtr};

/// How a device's pages are used, in bytes, at a single moment, and the virtual memory calls so
/// far.
///
/// The bytes held from the device are those of ordinary segments, `mapped` without `spilled`,
/// `spare`, and leaked bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PageStats {
    /// Bytes of the pages that are mapped where blocks can use them.
    pub mapped: u64,
    /// Bytes of the unused pages, which serve the next mapping, and of the parts of pages next to
    /// guarded blocks. Work from before the decommit of an elastic range may still use some of
    /// these pages.
    pub spare: u64,
    /// Bytes of the mapped pages that are memory of the host (`spill`). They are part of `mapped`.
    pub spilled: u64,
    /// Bytes of the pages of the host that are mapped nowhere, and serve the next request for which
    /// the device has no memory.
    pub spare_of_host: u64,
    /// Bytes of addresses with moved pages still mapped, until the work on the addresses is
    /// complete. The addresses hold no memory.
    pub stale: u64,
    /// Bytes of parked memory: these addresses have no device memory.
    pub parked: u64,
    /// Bytes of the pinned pages, which neither move nor are given back to the device.
    pub pinned: u64,
    /// Bytes of all pages moved since the allocator was created.
    pub moved: u64,
    /// Bytes of all pages that replaced shorter pages since the allocator was created.
    pub consolidated: u64,
    /// Bytes of all reserved addresses, with or without memory: for segments on pages, elastic
    /// ranges and guarded blocks.
    pub reserved_addresses: u64,
    /// The calls of the device's virtual memory since the allocator was created.
    pub calls: MemoryCalls,
    /// Requests under the stitched policy, and commits of elastic ranges, for which mapping took
    /// longer than [`max_stall_us`](crate::config::Stitched::max_stall_us). 0 if there is no clock.
    pub stalls: u64,
    /// The longest time that one request or commit spent mapping, under every policy, in
    /// microseconds. This includes the virtual memory calls by which the heap or range grew, and
    /// waiting for another thread that maps. 0 if there is no clock.
    pub longest_stall_us: u64,
}

view! {
    /// The pages of a device: a view of an [`Allocator`], returned by [`Allocator::pages`].
    Pages,
    /// Returns the pages of virtual memory of `device`.
    pages
}

impl<D: DeviceMemory, R: Lock, S: Storage> Pages<'_, D, R, S> {
    /// Returns whether the device has virtual memory, and therefore pages. Without pages, the
    /// stitched policy places blocks as the caching policy does, and segments are never expandable.
    /// May open the device.
    #[must_use]
    pub fn are_supported(&self) -> bool {
        self.arena.driver.is_virtual()
    }

    /// Does the work that requests under the stitched policy have put off, for about `max_us`
    /// microseconds of the driver's time: it removes the old mappings of moved pages, gives memory
    /// beyond the budget back, and replaces short pages that are often mapped next to each other by
    /// longer ones. Returns true if work is left for another call. Under every policy, it also
    /// removes some stale mappings of elastic ranges, and maps pages ahead where ranges have grown.
    /// Under `reclaim:auto`, it gives idle memory back to the device where that is worth the cost:
    /// see [`reclaim_stats`](Self::reclaim_stats). With `spill`, it makes pages of the host ahead
    /// of need while the device has little memory left.
    ///
    /// A host calls this when it is idle, or from a separate thread. Other threads may allocate and
    /// free at the same time.
    ///
    /// Stream order: never waits for the device. Memory is given back once the work on it is
    /// complete.
    ///
    /// Device: called, unless there is no work left. The time is estimated from the measured costs
    /// of driver calls, so a call may take longer on a slower driver.
    ///
    /// # Errors
    /// The first error of the device. Only the memory counted by
    /// [`leaked_bytes`](crate::Statistics::leaked_bytes) is lost; everything else is left to the
    /// next call.
    pub fn maintain(&self, max_us: u64) -> Result<bool, Error> {
        let device = self.begin("maintain");
        device.driver.health()?;
        device.holdings().collect_at_idle();
        device.waits.give_spare_events_back(&device.driver);
        let left = device.holdings().give_idle_back(&device.idle, max_us)?;
        let left = left | device.holdings().make_pages_of_host_ahead(max_us)?;
        let left = left | device.require_ranges().map_or(Ok(false), |ranges| ranges.map_ahead(max_us))?;
        device.stitcher().map_or(Ok(left), |stitcher| Ok(left | stitcher.maintain(max_us)?))
    }

    /// Returns the figures of `reclaim:auto`: how much memory [`maintain`](Self::maintain) gave
    /// back, and how much it kept. All figures are 0 if the setting is off.
    pub fn reclaim_stats(&self) -> ReclaimStats {
        self.arena.idle.lock().stats()
    }

    /// Returns how pages are used and what they cost. Heaps are read in turn, so the sums may
    /// disagree slightly while threads allocate.
    pub fn stats(&self) -> PageStats {
        let arena = self.arena;
        let pool = arena.paging.bytes();
        let mut stats = PageStats {
            mapped: pool.home + pool.guarded_blocks,
            spare: pool.unused(),
            spilled: arena.paging.spilled_bytes(),
            spare_of_host: pool.spare_of_host,
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
    /// The extents do not change while the block is live, until it is parked or
    /// [moved](Self::advise). While the block is
    /// [pinned](Self::pin), they do not change after a free or a park either. `each` is called with
    /// no lock held, and may call the allocator.
    ///
    /// Device: not called.
    ///
    /// # Errors
    /// [`Error::InvalidPointer`]: the program has no block of this device that starts at `ptr`.
    pub fn extents(&self, ptr: DevicePtr, mut each: impl FnMut(Extent)) -> Result<(), Error> {
        let _begun = self.begin("extents");
        let mut offset = 0;
        while let Some(extent) = self.extent(ptr, offset)? {
            each(extent);
            offset += extent.bytes;
        }
        Ok(())
    }

    /// Returns the extent of the block at `ptr` that starts at `offset`, or `None` at the end of
    /// the block.
    fn extent(&self, ptr: DevicePtr, offset: u64) -> Result<Option<Extent>, Error> {
        if ptr == DevicePtr::NULL {
            return Ok(None);
        }
        self.at_heap(ptr, |heap| heap.extent(ptr, offset))
    }

    /// Holds the memory under the block at `ptr` in place: its pages neither move nor are given
    /// back to the device, even after the block is freed, until [`unpin`](Self::unpin) was called
    /// as often as `pin`. Other blocks may use the memory after the free. For a block of an
    /// ordinary segment, this keeps the whole segment.
    ///
    /// This is for memory that is registered with a network adapter or another library, which keeps
    /// using the physical memory. Does nothing for the null address.
    ///
    /// Device: not called.
    ///
    /// # Errors
    /// * [`Error::InvalidPointer`]: the program has no block of this device that starts at `ptr`.
    /// * [`Error::Parked`]: a part of the block is parked, or about to be.
    /// * [`Error::TableFull`]. Nothing is pinned then.
    pub fn pin(&self, ptr: DevicePtr) -> Result<(), Error> {
        let _begun = self.begin("pin");
        if ptr == DevicePtr::NULL {
            return Ok(());
        }
        self.at_heap(ptr, |heap| heap.pin(ptr))
    }

    /// Undoes one [`pin`](Self::pin) of a block that starts, or started, at `ptr`. After the last
    /// `unpin`, the memory is cached like any other.
    ///
    /// Several blocks of different lengths may have been pinned at `ptr` over time. In this case,
    /// the longest one is unpinned last. Does nothing for the null address.
    ///
    /// Device: not called.
    ///
    /// # Errors
    /// [`Error::NotPinned`]: every pin of `ptr` was already undone, or `ptr` was never pinned.
    pub fn unpin(&self, ptr: DevicePtr) -> Result<(), Error> {
        let _begun = self.begin("unpin");
        if ptr == DevicePtr::NULL {
            return Ok(());
        }
        Extents::unpin(self.on(), ptr)
    }

    /// Says how soon the block at `ptr` will be used, and moves its pages: under [`Advice::Cold`]
    /// to the host, within the bytes that `spill` allows, and under [`Advice::Hot`] back to the
    /// device. Addresses and contents stay. Returns the bytes that have moved; 0 for the null
    /// address, and for a block of an ordinary segment.
    ///
    /// Only pages that are wholly under the block move, and none that is [pinned](Self::pin). If
    /// the memory of the other kind ends, the rest of the block stays. Of a parked block, the call
    /// says where the pages wake, and returns their bytes.
    ///
    /// Stream order: waits for the work queued before on the block's stream and on the streams
    /// recorded as its users. No other call and no later work may use the block before this call
    /// has returned.
    ///
    /// Device: called, and waited for.
    ///
    /// # Errors
    /// * [`Error::InvalidPointer`]: the program has no block of this device that starts at `ptr`.
    /// * [`Error::SpillRefused`]: `spill` is not set.
    /// * [`Error::ParkingRefused`]: another call has been parking or waking memory for long.
    /// * [`Error::OutOfAddresses`].
    /// * [`Error::Device`]: pages that have moved by then have moved, and all contents are there.
    ///   With [`ErrorKind::NotPermittedInCapture`](crate::ErrorKind::NotPermittedInCapture) while
    ///   a graph is captured: nothing has moved. With
    ///   [`ErrorKind::ContextLost`](crate::ErrorKind::ContextLost) also if the device has unmapped
    ///   a page, and then keeps refusing to map one in its place.
    pub fn advise(&self, ptr: DevicePtr, advice: Advice) -> Result<u64, Error> {
        let _begun = self.begin("advise");
        if ptr == DevicePtr::NULL {
            return Ok(0);
        }
        self.allocator.at_owner(ptr, |device, heap| {
            if heap.device != self.arena.number() {
                return Err(Error::foreign(ptr));
            }
            device.holdings().advise(heap.heap, ptr, advice)
        })
    }

    /// Creates a descriptor of the page that contains the byte at `ptr`, for another process. That
    /// process imports the descriptor and maps the page as a whole ([`Extent::memory_bytes`] long).
    /// `ptr` may be any byte of [pinned](Self::pin) memory, whether its block is live or freed.
    ///
    /// The other process can read and write all bytes of the page, including those of other blocks.
    /// Keep the memory pinned and the block live while the other process uses the bytes: without
    /// the block, the page serves new requests, and without the pin, the page may also move to
    /// other addresses or be given back to the device. The driver keeps the memory until the other
    /// process releases it.
    ///
    /// Threads: any, at the same time as allocations and frees. No lock is held during the call to
    /// the device.
    ///
    /// Device: called, about 0.5 ms with the CUDA driver.
    ///
    /// # Errors
    /// * [`Error::NotPinned`]: `ptr` is not in pinned memory of this device.
    /// * [`Error::NotExportable`]: the memory is an ordinary segment.
    /// * [`Error::Device`], with [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the
    ///   device does not share memory between processes. Nothing has changed.
    pub fn export(&self, ptr: DevicePtr) -> Result<Descriptor, Error> {
        extents::export(*self.begin("export"), ptr)
    }

    /// Gives back the addresses that were kept away from later blocks after
    /// [guarded](crate::config::Guard) blocks were freed. [`Allocator::explain`] no longer knows
    /// anything about them. This is for programs that end their use of a device.
    ///
    /// Device: called for each freed block.
    pub fn end_quarantine(&self) {
        let device = self.begin("end_quarantine");
        debug::end_quarantine(&device.holdings());
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
