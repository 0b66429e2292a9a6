//! One line of a record: an event of the allocator, as it was when the program ran.

use super::Place;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// `a`: a request was served; the size is the one the program asked for.
    Alloc,
    /// `f`: the program gave the block back.
    FreeRequested,
    /// `c`: the block can be reused from here on, by any request of its stream.
    FreeCompleted,
    /// `A`: a segment was obtained from the device.
    SegmentAlloc,
    /// `F`: a segment was given back to the device.
    SegmentFree,
    /// `M`: memory was mapped into an expandable segment.
    SegmentMap,
    /// `U`: memory was unmapped from an expandable segment.
    SegmentUnmap,
    /// `O`: a request failed; the size is the rounded one of the block that could not be had, and there is no address.
    OutOfMemory,
}

impl Action {
    /// The letter that stands for the action in a `.csv` record.
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

    /// The action of a letter, if it is one.
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

    /// Whether the action is one of the program (`a f O`), not a step inside the allocator.
    pub const fn is_call(self) -> bool {
        matches!(self, Self::Alloc | Self::FreeRequested | Self::OutOfMemory)
    }

    /// Whether the action gives memory back to the device (`F U`).
    pub const fn is_release(self) -> bool {
        matches!(self, Self::SegmentFree | Self::SegmentUnmap)
    }
}

/// What the record says about the pool of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Note {
    /// Nothing beyond the default pools.
    #[default]
    None,
    /// The event lies between the moment before a graph's capture and the end of the capture.
    Capture,
}

/// One event of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub action: Action,
    /// The device address; 0 for [`Action::OutOfMemory`].
    pub addr: u64,
    /// In bytes; what it measures depends on the action.
    pub size: u64,
    /// The stream's handle.
    pub stream: u64,
    /// The note in the fifth column.
    pub note: Note,
    /// Where the event stands in its file.
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
