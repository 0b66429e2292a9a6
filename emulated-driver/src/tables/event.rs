//! Events: named points in the order of a stream.

use crate::tables::stream::Mark;
use crate::tables::work::Stamp;

/// The point of an event's latest record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Point {
    /// Never recorded. The event counts as complete.
    Never,
    /// Points in the order of queues: one of a stream, or all of a context.
    At(Vec<Mark>),
    /// A point inside a capture: the capture's id, and the preceding nodes.
    Captured(u64, Vec<usize>),
}

/// The context of an event that has outlived its context. Every call with the event answers that
/// the context is destroyed.
pub(crate) const NO_CONTEXT: u64 = 0;

/// An event.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) context: u64,
    pub(crate) point: Point,
    /// Whether the event can be opened by other processes.
    pub(crate) is_shared: bool,
    /// The time at which the point was reached. `None` for an event without timing.
    pub(crate) stamp: Option<Stamp>,
}
