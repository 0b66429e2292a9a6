//! Departures: the work behind which pages of a range may be used elsewhere.
//!
//! ```text
//! decommit ─▶ record an event ─▶ departure ─┬─▶ complete ─▶ unmap the old places
//!                                           └─▶ other streams are ordered behind the event
//! ```
//!
//! A departure lives as long as a page or an operation refers to it. The event is used again.

use crate::device::Event;
use crate::tables::slot_table::{NONE, SlotTable, Vacant};
use crate::tables::{CapacityError, Storage, Table};
use crate::units::{NO_STREAM, StreamId};

/// An event recorded behind the last work on pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Departure {
    /// The recorded event.
    pub event: Event,
    /// The stream on which the event was recorded. [`NO_STREAM`] once the stream has ended.
    pub stream: StreamId,
    /// Whether the event is known to be complete.
    pub complete: bool,
    /// The number of references. 0 ⟺ the entry is vacant.
    refs: u32,
    /// The next vacant entry.
    next: u32,
}

impl Vacant for Departure {
    fn vacant(next: u32) -> Self {
        Self { event: Event(0), stream: NO_STREAM, complete: false, refs: 0, next }
    }

    fn vacate(&mut self, next: u32) {
        *self = Self::vacant(next);
    }

    fn next_vacant(&self) -> u32 {
        self.next
    }
}

impl Departure {
    /// Returns whether work on `stream` follows the departure without a further event.
    pub(crate) fn precedes(&self, stream: StreamId) -> bool {
        self.complete || self.stream == stream
    }
}

/// The departures of a device, and events to record again.
#[derive(Clone)]
pub(crate) struct Departures<S: Storage> {
    table: SlotTable<Departure, S>,
    /// Events of no departure. Has room for the events of all departures.
    idle_events: S::Table<Event>,
}

impl<S: Storage> Default for Departures<S> {
    fn default() -> Self {
        Self { table: SlotTable::default(), idle_events: S::Table::<Event>::default() }
    }
}

impl<S: Storage> core::ops::Index<u32> for Departures<S> {
    type Output = Departure;
    fn index(&self, departure: u32) -> &Departure {
        &self.table[departure]
    }
}

impl<S: Storage> Departures<S> {
    /// Returns whether the table has no departure.
    pub(crate) fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    /// Makes room for a departure, and for the event of a departure when over. Returns an idle event, or
    /// `None` if the caller must create an event.
    ///
    /// # Errors
    /// [`CapacityError`] if a table is full.
    pub(crate) fn begin(&mut self) -> Result<Option<Event>, CapacityError> {
        let events = self.table.len() as usize + 1;
        if !self.table.make_room(1) || !self.idle_events.make_room(events) {
            return Err(CapacityError);
        }
        Ok(self.idle_events.pop())
    }

    /// Keeps an event of no departure. Returns false if the table is full: the event is then the
    /// caller's.
    pub(crate) fn keep(&mut self, event: Event) -> bool {
        let room = self.idle_events.make_room(self.table.len() as usize + 1);
        if room {
            self.idle_events.add(event);
        }
        room
    }

    /// Adds a departure whose event is recorded on `stream`, with one reference.
    ///
    /// # Errors
    /// [`CapacityError`] if the room was taken by another thread. The event is then the caller's.
    pub(crate) fn add(&mut self, event: Event, stream: StreamId) -> Result<u32, CapacityError> {
        if !self.table.make_room(1) || !self.idle_events.make_room(self.table.len() as usize + 1) {
            return Err(CapacityError);
        }
        Ok(self.table.insert(Departure { event, stream, complete: false, refs: 1, next: NONE }))
    }

    /// Adds a reference.
    pub(crate) fn hold(&mut self, departure: u32) -> Departure {
        self.table[departure].refs += 1;
        self.table[departure]
    }

    /// Removes a reference, and the departure with the last one.
    pub(crate) fn release(&mut self, departure: u32) {
        let entry = &mut self.table[departure];
        debug_assert!(entry.refs > 0, "a departure in use has references");
        entry.refs -= 1;
        if entry.refs == 0 {
            let event = entry.event;
            self.table.remove(departure);
            self.idle_events.add(event);
        }
    }

    /// Notes that the event of a departure is complete.
    pub(crate) fn complete(&mut self, departure: u32) {
        self.table[departure].complete = true;
    }

    /// Adds a reference to the first departure from number `from` on that is not known to be
    /// complete, and returns its number and a copy.
    pub(crate) fn hold_incomplete(&mut self, from: u32) -> Option<(u32, Departure)> {
        let waits = |&departure: &u32| self.table[departure].refs > 0 && !self.table[departure].complete;
        let departure = (from..self.table.capacity()).find(waits)?;
        Some((departure, self.hold(departure)))
    }

    /// Forgets the number of an ended stream: another stream may get the number.
    pub(crate) fn forget_stream(&mut self, stream: StreamId) {
        for departure in self.table.entries_mut() {
            if departure.stream == stream {
                departure.stream = NO_STREAM;
            }
        }
    }
}
