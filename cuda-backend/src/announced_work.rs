//! The announced work of streams that may be gone: the event after the latest announcement of each.
//!
//! Every use of a block by another stream comes here, from any thread. So the streams are spread
//! over parts with locks of their own. The order of events matters only between streams with the
//! same handle, and they are in the same part: whatever is read and changed together is under one
//! lock.

use crate::driver::types::CuContext;
use crate::parts::{PARTS, Part, Parts};
use crate::retired_streams::HANDLE_MASK;
use crate::shared_event::SharedEvent;
use cachalot_core::StreamId;
use core::ops::{Bound, RangeBounds, RangeInclusive};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The number of announced streams of a part that keep their events until they are announced again.
const KEPT: usize = 8;
/// The number of announced streams that are polled when another one is announced beyond those that
/// are kept, so that the events do not pile up.
const POLLED_AT_ONCE: usize = 2;

/// The announced work of streams.
#[derive(Debug)]
pub(crate) struct AnnouncedWork(Parts<Mutex<Works>>);

/// The announced work of the streams of a part.
#[derive(Debug)]
struct Works {
    /// The streams with an announced use of blocks, by handle and by the context of the event.
    uses: BTreeMap<(u64, CuContext), Announced>,
    /// The streams with announced work that is known to be complete, by handle. Without this
    /// record, the events of streams that come and go would never be given up.
    done: BTreeMap<u64, StreamId>,
    /// The announced work that was polled last.
    polled: (u64, CuContext),
}

/// An event after the announced work of a stream. It is recorded again only for later work of the
/// same stream.
#[derive(Debug)]
struct Announced {
    number: StreamId,
    /// `None` after a failed recording, because the event's place in the order of work is then
    /// unknown.
    event: Option<SharedEvent>,
    /// How often the event was recorded again.
    again: u64,
}

/// The event after the announced work of a stream at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Known {
    pub(crate) event: SharedEvent,
    /// How often the event was recorded again.
    pub(crate) again: u64,
}

/// The result of [`note`](AnnouncedWork::note).
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Noted {
    /// The event is kept. These are the events of an earlier stream with the handle, and those that
    /// were replaced, to be given up.
    Kept(Vec<SharedEvent>),
    /// Another thread was faster, and may have recorded its event before the work of the calling
    /// thread. The caller announces its work again, with `known`, and gives `unused` up.
    Known { known: Known, unused: SharedEvent },
}

impl AnnouncedWork {
    /// Creates an empty record. Allocates nothing.
    pub(crate) const fn new() -> Self {
        Self(Parts::new([const { Part(Mutex::new(Works::new())) }; PARTS]))
    }

    /// Returns the event of `context` after the announced work of a stream.
    pub(crate) fn known(&self, number: StreamId, context: CuContext) -> Option<Known> {
        self.of(number).known(number, context)
    }

    /// Notes that `known` was recorded again, after later work of the stream. Returns false if
    /// another event has taken its place before, because that one may not be after the work.
    pub(crate) fn note_again(&self, number: StreamId, known: &Known) -> bool {
        let mut works = self.of(number);
        let its = works.uses.get_mut(&(number.0 & HANDLE_MASK, known.event.context()));
        let its = its.filter(|its| its.number == number && its.event.as_ref() == Some(&known.event));
        its.map(|its| its.again += 1).is_some()
    }

    /// Keeps `event` as the event after the announced work of a stream, in place of `before`. Does
    /// not keep it if another thread was faster, with another event, or with the same one recorded
    /// again.
    pub(crate) fn note(&self, number: StreamId, event: SharedEvent, before: Option<&Known>) -> Noted {
        let handle = number.0 & HANDLE_MASK;
        let mut works = self.of(number);
        if let Some(known) = works.known(number, event.context())
            && before != Some(&known)
        {
            return Noted::Known { known, unused: event };
        }
        // All events of an earlier stream are removed together, because some of them alone would be
        // after only a part of its work.
        let mut earlier = works.take(of_handle(handle), |_, its| its.number != number);
        if works.done.get(&handle).is_some_and(|of| *of != number) {
            works.done.remove(&handle);
        }
        let key = (handle, event.context());
        let replaced = works.uses.insert(key, Announced { number, event: Some(event), again: 0 });
        earlier.extend(replaced.and_then(|its| its.event));
        Noted::Kept(earlier)
    }

    /// Forgets the event of `context` after the announced work of a stream, because the order of
    /// the event is in doubt. Returns the event.
    pub(crate) fn doubt(&self, number: StreamId, context: CuContext) -> Option<SharedEvent> {
        let mut works = self.of(number);
        let its = works.uses.get_mut(&(number.0 & HANDLE_MASK, context)).filter(|its| its.number == number);
        its.and_then(|its| its.event.take())
    }

