//! What is stored of an event.

use super::{Action, TraceEntry};
use crate::units::{DevicePtr, StreamId};

/// A stored event, or a pair of events, because most frees complete at once. Times are in the
/// device's ticks.
#[derive(Clone, Copy)]
pub(crate) struct Record {
    /// The kind of the event or pair.
    pub what: What,
    /// Whether the heap belongs to a private pool.
    pub is_private: bool,
    /// The call site; 0 if unknown.
    pub site: u32,
    /// The address of the block or segment.
    pub addr: DevicePtr,
    /// The size in bytes.
    pub size: u64,
    /// The stream.
    pub stream: StreamId,
    /// The time of the first event.
    pub ticks: u64,
}

/// The kinds of records.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// A single event.
    One(Action),
    /// [`Action::FreeRequested`], followed one tick later by [`Action::FreeCompleted`].
    FreedAtOnce,
}

impl Record {
    /// Returns the time of the record's last event.
    #[inline(always)]
    pub(super) fn last(&self) -> u64 {
        self.ticks + u64::from(self.what == What::FreedAtOnce)
    }

    /// Returns the number of events.
    #[inline(always)]
    pub(super) fn count(&self) -> u32 {
        1 + u32::from(self.what == What::FreedAtOnce)
    }

    /// Iterates over the record's events, oldest first, with times in ticks.
    pub(crate) fn events(&self) -> impl Iterator<Item = TraceEntry> + Clone {
        let &Self { what, site, addr, size, stream, ticks, .. } = self;
        let (first, second) = match what {
            What::One(action) => (action, None),
            What::FreedAtOnce => (Action::FreeRequested, Some((Action::FreeCompleted, ticks + 1))),
        };
        let events = core::iter::once((first, ticks)).chain(second);
        events.map(move |(action, time_us)| TraceEntry { action, site, addr, size, stream, time_us })
    }
}
