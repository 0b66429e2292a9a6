//! Checks the events of a record for contradictions, such as a free of a dead block or an
//! allocation in live memory.
//!
//! A replay of a checked record meets only addresses introduced by the record, and every sum of
//! sizes fits 64 bits.

use super::{Action, BadInput, BlockState, Event, Place, RecordFacts, Segment, Start};
use crate::memory::{Block, HistoryReader, Memory, Misfit, Part};
use cachalot_core::UNIT;
use std::path::Path;

/// Bound on the sum of all requests and on the sum of all segments in bytes, so that no counter of
/// bytes overflows a signed 64-bit number, even after rounding.
const MAX_TOTAL_BYTES: u64 = 1 << 61;

/// The memory of the record after some events.
#[derive(Default)]
struct RecordedMemory {
    /// The blocks have their requested sizes, and the places of their allocations: `None` before
    /// the first event.
    memory: Memory<(), Option<Place>>,
    /// Sum of all requests so far, in bytes.
    requested: u64,
    /// Sum of all segments so far, in bytes.
    obtained: u64,
}

/// Reads events for the check. Adjacent mapped ranges are one part.
struct CheckReader;

impl HistoryReader for CheckReader {
    type Part = ();
    type Block = Option<Place>;
    type Event = RecordFacts;

    fn part(&mut self, event: &Event, _: &Memory<(), Option<Place>>) -> Part<()> {
        Part::new(event.end(), event.action.is_expandable(), ())
    }

    fn block(&mut self, event: &Event, _: &Memory<(), Option<Place>>) -> Block<Option<Place>> {
        Block { size: event.size, pending: false, of: Some(event.of.place) }
    }

    fn join(&self, _: &mut Part<()>, _: &Part<()>, _: bool) -> bool {
        true
    }
}

/// Describes the origin of a block.
fn origin(block: &Block<Option<Place>>) -> String {
    block.of.map_or_else(|| "from before the first event".to_owned(), |place| format!("of {place}"))
}

/// The statement contradicted by an event.
pub(super) enum Contradiction {
    /// Earlier events, or the event itself.
    Events(String),
    /// Only the assumption that the record starts with an empty allocator.
    Beginning(String),
}

impl From<&str> for Contradiction {
    fn from(what: &str) -> Self {
        Self::Events(what.to_owned())
    }
}

/// Checks the events of a record, from the state before the first event.
pub(super) fn check(file: &Path, events: &[Event], start: Option<&Start>) -> Result<(), BadInput> {
    walk(events, start).map_err(|(place, contradiction)| {
        let what = match contradiction {
            Contradiction::Beginning(what) if start.is_none() => format!("{what}{BEGINS_IN_THE_MIDDLE}"),
            Contradiction::Beginning(what) | Contradiction::Events(what) => what,
        };
        BadInput { file: file.to_owned(), place, what }
    })
}

/// Finds the first contradiction with the event's place, which is `None` before the first event.
pub(super) fn walk(events: &[Event], start: Option<&Start>) -> Result<(), (Option<Place>, Contradiction)> {
    let state = start.map(RecordedMemory::at).transpose();
    let mut state = state.map_err(|what| (None, Contradiction::Events(what)))?.unwrap_or_default();
    events.iter().try_for_each(|event| state.apply(event).map_err(|what| (Some(event.of.place), what)))
}

/// Advice for a record that uses memory without introducing the memory.
const BEGINS_IN_THE_MIDDLE: &str =
    "; if the record starts in the middle of its program, pass a memory snapshot, which holds the final state as well";

/// The usual reason for memory that goes back while a block is in it.
const PARKED: &str = ", as when a program is parked while it is recorded: such a record cannot be replayed";

impl RecordedMemory {
    /// Returns the state before the first event.
    fn at(start: &Start) -> Result<Self, String> {
        let mut state = Self::default();
        for &Segment { address, total_size, is_expandable, .. } in &start.segments {
            let end = address.checked_add(total_size).ok_or("a segment goes beyond the last address")?;
            if state.memory.overlaps(address, end) {
                return Err(format!("at the start, {}", held(address)));
            }
            state.obtained = add(state.obtained, total_size).map_err(|what| format!("at the start, {what}"))?;
            state.memory.place(address, Part::new(end, is_expandable, ()), &mut CheckReader);
        }
        for (_, block) in start.blocks() {
            state.requested = add(state.requested, block.requested_size)?;
            let pending = block.state == BlockState::ActivePendingFree;
            state.memory.set_block(block.address, Some(Block { size: block.requested_size, pending, of: None }));
        }
        Ok(state)
    }

