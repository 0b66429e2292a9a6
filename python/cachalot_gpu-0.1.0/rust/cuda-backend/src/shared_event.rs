//! Events shared by several threads. The last thread with an event gets the event back for new work.

use crate::driver::types::{CuContext, CuEvent};
use std::sync::Arc;

/// An event of a context, shared by threads.
///
/// While any thread has the event, the event is neither destroyed nor recorded behind the work of another
/// stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SharedEvent(Arc<(CuEvent, CuContext)>);

impl SharedEvent {
    /// Shares an event of `context` known to the calling thread alone.
    pub(crate) fn new(event: CuEvent, context: CuContext) -> Self {
        Self(Arc::new((event, context)))
    }

    /// Returns the event.
    pub(crate) fn event(&self) -> CuEvent {
        self.0.0
    }

    /// Returns the event's context.
    pub(crate) fn context(&self) -> CuContext {
        self.0.1
    }

    /// Gives the event up. Returns the event and its context if no other thread has the event.
    pub(crate) fn give_up(self) -> Option<(CuEvent, CuContext)> {
        Arc::into_inner(self.0)
    }
}
