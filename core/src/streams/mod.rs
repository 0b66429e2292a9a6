//! Frees that wait: for events on other streams, or for the frontier to reach a count.

pub(crate) mod deferred_frees;
pub(crate) mod event_queue;
pub(crate) mod fences;
pub(crate) mod groups;
mod queue_work;
