//! Fences: everything that waits for the device waits for a fence.
//!
//! A *fence* is an event that was recorded after the work a stream had at the time. Creating an
//! event is a call to the device, so events are created once and recorded again and again: a fence
//! borrows its event from the idle events of the stream's group, and the event becomes idle again
//! when the fence is over. Fences for blocks and fences for streams have separate idle events,
//! because a device may create two different kinds of events for them.
//!
//! ```text
//!            lend                     end
//! idle ───────────────▶ fence ───────────────▶ idle
//!      a new event, if none is idle
//! ```
//!
//! A device may run out of events for streams. Then the latest event of the stream is *shared*: it
//! is recorded once more, and belongs to several fences. An earlier one of these fences is complete
//! later than necessary, but never too early.

use crate::device::Event;
use crate::sync::impl_empty;
use crate::tables::{CapacityError, Storage, Table};
use crate::units::StreamId;

/// An event that was recorded after the work a stream had at the time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fence {
    /// The stream, which may have ended since then.
    pub stream: StreamId,
    /// The number of the event's loan. Of two fences of a stream, the later one has the higher
    /// number, unless they were recorded at the same time.
    pub number: u64,
    /// The event.
    pub event: Event,
}

/// A kind of waiter for a fence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Waiter {
    /// Blocks in a queue: the host polls the fence. On some devices, and under some policies,
    /// streams are also ordered after it.
    Blocks,
    /// Later work of other streams.
    Streams,
}

/// The events of a group of streams. They are recorded again and again.
#[derive(Clone)]
pub(crate) struct IdleEvents<S: Storage> {
    /// The events that belong to no fence. There is room for every event on loan.
    idle: S::Table<Event>,
    /// The number of events on loan.
    lent: u32,
    /// The number of loans so far.
    loans: u64,
    /// The events on loan that may be shared, and all that are shared. If there is room, this
    /// includes at least one event of each stream that has any.
    shared: S::Table<SharedEvent>,
}

/// An event on loan that belongs to one fence, or to several fences of the same stream.
#[derive(Clone, Copy, Debug)]
struct SharedEvent {
    stream: StreamId,
    event: Event,
    /// The number of fences.
    fences: u32,
}

impl_empty! { [S: Storage] IdleEvents<S> { idle, lent, loans, shared } }

impl<S: Storage> IdleEvents<S> {
    /// Lends an event. Returns the number of the loan, and the event, which is `None` if the caller
    /// must create one. The loan ends with [`end`](Self::end).
    ///
    /// # Errors
    /// [`CapacityError`] if the table has no room to take the event back. Nothing is lent then.
    pub(crate) fn lend(&mut self) -> Result<(u64, Option<Event>), CapacityError> {
        // An idle event leaves a free place, to which it can return.
        if !self.idle.make_room(self.lent as usize + usize::from(self.idle.is_empty())) {
            return Err(CapacityError);
        }
        self.lent += 1;
        self.loans += 1;
        Ok((self.loans, self.idle.pop()))
    }

    /// Records that an event on loan was recorded on `stream`, and may be [shared](Self::share).
    pub(crate) fn may_share(&mut self, stream: StreamId, event: Event) {
        if self.shared.iter().any(|entry| entry.event == event) {
            return;
        }
        let only = self.shared.iter_mut().find(|entry| entry.stream == stream && entry.fences == 1);
        if let Some(entry) = only {
            entry.event = event;
        } else if self.shared.make_room(1) {
            self.shared.add(SharedEvent { stream, event, fences: 1 });
        }
        // If there is no room, a later fence finds no event to share.
    }

    /// Lends an event of `stream` once more. The caller records it again. Returns the number of the
    /// loan, and the event. The loan ends with [`end`](Self::end). `None` if the stream has no
    /// event on loan.
    pub(crate) fn share(&mut self, stream: StreamId) -> Option<(u64, Event)> {
        let entry = self.shared.iter_mut().rfind(|entry| entry.stream == stream)?;
        entry.fences += 1;
        self.loans += 1;
        Some((self.loans, entry.event))
    }

