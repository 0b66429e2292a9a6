//! Events that several threads may use at the same time, and that the last of them gets back for other work.

use crate::driver::types::{CuContext, CuEvent};
use std::sync::Arc;

/// An event of a context, with other threads.
///
/// While another thread has the event, it is neither destroyed nor recorded behind the work of another stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SharedEvent(Arc<(CuEvent, CuContext)>);

impl SharedEvent {
    /// Shares an event of `context` that no other thread has.
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

    /// Gives the event up. Returns the event and its context to the last thread that has it.
    pub(crate) fn give_up(self) -> Option<(CuEvent, CuContext)> {
        Arc::into_inner(self.0)
    }
}
