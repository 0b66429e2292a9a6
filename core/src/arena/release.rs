//! Giving segments back to the device: all that are wholly free, old ones, oversize ones, or as many as it takes.
//!
//! Heaps are locked one at a time and never across a call to the device. What is to be released is first taken out of its
//! heap and of the pages, so nobody can find it while the device gives it back.

use crate::arena::heaps::PairUse;
use crate::arena::request::Request;
use crate::arena::{Arena, OnDevice, flags};
use crate::config::rounding::PoolKind;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::heap::Heap;
use crate::heap::block::Block;
use crate::stats::Event;
use crate::sync::{Lock, MutexGuard};
use crate::tables::Storage;
use crate::units::DevicePtr;

/// A place in the order of the free blocks of one heap: (size, address).
type Cursor = (u64, u64);

/// Before every block: an address of 0 is never one.
const FROM_START: Cursor = (0, 0);

impl<D: DeviceMemory, R: Lock, S: Storage> OnDevice<'_, D, R, S> {
    /// Releases the segment that is `block` of a locked heap. The lock is given up.
    fn release_segment(self, slot: u32, mut heap: MutexGuard<'_, R, Heap<S>>, block: u32) -> Result<u64, Error> {
        self.health()?;
        let (base, bytes) = heap.remove_segment(block, &self.slot(slot).tally);
        self.pages.remove(base, bytes);
        self.trace_release(&mut heap, crate::trace::Action::SegmentFree, base, bytes);
        // In direct mode the next request would make them again.
        if !self.flags.has(flags::DIRECT) {
            self.drop_tables(&mut heap);
        }
        drop(heap);
        self.totals.count(Event::DeviceFree);
        self.give_back(base, bytes)?;
        Ok(bytes)
    }

    /// In direct mode, a block that has become free goes straight back. It is freed whatever the device makes of that:
    /// a failure shows in the leaked bytes, or in the health of the context.
    /// What a pool in use holds stays there: a graph that was captured into it uses it whenever it runs.
    pub(crate) fn release_directly(self, slot: u32) {
        // A block of the heap was freed a moment ago. If that was the last one the pair may be another stream's by now: what is
        // free there goes back in direct mode as well.
        let Some(_used) = self.enter_pair(slot / 2) else { return };
        let pool = self.lock(slot).pool;
        if pool == 0 || self.registry.lock().is_unused(pool) {
            let _freed = self.release_ordinary(slot, |_| true);
        }
    }

    /// Releases everything that is wholly free in one heap, whose pair the caller uses.
    pub(crate) fn release_heap(self, slot: u32) -> Result<(), Error> {
        let ordinary = self.release_ordinary(slot, |_| true).map(|_| ());
        let released = ordinary.and(self.unmap_cached(slot));
        self.drop_tables(&mut self.lock(slot));
        released
    }

    /// Releases the wholly free ordinary segments of one heap that are `wanted`, in the order of its index. Says how many bytes.
    fn release_ordinary(self, slot: u32, mut wanted: impl FnMut(&Block) -> bool) -> Result<u64, Error> {
        let (mut released, mut cursor, mut failed) = (0, FROM_START, None);
        loop {
            let mut heap = self.lock(slot);
            let Some((block, at)) = next_releasable(&mut heap, cursor, &mut wanted) else { break };
            cursor = at;
            match self.release_segment(slot, heap, block) {
                Ok(bytes) => released += bytes,
                Err(error) if self.flags.has(flags::LOST) => return Err(error),
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(released), Err)
    }

    /// Releases every wholly free segment: of the default pool (large, then small), then of the private pools without users
    /// (small, then large) or only of `only`. Ends with the first failure if the context is lost, else goes on and reports it.
    pub(crate) fn release_cached(self, only: Option<u32>) -> Result<(), Error> {
        let mut failed = Ok(());
        let mut release = |pool: u32, kinds: [PoolKind; 2]| {
            for kind in kinds {
                for pair in self.pairs_of(pool) {
                    let result = self.release_heap(pair.slot(kind));
                    failed = core::mem::replace(&mut failed, Ok(())).and(result);
                }
            }
        };
        if only.is_none() {
            release(0, [PoolKind::Large, PoolKind::Small]);
        }
        for pool in self.unused_pools() {
            if only.is_none_or(|only| only == pool) {
                release(pool, [PoolKind::Small, PoolKind::Large]);
            }
        }
        failed
    }

    /// Collects old segments, if a limit and a threshold are set and more than the threshold is held: the average age of the
    /// releasable segments is fixed for one pass, which releases every one that is at least as old.
    pub(crate) fn collect_garbage(self) -> Result<(), Error> {
        let Some(target) = self.garbage_target() else { return Ok(()) };
        let (mut ages, mut count) = self.releasable_ages();
        let mut reclaimed = 0;
        while reclaimed < target && count > 0 {
            let threshold = ages as f64 / count as f64;
            let mut freed = 0;
            for pair in self.pairs_of(0) {
                let slot = pair.slot(PoolKind::Large);
                let clock = self.lock(slot).clock;
                reclaimed += self.release_ordinary(slot, |block| {
                    // What other threads freed since the ages were added up is younger than all that were counted.
                    let age = clock.saturating_sub(block.freed_at);
                    let old = age as f64 >= threshold;
                    if old {
                        (ages, count, freed) = (ages.saturating_sub(age), count.saturating_sub(1), freed + 1);
                    }
                    old
                })?;
            }
            if freed == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Releases oversize segments of the request's own heap: the smallest one that suffices, else from the largest down until
    /// enough is released. True if enough was.
    pub(crate) fn release_oversize(self, request: &Request) -> Result<bool, Error> {
        let mut released = 0;
        loop {
            let mut heap = self.lock(request.slot);
            let Some((block, wanted)) = oversize_victim(&mut heap, request.size) else { return Ok(false) };
            released += self.release_segment(request.slot, heap, block)?;
            if released >= wanted {
                return Ok(true);
            }
        }
    }

    /// Releases wholly free segments, largest first and of several the one at the highest address, then what is free of
    /// expandable ones, until at most `keep` bytes are held. Pending events are not waited for.
    pub(crate) fn trim(self, keep: u64) -> Result<(), Error> {
        while self.ledger.reserved() > keep {
            let largest = self.releasable_slots().filter_map(|(_used, slot)| {
                let heap = self.lock(slot);
                let block = &heap.blocks[last_releasable(&heap)?];
                Some((block.size, block.addr, slot))
            });
            let Some((_, _, slot)) = largest.max() else { break };
            let Some(_used) = self.enter_pair(slot / 2) else { continue };
            let heap = self.lock(slot);
            // Others may have taken it since.
            if let Some(block) = last_releasable(&heap) {
                self.release_segment(slot, heap, block)?;
            }
        }
        for (_used, slot) in self.releasable_slots() {
            if self.ledger.reserved() > keep {
                self.unmap_cached(slot)?;
                self.drop_tables(&mut self.lock(slot));
            }
        }
        Ok(())
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// The pairs of a pool, by ascending stream. Each is used while the caller has it, so that its heaps stay that stream's.
    pub(crate) fn pairs_of(&self, pool: u32) -> impl Iterator<Item = PairUse<'_, D, R, S>> {
        let mut after = None;
        core::iter::from_fn(move || {
            let (stream, pair) = self.next_pair(pool, after)?;
            after = Some(stream);
            Some(pair)
        })
    }

    /// How many bytes the collection should release, if it is on and should release any.
    fn garbage_target(&self) -> Option<u64> {
        if !self.flags.has(flags::AGES) {
            return None;
        }
        let threshold = self.config.lock().garbage_collection_threshold()?;
        let limit = self.ledger.limit();
        self.ledger.reserved().checked_sub((threshold * limit as f64) as u64).filter(|&bytes| bytes > 0)
    }

    /// The sum of the ages of the releasable large segments of the default pool, and how many there are.
    fn releasable_ages(&self) -> (u64, u64) {
        let (mut ages, mut count) = (0, 0);
        for pair in self.pairs_of(0) {
            let mut heap = self.lock(pair.slot(PoolKind::Large));
            let mut cursor = FROM_START;
            while let Some((block, at)) = next_releasable(&mut heap, cursor, |_| true) {
                (ages, count, cursor) = (ages + heap.clock - heap.blocks[block].freed_at, count + 1, at);
            }
        }
        (ages, count)
    }

    /// The first segment that the collection would release now.
    pub(crate) fn first_garbage(&self) -> Option<DevicePtr> {
        self.garbage_target()?;
        let (ages, count) = self.releasable_ages();
        let threshold = ages as f64 / count as f64;
        self.pairs_of(0).find_map(|pair| {
            let mut heap = self.lock(pair.slot(PoolKind::Large));
            let now = heap.clock;
            let old = |block: &Block| (now - block.freed_at) as f64 >= threshold;
            next_releasable(&mut heap, FROM_START, old).map(|(block, _)| DevicePtr(heap.blocks[block].addr))
        })
    }

    pub(crate) fn oversize_victim(&self, request: &Request) -> Option<DevicePtr> {
        let mut heap = self.lock(request.slot);
        oversize_victim(&mut heap, request.size).map(|(block, _)| DevicePtr(heap.blocks[block].addr))
    }

    /// The first segment or range that releasing the whole cache would give back.
    pub(crate) fn first_releasable(&self) -> Option<DevicePtr> {
        let of_pool = |pool: u32, kinds: [PoolKind; 2]| {
            kinds.into_iter().find_map(|kind| self.pairs_of(pool).find_map(|pair| self.first_of_heap(pair.slot(kind))))
        };
        of_pool(0, [PoolKind::Large, PoolKind::Small])
            .or_else(|| self.unused_pools().find_map(|pool| of_pool(pool, [PoolKind::Small, PoolKind::Large])))
    }

    /// The first segment or range that releasing one heap would give back.
    pub(crate) fn first_of_heap(&self, slot: u32) -> Option<DevicePtr> {
        let mut heap = self.lock(slot);
        if let Some((block, _)) = next_releasable(&mut heap, FROM_START, |_| true) {
            return Some(DevicePtr(heap.blocks[block].addr));
        }
        let (_, range) = crate::arena::expand::next_unmappable(&mut heap, FROM_START)?;
        let stream = heap.stream;
        drop(heap);
        // What is free of a stream that captures a graph stays mapped.
        let captures = self.call(|device| device.is_capturing(stream));
        (captures != Ok(true)).then_some(range.at)
    }

    /// The heaps whose free segments may go back, as pair and slot: those of the default pool, then those of private pools
    /// without users.
    fn releasable_slots(&self) -> impl Iterator<Item = (PairUse<'_, D, R, S>, u32)> {
        let pools = core::iter::once(0).chain(self.unused_pools());
        pools
            .flat_map(|pool| [PoolKind::Large, PoolKind::Small].map(|kind| (pool, kind)))
            .flat_map(|(pool, kind)| self.pairs_of(pool).map(move |pair| (kind, pair)))
            .map(|(kind, pair)| {
                let slot = pair.slot(kind);
                (pair, slot)
            })
    }
}

/// The first releasable segment behind `cursor` that is wanted, and its place. None of a pool in use is.
fn next_releasable<S: Storage>(
    heap: &mut Heap<S>,
    cursor: Cursor,
    mut wanted: impl FnMut(&Block) -> bool,
) -> Option<(u32, Cursor)> {
    if heap.kept || heap.is_empty() {
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

/// The largest releasable segment. None of a pool in use is.
fn last_releasable<S: Storage>(heap: &Heap<S>) -> Option<u32> {
    if heap.kept || heap.is_empty() {
        return None;
    }
    let mut at = heap.sets.free.last(heap.blocks.entries());
    while let Some(block) = at.filter(|&block| !heap.is_releasable(block)) {
        at = heap.sets.free.previous(block, heap.blocks.entries());
    }
    at
}

/// The oversize segment to release first for a request of `size`, and how many bytes must be released in all.
fn oversize_victim<S: Storage>(heap: &mut Heap<S>, size: u64) -> Option<(u32, u64)> {
    let oversize = heap.rules.max_split;
    if oversize == u64::MAX || heap.is_empty() {
        return None;
    }
    let wanted = size.max(oversize);
    let mut enough = heap.sets.free.best_fit(wanted, heap.blocks.entries());
    let heap = &*heap;
    let blocks = heap.blocks.entries();
    let goes = |block: u32| heap.is_releasable(block);
    // A part of an ordinary segment cannot be released at all, so it is as if it were not there.
    let counts = |block: u32| goes(block) || blocks[block as usize].expandable;
    while let Some(block) = enough.filter(|&block| !counts(block)) {
        enough = heap.sets.free.next(block, blocks);
    }
    let mut at = match enough {
        Some(block) if goes(block) => return Some((block, wanted)),
        Some(expandable) => heap.sets.free.previous(expandable, blocks),
        None => heap.sets.free.last(blocks),
    };
    while let Some(block) = at.filter(|&block| blocks[block as usize].size >= oversize) {
        if goes(block) {
            return Some((block, wanted));
        }
        at = heap.sets.free.previous(block, blocks);
    }
    None
}
