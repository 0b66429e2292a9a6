//! Unused events of a device, kept for later work.

use crate::context::Context;
use crate::driver::types::{CuEvent, CuEventFlags};
use crate::shared_event::SharedEvent;
use cachalot_core::DeviceResult;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Unused events of a device, possibly incomplete. Each event is recorded before its next use.
#[derive(Debug, Default)]
pub(crate) struct SpareEvents(Mutex<Vec<CuEvent>>);

impl SpareEvents {
    /// Locks the events. Ignores poison: a panic under the lock leaves whole entries only.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Vec<CuEvent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an unused event: a spare event, or a new event.
    pub(crate) fn take(&self, context: &Context) -> DeviceResult<CuEvent> {
        // The lock ends with this statement.
        let spare = self.lock().pop();
        spare.map_or_else(|| create(context), Ok)
    }

    /// Keeps an unused event.
    pub(crate) fn keep(&self, event: CuEvent) {
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

/// Creates an event.
pub(crate) fn create(context: &Context) -> DeviceResult<CuEvent> {
    let mut event = CuEvent::NULL;
    context.call(|driver| {
        // SAFETY: `event` outlives the call, which writes one handle to it.
        unsafe { driver.event_create(&raw mut event, CuEventFlags::DISABLE_TIMING) }
    })?;
    Ok(event)
}

/// Destroys an event that nothing uses any longer.
pub(crate) fn destroy(context: &Context, event: CuEvent) -> DeviceResult<()> {
    context.call(|driver| {
        // SAFETY: takes no host pointers; the event was made by this crate, and nothing refers to it any longer.
        unsafe { driver.event_destroy(event) }
    })
}
