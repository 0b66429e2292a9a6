//! Stand-ins: events after announced work, which replace events of the allocator.
//!
//! A block that was announced on a stream waits for the event that the announcement recorded,
//! because the stream may be gone at the free. In this case, the allocator's own event is not
//! recorded at all, and the device polls the announced events in its place. If it were recorded on
//! a stream that waits for the announced events, a block would be delayed until the announced work
//! of others is done, and the event would be complete only a moment after the work that it waits
//! for.

use crate::driver::types::CuEvent;
use crate::parts::Parts;
use crate::shared_event::SharedEvent;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The events that are used in place of others. They are spread over parts, because every free of a
/// block that other streams use comes here. All that is said of one event is in one part.
#[derive(Debug, Default)]
pub(crate) struct StandIns(Parts<Replaced>);

/// The stand-ins of some of the events.
#[derive(Debug, Default)]
struct Replaced {
    /// The events, by the handle of the one that they replace. An event with an empty list is
    /// complete.
    events: Mutex<HashMap<usize, Vec<SharedEvent>>>,
    /// The number of entries, so that a device without any takes no lock.
    len: AtomicUsize,
}

impl Replaced {
    /// Locks the events. Poison is ignored, because a panic under the lock leaves only whole
    /// entries.
    fn lock(&self) -> MutexGuard<'_, HashMap<usize, Vec<SharedEvent>>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether nothing is replaced.
    fn is_empty(&self) -> bool {
        // An entry for an event was made by the thread that has the event now, or before it was
        // passed on to this thread.
        self.len.load(Ordering::Acquire) == 0
    }
}

impl StandIns {
    /// Puts `others` in the place of an event. Returns those that were in its place before.
    #[must_use = "the events must be given up"]
    pub(crate) fn set(&self, event: CuEvent, others: Vec<SharedEvent>) -> Vec<SharedEvent> {
        let part = self.part(event);
        let mut events = part.lock();
        let before = events.insert(event.0, others).unwrap_or_default();
        part.len.store(events.len(), Ordering::Release);
        before
    }

    /// Notes that `others` are complete, if they are still in the place of the event. Returns them,
    /// so that their streams can record them again.
    #[must_use = "the events must be given up"]
    pub(crate) fn complete(&self, event: CuEvent, others: &[SharedEvent]) -> Vec<SharedEvent> {
        let mut events = self.part(event).lock();
        let present = events.get_mut(&event.0).filter(|present| **present == others);
        present.map(core::mem::take).unwrap_or_default()
    }

    /// Ends the use of others in the place of an event, because it is recorded or destroyed.
    /// Returns them.
    #[must_use = "the events must be given up"]
    pub(crate) fn end(&self, event: CuEvent) -> Vec<SharedEvent> {
        let part = self.part(event);
        if part.is_empty() {
            return Vec::new();
        }
        let mut events = part.lock();
        let ended = events.remove(&event.0).unwrap_or_default();
        part.len.store(events.len(), Ordering::Release);
        ended
    }

    /// Returns the events in the place of another one, or `None` if there are none.
    pub(crate) fn of(&self, event: CuEvent) -> Option<Vec<SharedEvent>> {
        let part = self.part(event);
        if part.is_empty() { None } else { part.lock().get(&event.0).cloned() }
    }

    /// Returns whether others are used in the place of an event.
    pub(crate) fn has(&self, event: CuEvent) -> bool {
        let part = self.part(event);
        !part.is_empty() && part.lock().contains_key(&event.0)
    }

    /// Ends every stand-in.
    pub(crate) fn drain(&self) -> Vec<SharedEvent> {
        let drain = |part: &Replaced| {
            let mut events = part.lock();
            part.len.store(0, Ordering::Release);
            core::mem::take(&mut *events).into_values().flatten()
        };
        self.0.iter().flat_map(drain).collect()
    }

    /// Returns the part of an event.
    fn part(&self, event: CuEvent) -> &Replaced {
        self.0.of(event.0 as u64)
    }
}
