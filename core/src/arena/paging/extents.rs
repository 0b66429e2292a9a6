//! Extents: the physical memory under a block, and how the program holds it in place.
//!
//! ```text
//! block    |............ 5 MiB ............|
//! pages    | page 7 (4 MiB) | page 2 (2 MiB) |      extents: page 7 from 1 MiB on, page 2 up to 2 MiB
//! ```
//!
//! The pages under a live block never change. Pages under a free block may move or be released,
//! unless they are pinned. A block of an ordinary segment is one extent, and a pin keeps the
//! segment. A pinned page can be exported to another process.

use crate::arena::heaps::Heaps;
use crate::arena::invalid_pointer::not_in_heap;
use crate::arena::paging::Paging;
use crate::arena::waits::Outside;
use crate::arena::{Arena, OnDevice, Platform, debug};
use crate::device::{Descriptor, PhysicalHandle};
use crate::error::Error;
use crate::heap::Heap;
use crate::heap::block::{BlockEntry, Segment};
use crate::pages::pins::Pin;
use crate::stats::MemoryCall;
use crate::streams::pending::PendingBlock;
use crate::tables::Storage;
use crate::units::DevicePtr;

/// A physically contiguous part of a block; see [`Pages::extents`](crate::Pages::extents).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Offset of the first byte within the block.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// The memory that contains the bytes.
    pub memory: Physical,
    /// Offset of the first byte within `memory`.
    pub within: u64,
    /// Length of the whole of `memory` in bytes. Another process maps a page as a whole.
    pub memory_bytes: u64,
}

/// Physical memory, allocated by a single call of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Physical {
    /// A page of virtual memory, by its number on the device. The page keeps its number until it
    /// goes back to the device; then another page may get this number.
    Page(u32),
    /// An ordinary segment, by address. Segments have no handle that could be exported.
    Segment(DevicePtr),
}

/// Operations on the extents of the blocks in one heap.
pub(crate) struct Extents<'a, P: Platform> {
    heaps: &'a Heaps<P>,
    paging: &'a Paging<P>,
    slot: u32,
}

impl<'a, P: Platform> Extents<'a, P> {
    /// Returns the extents of the blocks in the heap of `slot`.
    pub(crate) fn of_heap(arena: &'a Arena<P>, slot: u32) -> Self {
        let Arena { heaps, paging, .. } = arena;
        Self { heaps, paging, slot }
    }

    /// Returns the extent of the block at `ptr` from `offset` on, or `None` at the end of the
    /// block.
    pub(crate) fn extent(&self, ptr: DevicePtr, offset: u64) -> Result<Option<Extent>, Error> {
        let heap = self.heaps.lock(self.slot);
        let block = heap.lookup(ptr).ok_or_else(|| not_in_heap(&heap, ptr))?;
        let BlockEntry { addr, size, segment, .. } = heap.blocks[block];
        if offset >= size {
            return Ok(None);
        }
        let (at, rest) = (addr + offset, size - offset);
        if let Some(page) = heap.sets.pages.containing(at) {
            let (bytes, memory) = (rest.min(page.end() - at), Physical::Page(page.page));
            return Ok(Some(Extent { offset, bytes, memory, within: at - page.at, memory_bytes: page.bytes }));
        }
        let Segment { base, bytes: memory_bytes, .. } = heap.segments[segment];
        let memory = Physical::Segment(DevicePtr(base));
        Ok(Some(Extent { offset, bytes: rest, memory, within: at - base, memory_bytes }))
    }

    /// Pins the memory under the block at `ptr`.
    pub(crate) fn pin(&self, ptr: DevicePtr) -> Result<(), Error> {
        let mut heap = self.heaps.lock(self.slot);
        let block = heap.lookup(ptr).ok_or_else(|| not_in_heap(&heap, ptr))?;
        let BlockEntry { addr, size, segment, .. } = heap.blocks[block];
        if heap.asleep && !self.stays_awake(&mut heap, block) {
            return Err(Error::Parked);
        }
        let pin = Pin::new(addr, size, self.slot, segment);
        self.paging.pool.lock().pins.add(pin).map_err(|_| Error::TableFull("pins"))?;
        count_pin(&mut heap, pin, 1);
        Ok(())
    }