    /// Returns the events after the announced work of a stream, one for each context of the used
    /// memory, and none for work that is complete. Returns `None` if no work was announced, or if
    /// an event is in doubt.
    pub(crate) fn events(&self, number: StreamId) -> Option<Vec<SharedEvent>> {
        let handle = number.0 & HANDLE_MASK;
        let works = self.of(number);
        let its = works.uses.range(of_handle(handle));
        let events = its.filter(|(_, its)| its.number == number).map(|(_, its)| its.event.clone());
        let events: Vec<_> = events.collect::<Option<_>>()?;
        (!events.is_empty() || works.done.get(&handle) == Some(&number)).then_some(events)
    }

    /// Takes some events of `context` after announced work, so that they can be polled, because the
    /// stream `next` is announced and was not before. Takes none if its part has few, and skips
    /// events that another thread has. [`put_back`](Self::put_back) must follow for each.
    ///
    /// A stream that is known adds no entry when it is announced again, so it polls no other one.
    /// While each announcement polled the events of eight streams, 16 threads waited for each other
    /// in the driver: 2.8 ms for one announcement in a hundred, and 0.2 ms without.
    pub(crate) fn take_some(&self, next: StreamId, context: CuContext) -> Vec<(StreamId, SharedEvent)> {
        let mut works = self.of(next);
        if works.uses.len() < KEPT {
            return Vec::new();
        }
        let from = (Bound::Excluded(works.polled), Bound::Unbounded);
        let keys: Vec<_> = works.uses.range(from).map(|(key, _)| *key).take(POLLED_AT_ONCE).collect();
        // After the last one, it starts from the front again.
        works.polled = if keys.len() < POLLED_AT_ONCE { (0, CuContext::NULL) } else { keys[POLLED_AT_ONCE - 1] };
        let of_context = keys.into_iter().filter(|key| key.1 == context);
        let taken = of_context.filter_map(|key| {
            let its = works.uses.get_mut(&key)?;
            // The event is in doubt until `put_back` is called.
            let event = its.event.take_if(|event| event.is_alone())?;
            Some((its.number, event))
        });
        taken.collect()
    }

    /// Ends the check of an event from [`take_some`](Self::take_some). Forgets the work if it is
    /// complete, and otherwise keeps the event. Returns the event if it is not kept.
    pub(crate) fn put_back(&self, number: StreamId, event: SharedEvent, is_complete: bool) -> Option<SharedEvent> {
        let key = (number.0 & HANDLE_MASK, event.context());
        let mut works = self.of(number);
        // A later event of the stream, or the event of the next stream, may be there by now.
        let is_open = works.uses.get(&key).is_some_and(|its| its.number == number && its.event.is_none());
        if is_open && is_complete {
            works.uses.remove(&key);
            works.done.insert(key.0, number);
        } else if is_open {
            works.uses.insert(key, Announced { number, event: Some(event), again: 0 });
            return None;
        }
        Some(event)
    }

    /// Removes and returns the events of `context` after announced work.
    pub(crate) fn take_all(&self, context: CuContext) -> Vec<SharedEvent> {
        self.0.iter().flat_map(|part| lock(part).take(.., |its, _| its == context)).collect()
    }

    /// Locks the part of a stream, which is the same for every stream with its handle.
    fn of(&self, number: StreamId) -> MutexGuard<'_, Works> {
        lock(self.0.of(number.0 & HANDLE_MASK))
    }
}

impl Works {
    /// Creates an empty record. Allocates nothing.
    const fn new() -> Self {
        Self { uses: BTreeMap::new(), done: BTreeMap::new(), polled: (0, CuContext::NULL) }
    }

    /// Returns the event of `context` after the announced work of a stream.
    fn known(&self, number: StreamId, context: CuContext) -> Option<Known> {
        let its = self.uses.get(&(number.0 & HANDLE_MASK, context)).filter(|its| its.number == number)?;
        Some(Known { event: its.event.clone()?, again: its.again })
    }

    /// Removes the announced work in `range` for which `goes` returns true, and returns its events.
    fn take(
        &mut self,
        range: impl RangeBounds<(u64, CuContext)>,
        goes: impl Fn(CuContext, &Announced) -> bool,
    ) -> Vec<SharedEvent> {
        let going = self.uses.range(range).filter(|(key, its)| goes(key.1, its));
        let keys: Vec<_> = going.map(|(key, _)| *key).collect();
        keys.iter().filter_map(|key| self.uses.remove(key)?.event).collect()
    }
}

/// Locks a part. Poison is ignored, because a panic under the lock leaves only whole entries.
fn lock(part: &Mutex<Works>) -> MutexGuard<'_, Works> {
    part.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the keys of the announced work of a handle's streams.
fn of_handle(handle: u64) -> RangeInclusive<(u64, CuContext)> {
    (handle, CuContext::NULL)..=(handle, CuContext(usize::MAX))
}
