//! What a record knows of an event, and the names of the pools of events.

use super::Place;
use crate::memory;
use cachalot_core::PoolId;
use std::num::NonZeroU32;

/// Note of a record on the pool of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Note {
    /// Nothing beyond the default pools.
    #[default]
    None,
    /// The event is between the moment before a graph's capture and the end of the capture.
    Capture,
}

/// The number of a pool in the [`Pools`] of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PoolNumber(NonZeroU32);

/// The names of a record's pools. An event has a number, which is smaller.
#[derive(Debug, Clone, Default)]
pub struct Pools(Vec<PoolId>);

impl Pools {
    /// Returns the number of a pool, and adds a new pool. `None` if there are too many.
    pub fn number(&mut self, pool: PoolId) -> Option<PoolNumber> {
        let at = self.0.iter().position(|known| *known == pool).unwrap_or_else(|| {
            self.0.push(pool);
            self.0.len() - 1
        });
        NonZeroU32::new(u32::try_from(at).ok()?.checked_add(1)?).map(PoolNumber)
    }

    /// Returns the pool with a number.
    pub fn id(&self, number: PoolNumber) -> PoolId {
        self.0.get(number.0.get() as usize - 1).copied().unwrap_or_default()
    }

    /// Returns the pool of an event, or `None` if it is unknown.
    pub fn of(&self, event: &Event) -> Option<PoolId> {
        event.of.pool.map(|number| self.id(number))
    }

    /// Returns whether a pool is not the default pool.
    pub(super) fn any_private(&self) -> bool {
        self.0.iter().any(|pool| *pool != PoolId::DEFAULT)
    }
}

/// What a record knows of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordFacts {
    /// The stream's handle.
    pub stream: u64,
    /// Place of the event in the file.
    pub place: Place,
    /// The pool. `None` if it is unknown, or the record has no private pool.
    pub pool: Option<PoolNumber>,
    /// The note in the fifth column.
    pub note: Note,
}

/// An event of a record.
pub type Event = memory::EventOf<RecordFacts>;

const _: () = assert!(size_of::<Event>() == 48, "a million events take 48 MB");
