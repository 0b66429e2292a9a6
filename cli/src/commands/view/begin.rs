//! The memory of a device before the first event, found by undoing the events, the last event
//! first.

use super::history::{Event, History, HistoryMemory, Kind, Origin, Pages, Seen, UNKNOWN};
use super::stacks::{BEFORE, NO_STACK};
use cachalot_replay::memory::{Action, Block, Frees, HistoryReader, Part, rounded};
use rustc_hash::FxHashMap;

/// The memory before the first event.
#[derive(Default, Debug)]
pub(super) struct Begin {
    pub(super) memory: HistoryMemory,
    /// The sizes of allocated blocks by the number of the event, where the size differs from the
    /// rounded request.
    pub(super) sizes: FxHashMap<u32, u64>,
    /// The stacks in the blocks of the end, by the number of the event. Only for events without a
    /// stack.
    pub(super) stacks: FxHashMap<u32, u32>,
    /// The pools of memory that was obtained, by the number of the event: those of the segments at
    /// the end. Only for events without a pool.
    pub(super) pools: FxHashMap<u32, u16>,
}

/// Finds the memory before the first event from the memory at the end.
pub(super) fn begin(history: &History) -> Begin {
    let Some(memory) = history.end.clone() else { return Begin::default() };
    let pages = Pages::of(&history.config);
    let mut begin = Begin { memory, ..Begin::default() };
    let frees = Frees::of(history.events.iter().map(|event| event.action));
    for (number, event) in history.events.iter().enumerate().rev() {
        begin.undo(number as u32, event, &mut BeginReader { pages, waits: frees.waits(number) });
    }
    let before = history.part.iter().flat_map(|part| &part.before);
    for (&address, &stack) in before {
        let block = begin.memory.blocks().get(&address).copied().filter(|block| block.of == NO_STACK);
        if let Some(block) = block {
            begin.memory.set_block(address, Some(Block { of: stack, ..block }));
        }
    }
    for stack in begin.memory.blocks_mut().filter(|stack| **stack == NO_STACK) {
        *stack = BEFORE;
    }
    begin
}

impl Begin {
    fn undo(&mut self, number: u32, event: &Event, reader: &mut BeginReader) {
        if event.action.obtains() && event.of.pool == UNKNOWN {
            let pool = self.memory.part_at(event.addr).map_or(UNKNOWN, |(_, part)| part.of.pool);
            if pool != UNKNOWN {
                self.pools.insert(number, pool);
            }
        }
        let block = self.memory.undo(event, reader);
        if let Some(block) = block.filter(|_| event.action == Action::Alloc) {
            if block.size != rounded(event.size) {
                self.sizes.insert(number, block.size);
            }
            if event.of.stack == NO_STACK && block.of != NO_STACK {
                self.stacks.insert(number, block.of);
            }
        }
    }
}

/// Reads an event backwards. Parts stay apart as long as the memory goes back.
struct BeginReader {
    pages: Pages,
    /// Whether the block of a completed free was pending.
    waits: bool,
}

impl HistoryReader for BeginReader {
    type Part = Origin;
    type Block = u32;
    type Event = Seen;

    fn part(&mut self, event: &Event, memory: &HistoryMemory) -> Part<Origin> {
        let (Seen { stream, pool, .. }, expandable) = (event.of, event.action.is_expandable());
        // The pool of a released part is that of the neighbour, if any remains.
        let before = memory.parts().range(..event.addr).next_back().map(|(_, part)| *part);
        let alike = before.filter(|part| expandable && part.end == event.addr && part.of.stream == stream);
        let pool = if pool == UNKNOWN { alike.map_or(UNKNOWN, |part| part.of.pool) } else { pool };
        let kind = alike.map_or_else(|| Kind::of(event.size, expandable, self.pages), |part| part.of.kind);
        let page = alike.map_or_else(|| self.pages.page(event.size, expandable, kind), |part| part.page);
        Part { end: event.end(), page, of: Origin { stream, pool, expandable, kind, stack: BEFORE } }
    }

    fn block(&mut self, event: &Event, _: &HistoryMemory) -> Block<u32> {
        Block { size: rounded(event.size), pending: self.waits, of: NO_STACK }
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::{Event, History, HistoryMemory, Kind, Names, Origin, Seen, UNKNOWN};
    use super::super::stacks::{BEFORE, NO_STACK, Stacks};
    use super::begin;
    use cachalot_replay::memory::{Action, Block, Part};
    use std::rc::Rc;

    fn event(action: Action, addr: u64, size: u64) -> Event {
        Event { addr, size, of: Seen { time: 0, stack: NO_STACK, stream: 0, pool: UNKNOWN }, action }
    }

    fn block(size: u64, stack: u32) -> Block<u32> {
        Block { size, pending: false, of: stack }
    }

    fn history(events: Vec<Event>, end: Option<HistoryMemory>) -> History {
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
            contradiction: None,
            remarks: Vec::new(),
            tells_config: true,
            is_cut: false,
            part: None,
        }
    }

    #[test]
    fn blocks_and_parts_of_the_end_lead_back_to_the_beginning() {
        // Two blocks were there: one is freed in the record, one stays. A third block is allocated,
        // and larger than its request at the end. The second half of the part is obtained, and
        // memory elsewhere is released.
        let mut end = HistoryMemory::default();
        let of = Origin { stream: 0, pool: 0, expandable: true, kind: Kind::Large, stack: NO_STACK };
        end.insert(0x1000, Part { end: 0x5000, page: 0x1000, of });
        end.set_block(0x1000, Some(block(0x400, NO_STACK)));
        end.set_block(0x3000, Some(block(0x2000, NO_STACK)));
        let events = vec![
            event(Action::FreeRequested, 0x1800, 700),
            event(Action::FreeCompleted, 0x1800, 700),
            event(Action::SegmentMap, 0x3000, 0x2000),
            event(Action::Alloc, 0x3000, 5000),
            event(Action::SegmentUnmap, 0x9000, 0x1000),
        ];
        let begin = begin(&history(events, Some(end)));
        let parts: Vec<_> = begin.memory.parts().iter().map(|(&start, part)| (start, part.end)).collect();
        assert_eq!(parts, [(0x1000, 0x3000), (0x9000, 0xa000)]);
        assert_eq!(begin.memory.blocks().len(), 2);
        assert_eq!(begin.memory.blocks()[&0x1000], block(0x400, BEFORE));
        assert_eq!(begin.memory.blocks()[&0x1800], block(1024, BEFORE));
        assert_eq!(begin.sizes[&3], 0x2000);
        assert_eq!(begin.pools[&2], 0);
    }

    #[test]
    fn without_an_end_nothing_is_there_at_the_beginning() {
        let begin = begin(&history(vec![event(Action::FreeCompleted, 0x1000, 512)], None));
        assert!(begin.memory.parts().is_empty() && begin.memory.blocks().is_empty());
    }
}
