//! Release of segments to the device: all wholly free segments, old ones, oversize ones, or as many
//! as a target needs.
//!
//! Heaps are locked one at a time, and never across a call to the device. A segment is removed from
//! its heap and from the page map before the device releases the memory, so no other thread can
//! find the segment during the call.

use crate::arena::heaps::Heaps;
use crate::arena::heaps::pairs::PairUse;
use crate::arena::request::Request;
use crate::arena::retired::RetiredSegments;
use crate::arena::{Arena, OnDevice, flags, ranges};
use crate::config::Policy;
use crate::config::rounding::PoolKind;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::heap::Heap;
use crate::heap::block::{Backing, Block};
use crate::stats::Event;
use crate::sync::{Lock, MutexGuard};
use crate::tables::Storage;
use crate::trace::Action;
use crate::units::{DevicePtr, NO_STREAM};

/// Position in the order of a heap's free blocks: (size in bytes, address).
///
/// A position stays valid when the block is removed, so a walk can drop the heap's lock and go on.
type Cursor = (u64, u64);

/// Position before every block: no block has address 0.
const FROM_START: Cursor = (0, 0);

/// Gives memory of one device back: the operations that remove segments and pages.
pub(crate) struct Releaser<'a, D, R: Lock, S: Storage> {
    device: OnDevice<'a, D, R, S>,
}

impl<'a, D: DeviceMemory, R: Lock, S: Storage> OnDevice<'a, D, R, S> {
    /// Returns the operations that give memory back.
    pub(crate) fn releaser(self) -> Releaser<'a, D, R, S> {
        Releaser { device: self }
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Releaser<'_, D, R, S> {
    /// Releases the segment that `block` fills, and drops the heap's lock. Returns the number of
    /// bytes released.
    pub(super) fn release_segment(
        &self,
        slot: u32,
        mut heap: MutexGuard<'_, R, Heap<S>>,
        block: u32,
    ) -> Result<u64, Error> {
        self.device.health()?;
        let (base, bytes) = heap.remove_segment(block, &self.device.heaps.slot(slot).counters);
        // Before the release: the device may return the same addresses to another thread at once,
        // and the new segment must find the pages unlisted.
        self.device.pages.remove(base, bytes);
        if let Some(recorder) = self.device.tracing() {
            recorder.release(&mut heap, Action::SegmentFree, base, bytes);
        }
        // In direct mode the next request would make the tables again.
        if !self.device.flags.has(flags::DIRECT) {
            self.device.heaps.drop_tables(&mut heap);
        }
        drop(heap);
        self.device.device_peaks.count(Event::DeviceFree);
        self.device.release_memory(base, bytes)?;
        Ok(bytes)
    }

    /// Releases the free segments of the heap in `slot`, after a block was freed in direct mode.
    /// Does nothing for a private pool in use: a captured graph may write to the pool's memory at
    /// every replay.
    ///
    /// The free itself has succeeded, so a failed release is not reported here. The leaked bytes
    /// count the failure, and the health of the context shows a lost device.
    pub(crate) fn release_directly(&self, slot: u32) {
        // If the freed block was the pair's last, another stream may have the pair by now. In
        // direct mode the free segments of the other stream are to be released as well.
        let Some(_used) = self.device.heaps.enter_pair(slot / 2) else { return };
        // The heap's lock ends with this statement, before the registry is locked.
        let pool = self.device.heaps.lock(slot).pool;
        if pool == 0 || self.device.heaps.registry.lock().is_unused(pool) {
            let _freed = self.release_ordinary(slot, |_| true);
        }
    }

    /// Releases every wholly free segment of the heap in `slot`, and unmaps the free granules of
    /// expandable segments. The caller uses the pair.
    pub(crate) fn release_heap(&self, slot: u32) -> Result<(), Error> {
        // The addresses that pages have left keep the pair from becoming vacant.
        let unmapped = self.device.stitcher().map_or(Ok(()), |stitcher| stitcher.unmap_stale_of(slot));
        let emptied = unmapped.and(self.empty_heap(slot));
        // Under the stitched policy, spare pages serve other heaps within the same budget.
        if matches!(self.device.settings.policy, Policy::Stitched(_)) {
            emptied
        } else {
            emptied.and(self.destroy_spares())
        }
    }

