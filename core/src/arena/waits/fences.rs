//! The one place in which events are created and recorded: [fences](crate::streams::fences) of a device.
//!
//! No lock is held during a call to the device.

use crate::arena::{Arena, Platform};
use crate::config::Policy;
use crate::device::{DeviceResult, Event, Segments, StreamOrder};
use crate::error::Error;
use crate::streams::fences::{Fence, Waiter};
use crate::tables::CapacityError;
use crate::units::StreamId;

impl<P: Platform> Arena<P> {
    /// Records a fence on `stream` for a waiter, which the caller [ends](Self::end_fence): for blocks behind the announced
    /// work, and for streams behind all work that the stream has. The caller has permission to record.
    ///
    /// # Errors
    /// [`Error::TableFull`]; the first error of the device. No fence is left then.
    pub(in crate::arena) fn record_fence(&self, stream: StreamId, waiter: Waiter) -> Result<Fence, Error> {
        let lent = self.waits.queues.lock_of(stream).events_for(waiter).lend();
        let (number, idle) = lent.map_err(|CapacityError| Error::TableFull("events"))?;
        let made = idle.map_or_else(|| self.call(self.event_maker(waiter)), Ok);
        let record = match waiter {
            Waiter::Blocks => P::Device::record_announced,
            Waiter::Streams => P::Device::record,
        };
        let recorded = made.and_then(|event| self.call(|device| record(device, event, stream)).map(|()| event));
        match recorded {
            Ok(event) => Ok(Fence { stream, number, event }),
            Err(error) => {
                self.waits.queues.lock_of(stream).events_for(waiter).end(made.ok());
                Err(error.into())
            }
        }
    }

    /// Returns the device's call for a new event.
    fn event_maker(&self, waiter: Waiter) -> fn(&P::Device) -> DeviceResult<Event> {
        // Streams are ordered behind what blocks wait for, too: under `stitched` for a request that lacks memory, and on an
        // ordered device before a release.
        let orders = || matches!(self.settings.policy(), Policy::Stitched(_)) || self.driver.device().is_ordered();
        if waiter == Waiter::Streams || orders() { P::Device::create_order_event } else { P::Device::create_event }
    }

    /// Ends a fence for a waiter: its event is recorded again.
    pub(in crate::arena) fn end_fence(&self, fence: Fence, waiter: Waiter) {
        self.waits.queues.lock_of(fence.stream).events_for(waiter).end(Some(fence.event));
    }

    /// Orders later work on `stream` behind the work that the stream `first` has now. The caller has permission to record.
    ///
    /// # Errors
    /// [`Error::TableFull`]; those of the device.
    pub(in crate::arena) fn order_behind_stream(&self, stream: StreamId, first: StreamId) -> Result<(), Error> {
        let fence = self.record_fence(first, Waiter::Streams)?;
        // The order stays if the event is recorded again: the driver takes the event's state at the call.
        let ordered = self.call(|device| device.order_behind(stream, fence.event));
        self.end_fence(fence, Waiter::Streams);
        Ok(ordered?)
    }

    /// Destroys the events of no fence.
    ///
    /// # Errors
    /// The first error of the device, after all events were tried.
    pub(crate) fn destroy_idle_events(&self) -> Result<(), Error> {
        let mut result = Ok(());
        for waiter in [Waiter::Blocks, Waiter::Streams] {
            let of_group = |group| move || self.waits.queues.lock(group).events_for(waiter).take_idle();
            for event in (0..self.waits.queues.count()).flat_map(|group| core::iter::from_fn(of_group(group))) {
                result = result.and(self.call(|device| device.destroy_event(event)));
            }
        }
        result.map_err(Error::from)
    }
}
