//! Giving units back to the device.
//!
//! ```text
//! unit ─ take: out of the heap, under the heap's lock ─▶ taken ─┬─ release: the device is called, no lock is held
//!                                                               └─ retire: released once the work of a stream is complete
//! ```
//!
//! A segment is removed from the heap and the page map before the device releases its memory, so no
//! thread can find it during the call. Pages become spare.

use crate::arena::flags;
use crate::arena::heaps::Heaps;
use crate::arena::heaps::units::{Unit, UnitKind};
use crate::arena::holdings::Holdings;
use crate::arena::platform::Platform;
use crate::error::Error;
use crate::heap::Heap;
use crate::heap::addresses::AddressRange;
use crate::stats::Occurrence;
use crate::tables::Storage;
use crate::trace::Action;
use crate::units::StreamId;

/// A unit that was taken out of its heap.
#[derive(Debug)]
pub(in crate::arena) struct TakenUnit {
    pub unit: Unit,
    /// The block that was detached around pages.
    block: u32,
}

impl<P: Platform> Holdings<'_, P> {
    /// Gives units back. Returns the number of bytes.
    ///
    /// # Errors
    /// The first failure; no other unit is given back. If the device failed, the bytes count as
    /// leaked.
    pub(in crate::arena) fn give(&self, units: impl IntoIterator<Item = Unit>) -> Result<u64, Error> {
        // Before the rule is asked, which would choose the same unit again and again.
        if self.driver.holds_frees() {
            return Ok(0);
        }
        units.into_iter().try_fold(0, |bytes, unit| {
            let taken = unit.take(self)?;
            Ok(bytes + taken.map_or(Ok(0), |taken| taken.release(self))?)
        })
    }
}

impl Unit {
    /// Takes the unit out of the heap. Returns `None` if another thread has used it in the
    /// meantime.
    ///
    /// # Errors
    /// The loss of the context, and [`Error::TableFull`] if a block cannot be cut. Nothing has
    /// changed then.
    pub(in crate::arena) fn take<P: Platform>(self, held: &Holdings<'_, P>) -> Result<Option<TakenUnit>, Error> {
        held.driver.health()?;
        let Some(_used) = held.heaps.enter_pair(self.slot / 2) else { return Ok(None) };
        if self.kind == UnitKind::Pages {
            return Ok(self.take_pages(held.heaps)?.map(|block| TakenUnit { unit: self, block }));
        }
        let mut heap = held.heaps.lock(self.slot);
        let Some(block) = self.find(&mut heap) else { return Ok(None) };
        let (base, bytes) = heap.remove_segment(block, &held.heaps.slot(self.slot).counters);
        // Before the release, because the device may return the same addresses to another thread at
        // once, and the new segment must find the pages unlisted.
        held.pages.remove(base, bytes);
        held.trace(|recorder| recorder.release(&mut heap, Action::SegmentFree, base, bytes));
        // In direct mode the next request would make the tables again.
        if !held.driver.flags.has(flags::DIRECT) {
            held.heaps.drop_tables(&mut heap);
        }
        Ok(Some(TakenUnit { unit: self, block }))
    }

    /// Detaches pages from their heap, as [`detach`](Self::detach) does. The caller uses the pair.
    ///
    /// # Errors
    /// [`Error::TableFull`] if the block around the pages cannot be cut.
    pub(in crate::arena) fn take_pages<P: Platform>(&self, heaps: &Heaps<P>) -> Result<Option<u32>, Error> {
        let mut heap = heaps.lock(self.slot);
        // A parked heap keeps its pages for the call that parks or wakes it.
        if heap.asleep { Ok(None) } else { self.detach(&mut heap) }
    }

    /// Detaches pages as a separate block. Returns `None` if another thread has used them since
    /// they were found.
    ///
    /// # Errors
    /// [`Error::TableFull`] if the block around the pages cannot be cut.
    pub(in crate::arena) fn detach<S: Storage>(&self, heap: &mut Heap<S>) -> Result<Option<u32>, Error> {
        let Some(block) = self.find(heap) else { return Ok(None) };
        // If the block has parts of pages at its ends, it is cut, which takes entries of the table.
        let whole = heap.blocks[block].size == self.bytes;
        if !whole && heap.make_room().is_err() || !heap.make_room_for_range() {
            return Err(Error::TableFull("blocks"));
        }
        Ok(Some(heap.detach_range(block, AddressRange { at: self.ptr(), bytes: self.bytes, granule: self.bytes })))
    }
}

impl TakenUnit {
    /// Releases the memory of a segment, or unmaps pages, which become spare. Returns the number of
    /// bytes.
    ///
    /// # Errors
    /// The error of the device. The bytes then count as leaked.
    pub(in crate::arena) fn release<P: Platform>(self, held: &Holdings<'_, P>) -> Result<u64, Error> {
        let Unit { kind, slot, bytes, .. } = self.unit;
        match kind {
            UnitKind::Segment => {
                held.peaks.device.count(Occurrence::DeviceFree);
                // Unlike the release of a segment, unmapping waits for nothing.
                let behind = held.heaps.lock(slot).stream;
                if !held.release_guarded(self.unit.ptr(), Some(behind))? {
                    held.ledger.release(held.driver, self.unit.ptr(), bytes)?;
                }
            }
            // A device with pages has virtual memory.
            UnitKind::Pages => held.heap_mapper().map_or(Ok(()), |mapper| mapper.unmap_detached(slot, self.block))?,
        }
        Ok(bytes)
    }

    /// Lets the memory of a segment go back once the present work of `stream` is complete, or at
    /// once if this cannot be noted. The caller has permission to record.
    pub(in crate::arena) fn retire<P: Platform>(self, held: &Holdings<'_, P>, stream: StreamId) {
        if held.given_up().retire(stream, self.unit.ptr(), self.unit.bytes).is_err() {
            // Counts as leaked if the device fails.
            let _counted = self.release(held);
        }
    }
}