    /// Releases every wholly free segment of the heap in `slot`. Pages of virtual memory become
    /// spare.
    fn empty_heap(&self, slot: u32) -> Result<(), Error> {
        let ordinary = self.release_ordinary(slot, |_| true).map(|_| ());
        let released = ordinary.and(self.unmap_cached(slot));
        self.device.heaps.drop_tables(&mut self.device.heaps.lock(slot));
        released
    }

    /// Unmaps the free granules of the heap in `slot`, if the device has virtual memory. A heap asleep also gives up the
    /// places of freed pages. The caller uses the pair, so no park of it begins.
    pub(super) fn unmap_cached(&self, slot: u32) -> Result<(), Error> {
        let Some(mapper) = self.device.mapper() else { return Ok(()) };
        if self.device.heaps.lock(slot).asleep { mapper.try_to_give_up_freed(slot) } else { mapper.unmap_cached(slot) }
    }

    /// Releases the wholly free ordinary segments of one heap for which `wanted` returns true, in
    /// ascending order of (size, address). Returns the number of bytes released.
    ///
    /// # Errors
    ///
    /// The last failure, after all other segments were released; or at once if the context is lost.
    fn release_ordinary(&self, slot: u32, mut wanted: impl FnMut(&Block) -> bool) -> Result<u64, Error> {
        let (mut released, mut cursor, mut failed) = (0, FROM_START, None);
        loop {
            // Locked anew for each segment: `release_segment` drops the lock to call the device.
            // The cursor moves strictly forward, so the walk ends while other threads free blocks.
            let mut heap = self.device.heaps.lock(slot);
            let Some((block, at)) = next_releasable(&mut heap, cursor, &mut wanted) else { break };
            cursor = at;
            match self.release_segment(slot, heap, block) {
                Ok(bytes) => released += bytes,
                Err(error) if self.device.flags.has(flags::LOST) => return Err(error),
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(released), Err)
    }

    /// Releases every wholly free segment and every spare page, as
    /// [`empty_heaps`](Self::empty_heaps) does.
    pub(crate) fn release_cached(&self, only: Option<u32>) -> Result<(), Error> {
        // A page with a stale mapping cannot go back to the device.
        let unmapped = self.device.stitcher().map_or(Ok(()), |stitcher| stitcher.unmap_all_stale());
        let decommitted = if only.is_none() { ranges::wait(self.device) } else { Ok(()) };
        unmapped.and(decommitted).and(self.empty_heaps(only)).and(self.destroy_spares())
    }

    /// Returns the memory of spare pages to the device.
    pub(super) fn destroy_spares(&self) -> Result<(), Error> {
        // Asking a device for its virtual memory may open the device.
        if self.device.page_pool.lock().bytes.spare == 0 {
            return Ok(());
        }
        self.device.mapper().map_or(Ok(()), |mapper| mapper.destroy_spares().map(|_| ()))
    }

    /// Releases every wholly free segment: first of the default pool (large, then small), then of
    /// the private pools without users (small, then large). With `only`, releases the segments of
    /// one private pool without users. Pages of virtual memory become spare.
    ///
    /// # Errors
    ///
    /// The first failure. The release goes on after a failure unless the context is lost.
    pub(crate) fn empty_heaps(&self, only: Option<u32>) -> Result<(), Error> {
        let mut failed = if only.is_none() { RetiredSegments(self.device.arena).release(true) } else { Ok(()) };
        let mut release = |pool: u32, kinds: [PoolKind; 2]| {
            for kind in kinds {
                for pair in self.device.heaps.pairs_of(pool) {
                    let result = self.empty_heap(pair.slot(kind));
                    // Keep the first failure.
                    failed = core::mem::replace(&mut failed, Ok(())).and(result);
                }
            }
        };
        // The order of pools and kinds is PyTorch's.
        if only.is_none() {
            release(0, [PoolKind::Large, PoolKind::Small]);
        }
        for pool in self.device.heaps.unused_pools() {
            if only.is_none_or(|only| only == pool) {
                release(pool, [PoolKind::Small, PoolKind::Large]);
            }
        }
        failed
    }

    /// Releases old segments of the default pool until at most the collection threshold is held
    /// from the device. Does nothing unless a limit and a threshold are set.
    ///
    /// Each pass computes the average age of the releasable segments, and releases every segment at
    /// least as old. Only large segments are collected.
    pub(crate) fn collect_garbage(&self) -> Result<(), Error> {
        let Some(target) = self.device.garbage_target() else { return Ok(()) };
        let (mut ages, mut count) = self.device.heaps.releasable_ages();
        let mut reclaimed = 0;
        while reclaimed < target && count > 0 {
            // Fixed for the whole pass, although `ages` and `count` change during the pass.
            let threshold = ages as f64 / count as f64;
            let mut freed = 0;
            for pair in self.device.heaps.pairs_of(0) {
                let slot = pair.slot(PoolKind::Large);
                let clock = self.device.heaps.lock(slot).clock;
                reclaimed += self.release_ordinary(slot, |block| {
                    // Saturates: a block freed by another thread since `releasable_ages` is not
                    // part of the sum, and may be younger than `clock`.
                    let age = clock.saturating_sub(block.freed_at);
                    let old = age as f64 >= threshold;
                    if old {
                        (ages, count, freed) = (ages.saturating_sub(age), count.saturating_sub(1), freed + 1);
                    }
                    old
                })?;
            }
            // Other threads may have taken every old segment: without progress the loop ends.
            if freed == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Releases oversize segments of the request's own heap: the smallest segment that suffices, or
    /// else segments from the largest down. Returns true if enough bytes were released.
    pub(crate) fn release_oversize(&self, request: &Request) -> Result<bool, Error> {
        let mut released = 0;
        loop {
            let mut heap = self.device.heaps.lock(request.slot);
            let Some((block, wanted)) = oversize_victim(&mut heap, request.size) else { return Ok(false) };
            released += self.release_segment(request.slot, heap, block)?;
            if released >= wanted {
                return Ok(true);
            }
        }
    }

    /// Releases wholly free segments until at most `keep` bytes are held from the device: the
    /// largest first, and of equal sizes the segment at the highest address. Then unmaps free
    /// granules of expandable segments. Does not wait for pending events.
    pub(crate) fn trim(&self, keep: u64) -> Result<(), Error> {
        ranges::collect(self.device, u32::MAX);
        if self.device.ledger.reserved() > keep {
            RetiredSegments(self.device.arena).release(true)?;
        }
        while self.device.ledger.reserved() > keep {
            // One walk over the heaps for each segment: only the largest of each heap is compared.
            let largest = self.device.heaps.releasable_slots().filter_map(|(_used, slot)| {
                let heap = self.device.heaps.lock(slot);
                let block = &heap.blocks[last_releasable(&heap, |_| true)?];
                Some((block.size, block.addr, slot))
            });
            let Some((_, _, slot)) = largest.max() else { break };
            let Some(_used) = self.device.heaps.enter_pair(slot / 2) else { continue };
            let heap = self.device.heaps.lock(slot);
            // Another thread may have taken the segment since the lock was dropped: search again.
            if let Some(block) = last_releasable(&heap, |_| true) {
                self.release_segment(slot, heap, block)?;
            }
        }
        if self.device.ledger.reserved() > keep
            && let Some(stitcher) = self.device.stitcher()
        {
            stitcher.unmap_all_stale()?;
        }
        for (_used, slot) in self.device.heaps.releasable_slots() {
            if self.device.ledger.reserved() > keep {
                self.unmap_cached(slot)?;
                self.destroy_spares()?;
                self.device.heaps.drop_tables(&mut self.device.heaps.lock(slot));
            }
        }
        if self.device.ledger.reserved() > keep { self.destroy_spares() } else { Ok(()) }
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Returns the number of bytes held above the collection threshold. Returns `None` if the
    /// collection is off or nothing is above the threshold.
    fn garbage_target(&self) -> Option<u64> {
        if !self.flags.has(flags::AGES) {
            return None;
        }
        let threshold = self.settings.config.lock().garbage_collection_threshold()?;
        let limit = self.ledger.limit();
        self.ledger.reserved().checked_sub((threshold * limit as f64) as u64).filter(|&bytes| bytes > 0)
    }

    /// Returns the address of the first segment that [`collect_garbage`](Releaser::collect_garbage)
    /// would release.
    pub(crate) fn first_garbage(&self) -> Option<DevicePtr> {
        self.garbage_target()?;
        let (ages, count) = self.heaps.releasable_ages();
        let threshold = ages as f64 / count as f64;
        self.heaps.pairs_of(0).find_map(|pair| {
            let mut heap = self.heaps.lock(pair.slot(PoolKind::Large));
            let now = heap.clock;
            let old = |block: &Block| (now - block.freed_at) as f64 >= threshold;
            next_releasable(&mut heap, FROM_START, old).map(|(block, _)| DevicePtr(heap.blocks[block].addr))
        })
    }

    /// Returns the address of the first segment or range that
    /// [`release_cached`](Releaser::release_cached) would release.
    pub(crate) fn first_releasable(&self) -> Option<DevicePtr> {
        let of_pool = |pool: u32, kinds: [PoolKind; 2]| {
            kinds
                .into_iter()
                .find_map(|kind| self.heaps.pairs_of(pool).find_map(|pair| self.first_of_heap(pair.slot(kind))))
        };
        RetiredSegments(self)
            .first()
            .or_else(|| of_pool(0, [PoolKind::Large, PoolKind::Small]))
            .or_else(|| self.heaps.unused_pools().find_map(|pool| of_pool(pool, [PoolKind::Small, PoolKind::Large])))
    }

    /// Returns the address of the first segment or range that
    /// [`release_heap`](Releaser::release_heap) would release.
    pub(crate) fn first_of_heap(&self, slot: u32) -> Option<DevicePtr> {
        let mut heap = self.heaps.lock(slot);
        let (first, is_mapped) = first_free_of(&mut heap)?;
        let stream = heap.stream;
        drop(heap);
        // `unmap_cached` leaves the free granules of a capturing stream mapped.
        let stays = is_mapped
            && self.driver.may_use(stream, NO_STREAM)
            && self.call(|device| device.is_capturing(stream)) == Ok(true);
        (!stays).then_some(first)
    }
}

/// Returns the address of the first wholly free segment of a heap, or else of the first free range of
/// granules, and whether it is such a range.
pub(super) fn first_free_of<S: Storage>(heap: &mut Heap<S>) -> Option<(DevicePtr, bool)> {
    if let Some((block, _)) = next_releasable(heap, FROM_START, |_| true) {
        return Some((DevicePtr(heap.blocks[block].addr), false));
    }
    crate::arena::expand::next_unmappable(heap, FROM_START).map(|(_, range)| (range.at, true))
}

impl<R: Lock, S: Storage> Heaps<R, S> {
    /// Returns the sum of the ages of the default pool's releasable large segments, and their
    /// number.
    fn releasable_ages(&self) -> (u64, u64) {
        let (mut ages, mut count) = (0, 0);
        for pair in self.pairs_of(0) {
            let mut heap = self.lock(pair.slot(PoolKind::Large));
            let mut cursor = FROM_START;
            while let Some((block, at)) = next_releasable(&mut heap, cursor, |_| true) {
                // No underflow: `lock` has set the clock, and `freed_at` is an earlier clock.
                (ages, count, cursor) = (ages + heap.clock - heap.blocks[block].freed_at, count + 1, at);
            }
        }
        (ages, count)
    }

    /// Returns the address of the first segment that
    /// [`release_oversize`](Releaser::release_oversize) would release.
    pub(crate) fn oversize_victim(&self, request: &Request) -> Option<DevicePtr> {
        let mut heap = self.lock(request.slot);
        oversize_victim(&mut heap, request.size).map(|(block, _)| DevicePtr(heap.blocks[block].addr))
    }

    /// Iterates over the heaps with releasable segments, as guard of the pair and slot number:
    /// first the default pool, then the private pools without users.
    fn releasable_slots(&self) -> impl Iterator<Item = (PairUse<'_, R, S>, u32)> {
        let pools = core::iter::once(0).chain(self.unused_pools());
        pools
            .flat_map(|pool| [PoolKind::Large, PoolKind::Small].map(|kind| (pool, kind)))
            .flat_map(|(pool, kind)| self.slots_of(pool, kind))
    }

    /// Iterates over the heaps of `kind` with releasable segments, as
    /// [`releasable_slots`](Self::releasable_slots) does.
    pub(super) fn releasable_of(&self, kind: PoolKind) -> impl Iterator<Item = (PairUse<'_, R, S>, u32)> {
        core::iter::once(0).chain(self.unused_pools()).flat_map(move |pool| self.slots_of(pool, kind))
    }

    /// Iterates over the heaps of one kind in a pool, as guard of the pair and slot number.
    fn slots_of(&self, pool: u32, kind: PoolKind) -> impl Iterator<Item = (PairUse<'_, R, S>, u32)> {
        self.pairs_of(pool).map(move |pair| {
            let slot = pair.slot(kind);
            (pair, slot)
        })
    }
}

/// Returns the first releasable segment behind `cursor` for which `wanted` returns true, as block
/// and position. A heap of a private pool in use has no releasable segment.
pub(super) fn next_releasable<S: Storage>(
    heap: &mut Heap<S>,
    cursor: Cursor,
    mut wanted: impl FnMut(&Block) -> bool,
) -> Option<(u32, Cursor)> {
    // An empty heap may have no tables, and `heap.sets` panics without tables.
    if heap.retained || heap.is_empty() {
        return None;
    }
    let mut at = heap.sets.free.after(cursor, heap.blocks.entries());
    while let Some(block) = at {
        let entry = &heap.blocks[block];
        if heap.is_releasable(block) && wanted(entry) {
            return Some((block, (entry.size, entry.addr)));
        }
        at = heap.sets.free.next(block, heap.blocks.entries());
    }
    None
}

/// Returns the largest releasable segment of `heap` for which `wanted` returns true, as a block. A
/// heap of a private pool in use has no releasable segment.
pub(super) fn last_releasable<S: Storage>(heap: &Heap<S>, wanted: impl Fn(&Block) -> bool) -> Option<u32> {
    if heap.retained || heap.is_empty() {
        return None;
    }
    let mut at = heap.sets.free.last(heap.blocks.entries());
    while let Some(block) = at.filter(|&block| !(heap.is_releasable(block) && wanted(&heap.blocks[block]))) {
        at = heap.sets.free.previous(block, heap.blocks.entries());
    }
    at
}

/// Returns the oversize segment to release first for a request of `size` bytes, as a block, and the
/// number of bytes to release in all.
fn oversize_victim<S: Storage>(heap: &mut Heap<S>, size: u64) -> Option<(u32, u64)> {
    let oversize = heap.rules.max_split;
    // `u64::MAX`: no largest split size is set, so no segment is oversize.
    if oversize == u64::MAX || heap.is_empty() {
        return None;
    }
    let wanted = size.max(oversize);
    let mut enough = heap.sets.free.best_fit(wanted, heap.blocks.entries());
    let heap = &*heap;
    let blocks = heap.blocks.entries();
    let releasable = |block: u32| heap.is_releasable(block);
    // A part of an ordinary segment cannot be released at all, so the walk skips the part. A block
    // of an expandable segment is large enough but cannot be released here: it ends the walk.
    let counts = |block: u32| releasable(block) || blocks[block as usize].backing == Backing::Expandable;
    while let Some(block) = enough.filter(|&block| !counts(block)) {
        enough = heap.sets.free.next(block, blocks);
    }
    let mut at = match enough {
        // One segment suffices.
        Some(block) if releasable(block) => return Some((block, wanted)),
        // No single segment suffices: start with the largest segment below.
        Some(expandable) => heap.sets.free.previous(expandable, blocks),
        None => heap.sets.free.last(blocks),
    };
    while let Some(block) = at.filter(|&block| blocks[block as usize].size >= oversize) {
        if releasable(block) {
            return Some((block, wanted));
        }
        at = heap.sets.free.previous(block, blocks);
    }
    None
}
