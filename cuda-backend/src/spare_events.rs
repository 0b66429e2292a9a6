//! Unused events of a device, kept for later work.

use crate::context::Context;
use crate::device_event::DeviceEvent;
use crate::driver::types::{CuEvent, CuEventFlags};
use crate::shared_event::SharedEvent;
use cachalot_core::DeviceResult;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Unused events of a device, possibly incomplete. Each event is recorded before its next use.
#[derive(Debug, Default)]
pub(crate) struct SpareEvents(Mutex<Vec<DeviceEvent>>);

impl SpareEvents {
    /// Locks the events. Ignores poison: a panic under the lock leaves whole entries only.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Vec<DeviceEvent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an unused event for the host: a spare event, or a new event.
    pub(crate) fn take(&self, context: &Context) -> DeviceResult<DeviceEvent> {
        self.take_spare(false).map_or_else(|| create(context), Ok)
    }

    /// Returns an unused event for streams, as [`take`](Self::take) does.
    pub(crate) fn take_for_streams(&self, context: &Context) -> DeviceResult<DeviceEvent> {
        self.take_spare(true).map_or_else(|| create_for_streams(context), Ok)
    }

    /// Takes the latest spare event of a kind.
    fn take_spare(&self, is_for_streams: bool) -> Option<DeviceEvent> {
        let mut events = self.lock();
        let found = events.iter().rposition(|event| event.is_for_streams == is_for_streams)?;
        Some(events.remove(found))
    }

    /// Keeps an unused event.
    pub(crate) fn keep(&self, event: DeviceEvent) {
        self.lock().push(event);
    }

    /// Gives up shared events. The last thread of an event keeps the event, or destroys the event if it
    /// belongs to another context.
    pub(crate) fn give_up(&self, context: &Context, events: impl IntoIterator<Item = SharedEvent>) {
        for (event, of) in events.into_iter().filter_map(SharedEvent::give_up) {
            if of == context.handle() {
                self.keep(event);
            } else {
                // The failure concerns no caller: nothing uses the event.
                let _ = destroy(context, event);
            }
        }
    }

    /// Destroys the events, for the closing of the device. No other thread may be inside a call of the
    /// device.
    pub(crate) fn close(&self, context: &Context) -> DeviceResult<()> {
        let mut result = Ok(());
        for event in core::mem::take(&mut *self.lock()) {
            result = result.and(destroy(context, event));
        }
        result
    }
}

/// An event without timing, made for other processes, too.
const FOR_STREAMS: CuEventFlags = CuEventFlags(CuEventFlags::DISABLE_TIMING.0 | CuEventFlags::INTERPROCESS.0);

/// Creates an event for the host.
pub(crate) fn create(context: &Context) -> DeviceResult<DeviceEvent> {
    let handle = create_with(context, CuEventFlags::DISABLE_TIMING)?;
    Ok(DeviceEvent { handle, is_for_streams: false })
}

/// Creates an event for streams. If the driver makes none, or no more, creates an event for the host.
pub(crate) fn create_for_streams(context: &Context) -> DeviceResult<DeviceEvent> {
    match create_with(context, FOR_STREAMS) {
        Ok(handle) => Ok(DeviceEvent { handle, is_for_streams: true }),
        Err(_) => create(context),
    }
}

/// Creates an event with the given flags.
fn create_with(context: &Context, flags: CuEventFlags) -> DeviceResult<CuEvent> {
    let mut event = CuEvent::NULL;
    context.call(|driver| {
        // SAFETY: `event` outlives the call, which writes one handle to it.
        unsafe { driver.event_create(&raw mut event, flags) }
    })?;
    Ok(event)
}

/// Destroys an event that nothing uses any longer.
pub(crate) fn destroy(context: &Context, event: DeviceEvent) -> DeviceResult<()> {
    context.call(|driver| {
        // SAFETY: takes no host pointers; the event was made by this crate, and nothing refers to it any longer.
        unsafe { driver.event_destroy(event.handle) }
    })
}
