//! The memory of a device before the first event, found by undoing the events, the last event first.

use super::history::{Action, Block, End, Event, History, Part, UNKNOWN};
use super::stacks::{BEFORE, NO_STACK};
use cachalot_core::UNIT;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// The memory before the first event.
#[derive(Default, Debug)]
pub(super) struct Begin {
    /// By address.
    pub(super) parts: BTreeMap<u64, Part>,
    /// By address.
    pub(super) blocks: FxHashMap<u64, Block>,
    /// The sizes of allocated blocks by the number of the event, where the size differs from the
    /// rounded request.
    pub(super) sizes: FxHashMap<u32, u64>,
    /// The stacks in the blocks of the end, by the number of the event. Only for events without a
    /// stack.
    pub(super) stacks: FxHashMap<u32, u32>,
}

/// Returns the size of a block for a request: a multiple of 512 bytes.
pub(super) fn rounded(bytes: u64) -> u64 {
    bytes.max(1).checked_next_multiple_of(UNIT).unwrap_or(bytes)
}

/// Finds the memory before the first event from the memory at the end.
pub(super) fn begin(history: &History) -> Begin {
    let Some(End { parts, blocks }) = history.end.clone() else { return Begin::default() };
    let mut begin = Begin { parts, blocks, ..Begin::default() };
    for (number, event) in history.events.iter().enumerate().rev() {
        begin.undo(number as u32, event);
    }
    for block in begin.blocks.values_mut() {
        if block.stack == NO_STACK {
            block.stack = BEFORE;
        }
    }
    begin
}

impl Begin {
    fn undo(&mut self, number: u32, event: &Event) {
        let Event { addr, size, .. } = *event;
        match event.action {
            Action::Alloc => {
                let Some(block) = self.blocks.remove(&addr) else { return };
                if block.size != rounded(size) {
                    self.sizes.insert(number, block.size);
                }
                if event.stack == NO_STACK && block.stack != NO_STACK {
                    self.stacks.insert(number, block.stack);
                }
            }
            Action::FreeRequested => {
                let block = Block { size: rounded(size), pending: false, stack: NO_STACK };
                self.blocks.entry(addr).or_insert(block).pending = false;
            }
            Action::FreeCompleted => {
                self.blocks.insert(addr, Block { size: rounded(size), pending: true, stack: NO_STACK });
            }
            Action::Obtain { .. } => self.cut(addr, addr.saturating_add(size)),
            Action::Release { expandable } => {
                let end = addr.saturating_add(size);
                if end == addr {
                    return;
                }
                self.cut(addr, end);
                let Event { stream, pool, .. } = *event;
                // The pool of a released part is that of the neighbour, if any remains.
                let before = self.parts.range(..addr).next_back().map(|(_, part)| *part);
                let alike = before.filter(|part| expandable && part.end == addr && part.stream == stream);
                let pool = if pool == UNKNOWN { alike.map_or(UNKNOWN, |part| part.pool) } else { pool };
                self.parts.insert(addr, Part { end, stream, pool, expandable, stack: BEFORE });
            }
            Action::OutOfMemory | Action::Mark | Action::Snapshot | Action::Unknown => {}
        }
    }

    /// Removes a range from all overlapping parts.
    fn cut(&mut self, addr: u64, end: u64) {
        cut(&mut self.parts, addr, end, |part| part.end, |part, end| Part { end, ..*part });
    }
}

/// Removes a range from all overlapping parts of a map by address. `until` gives a new end to a part.
pub(super) fn cut<P: Copy>(
    parts: &mut BTreeMap<u64, P>,
    addr: u64,
    end: u64,
    end_of: impl Fn(&P) -> u64,
    until: impl Fn(&P, u64) -> P,
) {
    let below = parts.range(..end).rev().take_while(|(_, part)| end_of(part) > addr);
    let touched: Vec<(u64, P)> = below.map(|(&start, part)| (start, *part)).collect();
    for (start, part) in touched {
        parts.remove(&start);
        if start < addr {
            parts.insert(start, until(&part, addr));
        }
        if end_of(&part) > end {
            parts.insert(end, part);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::{Action, Block, End, Event, History, Names, Part, UNKNOWN};
    use super::super::stacks::{BEFORE, NO_STACK, Stacks};
    use super::{begin, rounded};
    use std::rc::Rc;

    fn event(action: Action, addr: u64, size: u64) -> Event {
        Event { addr, size, time: 0, stack: NO_STACK, stream: 0, pool: UNKNOWN, action }
    }

    fn part(end: u64) -> Part {
        Part { end, stream: 0, pool: 0, expandable: true, stack: NO_STACK }
    }

    fn block(size: u64, pending: bool) -> Block {
        Block { size, pending, stack: NO_STACK }
    }

    fn history(events: Vec<Event>, end: Option<End>) -> History {
        History {
            label: String::new(),
            device: 0,
            config: String::new(),
            events,
            end,
            annotations: Vec::new(),
            names: Rc::new(Names::default()),
            stacks: Rc::new(Stacks::default()),
            has_times: false,
            answer: None,
        }
    }

    #[test]
    fn a_request_is_rounded_up_to_512_bytes() {
        assert_eq!([0, 1, 512, 513, u64::MAX].map(rounded), [512, 512, 512, 1024, u64::MAX]);
    }

    #[test]
    fn blocks_and_parts_of_the_end_lead_back_to_the_beginning() {
        // Two blocks were there: one is freed in the record, one stays. A third block is allocated,
        // and larger than its request at the end. The second half of the part is obtained, and
        // memory elsewhere is released.
        let end = End {
            parts: [(0x1000, part(0x5000))].into(),
            blocks: [(0x1000, block(0x400, false)), (0x3000, block(0x2000, false))].into_iter().collect(),
        };
        let events = vec![
            event(Action::FreeRequested, 0x1800, 700),
            event(Action::FreeCompleted, 0x1800, 700),
            event(Action::Obtain { expandable: true }, 0x3000, 0x2000),
            event(Action::Alloc, 0x3000, 5000),
            event(Action::Release { expandable: true }, 0x9000, 0x1000),
        ];
        let begin = begin(&history(events, Some(end)));
        let parts: Vec<_> = begin.parts.iter().map(|(&start, part)| (start, part.end)).collect();
        assert_eq!(parts, [(0x1000, 0x3000), (0x9000, 0xa000)]);
        assert_eq!(begin.blocks.len(), 2);
        assert_eq!(begin.blocks[&0x1000], Block { stack: BEFORE, ..block(0x400, false) });
        assert_eq!(begin.blocks[&0x1800], Block { stack: BEFORE, ..block(1024, false) });
        assert_eq!(begin.sizes[&3], 0x2000);
    }

    #[test]
    fn without_an_end_nothing_is_there_at_the_beginning() {
        let begin = begin(&history(vec![event(Action::FreeCompleted, 0x1000, 512)], None));
        assert!(begin.parts.is_empty() && begin.blocks.is_empty());
    }
}
