//! Events that several threads share. The last thread that has an event gets it back for new work.

use crate::device_event::DeviceEvent;
use crate::driver::types::CuContext;
use std::sync::Arc;

/// An event of a context that threads share.
///
/// While any thread has the event, it is neither destroyed nor recorded after the work of another
/// stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SharedEvent(Arc<(DeviceEvent, CuContext)>);

impl SharedEvent {
    /// Shares an event of `context` that only the calling thread knows.
    pub(crate) fn new(event: DeviceEvent, context: CuContext) -> Self {
        Self(Arc::new((event, context)))
    }

    /// Returns the event.
    pub(crate) fn event(&self) -> DeviceEvent {
        self.0.0
    }

    /// Returns the event's context.
    pub(crate) fn context(&self) -> CuContext {
        self.0.1
    }

    /// Returns whether no other thread has the event.
    pub(crate) fn is_alone(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Returns whether anything waits for the event besides its stream's list and the calling
    /// thread.
    pub(crate) fn is_waited_for(&self) -> bool {
        Arc::strong_count(&self.0) > 2
    }

    /// Gives the event up. Returns it and its context if no other thread has it.
    pub(crate) fn give_up(self) -> Option<(DeviceEvent, CuContext)> {
        Arc::into_inner(self.0)
    }
}
