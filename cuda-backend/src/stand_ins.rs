//! Stand-ins: events after announced work, which replace events of the allocator.
//!
//! A block that was announced on a stream waits for the event that the announcement recorded,
//! because the stream may be gone at the free. The allocator's own event is then not recorded at
//! all: the device asks the announced events in its place. To record it on a stream that waits for
//! the announced ones would delay a block until the announced work of others is done, and the event
//! would be complete only a moment after the work that it waits for.

use crate::driver::types::CuEvent;
use crate::shared_event::SharedEvent;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The events that stand for others.
#[derive(Debug, Default)]
pub(crate) struct StandIns {
    /// By the handle of the event that they stand for. An event without any is complete.
    events: Mutex<HashMap<usize, Vec<SharedEvent>>>,
    /// The number of entries, so that a device with none takes no lock.
    len: AtomicUsize,
}

impl StandIns {
    /// Locks the events. Ignores poison: a panic under the lock leaves whole entries only.
    fn lock(&self) -> MutexGuard<'_, HashMap<usize, Vec<SharedEvent>>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets `others` stand for an event. Returns those that stood for it before.
    #[must_use = "the events must be given up"]
    pub(crate) fn set(&self, event: CuEvent, others: Vec<SharedEvent>) -> Vec<SharedEvent> {
        let mut events = self.lock();
        let before = events.insert(event.0, others).unwrap_or_default();
        self.len.store(events.len(), Ordering::Release);
        before
    }

    /// Lets an event stand for itself again, because it is recorded or destroyed. Returns those
    /// that stood for it.
    #[must_use = "the events must be given up"]
    pub(crate) fn end(&self, event: CuEvent) -> Vec<SharedEvent> {
        // An entry of this event was made by the thread that now has the event, or before it was
        // handed on.
        if self.len.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let mut events = self.lock();
        let ended = events.remove(&event.0).unwrap_or_default();
        self.len.store(events.len(), Ordering::Release);
        ended
    }

    /// Returns the events that stand for another, or `None` if it stands for itself.
    pub(crate) fn of(&self, event: CuEvent) -> Option<Vec<SharedEvent>> {
        if self.len.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.lock().get(&event.0).cloned()
    }

    /// Returns whether others stand for an event.
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
