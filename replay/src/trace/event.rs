//! An event of the allocator, a line of a record, and the names of the pools of events.

use super::Place;
use cachalot_core::PoolId;
use std::num::NonZeroU32;

/// The kind of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// `a`: a request was served. The size is the requested size.
    Alloc,
    /// `f`: the program freed the block.
    FreeRequested,
    /// `c`: the free is complete. Any request on the stream can reuse the block.
    FreeCompleted,
    /// `A`: a segment was allocated from the device.
    SegmentAlloc,
    /// `F`: a segment was released to the device.
    SegmentFree,
    /// `M`: memory was mapped into an expandable segment.
    SegmentMap,
    /// `U`: memory was unmapped from an expandable segment.
    SegmentUnmap,
    /// `O`: a request failed. The size is the rounded size of the needed block, and the address is
    /// 0.
    OutOfMemory,
}

impl Action {
    /// Returns the letter of the action in a `.csv` record.
    pub const fn letter(self) -> char {
        match self {
            Self::Alloc => 'a',
            Self::FreeRequested => 'f',
            Self::FreeCompleted => 'c',
            Self::SegmentAlloc => 'A',
            Self::SegmentFree => 'F',
            Self::SegmentMap => 'M',
            Self::SegmentUnmap => 'U',
            Self::OutOfMemory => 'O',
        }
    }

    /// Returns the action of a letter, or `None` for an unknown letter.
    pub fn from_letter(text: &str) -> Option<Self> {
        Some(match text {
            "a" => Self::Alloc,
            "f" => Self::FreeRequested,
            "c" => Self::FreeCompleted,
            "A" => Self::SegmentAlloc,
            "F" => Self::SegmentFree,
            "M" => Self::SegmentMap,
            "U" => Self::SegmentUnmap,
            "O" => Self::OutOfMemory,
            _ => return None,
        })
    }

    /// Returns whether the action is a call of the program (`a f O`), not a step inside the
    /// allocator.
    pub const fn is_call(self) -> bool {
        matches!(self, Self::Alloc | Self::FreeRequested | Self::OutOfMemory)
    }

    /// Returns whether the action releases memory to the device (`F U`).
    pub const fn is_release(self) -> bool {
        matches!(self, Self::SegmentFree | Self::SegmentUnmap)
    }
}

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
        event.pool.map(|number| self.id(number))
    }

    /// Returns whether a pool is not the default pool.
    pub(super) fn any_private(&self) -> bool {
        self.0.iter().any(|pool| *pool != PoolId::DEFAULT)
    }
}

/// An event of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// The kind of the event.
    pub action: Action,
    /// The device address; 0 for [`Action::OutOfMemory`].
    pub addr: u64,
    /// Size in bytes. The meaning depends on the action.
    pub size: u64,
    /// The stream's handle.
    pub stream: u64,
    /// The note in the fifth column.
    pub note: Note,
    /// The pool. `None` if it is unknown, or the record has no private pool.
    pub pool: Option<PoolNumber>,
    /// Place of the event in the file.
    pub place: Place,
}

#[cfg(test)]
mod tests {
    use super::Action;

    #[test]
    fn every_letter_names_its_action() {
        for letter in ["a", "f", "c", "A", "F", "M", "U", "O"] {
            let action = Action::from_letter(letter).expect("a letter of the format");
            assert_eq!(action.letter().to_string(), letter);
        }
        assert_eq!(Action::from_letter("x"), None);
        assert_eq!(Action::from_letter("aa"), None);
    }
}
