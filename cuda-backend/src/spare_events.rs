//! Events of a device that nothing uses at present, kept for later work.

use crate::context::Context;
use crate::driver::types::{CuEvent, CuEventFlags};
use crate::shared_event::SharedEvent;
use cachalot_core::DeviceResult;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Events of a device that nothing uses. They may be incomplete: each is recorded before its next use.
#[derive(Debug, Default)]
pub(crate) struct SpareEvents(Mutex<Vec<CuEvent>>);

impl SpareEvents {
    /// Locks the events. Ignores poison: a thread that panicked under the lock left whole entries only.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Vec<CuEvent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an event that nothing else uses: a spare one, or a new one.
    pub(crate) fn take(&self, context: &Context) -> DeviceResult<CuEvent> {
        // The lock ends with this statement.
        let spare = self.lock().pop();
        spare.map_or_else(|| create(context), Ok)
    }

    /// Keeps an event that nothing uses any longer.
    pub(crate) fn keep(&self, event: CuEvent) {
        self.lock().push(event);
    }

    /// Gives up events that other threads may have. The last thread keeps an event, or destroys the event of another
    /// context.
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

    /// Destroys the events. For the closing of the device: no other thread is inside a call of the device.
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

/// Destroys an event that nothing refers to any longer.
pub(crate) fn destroy(context: &Context, event: CuEvent) -> DeviceResult<()> {
    context.call(|driver| {
        // SAFETY: takes no host pointers; the event was made by this crate, and nothing refers to it any longer.
        unsafe { driver.event_destroy(event) }
    })
}
