//! Whether the events of a record can all be true: nothing is freed that is not held, nothing is held twice.
//!
//! What passes here can be replayed without meeting an address that the record has not introduced, and every sum
//! of its sizes fits 64 bits.

use super::{Action, BadInput, Event};
use cachalot_core::UNIT;
use std::collections::BTreeMap;
use std::path::Path;

/// The sizes of all requests, and of all segments, must add up to less than this many bytes, so that no counter of
/// bytes can overflow a signed 64-bit number, rounding included.
const MAX_TOTAL_BYTES: u64 = 1 << 61;

/// A block between its `a` and its `c`.
struct Held {
    size: u64,
    line: u64,
    /// `f` was seen, `c` not yet.
    freed: bool,
}

/// What the record holds after some of its events.
#[derive(Default)]
struct State {
    /// By address; no two overlap.
    blocks: BTreeMap<u64, Held>,
    /// `A` without `F`: address → size.
    segments: BTreeMap<u64, u64>,
    /// `M` without `U`, neighbours joined: start → end.
    mapped: BTreeMap<u64, u64>,
    /// All requests so far, in bytes.
    requested: u64,
    /// All memory obtained so far, in bytes.
    obtained: u64,
}

/// Checks a whole record.
pub(super) fn check(file: &Path, events: &[Event]) -> Result<(), BadInput> {
    let mut state = State::default();
    for event in events {
        state.apply(event).map_err(|what| BadInput::at(file, event.line, what))?;
    }
    Ok(())
}

impl State {
    fn apply(&mut self, event: &Event) -> Result<(), String> {
        let (addr, size) = (event.addr, event.size);
        if size == 0 {
            return Err(format!("the event `{}` has no bytes", event.action.letter()));
        }
        if event.action == Action::OutOfMemory {
            return Ok(());
        }
        let end = addr.checked_add(size).ok_or("the range goes beyond the last address")?;
        match event.action {
            Action::Alloc => self.alloc(addr, end, event.line),
            Action::FreeRequested => self.free(addr, size),
            Action::FreeCompleted => self.complete(addr, size),
            _ if addr % UNIT != 0 || size % UNIT != 0 || addr == 0 => {
                Err(format!("a segment's address and size must be multiples of {UNIT} and not 0"))
            }
            Action::SegmentAlloc => self.obtain(addr, end),
            Action::SegmentMap => self.map(addr, end),
            Action::SegmentFree => self.release(addr, size),
            Action::SegmentUnmap => self.unmap(addr, end),
            Action::OutOfMemory => Ok(()),
        }
    }

    fn alloc(&mut self, addr: u64, end: u64, line: u64) -> Result<(), String> {
        // The last block that begins before `end` is the only one that can overlap, since blocks do not.
        if let Some((&other, held)) = self.blocks.range(..end).next_back()
            && other + held.size > addr
        {
            let (bytes, line) = (held.size, held.line);
            return Err(format!(
                "allocation at {addr:x}, where the {bytes} bytes at {other:x} of line {line} are still in use"
            ));
        }
        if !self.is_backed(addr, end) {
            return Err(format!(
                "allocation at {addr:x} outside every segment of the record: it must begin where the program begins"
            ));
        }
        let size = end - addr;
        self.requested = add(self.requested, size)?;
        self.blocks.insert(addr, Held { size, line, freed: false });
        Ok(())
    }

    fn free(&mut self, addr: u64, size: u64) -> Result<(), String> {
        match self.blocks.get_mut(&addr) {
            None => Err(format!("free of {addr:x}, which is not allocated")),
            Some(held) if held.freed => Err(format!("free of {addr:x}, which was freed before")),
            Some(held) if held.size != size => {
                let (bytes, line) = (held.size, held.line);
                Err(format!("free of {size} bytes at {addr:x}, where line {line} allocated {bytes}"))
            }
            Some(held) => {
                held.freed = true;
                Ok(())
            }
        }
    }

    fn complete(&mut self, addr: u64, size: u64) -> Result<(), String> {
        match self.blocks.get(&addr) {
            Some(held) if held.freed && held.size == size => {
                self.blocks.remove(&addr);
                Ok(())
            }
            _ => Err(format!("a free of {size} bytes at {addr:x} is completed that was not requested")),
        }
    }

    fn obtain(&mut self, addr: u64, end: u64) -> Result<(), String> {
        self.refuse_overlap(addr, end)?;
        self.obtained = add(self.obtained, end - addr)?;
        self.segments.insert(addr, end - addr);
        Ok(())
    }