    /// Ends one fence of an event, if the event is in `shared`. Returns whether it still belongs to
    /// another fence.
    fn leave(&mut self, event: Event) -> bool {
        let Some(at) = self.shared.iter().position(|entry| entry.event == event) else { return false };
        self.shared[at].fences -= 1;
        if self.shared[at].fences > 0 {
            return true;
        }
        let last = self.shared.len() - 1;
        self.shared.swap(at, last);
        self.shared.pop();
        false
    }

    /// Takes in an idle event that was not lent here. Returns false if there is no room.
    pub(crate) fn accept(&mut self, event: Event) -> bool {
        let has_room = self.idle.make_room(self.lent as usize + 1);
        if has_room {
            self.idle.add(event);
        }
        has_room
    }

    /// Ends a loan. The event becomes idle, unless it still belongs to another fence. `event` is
    /// `None` if none was created.
    pub(crate) fn end(&mut self, event: Option<Event>) {
        if event.is_some_and(|event| self.leave(event)) {
            return;
        }
        debug_assert!(self.lent > 0, "a loan ends once");
        self.lent -= 1;
        if let Some(event) = event {
            self.idle.add(event);
        }
    }

    /// Takes the event that became idle last, if more than `kept` are idle and `is_spare` is true
    /// of it. The caller destroys it.
    pub(crate) fn take_idle_above(&mut self, kept: usize, is_spare: impl Fn(Event) -> bool) -> Option<Event> {
        let last = *self.idle.last()?;
        if self.idle.len() > kept && is_spare(last) { self.idle.pop() } else { None }
    }

    /// Takes an idle event. The caller destroys it or lends it elsewhere.
    pub(crate) fn take_idle(&mut self) -> Option<Event> {
        self.idle.pop()
    }
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests {
    use super::*;
    use crate::tables::{Fixed, Growable};

    #[test]
    fn an_event_is_lent_again_and_later_loans_have_higher_numbers() {
        let mut events = IdleEvents::<Growable>::default();
        let (first, none) = events.lend().unwrap();
        let (second, _) = events.lend().unwrap();
        assert!(none.is_none() && second > first, "an event is to be created");
        events.end(Some(Event(7)));
        assert_eq!(events.lend().unwrap().1, Some(Event(7)));
        events.end(None);
        events.end(Some(Event(7)));
        assert_eq!([events.take_idle(), events.take_idle()], [Some(Event(7)), None]);
    }

    #[test]
    fn a_shared_event_becomes_idle_with_the_last_of_its_fences() {
        let mut events = IdleEvents::<Growable>::default();
        let (stream, other) = (StreamId(1), StreamId(2));
        let (first, _) = events.lend().unwrap();
        events.may_share(stream, Event(7));
        assert_eq!(events.share(other), None, "an event of another stream says nothing of this one");
        let (second, event) = events.share(stream).unwrap();
        assert!(second > first && event == Event(7));
        // A later event of the stream takes over, and the shared one is still known.
        events.lend().unwrap();
        events.may_share(stream, Event(8));
        assert_eq!(events.share(stream).unwrap().1, Event(8));
        for (ended, idle) in [(7, None), (8, None), (7, Some(Event(7))), (8, Some(Event(8)))] {
            events.end(Some(Event(ended)));
            assert_eq!(events.take_idle(), idle);
        }
        assert_eq!(events.share(stream), None);
    }

    #[test]
    fn every_event_on_loan_has_a_place_to_return_to() {
        let mut events = IdleEvents::<Fixed<1, 8, 2, 64>>::default();
        let mut lent = 0;
        while events.lend().is_ok() {
            lent += 1;
        }
        assert!(lent > 0);
        (0..lent).for_each(|number| events.end(Some(Event(number))));
        assert!((0..lent).all(|_| events.lend().is_ok_and(|(_, idle)| idle.is_some())));
        assert_eq!(events.lend(), Err(CapacityError), "as many as before");
    }
}
