//! Frees that wait: for events on other streams, or for a count.

pub(crate) mod event_queue;
pub(crate) mod frontier;
