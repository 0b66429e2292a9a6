//! Stand-ins: events after announced work, which replace events of the allocator.
//!
//! A block that was announced on a stream waits for the event that the announcement recorded,
//! because the stream may be gone at the free. In this case, the allocator's own event is not
//! recorded at all, and the device polls the announced events in its place. If it were recorded on
//! a stream that waits for the announced events, a block would be delayed until the announced work
//! of others is done, and the event would be complete only a moment after the work that it waits
//! for.

use crate::driver::types::CuEvent;
use crate::shared_event::SharedEvent;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The events that are used in place of others.
#[derive(Debug, Default)]
pub(crate) struct StandIns {
    /// The events, by the handle of the one that they replace. An event with an empty list is
    /// complete.
    events: Mutex<HashMap<usize, Vec<SharedEvent>>>,
    /// The number of entries, so that a device without any takes no lock.
    len: AtomicUsize,
}

impl StandIns {
    /// Locks the events. Poison is ignored, because a panic under the lock leaves only whole
    /// entries.
    fn lock(&self) -> MutexGuard<'_, HashMap<usize, Vec<SharedEvent>>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts `others` in the place of an event. Returns those that were in its place before.
    #[must_use = "the events must be given up"]
    pub(crate) fn set(&self, event: CuEvent, others: Vec<SharedEvent>) -> Vec<SharedEvent> {
        let mut events = self.lock();
        let before = events.insert(event.0, others).unwrap_or_default();
        self.len.store(events.len(), Ordering::Release);
        before
    }

    /// Ends the use of others in the place of an event, because it is recorded or destroyed.
    /// Returns them.
    #[must_use = "the events must be given up"]
    pub(crate) fn end(&self, event: CuEvent) -> Vec<SharedEvent> {
        // An entry for this event was made by the thread that has it now, or before it was passed
        // on to this thread.
        if self.len.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let mut events = self.lock();
        let ended = events.remove(&event.0).unwrap_or_default();
        self.len.store(events.len(), Ordering::Release);
        ended
    }

    /// Returns the events in the place of another one, or `None` if there are none.
    pub(crate) fn of(&self, event: CuEvent) -> Option<Vec<SharedEvent>> {
        if self.len.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.lock().get(&event.0).cloned()
    }

    /// Returns whether others are used in the place of an event.
    pub(crate) fn has(&self, event: CuEvent) -> bool {
        self.len.load(Ordering::Acquire) > 0 && self.lock().contains_key(&event.0)
    }

    /// Ends every stand-in.
    pub(crate) fn drain(&self) -> Vec<SharedEvent> {
        let mut events = self.lock();
        self.len.store(0, Ordering::Release);
        events.drain().flat_map(|(_, others)| others).collect()
    }
}
