//! The pages of virtual memory of one device: upkeep, and what the pages are used for.

use crate::allocator::Allocator;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::stats::MemoryCalls;
use crate::sync::{Lock, Ordering};
use crate::tables::Storage;
use crate::units::DeviceIndex;

/// The use of a device's pages in bytes, at one moment, and the calls of virtual memory so far.
///
/// The bytes held from the device are those of ordinary segments, `mapped`, `spare`, and bytes that
/// were leaked.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PageStats {
    /// Bytes of the pages mapped where blocks can use them.
    pub mapped: u64,
    /// Bytes of the pages that nothing uses, which serve the next mapping. Work before the decommit
    /// of an elastic range may still use some of them.
    pub spare: u64,
    /// Bytes of addresses at which moved pages are still mapped, until the work that used the
    /// addresses is complete. They hold no memory of their own.
    pub stale: u64,
    /// Bytes of the mapped pages that are pinned, and so neither move nor go back to the device.
    pub pinned: u64,
    /// Bytes of all pages that have moved since the allocator was created.
    pub moved: u64,
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

/// The pages of one device: a view of an [`Allocator`], returned by [`Allocator::pages`].
pub struct Pages<'a, D: DeviceMemory, R: Lock, S: Storage> {
    allocator: &'a Allocator<D, R, S>,
    device: DeviceIndex,
}

impl<D: DeviceMemory, R: Lock, S: Storage> Allocator<D, R, S> {
    /// Returns the pages of virtual memory of `device`.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`].
    pub fn pages(&self, device: DeviceIndex) -> Result<Pages<'_, D, R, S>, Error> {
        self.arena(device)?;
        Ok(Pages { allocator: self, device })
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Pages<'_, D, R, S> {
    /// Returns whether the device has virtual memory, and so pages. Without pages the stitched policy
    /// places blocks as the caching policy does, and segments are never expandable. May open the
    /// device.
    #[must_use]
    pub fn are_supported(&self) -> bool {
        self.allocator.device(self.device).is_some_and(|device| device.virtual_memory().is_some())
    }

    /// Does what requests under the stitched policy have put off, for about `max_us` microseconds
    /// of the driver's time: removes mappings that pages have left, and gives memory beyond the
    /// budget back. Returns true if something is left for a further call. Under every policy, some
    /// mappings that elastic ranges have left are removed, too.
    ///
    /// A host calls this when it is idle, or from a thread of its own. Other threads
    /// allocate and free at the same time.
    ///
    /// Stream order: never waits for the device. Memory is given back once its work is complete.
    ///
    /// Device: called, unless there is nothing to do. The time is estimated from the measured costs
    /// of the driver's calls, so a call may take longer on a slower driver.
    ///
    /// # Errors
    /// The first error of the device. Nothing is lost but what
    /// [`leaked_bytes`](Allocator::leaked_bytes) counts; the rest is left to the next call.
    pub fn maintain(&self, max_us: u64) -> Result<bool, Error> {
        let _checked = self.allocator.checked("maintain", self.device);
        let device = self.allocator.on(self.device)?;
        device.health()?;
        crate::arena::ranges::collect_few(device);
        device.stitcher().map_or(Ok(false), |stitcher| stitcher.maintain(max_us))
    }

    /// Returns what the pages are used for and what they have cost. Heaps are read in turn, so the sums may disagree
    /// slightly while other threads allocate.
    ///
    /// # Errors
    /// None for a device that exists.
    pub fn stats(&self) -> Result<PageStats, Error> {
        let arena = self.allocator.arena(self.device)?;
        let pool = arena.page_pool.lock().bytes;
        let mut stats = PageStats {
            mapped: pool.home,
            spare: pool.spare + pool.parked,
            moved: arena.moved_bytes.load(Ordering::Relaxed),
            calls: arena.memory_calls.calls(|ticks| arena.driver.ticks_to_us(ticks)),
            stalls: arena.memory_calls.stalls(),
            longest_stall_us: arena.memory_calls.longest_us(),
            ..PageStats::default()
        };
        for slot in arena.heaps.slot_numbers() {
            let heap = arena.heaps.lock(slot);
            if !heap.is_empty() {
                stats.stale += heap.sets.stale.bytes;
                stats.pinned += heap.sets.pages.pinned();
            }
        }
        Ok(stats)
    }
}
