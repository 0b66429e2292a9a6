//! Frees that wait: for events on other streams, for the end of a capture, or for a count.

pub(crate) mod deferred_frees;
pub(crate) mod event_queue;
pub(crate) mod fences;
pub(crate) mod groups;
pub(crate) mod pending;
mod queue_work;