    fn apply(&mut self, event: &Event) -> Result<(), Contradiction> {
        let Event { addr, size, action, .. } = *event;
        if size == 0 {
            return Err(Contradiction::Events(format!("the event `{}` has no bytes", action.letter())));
        }
        if action == Action::OutOfMemory {
            return Ok(());
        }
        addr.checked_add(size).ok_or("the range goes beyond the last address")?;
        let is_of_segment = action.obtains() || action.is_release();
        if is_of_segment && (addr % UNIT != 0 || size % UNIT != 0 || addr == 0) {
            let what = format!("a segment's address and size must be multiples of {UNIT} and not 0");
            return Err(Contradiction::Events(what));
        }
        match self.memory.misfit(event, false) {
            Some(misfit) => return Err(self.contradiction(event, misfit)),
            None => self.refuse_block(event).map_err(Contradiction::Events)?,
        }
        match action {
            Action::Alloc => self.requested = add(self.requested, size).map_err(Contradiction::Events)?,
            _ if action.obtains() => self.obtained = add(self.obtained, size).map_err(Contradiction::Events)?,
            _ => {}
        }
        self.memory.apply(event, &mut CheckReader);
        Ok(())
    }

    /// Refuses a free of a block that is not as the free says.
    fn refuse_block(&self, event: &Event) -> Result<(), String> {
        let Event { addr, size, action, .. } = *event;
        match (action, self.memory.blocks().get(&addr)) {
            (Action::FreeRequested, Some(block)) if block.pending => {
                Err(format!("free of {addr:x}, which was freed before"))
            }
            (Action::FreeRequested, Some(block)) if block.size != size => {
                let (bytes, origin) = (block.size, origin(block));
                Err(format!("free of {size} bytes at {addr:x}, where {bytes} {origin} are allocated"))
            }
            (Action::FreeCompleted, Some(block)) if !block.pending || block.size != size => {
                Err(unrequested(addr, size))
            }
            _ => Ok(()),
        }
    }

    /// Puts into words what an event does not fit.
    fn contradiction(&self, event: &Event, misfit: Misfit<Option<Place>>) -> Contradiction {
        let Event { addr, size, action, .. } = *event;
        let what = match (misfit, action) {
            (Misfit::Held, _) => return Contradiction::Events(held(addr)),
            (Misfit::InUse(other, block), Action::Alloc) => {
                let (bytes, origin) = (block.size, origin(&block));
                let what =
                    format!("allocation at {addr:x}, where the {bytes} bytes at {other:x} {origin} are still in use");
                return Contradiction::Events(what);
            }
            (Misfit::InUse(other, block), _) => {
                let origin = origin(&block);
                let what =
                    format!("memory at {addr:x} is given back while the block at {other:x} {origin} is in use{PARKED}");
                return Contradiction::Events(what);
            }
            (Misfit::NoBlock, _) => {
                let is_request = action == Action::FreeRequested;
                let request = format!("free of {addr:x}, which is not allocated");
                let what = if is_request { request } else { unrequested(addr, size) };
                // For a segment introduced by the record, the record has all blocks.
                if self.memory.part_at(addr).is_some() {
                    return Contradiction::Events(what);
                }
                what
            }
            (Misfit::Outside, _) => format!("allocation at {addr:x} outside every segment of the record"),
            (Misfit::NotHeld, Action::SegmentUnmap) => {
                format!("unmapping of {size} bytes at {addr:x}, which are not mapped")
            }
            (Misfit::NotHeld, _) => {
                format!("release of a segment of {size} bytes at {addr:x}, which is not held")
            }
        };
        Contradiction::Beginning(what)
    }
}

fn held(addr: u64) -> String {
    format!("a segment is obtained at {addr:x}, where the record already holds one")
}

fn unrequested(addr: u64, size: u64) -> String {
    format!("a free of {size} bytes at {addr:x} is completed that was not requested")
}

fn add(total: u64, size: u64) -> Result<u64, String> {
    let sum = total + size;
    if sum < MAX_TOTAL_BYTES {
        return Ok(sum);
    }
    Err(format!("the sizes of the record add up to {MAX_TOTAL_BYTES} bytes (2 EiB) or more"))
}