    /// Returns whether the memory of a block in a parked heap is on the device, and will stay
    /// there.
    fn stays_awake(&self, heap: &mut Heap<P::Storage>, block: u32) -> bool {
        let is_lent = heap.uses().borrower(block).is_some();
        // A park in progress takes pages that it found neither lent nor pinned. A finished one
        // takes no others.
        let is_settled = !self.paging.parking.is_taken();
        let mut at = heap.blocks[block].addr;
        while at < heap.blocks[block].end() {
            // An ordinary segment is never parked.
            let Some(page) = heap.sets.pages.containing(at) else { return true };
            if page.asleep || !(is_lent || page.pins > 0 || is_settled) {
                return false;
            }
            at = page.end();
        }
        true
    }

    /// Undoes one pin of the memory that starts at `ptr`, whether or not a block is there.
    pub(crate) fn unpin(device: OnDevice<'_, P>, ptr: DevicePtr) -> Result<(), Error> {
        // The pool's lock ends with this statement, because heaps are locked before the pool.
        let pin = device.paging.pool.lock().pins.remove(ptr.0);
        let pin = pin.ok_or(Error::NotPinned(ptr))?;
        let mut heap = device.heaps.lock(pin.slot);
        count_pin(&mut heap, pin, -1);
        if let Some(index) =
            debug::end_pin(&device.driver.flags, &device.paging, &mut heap, DevicePtr(pin.at), pin.segment)
        {
            device.free_if_unused(heap, PendingBlock { slot: pin.slot, index });
        }
        Ok(())
    }
}

/// A page that an export holds in place, so that another thread's unpin cannot release it during
/// the call to the device.
struct HeldPage {
    /// The slot of the heap with the page.
    slot: u32,
    /// Device address of the first byte.
    at: u64,
    handle: PhysicalHandle,
}

impl HeldPage {
    /// Holds the page under `ptr`, a byte of pinned memory.
    fn of<P: Platform>(device: OnDevice<'_, P>, ptr: DevicePtr) -> Result<Self, Error> {
        let not_pinned = Error::NotPinned(ptr);
        // Only the pin shows which heap it is, and heaps are locked before the pool. So the pin is
        // looked up again under both locks.
        let slot = device.paging.pool.lock().pins.containing(ptr.0).ok_or(not_pinned)?.slot;
        let mut heap = device.heaps.lock(slot);
        let pool = device.paging.pool.lock();
        if pool.pins.containing(ptr.0).is_none_or(|pin| pin.slot != slot) {
            return Err(not_pinned);
        }
        let page = heap.sets.pages.containing(ptr.0).ok_or(Error::NotExportable(ptr))?;
        // Another process would get memory of the host in place of the device's.
        if pool[page.page].is_host {
            return Err(Error::NotExportable(ptr));
        }
        heap.sets.pages.pin(page.at, 1);
        Ok(Self { slot, at: page.at, handle: pool[page.page].handle })
    }
}

/// Exports the page that contains `ptr`, a byte of pinned memory.
pub(crate) fn export<P: Platform>(device: OnDevice<'_, P>, ptr: DevicePtr) -> Result<Descriptor, Error> {
    let page = HeldPage::of(device, ptr)?;
    let exported = device.mapper().map(|mapper| mapper.call(MemoryCall::Export, |memory| memory.export(page.handle)));
    device.heaps.lock(page.slot).sets.pages.pin(page.at, -1);
    Ok(exported.ok_or(Error::NotExportable(ptr))??)
}

/// Adds `change` to the pins of all pages in a pinned part, or of its ordinary segment.
fn count_pin<S: Storage>(heap: &mut Heap<S>, pin: Pin, change: i32) {
    let (mut at, end) = (pin.at, pin.at + pin.bytes);
    if heap.sets.pages.containing(at).is_none() {
        let pins = &mut heap.segments[pin.segment].pins;
        *pins = pins.saturating_add_signed(change);
        return;
    }
    while at < end
        && let Some(page) = heap.sets.pages.containing(at)
    {
        heap.sets.pages.pin(page.at, change);
        at = page.end();
    }
}
