//! An event of the allocator, a line of a record.

use super::Place;

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
