use super::{Action, Block, EventOf, FreeMemory, HistoryReader, Memory, Part, rounded};

/// Knows a number of each part.
struct Numbered;

impl HistoryReader for Numbered {
    type Part = u8;
    type Block = ();
    type Event = u8;

    fn part(&mut self, event: &EventOf<u8>, _: &Memory<u8, ()>) -> Part<u8> {
        Part { end: event.end(), page: if event.action.is_expandable() { 100 } else { 0 }, of: event.of }
    }

    fn block(&mut self, event: &EventOf<u8>, _: &Memory<u8, ()>) -> Block<()> {
        let pending = event.action == Action::FreeCompleted;
        Block { size: rounded(event.size), pending, of: () }
    }

    fn join(&self, new: &mut Part<u8>, beside: &Part<u8>, _: bool) -> bool {
        new.of == beside.of
    }
}

fn event(action: Action, addr: u64, size: u64, of: u8) -> EventOf<u8> {
    EventOf { addr, size, of, action }
}

fn parts(memory: &Memory<u8, ()>) -> Vec<(u64, u64, u8)> {
    memory.parts().iter().map(|(&start, part)| (start, part.end, part.of)).collect()
}

#[test]
fn a_request_is_rounded_up_to_512_bytes() {
    assert_eq!([0, 1, 512, 513, u64::MAX].map(rounded), [512, 512, 512, 1024, u64::MAX]);
}

#[test]
fn sums_and_free_memory_follow_every_change() {
    let mut memory = Memory::<u8, ()>::default();
    memory.insert(4096, Part { end: 16384, page: 0, of: 1 });
    memory.undo(&event(Action::SegmentMap, 8192, 4096, 1), &mut Numbered);
    assert_eq!((parts(&memory), memory.reserved()), (vec![(4096, 8192, 1), (12288, 16384, 1)], 8192));
    memory.set_block(4608, Some(Block { size: 512, pending: false, of: () }));
    memory.undo(&event(Action::FreeCompleted, 6144, 700, 1), &mut Numbered);
    assert_eq!((memory.allocated(), memory.pending()), (512, 1024));
    let part = *memory.part_at(5000).expect("a part").1;
    let free = |pending| memory.free(4096, &part, pending);
    assert_eq!(free(false), FreeMemory { idle: 0, holes: 2560, largest_hole: 1024, largest: 1024 });
    assert_eq!(free(true), FreeMemory { idle: 0, holes: 3584, largest_hole: 3072, largest: 3072 });
    let whole = memory.free(12288, &memory.parts()[&12288], false);
    assert_eq!(whole, FreeMemory { idle: 4096, largest: 4096, ..FreeMemory::default() });
    memory.undo(&event(Action::FreeRequested, 6144, 700, 1), &mut Numbered);
    assert_eq!((memory.allocated(), memory.pending()), (1536, 0));
    let allocated = memory.undo(&event(Action::Alloc, 6144, 700, 1), &mut Numbered);
    assert_eq!(allocated.map(|block| block.size), Some(1024));
    assert!(memory.part_at(8192).is_none() && memory.part_at(12288).is_some());
}

#[test]
fn mapped_pages_join_their_neighbours_and_no_strangers() {
    let mut memory = Memory::<u8, ()>::default();
    for (address, of) in [(0, 1), (200, 1), (100, 1), (300, 2)] {
        memory.apply(&event(Action::SegmentMap, address, 100, of), &mut Numbered);
    }
    assert_eq!((parts(&memory), memory.reserved()), (vec![(0, 300, 1), (300, 400, 2)], 400));
    // A block over two parts leaves neither idle.
    memory.apply(&event(Action::SegmentUnmap, 100, 100, 1), &mut Numbered);
    memory.apply(&event(Action::SegmentMap, 100, 100, 3), &mut Numbered);
    memory.set_block(50, Some(Block { size: 100, pending: false, of: () }));
    assert_eq!(memory.free(100, &memory.parts()[&100], false).holes, 50);
}

#[test]
fn events_undone_leave_what_was_there_before_them() {
    let events = [
        event(Action::SegmentMap, 0, 2048, 1),
        event(Action::SegmentMap, 4096, 2048, 1),
        event(Action::Alloc, 512, 600, 1),
        event(Action::SegmentMap, 2048, 2048, 1),
        event(Action::Alloc, 2048, 100, 1),
        event(Action::OutOfMemory, 0, 9000, 1),
        event(Action::FreeRequested, 512, 600, 1),
        event(Action::FreeRequested, 2048, 100, 1),
        event(Action::FreeCompleted, 512, 600, 1),
        event(Action::FreeCompleted, 2048, 100, 1),
        event(Action::SegmentUnmap, 2048, 1024, 1),
        event(Action::Mark, 0, 1 << 40, 1),
        event(Action::SegmentUnmap, 4096, 2048, 1),
    ];
    let state = |memory: &Memory<u8, ()>| {
        // Undone events join parts that their neighbours were joined of.
        let covered: Vec<u64> = (0..12).map(|page| page * 512).filter(|&at| memory.part_at(at).is_some()).collect();
        (covered, memory.blocks().clone(), memory.reserved(), memory.allocated(), memory.pending())
    };
    let mut memory = Memory::<u8, ()>::default();
    let mut states = vec![state(&memory)];
    for event in &events {
        memory.apply(event, &mut Numbered);
        states.push(state(&memory));
    }
    for (event, expected) in events.iter().zip(&states).rev() {
        memory.undo(event, &mut Numbered);
        assert_eq!(&state(&memory), expected, "before {event:?}");
    }
}
