//! Return of the free pages of heaps to the pool: they are unmapped after a wait for the heap's
//! stream, and are then spare.
//!
//! The device is never called under a heap's lock. The blocks are first *detached* from every set
//! of the heap, so that no other call can touch them while the lock is dropped.

use crate::arena::Platform;
use crate::arena::paging::heap_mapper::HeapMapper;
use crate::device::{Contents, DeviceError, ErrorKind, Segments};
use crate::error::Error;
use crate::heap::addresses::AddressRange;
use crate::heap::block::BlockEntry;
use crate::stats::Occurrence;
use crate::tables::slot_table::NONE;
use crate::trace::Action;
use crate::units::{DevicePtr, NO_STREAM};

impl<P: Platform> HeapMapper<'_, P> {
    /// Unmaps the pages that are wholly in free blocks of the heap in `slot`. Covers the blocks
    /// that are free at the call, in the order of the free index.
    ///
    /// # Errors
    ///
    /// The first failure. The unmapping continues after it, unless the context is lost.
    pub(crate) fn unmap_cached(&self, slot: u32) -> Result<(), Error> {
        self.unmap_all_detached(slot, self.detach_unmappable(slot))
    }

    /// Detaches the free pages of the heap in `slot`. Returns the first block of a list linked by
    /// [`BlockEntry::chain`](crate::heap::block::BlockEntry::chain), and an error if blocks were
    /// skipped because a table is full.
    pub(in crate::arena) fn detach_unmappable(&self, slot: u32) -> (u32, Result<(), Error>) {
        let (mut first, mut last, mut result) = (NONE, NONE, Ok(()));
        for unit in self.heaps.pages_of(slot) {
            let mut heap = self.heaps.lock(slot);
            match unit.detach(&mut heap) {
                Ok(None) => {}
                Ok(Some(block)) => {
                    // A detached block is in no index, so `chain` can link the list.
                    heap.blocks[block].chain = NONE;
                    if last == NONE {
                        first = block;
                    } else {
                        heap.blocks[last].chain = block;
                    }
                    last = block;
                }
                Err(error) => result = Err(error),
            }
        }
        (first, result)
    }

    /// Unmaps what [`detach_unmappable`](Self::detach_unmappable) has detached in the heap of
    /// `slot`.
    pub(in crate::arena) fn unmap_all_detached(
        &self,
        slot: u32,
        (mut detached, mut result): (u32, Result<(), Error>),
    ) -> Result<(), Error> {
        // All blocks are detached, so one synchronization of the stream serves all of them.
        if detached == NONE {
            return result;
        }
        let stream = self.heaps.lock(slot).stream;
        let waited = self.driver.synchronize(stream);
        // A capturing stream permits no wait. Its free blocks stay mapped, which is not an error.
        if !matches!(waited, Err(DeviceError { kind: ErrorKind::NotPermittedInCapture, .. })) {
            result = result.and(waited.map_err(Error::from));
        }
        while detached != NONE {
            let mut heap = self.heaps.lock(slot);
            // `chain` links the detached blocks. It is read before the block returns to a set.
            let (block, next) = (detached, heap.blocks[detached].chain);
            detached = next;
            // Without the wait a kernel may still use the memory, so the mapping must stay.
            if waited.is_err() || self.driver.health().is_err() {
                heap.attach_range(block);
                continue;
            }
            drop(heap);
            result = result.and(self.unmap_detached(slot, block));
        }
        result
    }

    /// Unmaps the pages of a detached block, which become spare, and gives up the addresses. If the
    /// tag has `clear`, the pages are filled with zeroes first.
    pub(in crate::arena) fn unmap_detached(&self, slot: u32, block: u32) -> Result<(), Error> {
        self.clear_detached(slot, block)?;
        self.give_up_detached(slot, block, |range| self.unmap_pages(slot, range))
    }

    /// Gives up the addresses of a detached block after `unmap` has removed its pages. Releases the
    /// addresses of the segment once no part of it is mapped. After an error of `unmap`, the
    /// addresses are lost.
    pub(in crate::arena) fn give_up_detached<E>(
        &self,
        slot: u32,
        block: u32,
        unmap: impl FnOnce(AddressRange) -> Result<(), E>,
    ) -> Result<(), E> {
        {
            let mut heap = self.heaps.lock(slot);
            let BlockEntry { addr, size, .. } = heap.blocks[block];
            self.trace(|recorder| recorder.release(&mut heap, Action::SegmentUnmap, DevicePtr(addr), size));
        }
        self.peaks.device.count(Occurrence::DeviceFree);
        self.end_detached(slot, block, unmap)
    }

    /// Removes the addresses of a detached block from the page map and from the heap, as
    /// [`give_up_detached`](Self::give_up_detached) does, for pages that already count as unmapped.
    pub(super) fn end_detached<E>(
        &self,
        slot: u32,
        block: u32,
        unmap: impl FnOnce(AddressRange) -> Result<(), E>,
    ) -> Result<(), E> {
        let counters = &self.heaps.slot(slot).counters;
        let range = {
            let heap = self.heaps.lock(slot);
            let BlockEntry { addr, size, segment, .. } = heap.blocks[block];
            AddressRange { at: DevicePtr(addr), bytes: size, granule: heap.segments[segment].granule }
        };
        self.owners.remove(range.at, range.bytes);
        let unmapped = unmap(range);
        let mut heap = self.heaps.lock(slot);
        if unmapped.is_err() {
            heap.lose(block, counters);
            return unmapped;
        }
        let emptied = heap.finish_unmap(block, counters);
        self.trace_spilled(&mut heap);
        drop(heap);
        self.unreserve(emptied);
        unmapped
    }

    /// Fills the pages of a detached block with zeroes and waits for the end, if the tag of the
    /// heap in `slot` asks for this. After an error the block is free again. No work uses the
    /// block.
    ///
    /// # Errors
    /// Those of the device.
    fn clear_detached(&self, slot: u32, block: u32) -> Result<(), Error> {
        let (at, bytes, stream) = {
            let heap = self.heaps.lock(slot);
            if !heap.clears {
                return Ok(());
            }
            let BlockEntry { addr, size, .. } = heap.blocks[block];
            (DevicePtr(addr), size, self.driver.usable_stream(&heap, NO_STREAM))
        };
        // A copy on which requests are tried has no contents.
        let Some(contents) = self.driver.device().contents() else { return Ok(()) };
        let cleared = match stream {
            // In the order of the stream, so that whatever fails, the fill is complete before the
            // work of a later request.
            Some(stream) => {
                let filled = self.driver.call(|_| contents.fill(stream, at, bytes, 0));
                filled.and_then(|()| self.driver.synchronize(stream)).map_err(Error::from)
            }
            None => self.clear_apart(contents, slot, at, bytes),
        };
        cleared.inspect_err(|_| self.heaps.lock(slot).attach_range(block))
    }

    /// Fills the pages of `bytes` from `at` on with zeroes, on no stream of the program, and waits
    /// for the end.
    fn clear_apart(&self, contents: &dyn Contents, slot: u32, at: DevicePtr, bytes: u64) -> Result<(), Error> {
        let (mut next, end) = (at.0, at.0 + bytes);
        let page_at = |next: u64| self.heaps.lock(slot).sets.pages.from(next).filter(|page| page.at < end);
        let mut begun = Ok(());
        while begun.is_ok()
            && let Some(page) = page_at(next)
        {
            begun = self.driver.call(|_| contents.zero(DevicePtr(page.at), page.bytes));
            next = page.end();
        }
        // Also after a failure: the block may serve a request afterwards, and no fill may reach it
        // then.
        let ended = self.end_copies(contents);
        begun.map_err(Error::from).and(ended)
    }
}
