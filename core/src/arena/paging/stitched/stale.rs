//! Stale mappings: the old addresses of moved pages, until they can be unmapped.
//!
//! Unmapping waits for no kernel, so a mapping is removed only when the work on its addresses is
//! complete: an event was recorded on the stream of the heap after the move (an *epoch* of the
//! heap), and this event is complete. Stale mappings cost nothing but addresses, so they are
//! removed in batches, and away from requests where possible.

use super::Stitcher;
use crate::arena::Platform;
use crate::arena::paging::Paging;
use crate::arena::request::Request;
use crate::device::ErrorKind;
use crate::error::Error;
use crate::heap::Heap;
use crate::heap::block::State;
use crate::heap::moves::PagedHeap;
use crate::sync::Ordering;
use crate::units::DevicePtr;

/// The number of stale mappings in a heap from which on a request removes some.
const MANY: u32 = 16;

/// The maximum number of mappings that a request removes: about 0.25 ms (15 µs each on an H100).
const FEW: u32 = 16;

impl<P: Platform> Stitcher<'_, P> {
    /// Removes a few stale mappings from heaps that have many. Errors are not reported: a mapping
    /// that cannot be removed is counted, and the request goes on.
    pub(super) fn unmap_some_stale(&self, request: &Request) {
        let mapper = self.mapper();
        // In most cases no heap has so many, and then no heap must be looked at.
        if mapper.paging.stale_mappings.load(Ordering::Relaxed) < MANY {
            return;
        }
        let mut polled = false;
        for slot in mapper.heaps.slot_numbers() {
            // In use, so that the heap keeps its stream while an event is recorded there.
            let Some(_used) = mapper.heaps.enter_pair(slot / 2) else { continue };
            let count = {
                let heap = mapper.heaps.lock(slot);
                if heap.is_empty() { 0 } else { heap.sets.stale.count }
            };
            if count >= MANY {
                if !core::mem::replace(&mut polled, true) {
                    mapper.given_up().poll_departures();
                }
                let _counted = self.unmap_stale(slot, FEW);
                mapper.given_up().begin_epoch(slot, request.stream);
            }
        }
    }

    /// Removes up to `most` stale mappings of the heap in `slot` if their work is complete. Returns
    /// how many were removed.
    ///
    /// # Errors
    /// The first error of the device, after all mappings have been tried.
    pub(super) fn unmap_stale(&self, slot: u32, most: u32) -> Result<u32, Error> {
        let mapper = self.mapper();
        let (mut removed, mut result) = (0, Ok(()));
        while removed < most && !mapper.driver.holds_frees() {
            let taken = {
                let mut heap = mapper.heaps.lock(slot);
                let quiet = if heap.is_empty() { 0 } else { heap.sets.quiet };
                mapper.paging.take_stale(&mut heap, quiet)
            };
            let Some(stale) = taken else { break };
            result = result.and(self.unmap_taken(slot, stale));
            removed += 1;
        }
        result.map(|()| removed)
    }

    /// Removes every stale mapping of every heap, after waiting for the heap's stream.
    ///
    /// # Errors
    /// The first error of the device, after all heaps have been tried.
    pub(crate) fn unmap_all_stale(&self) -> Result<(), Error> {
        let mapper = self.mapper();
        let mut result = Ok(());
        for slot in mapper.heaps.slot_numbers() {
            let Some(_used) = mapper.heaps.enter_pair(slot / 2) else { continue };
            result = result.and(self.unmap_stale_of(slot));
        }
        result
    }

    /// Removes every stale mapping of the heap in `slot`, after waiting for the heap's stream. The
    /// caller uses the pair.
    ///
    /// # Errors
    /// The first error of the device, after all mappings have been tried. A capturing stream
    /// permits no wait. Its mappings stay, without an error.
    pub(crate) fn unmap_stale_of(&self, slot: u32) -> Result<(), Error> {
        let mapper = self.mapper();
        let (stream, stamp) = {
            let mut heap = mapper.heaps.lock(slot);
            if heap.is_empty() || heap.sets.stale.count == 0 {
                return Ok(());
            }
            // Mappings that become stale during the wait get a later stamp, because they may have
            // later work.
            (heap.stream, mapper.heaps.stamp(&mut heap))
        };
        match mapper.driver.synchronize(stream) {
            Err(error) if error.kind == ErrorKind::NotPermittedInCapture => return Ok(()),
            waited => waited?,
        }
        let mut result = Ok(());
        loop {
            let taken = mapper.paging.take_stale(&mut mapper.heaps.lock(slot), stamp);
            let Some(stale) = taken else { break result };
            result = result.and(self.unmap_taken(slot, stale));
        }
    }

    /// Removes a stale mapping that has already been taken out of the heap's list.
    fn unmap_taken(&self, slot: u32, (block, at, bytes, page): (u32, DevicePtr, u64, u32)) -> Result<(), Error> {
        let mapper = self.mapper();
        mapper.owners.remove(at, bytes);
        let unmapped = self.mapper().unmap(at, bytes);
        mapper.paging.pool.lock().remove_alias(page, unmapped.is_err());
        let mut heap = mapper.heaps.lock(slot);
        if unmapped.is_err() {
            // The addresses are never used again.
            heap.blocks[block].state = State::Lost;
        } else {
            let emptied = PagedHeap(&mut heap).finish_stale(block);
            drop(heap);
            self.mapper().unreserve(emptied);
        }
        Ok(unmapped?)
    }
}

impl<P: Platform> Paging<P> {
    /// Takes the oldest mapping of a heap to be unmapped, if it became stale before `stamp`.
    /// Returns the result of [`PagedHeap::take_stale`].
    fn take_stale(&self, heap: &mut Heap<P::Storage>, stamp: u64) -> Option<(u32, DevicePtr, u64, u32)> {
        let taken = PagedHeap(heap).take_stale(stamp);
        if taken.is_some() {
            self.stale_mappings.fetch_sub(1, Ordering::Relaxed);
        }
        taken
    }
}
