//! Checks the events of a record for contradictions, such as a free of a dead block or an
//! allocation in live memory.
//!
//! A replay of a checked record meets only addresses introduced by the record, and every sum of
//! sizes fits 64 bits.

use super::{Action, BadInput, BlockState, Event, Place, Start};
use cachalot_core::UNIT;
use std::collections::BTreeMap;
use std::path::Path;

/// Bound on the sum of all requests and on the sum of all segments in bytes, so that no counter of
/// bytes overflows a signed 64-bit number, even after rounding.
const MAX_TOTAL_BYTES: u64 = 1 << 61;

/// A block between the events `a` and `c`.
struct CheckedBlock {
    size: u64,
    /// Place of the allocation. `None` for a block from before the first event.
    place: Option<Place>,
    /// Whether `f` has occurred.
    freed: bool,
}

impl CheckedBlock {
    /// Describes the origin of the block.
    fn origin(&self) -> String {
        self.place.map_or_else(|| "from before the first event".to_owned(), |place| format!("of {place}"))
    }
}

/// The memory of the record after some events.
#[derive(Default)]
struct RecordedMemory {
    /// Disjoint blocks by address.
    blocks: BTreeMap<u64, CheckedBlock>,
    /// Segments between `A` and `F`: address → size.
    segments: BTreeMap<u64, u64>,
    /// Mapped ranges between `M` and `U`, adjacent ranges joined: start → end.
    mapped: BTreeMap<u64, u64>,
    /// Sum of all requests so far, in bytes.
    requested: u64,
    /// Sum of all segments so far, in bytes.
    obtained: u64,
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
        for segment in &start.segments {
            let end =
                segment.address.checked_add(segment.total_size).ok_or("a segment goes beyond the last address")?;
            let obtained = if segment.is_expandable {
                state.map(segment.address, end)
            } else {
                state.obtain(segment.address, end)
            };
            obtained.map_err(|contradiction| match contradiction {
                Contradiction::Events(what) | Contradiction::Beginning(what) => format!("at the start, {what}"),
            })?;
        }
        for (_, block) in start.blocks() {
            state.requested = add(state.requested, block.requested_size)?;
            let freed = block.state == BlockState::ActivePendingFree;
            state.blocks.insert(block.address, CheckedBlock { size: block.requested_size, place: None, freed });
        }
        Ok(state)
    }

    fn apply(&mut self, event: &Event) -> Result<(), Contradiction> {
        let (addr, size) = (event.addr, event.size);
        if size == 0 {
            return Err(Contradiction::Events(format!("the event `{}` has no bytes", event.action.letter())));
        }
        if event.action == Action::OutOfMemory {
            return Ok(());
        }
        let end = addr.checked_add(size).ok_or("the range goes beyond the last address")?;
        match event.action {
            Action::Alloc => self.alloc(addr, end, event.of.place),
            Action::FreeRequested => self.free(addr, size),
            Action::FreeCompleted => self.complete(addr, size),
            _ if addr % UNIT != 0 || size % UNIT != 0 || addr == 0 => Err(Contradiction::Events(format!(
                "a segment's address and size must be multiples of {UNIT} and not 0"
            ))),
            Action::SegmentAlloc => self.obtain(addr, end),
            Action::SegmentMap => self.map(addr, end),
            Action::SegmentFree => self.release(addr, size),
            Action::SegmentUnmap => self.unmap(addr, end),
            Action::OutOfMemory | Action::Mark | Action::Other => Ok(()),
        }
    }

    fn alloc(&mut self, addr: u64, end: u64, place: Place) -> Result<(), Contradiction> {
        // Blocks are disjoint, so only the last block before `end` can overlap.
        if let Some((&other, held)) = self.blocks.range(..end).next_back()
            && other + held.size > addr
        {
            let (bytes, origin) = (held.size, held.origin());
            return Err(Contradiction::Events(format!(
                "allocation at {addr:x}, where the {bytes} bytes at {other:x} {origin} are still in use"
            )));
        }
        if !self.is_backed(addr, end) {
            return Err(Contradiction::Beginning(format!(
                "allocation at {addr:x} outside every segment of the record"
            )));
        }
        let size = end - addr;
        self.requested = add(self.requested, size).map_err(Contradiction::Events)?;
        self.blocks.insert(addr, CheckedBlock { size, place: Some(place), freed: false });
        Ok(())
    }

    fn free(&mut self, addr: u64, size: u64) -> Result<(), Contradiction> {
        match self.blocks.get_mut(&addr) {
            None => Err(self.unknown_block(addr, format!("free of {addr:x}, which is not allocated"))),
            Some(held) if held.freed => Err(Contradiction::Events(format!("free of {addr:x}, which was freed before"))),
            Some(held) if held.size != size => {
                let (bytes, origin) = (held.size, held.origin());
                let what = format!("free of {size} bytes at {addr:x}, where {bytes} {origin} are allocated");
                Err(Contradiction::Events(what))
            }
            Some(held) => {
                held.freed = true;
                Ok(())
            }
        }
    }

    fn complete(&mut self, addr: u64, size: u64) -> Result<(), Contradiction> {
        match self.blocks.get(&addr) {
            Some(held) if held.freed && held.size == size => {
                self.blocks.remove(&addr);
                Ok(())
            }
            held => {
                let what = format!("a free of {size} bytes at {addr:x} is completed that was not requested");
                Err(if held.is_none() { self.unknown_block(addr, what) } else { Contradiction::Events(what) })
            }
        }
    }

    /// Classifies an event about an unknown block. For a segment introduced by the record, the
    /// record has all blocks.
    fn unknown_block(&self, addr: u64, what: String) -> Contradiction {
        if self.is_backed(addr, addr + 1) { Contradiction::Events(what) } else { Contradiction::Beginning(what) }
    }

    fn obtain(&mut self, addr: u64, end: u64) -> Result<(), Contradiction> {
        self.refuse_overlap(addr, end)?;
        self.obtained = add(self.obtained, end - addr).map_err(Contradiction::Events)?;
        self.segments.insert(addr, end - addr);
        Ok(())
    }

    fn map(&mut self, addr: u64, end: u64) -> Result<(), Contradiction> {
        self.refuse_overlap(addr, end)?;
        self.obtained = add(self.obtained, end - addr).map_err(Contradiction::Events)?;
        let mut joined = (addr, end);
        if let Some((&before, &before_end)) = self.mapped.range(..addr).next_back()
            && before_end == addr
        {
            joined.0 = before;
        }
        if let Some(after_end) = self.mapped.remove(&end) {
            joined.1 = after_end;
        }
        self.mapped.insert(joined.0, joined.1);
        Ok(())
    }

    fn release(&mut self, addr: u64, size: u64) -> Result<(), Contradiction> {
        if self.segments.get(&addr) != Some(&size) {
            let what = format!("release of a segment of {size} bytes at {addr:x}, which is not held");
            return Err(Contradiction::Beginning(what));
        }
        self.refuse_in_use(addr, addr + size)?;
        self.segments.remove(&addr);
        Ok(())
    }

    fn unmap(&mut self, addr: u64, end: u64) -> Result<(), Contradiction> {
        let around = self.mapped.range(..=addr).next_back().map(|(&start, &stop)| (start, stop));
        let Some((start, stop)) = around.filter(|&(_, stop)| stop >= end) else {
            let what = format!("unmapping of {} bytes at {addr:x}, which are not mapped", end - addr);
            return Err(Contradiction::Beginning(what));
        };
        self.refuse_in_use(addr, end)?;
        self.mapped.remove(&start);
        for (from, to) in [(start, addr), (end, stop)] {
            if from < to {
                self.mapped.insert(from, to);
            }
        }
        Ok(())
    }

    /// Returns whether `[addr, end)` is in one segment, or in one run of mapped memory.
    fn is_backed(&self, addr: u64, end: u64) -> bool {
        let segment = self.segments.range(..=addr).next_back().map(|(&start, &size)| start + size);
        let mapped = self.mapped.range(..=addr).next_back().map(|(_, &stop)| stop);
        segment.is_some_and(|stop| stop >= end) || mapped.is_some_and(|stop| stop >= end)
    }

    fn refuse_overlap(&self, addr: u64, end: u64) -> Result<(), Contradiction> {
        let segment = self.segments.range(..end).next_back().map(|(&start, &size)| start + size);
        let mapped = self.mapped.range(..end).next_back().map(|(_, &stop)| stop);
        if segment.is_some_and(|stop| stop > addr) || mapped.is_some_and(|stop| stop > addr) {
            let what = format!("a segment is obtained at {addr:x}, where the record already holds one");
            return Err(Contradiction::Events(what));
        }
        Ok(())
    }

    fn refuse_in_use(&self, addr: u64, end: u64) -> Result<(), Contradiction> {
        match self.blocks.range(..end).next_back() {
            Some((&block, held)) if block + held.size > addr => {
                let origin = held.origin();
                let what =
                    format!("memory at {addr:x} is given back while the block at {block:x} {origin} is in use{PARKED}");
                Err(Contradiction::Events(what))
            }
            _ => Ok(()),
        }
    }
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
