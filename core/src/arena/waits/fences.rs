//! The one place in which events are created and recorded: [fences](crate::streams::fences) of a device.
//!
//! No lock is held during a call to the device.

use crate::arena::{Arena, Platform};
use crate::device::{DeviceResult, Event, StreamOrder};
use crate::error::Error;
use crate::streams::fences::Fence;
use crate::tables::CapacityError;
use crate::units::StreamId;

impl<P: Platform> Arena<P> {
    /// Records a fence on `stream`, which the caller [ends](Self::end_fence). The call `record` of the device records behind
    /// the work that the stream has ([`record`](crate::device::StreamOrder::record)), or behind the announced work
    /// ([`record_announced`](crate::device::StreamOrder::record_announced)). The caller has permission to record.
    ///
    /// # Errors
    /// [`Error::TableFull`]; the first error of the device. No fence is left then.
    pub(in crate::arena) fn record_fence(
        &self,
        stream: StreamId,
        record: fn(&P::Device, Event, StreamId) -> DeviceResult<()>,
    ) -> Result<Fence, Error> {
        let lent = self.waits.queues.lock_of(stream).events.lend();
        let (number, idle) = lent.map_err(|CapacityError| Error::TableFull("events"))?;
        let made = idle.map_or_else(|| self.call(P::Device::create_event), Ok);
        let recorded = made.and_then(|event| self.call(|device| record(device, event, stream)).map(|()| event));
        match recorded {
            Ok(event) => Ok(Fence { stream, number, event }),
            Err(error) => {
                self.waits.queues.lock_of(stream).events.end(made.ok());
                Err(error.into())
            }
        }
    }

    /// Ends a fence: its event is recorded again.
    pub(in crate::arena) fn end_fence(&self, fence: Fence) {
        self.waits.queues.lock_of(fence.stream).events.end(Some(fence.event));
    }

    /// Orders later work on `stream` behind the work that the stream `first` has now. The caller has permission to record.
    ///
    /// # Errors
    /// [`Error::TableFull`]; those of the device.
    pub(in crate::arena) fn order_behind_stream(&self, stream: StreamId, first: StreamId) -> Result<(), Error> {
        let fence = self.record_fence(first, P::Device::record)?;
        // The order stays if the event is recorded again: the driver takes the event's state at the call.
        let ordered = self.call(|device| device.order_behind(stream, fence.event));
        self.end_fence(fence);
        Ok(ordered?)
    }

    /// Destroys the events of no fence.
    ///
    /// # Errors
    /// The first error of the device, after all events were tried.
    pub(crate) fn destroy_idle_events(&self) -> Result<(), Error> {
        let of_group = |group| move || self.waits.queues.lock(group).events.take_idle();
        let mut result = Ok(());
        for event in (0..self.waits.queues.count()).flat_map(|group| core::iter::from_fn(of_group(group))) {
            result = result.and(self.call(|device| device.destroy_event(event)));
        }
        result.map_err(Error::from)
    }
}
