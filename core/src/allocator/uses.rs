//! Uses of blocks by streams other than the blocks' own.

use crate::allocator::{Allocator, On};
use crate::arena::{OnDevice, plans};
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::page_map::Owner;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::{DeviceIndex, DevicePtr, StreamId};

impl<D: DeviceMemory, R: Lock, S: Storage> Allocator<D, R, S> {
    /// Announces that work queued on `stream` uses the block at `ptr`.
    ///
    /// Call this after the work is queued and before the block is freed. After the free, the block
    /// is not reused before the work is done. Does nothing for the block's own stream and for the
    /// null address.
    ///
    /// Device: called only while a graph is captured, to find out whether `stream` captures.
    ///
    /// # Errors
    /// * [`Error::InvalidPointer`]: the program has no block that starts here.
    /// * [`Error::InvalidStream`], [`Error::TableFull`], [`Error::Device`].
    pub fn record_stream(&self, ptr: DevicePtr, stream: StreamId) -> Result<(), Error> {
        let _checked = self.checked_at("record_stream", ptr);
        self.note(ptr, stream, |device, slot| device.record_stream(slot, ptr, stream))
    }

    /// Announces that the work queued on `stream` so far uses the block at `ptr`.
    ///
    /// This differs from [`record_stream`](Self::record_stream) in when the event is recorded: now,
    /// and not at the free. Work queued on `stream` between this call and the free delays no reuse
    /// of the block. If no free block fits a request, it may take the block before the event is
    /// complete. The block's own stream is then ordered after the event; the calling thread does
    /// not wait. If [`record_stream`](Self::record_stream) announced a use of the block as well,
    /// all its uses last until the free. Does nothing for the block's own stream and for the null
    /// address.
    ///
    /// Device: called to record an event. While a graph is captured, the use lasts until the free.
    ///
    /// # Errors
    /// * [`Error::InvalidPointer`]: the program has no block that starts here.
    /// * [`Error::InvalidStream`], [`Error::TableFull`], [`Error::Device`]. The use is not
    ///   announced then.
    pub fn record_use(&self, ptr: DevicePtr, stream: StreamId) -> Result<(), Error> {
        let _checked = self.checked_at("record_use", ptr);
        self.note(ptr, stream, |device, slot| device.record_use(slot, ptr, stream))
    }

    /// Destroys the allocator's events for uses, except those that somebody is waiting for. A later
    /// free of a used block creates new events. This is for a host with a device or context that
    /// outlives the allocator: call it after [`empty_cache`](Self::empty_cache).
    ///
    /// Device: called for each event.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`]; [`Error::Device`]: the first failure, after all events were tried.
    /// Events that failed are not tried again by later calls.
    pub fn destroy_idle_events(&self, device: DeviceIndex) -> Result<(), Error> {
        let device = self.begin("destroy_idle_events", device)?;
        device.waits.destroy_idle_events(&device.driver)
    }

    /// Calls `act` with the slot of the heap that owns the block at `ptr`. Does nothing for the
    /// null address, and for a block that a plan serves on `stream`.
    fn note(
        &self,
        ptr: DevicePtr,
        stream: StreamId,
        act: impl Fn(OnDevice<'_, On<D, R, S>>, u32) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if ptr == DevicePtr::NULL {
            return Ok(());
        }
        Error::refuse_reserved(stream)?;
        if let Owner::Planned(heap) = self.pages.owner(ptr)
            && plans::allocation(&self.on_owner(heap.device).heaps, heap.heap, ptr)
                .is_some_and(|block| block.base == ptr && block.stream == stream)
        {
            return Ok(());
        }
        self.at_owner(ptr, |device, heap| act(device, heap.heap))
    }
}
