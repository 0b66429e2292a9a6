//! Extents: the physical memory under a block, and how the program holds it in place.
//!
//! ```text
//! block    |............ 5 MiB ............|
//! pages    | page 7 (4 MiB) | page 2 (2 MiB) |      extents: page 7 from 1 MiB on, page 2 up to 2 MiB
//! ```
//!
//! The pages under a live block never change. Pages under a free block may move or be released,
//! unless pinned. A block of an ordinary segment is an extent, and a pin keeps the
//! segment.

use crate::arena::OnDevice;
use crate::arena::invalid_pointer::not_in_heap;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::heap::Heap;
use crate::heap::block::Block;
use crate::pages::pins::Pin;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::DevicePtr;

/// A physically contiguous part of a block; see [`Pages::extents`](crate::Pages::extents).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// Offset of the first byte within the block.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// The memory of the bytes.
    pub memory: Physical,
    /// Offset of the first byte within `memory`.
    pub within: u64,
}

/// Physical memory, allocated by a single call of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Physical {
    /// A page of virtual memory, by its number on the device. The number stays the page's own until
    /// the page goes back to the device; another page may get it then.
    Page(u32),
    /// An ordinary segment, by address. Segments have no handle to export.
    Segment(DevicePtr),
}

/// The extents of the blocks in one heap.
pub(crate) struct Extents<'a, D, R: Lock, S: Storage> {
    device: OnDevice<'a, D, R, S>,
    slot: u32,
}

impl<'a, D: DeviceMemory, R: Lock, S: Storage> Extents<'a, D, R, S> {
    /// Returns the extents of the blocks in the heap of `slot`.
    pub(crate) fn of_heap(device: OnDevice<'a, D, R, S>, slot: u32) -> Self {
        Self { device, slot }
    }

    /// Returns the extent of the block at `ptr` from `offset` on, or `None` at the end of the
    /// block.
    pub(crate) fn extent(&self, ptr: DevicePtr, offset: u64) -> Result<Option<Extent>, Error> {
        let heap = self.device.heaps.lock(self.slot);
        let block = heap.lookup(ptr).ok_or_else(|| not_in_heap(&heap, ptr))?;
        let Block { addr, size, segment, .. } = heap.blocks[block];
        if offset >= size {
            return Ok(None);
        }
        let (at, rest) = (addr + offset, size - offset);
        if let Some(page) = heap.sets.pages.containing(at) {
            let bytes = rest.min(page.end() - at);
            return Ok(Some(Extent { offset, bytes, memory: Physical::Page(page.page), within: at - page.at }));
        }
        let base = heap.segments[segment].base;
        Ok(Some(Extent { offset, bytes: rest, memory: Physical::Segment(DevicePtr(base)), within: at - base }))
    }

    /// Pins the memory under the block at `ptr`.
    pub(crate) fn pin(&self, ptr: DevicePtr) -> Result<(), Error> {
        let mut heap = self.device.heaps.lock(self.slot);
        let block = heap.lookup(ptr).ok_or_else(|| not_in_heap(&heap, ptr))?;
        let Block { addr, size, segment, .. } = heap.blocks[block];
        let pin = Pin::new(addr, size, self.slot, segment);
        self.device.page_pool.lock().pins.add(pin).map_err(|_| Error::TableFull("pins"))?;
        count_pin(&mut heap, pin, 1);
        Ok(())
    }

    /// Undoes one pin of the memory that begins at `ptr`, whether or not a block is there.
    pub(crate) fn unpin(device: OnDevice<'a, D, R, S>, ptr: DevicePtr) -> Result<(), Error> {
        // The pool's lock ends with this statement: heaps are locked before the pool.
        let pin = device.page_pool.lock().pins.remove(ptr.0);
        let pin = pin.ok_or(Error::NotPinned(ptr))?;
        count_pin(&mut device.heaps.lock(pin.slot), pin, -1);
        Ok(())
    }
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