    fn map(&mut self, addr: u64, end: u64) -> Result<(), String> {
        self.refuse_overlap(addr, end)?;
        self.obtained = add(self.obtained, end - addr)?;
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

    fn release(&mut self, addr: u64, size: u64) -> Result<(), String> {
        if self.segments.get(&addr) != Some(&size) {
            return Err(format!("release of a segment of {size} bytes at {addr:x}, which is not held"));
        }
        self.refuse_in_use(addr, addr + size)?;
        self.segments.remove(&addr);
        Ok(())
    }

    fn unmap(&mut self, addr: u64, end: u64) -> Result<(), String> {
        let around = self.mapped.range(..=addr).next_back().map(|(&start, &stop)| (start, stop));
        let Some((start, stop)) = around.filter(|&(_, stop)| stop >= end) else {
            return Err(format!("unmapping of {} bytes at {addr:x}, which are not mapped", end - addr));
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

    /// Whether `[addr, end)` lies in one segment, or in one run of mapped memory.
    fn is_backed(&self, addr: u64, end: u64) -> bool {
        let segment = self.segments.range(..=addr).next_back().map(|(&start, &size)| start + size);
        let mapped = self.mapped.range(..=addr).next_back().map(|(_, &stop)| stop);
        segment.is_some_and(|stop| stop >= end) || mapped.is_some_and(|stop| stop >= end)
    }

    fn refuse_overlap(&self, addr: u64, end: u64) -> Result<(), String> {
        let segment = self.segments.range(..end).next_back().map(|(&start, &size)| start + size);
        let mapped = self.mapped.range(..end).next_back().map(|(_, &stop)| stop);
        if segment.is_some_and(|stop| stop > addr) || mapped.is_some_and(|stop| stop > addr) {
            return Err(format!("a segment is obtained at {addr:x}, where the record already holds one"));
        }
        Ok(())
    }

    fn refuse_in_use(&self, addr: u64, end: u64) -> Result<(), String> {
        match self.blocks.range(..end).next_back() {
            Some((&block, held)) if block + held.size > addr => {
                let line = held.line;
                Err(format!("memory at {addr:x} is given back while the block at {block:x} of line {line} is in use"))
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
    use super::check;
    use crate::trace::{Action, Event, Note};
    use std::path::Path;

    /// Events from `letter address size` words, one line each, from line 2 on.
    fn verdict(rows: &[(&str, u64, u64)]) -> Result<(), String> {
        let events: Vec<Event> = rows
            .iter()
            .zip(2..)
            .map(|(&(letter, addr, size), line)| Event {
                action: Action::from_letter(letter).expect("a letter of the format"),
                addr,
                size,
                stream: 0,
                note: Note::None,
                line,
            })
            .collect();
        check(Path::new("t"), &events).map_err(|error| error.to_string())
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
            (("f", 0x1000, 1), "free of 1 bytes at 1000, where line 3 allocated 1024"),
            (("c", 0x1000, 0x400), "a free of 1024 bytes at 1000 is completed that was not requested"),
            (("a", 0x1200, 1), "allocation at 1200, where the 1024 bytes at 1000 of line 3 are still in use"),
            (("a", 0x1000, 1), "allocation at 1000, where the 1024 bytes at 1000 of line 3 are still in use"),
            (
                ("a", 0x1800, 0x801),
                "allocation at 1800 outside every segment of the record: it must begin where the program begins",
            ),
            (("a", 0x1800, 0), "the event `a` has no bytes"),
            (("a", u64::MAX, 2), "the range goes beyond the last address"),
            (("A", 0x1e00, 0x400), "a segment is obtained at 1e00, where the record already holds one"),
            (("M", 0xe00, 0x400), "a segment is obtained at e00, where the record already holds one"),
            (("A", 0x8000, 0x401), "a segment's address and size must be multiples of 512 and not 0"),
            (("F", 0x1000, 0x800), "release of a segment of 2048 bytes at 1000, which is not held"),
            (("F", 0x1000, 0x1000), "memory at 1000 is given back while the block at 1000 of line 3 is in use"),
            (("U", 0x1000, 0x1000), "unmapping of 4096 bytes at 1000, which are not mapped"),
            (("A", 0x8000, 1 << 61), "the sizes of the record add up to 2305843009213693952 bytes (2 EiB) or more"),
        ] {
            assert_eq!(verdict(&[SEGMENT, live, row]), Err(format!("t:4: {what}")));
        }
        let twice = [SEGMENT, live, ("f", 0x1000, 0x400), ("f", 0x1000, 0x400)];
        assert_eq!(verdict(&twice), Err("t:5: free of 1000, which was freed before".to_owned()));
    }
}
