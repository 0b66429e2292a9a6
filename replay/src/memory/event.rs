//! An event of a history: what it does is the same for every reader, and what else is known of it
//! is the reader's.

use super::page_of;

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
    /// A mark of the program, which no record has.
    Mark,
    /// Anything else that changes no memory, such as a snapshot that was taken, or an action that
    /// is not known here. No record has it.
    Other,
}

impl Action {
    /// Returns the letter of the action in a `.csv` record, or `-` for what no record has.
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
            Self::Mark | Self::Other => '-',
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

    /// Returns the action with a name in a snapshot, or `None` for an unknown name.
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "alloc" => Self::Alloc,
            "free_requested" => Self::FreeRequested,
            "free_completed" => Self::FreeCompleted,
            "segment_alloc" => Self::SegmentAlloc,
            "segment_free" => Self::SegmentFree,
            "segment_map" => Self::SegmentMap,
            "segment_unmap" => Self::SegmentUnmap,
            "oom" => Self::OutOfMemory,
            "annotate" | "user_defined" => Self::Mark,
            "snapshot" => Self::Other,
            _ => return None,
        })
    }

    /// Returns whether the action is a call of the program (`a f O`), not a step inside the
    /// allocator.
    pub const fn is_call(self) -> bool {
        matches!(self, Self::Alloc | Self::FreeRequested | Self::OutOfMemory)
    }

    /// Returns whether the action obtains memory from the device (`A M`).
    pub const fn obtains(self) -> bool {
        matches!(self, Self::SegmentAlloc | Self::SegmentMap)
    }

    /// Returns whether the action releases memory to the device (`F U`).
    pub const fn is_release(self) -> bool {
        matches!(self, Self::SegmentFree | Self::SegmentUnmap)
    }

    /// Returns whether the action maps or unmaps a part of an expandable segment (`M U`).
    pub const fn is_expandable(self) -> bool {
        matches!(self, Self::SegmentMap | Self::SegmentUnmap)
    }
}

impl From<cachalot_core::Action> for Action {
    fn from(action: cachalot_core::Action) -> Self {
        match action {
            cachalot_core::Action::Alloc => Self::Alloc,
            cachalot_core::Action::FreeRequested => Self::FreeRequested,
            cachalot_core::Action::FreeCompleted => Self::FreeCompleted,
            cachalot_core::Action::SegmentAlloc => Self::SegmentAlloc,
            cachalot_core::Action::SegmentFree => Self::SegmentFree,
            cachalot_core::Action::SegmentMap => Self::SegmentMap,
            cachalot_core::Action::SegmentUnmap => Self::SegmentUnmap,
            cachalot_core::Action::OutOfMemory => Self::OutOfMemory,
            _ => Self::Other,
        }
    }
}

/// An event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventOf<O> {
    /// The address of the first byte.
    pub addr: u64,
    /// Size in bytes. The meaning depends on the action.
    pub size: u64,
    /// The reader's value, such as stream, pool, time and stack.
    pub of: O,
    /// The kind of the event.
    pub action: Action,
}

impl<O> EventOf<O> {
    /// Returns the address after the last byte.
    pub fn end(&self) -> u64 {
        self.addr.saturating_add(self.size)
    }

    /// Returns the size of the pages of the memory that the event obtains or releases, or 0 for a
    /// segment.
    pub fn page(&self, large_page: u64) -> u64 {
        if self.action.is_expandable() { page_of(self.size, large_page) } else { 0 }
    }

    /// Returns an event of a snapshot. Without an address or a size, it changes nothing.
    pub fn of_snapshot(event: &cachalot_snapshot::Event, of: O) -> Self {
        let (addr, size) = (event.addr, u64::try_from(event.size).ok());
        let action = Action::named(&event.action).filter(|_| addr.is_some() && size.is_some());
        Self { addr: addr.unwrap_or(0), size: size.unwrap_or(0), of, action: action.unwrap_or(Action::Other) }
    }
}

/// The events that a history has of a free. `skip_actions` of PyTorch 2.10 leaves out either of the
/// two from the whole history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frees {
    /// The request, and the completion.
    Both,
    /// The request alone, so that each free counts as complete at once.
    Requests,
    /// The completion alone, so that nothing is known to be pending.
    Completions,
}

impl Frees {
    /// Finds out which events the frees of a history have. One event alone has its other one before
    /// the history, or still waits.
    pub fn of(actions: impl Iterator<Item = Action>) -> Self {
        let (mut requests, mut completions) = (0_u64, 0_u64);
        for action in actions {
            requests += u64::from(action == Action::FreeRequested);
            completions += u64::from(action == Action::FreeCompleted);
        }
        match (requests, completions) {
            (0, 2..) => Self::Completions,
            (2.., 0) => Self::Requests,
            _ => Self::Both,
        }
    }

    /// Returns whether a block was pending before event number `number` of the history completed
    /// its free. A free is two events at once, and before the first event nothing tells.
    pub fn waits(self, number: usize) -> bool {
        self != Self::Completions && number > 0
    }
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
