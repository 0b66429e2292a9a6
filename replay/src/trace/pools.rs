//! The pools of a record's events: what the file says of an event, and else the pool of the segment
//! around its address.
//!
//! PyTorch writes the pool of an event since 2.12, and the pool of a segment at the end since 2.1.
//! The segments of the end are followed back through the events, so an event has the pool of the
//! segment that was there at its time. The pool of a segment that is gone at the end is unknown,
//! unless it was a part of an expandable segment that is left.

use super::{Event, PoolNumber, Pools, RecordFacts, Segment};
use crate::memory::{self, HistoryReader, Memory, Part};
use cachalot_core::PoolId;

/// What is known of a segment, or of a part of an expandable segment.
#[derive(Clone, Copy)]
struct Placed {
    stream: u64,
    pool: Option<PoolNumber>,
}

/// Reads the pools of segments. Blocks do not matter, and pages only as those of expandable
/// segments.
struct PoolReader;

impl HistoryReader for PoolReader {
    type Part = Placed;
    type Block = ();
    type Event = RecordFacts;

    fn part(&mut self, event: &Event, memory: &Memory<Placed, ()>) -> Part<Placed> {
        let RecordFacts { stream, pool, .. } = event.of;
        let part = Part::new(event.end(), event.action.is_expandable(), Placed { stream, pool });
        let pool = pool.or_else(|| pool_beside(memory, event.addr, &part));
        Part { of: Placed { stream, pool }, ..part }
    }
}

/// Returns the pool of the segment around an address.
fn pool_at(memory: &Memory<Placed, ()>, address: u64) -> Option<PoolNumber> {
    memory.part_at(address)?.1.of.pool
}

/// Returns the pool of the expandable segment that a part belongs to. Only parts of one segment
/// touch, because each reserves more addresses than a device has memory.
fn pool_beside(memory: &Memory<Placed, ()>, address: u64, part: &Part<Placed>) -> Option<PoolNumber> {
    let before = memory.parts().range(..address).next_back().map(|(_, other)| other);
    let beside = before.filter(|other| other.end == address).into_iter().chain(memory.parts().get(&part.end));
    let is_expandable = |other: &&Part<Placed>| part.page > 0 && other.page > 0;
    beside.filter(is_expandable).filter(|other| other.of.stream == part.of.stream).find_map(|other| other.of.pool)
}

/// Fills in the unknown pools of events from the segments at the end. Returns the number of
/// releases of memory in no known pool. Does nothing for a record without private pools: all of it
/// is of the default pool, as far as anybody knows.
pub(super) fn fill(events: &mut [Event], pools: &mut Pools, segments: &[Segment]) -> u64 {
    if !pools.any_private() && !segments.iter().any(Segment::is_private) {
        return 0;
    }
    let mut memory = Memory::default();
    for segment in segments {
        let Segment { address, total_size, stream, segment_pool_id: (one, other), is_expandable, .. } = *segment;
        let (end, pool) = (address.saturating_add(total_size), pools.number(PoolId(one, other)));
        memory.insert(address, Part::new(end, is_expandable, Placed { stream, pool }));
    }
    let mut unknown = 0;
    for event in events.iter_mut().rev() {
        // A segment is there before it is released, and after it is obtained.
        if event.action.is_release() {
            memory.undo(event, &mut PoolReader);
        }
        if event.action != memory::Action::OutOfMemory {
            event.of.pool = event.of.pool.or_else(|| pool_at(&memory, event.addr));
        }
        unknown += u64::from(event.action.is_release() && event.of.pool.is_none());
        if event.action.obtains() {
            memory.undo(event, &mut PoolReader);
        }
    }
    unknown
}

#[cfg(test)]
mod tests {
    use super::{Pools, fill};
    use crate::trace::{Action, Event, Note, Place, RecordFacts, Segment};
    use cachalot_core::PoolId;

    fn event(action: Action, addr: u64, size: u64) -> Event {
        let of = RecordFacts { stream: 0, note: Note::None, pool: None, place: Place::Line(1) };
        Event { addr, size, of, action }
    }

    fn segment(address: u64, pool: u64, is_expandable: bool) -> Segment {
        let segment_pool_id = (pool, 0);
        Segment { address, total_size: 100, segment_pool_id, is_expandable, ..Segment::default() }
    }

    fn filled(mut events: Vec<Event>, segments: &[Segment]) -> (Vec<Option<u64>>, u64) {
        let mut pools = Pools::default();
        let unknown = fill(&mut events, &mut pools, segments);
        (events.iter().map(|event| pools.of(event).map(|pool| pool.0)).collect(), unknown)
    }

    #[test]
    fn an_event_has_the_pool_of_the_segment_at_its_time() {
        let events = vec![
            event(Action::SegmentAlloc, 100, 100),
            event(Action::Alloc, 100, 50),
            event(Action::FreeRequested, 100, 50),
            event(Action::FreeCompleted, 100, 50),
            event(Action::SegmentFree, 100, 100),
            // Another segment at the same addresses, which is there at the end.
            event(Action::SegmentAlloc, 100, 100),
            event(Action::Alloc, 150, 50),
            event(Action::Alloc, 300, 50),
            event(Action::OutOfMemory, 0, 50),
        ];
        let expected = [None, None, None, None, None, Some(2), Some(2), Some(0), None];
        assert_eq!(filled(events, &[segment(100, 2, false), segment(300, 0, false)]), (expected.to_vec(), 1));
    }

    #[test]
    fn a_released_part_has_the_pool_of_the_parts_that_it_touches() {
        let events = vec![
            event(Action::SegmentMap, 200, 100),
            event(Action::Alloc, 250, 50),
            event(Action::SegmentUnmap, 200, 100),
            event(Action::SegmentFree, 0, 100),
        ];
        let expected = [Some(3), Some(3), Some(3), None];
        assert_eq!(filled(events, &[segment(100, 3, true)]), (expected.to_vec(), 1));
    }

    #[test]
    fn what_the_file_says_of_an_event_comes_first() {
        let mut pools = Pools::default();
        let said = pools.number(PoolId(7, 0));
        let mut events = [
            event(Action::SegmentAlloc, 100, 100),
            event(Action::Alloc, 100, 50),
            event(Action::SegmentFree, 100, 100),
        ];
        events[2].of.pool = said;
        assert_eq!(fill(&mut events, &mut pools, &[]), 0);
        assert!(events.iter().all(|event| pools.of(event) == Some(PoolId(7, 0))));
    }

    #[test]
    fn nothing_is_filled_in_without_private_pools() {
        let events = vec![event(Action::SegmentAlloc, 100, 100), event(Action::SegmentFree, 500, 100)];
        assert_eq!(filled(events, &[segment(100, 0, false)]), (vec![None; 2], 0));
    }
}
