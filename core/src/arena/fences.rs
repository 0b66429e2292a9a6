//! The one place in which events are created and recorded: [fences](crate::streams::fences) of a device.
//!
//! No lock is held during a call to the device.

use crate::arena::Arena;
use crate::device::{DeviceMemory, DeviceResult, Event};
use crate::error::Error;
use crate::streams::fences::Fence;
use crate::sync::Lock;
use crate::tables::{CapacityError, Storage};
use crate::units::StreamId;

/// A call of the device that records an event on a stream: behind the work that the stream has
/// ([`record`](crate::device::StreamOrder::record)), or behind the announced work
/// ([`record_announced`](crate::device::StreamOrder::record_announced)).
pub(super) type Record<D> = fn(&D, Event, StreamId) -> DeviceResult<()>;

/// Records a fence on `stream`, for the caller to [`end`]. The caller has permission to record.
///
/// # Errors
/// [`Error::TableFull`]; the first error of the device. No fence is left then.
pub(super) fn record<D: DeviceMemory, R: Lock, S: Storage>(
    arena: &Arena<D, R, S>,
    stream: StreamId,
    record: Record<D>,
) -> Result<Fence, Error> {
    let lent = arena.waits.queues.lock_of(stream).events.lend();
    let (number, idle) = lent.map_err(|CapacityError| Error::TableFull("events"))?;
    let made = idle.map_or_else(|| arena.call(D::create_event), Ok);
    let recorded = made.and_then(|event| arena.call(|device| record(device, event, stream)).map(|()| event));
    match recorded {
        Ok(event) => Ok(Fence { stream, number, event }),
        Err(error) => {
            arena.waits.queues.lock_of(stream).events.end(made.ok());
            Err(error.into())
        }
    }
}

/// Ends a fence: its event is recorded again.
pub(super) fn end<D: DeviceMemory, R: Lock, S: Storage>(arena: &Arena<D, R, S>, fence: Fence) {
    arena.waits.queues.lock_of(fence.stream).events.end(Some(fence.event));
}

/// Orders later work on `stream` behind the work that the stream `first` has now. The caller has permission to record.
///
/// # Errors
/// [`Error::TableFull`]; those of the device.
pub(super) fn order_behind_stream<D: DeviceMemory, R: Lock, S: Storage>(
    arena: &Arena<D, R, S>,
    stream: StreamId,
    first: StreamId,
) -> Result<(), Error> {
    let fence = record(arena, first, D::record)?;
    // The order stays if the event is recorded again: the driver takes the event's state at the call.
    let ordered = arena.call(|device| device.order_behind(stream, fence.event));
    end(arena, fence);
    Ok(ordered?)
}

/// Destroys the events of no fence.
///
/// # Errors
/// The first error of the device, after all events were tried.
pub(super) fn destroy_idle<D: DeviceMemory, R: Lock, S: Storage>(arena: &Arena<D, R, S>) -> Result<(), Error> {
    let of_group = |group| move || arena.waits.queues.lock(group).events.take_idle();
    let mut result = Ok(());
    for event in (0..arena.waits.queues.count()).flat_map(|group| core::iter::from_fn(of_group(group))) {
        result = result.and(arena.call(|device| device.destroy_event(event)));
    }
    result.map_err(Error::from)
}