#[cfg(test)]
mod tests {
    use super::{BEGINS_IN_THE_MIDDLE, check};
    use crate::trace::{Action, Event, Note, Place, RecordFacts};
    use std::path::Path;

    /// Checks events given as `letter address size` words, one line each, from line 2 on.
    fn verdict(rows: &[(&str, u64, u64)]) -> Result<(), String> {
        let events: Vec<Event> = rows
            .iter()
            .zip(2..)
            .map(|(&(letter, addr, size), line)| Event {
                action: Action::from_letter(letter).expect("a letter of the format"),
                addr,
                size,
                of: RecordFacts { stream: 0, note: Note::None, pool: None, place: Place::Line(line) },
            })
            .collect();
        check(Path::new("t"), &events, None).map_err(|error| error.to_string())
    }

    const SEGMENT: (&str, u64, u64) = ("A", 0x1000, 0x1000);

    #[test]
    fn a_whole_life_passes() {
        let rows = [
            SEGMENT,
            ("a", 0x1000, 5),
            ("a", 0x1200, 0xe00),
            ("f", 0x1000, 5),
            ("c", 0x1000, 5),
            ("a", 0x1000, 7),
            ("f", 0x1200, 0xe00),
            ("f", 0x1000, 7),
            ("c", 0x1200, 0xe00),
            ("c", 0x1000, 7),
            ("F", 0x1000, 0x1000),
            ("M", 0x1000, 0x1000),
            ("M", 0x3000, 0x1000),
            ("M", 0x2000, 0x1000),
            ("a", 0x1800, 0x2000),
            ("f", 0x1800, 0x2000),
            ("c", 0x1800, 0x2000),
            ("U", 0x2000, 0x1000),
            ("a", 0x3000, 0x1000),
            ("O", 0, 0x1000),
        ];
        assert_eq!(verdict(&rows), Ok(()));
    }

    #[test]
    fn what_contradicts_the_lines_before_is_refused() {
        let live = ("a", 0x1000, 0x400);
        for (row, what) in [
            (("f", 0x1200, 1), "free of 1200, which is not allocated"),
            (("f", 0x1000, 1), "free of 1 bytes at 1000, where 1024 of line 3 are allocated"),
            (("c", 0x1000, 0x400), "a free of 1024 bytes at 1000 is completed that was not requested"),
            (("a", 0x1200, 1), "allocation at 1200, where the 1024 bytes at 1000 of line 3 are still in use"),
            (("a", 0x1000, 1), "allocation at 1000, where the 1024 bytes at 1000 of line 3 are still in use"),
            (("a", 0x1800, 0), "the event `a` has no bytes"),
            (("a", u64::MAX, 2), "the range goes beyond the last address"),
            (("A", 0x1e00, 0x400), "a segment is obtained at 1e00, where the record already holds one"),
            (("M", 0xe00, 0x400), "a segment is obtained at e00, where the record already holds one"),
            (("A", 0x8000, 0x401), "a segment's address and size must be multiples of 512 and not 0"),
            (
                ("F", 0x1000, 0x1000),
                "memory at 1000 is given back while the block at 1000 of line 3 is in use, as when a program is parked \
                 while it is recorded: such a record cannot be replayed",
            ),
            (("A", 0x8000, 1 << 61), "the sizes of the record add up to 2305843009213693952 bytes (2 EiB) or more"),
        ] {
            assert_eq!(verdict(&[SEGMENT, live, row]), Err(format!("t:4: {what}")));
        }
        for (row, what) in [
            (("f", 0x2200, 1), "free of 2200, which is not allocated"),
            (("c", 0x2200, 1), "a free of 1 bytes at 2200 is completed that was not requested"),
            (("a", 0x1800, 0x801), "allocation at 1800 outside every segment of the record"),
            (("F", 0x1000, 0x800), "release of a segment of 2048 bytes at 1000, which is not held"),
            (("U", 0x1000, 0x1000), "unmapping of 4096 bytes at 1000, which are not mapped"),
        ] {
            assert_eq!(verdict(&[SEGMENT, live, row]), Err(format!("t:4: {what}{BEGINS_IN_THE_MIDDLE}")));
        }
        let twice = [SEGMENT, live, ("f", 0x1000, 0x400), ("f", 0x1000, 0x400)];
        assert_eq!(verdict(&twice), Err("t:5: free of 1000, which was freed before".to_owned()));
    }
}
