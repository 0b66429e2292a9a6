//! Builds a record of requests and frees that came without segments, and perhaps not whole.
//!
//! A log of calls has addresses and sizes. It may begin in the middle of the program, and miss
//! events. What is missing is said in remarks. A log does not have the memory that is held from the
//! device: the pages of 2 MiB that its addresses touch count as held, from the first touch on.

use super::{Action, BlockState, Event, Expected, ExpectedBlock, Note, Place, RecordFacts, Segment, Start};
use cachalot_core::{MAX_REQUEST, UNIT};
use std::collections::{BTreeMap, BTreeSet};

/// What a call did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Did {
    /// Allocated a block.
    Alloc,
    /// Freed the block.
    Free,
    /// Failed to allocate.
    Fail,
}

/// A call of an allocator.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    pub(super) did: Did,
    pub(super) addr: u64,
    pub(super) size: u64,
    pub(super) stream: u64,
    pub(super) place: Place,
}

/// What is known of the memory before the first call, besides the blocks that are freed later.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Before {
    /// Bytes in blocks that are allocated.
    pub(super) allocated_bytes: u64,
    /// Bytes held from the device. 0 if unknown.
    pub(super) reserved_bytes: u64,
}

/// A record made of calls.
#[derive(Debug, Default)]
pub(super) struct Rebuilt {
    pub(super) events: Vec<Event>,
    pub(super) start: Option<Start>,
    /// The memory after the last call, without a state of an allocator to compare with.
    pub(super) end: Expected,
    pub(super) remarks: Vec<String>,
}

/// Unit of the memory that a driver hands out.
const PAGE: u64 = 2 << 20;

/// The events of a free. A log has one.
const FREE: [Action; 2] = [Action::FreeRequested, Action::FreeCompleted];

/// Builds a record of calls, in their order.
pub(super) fn rebuilt(calls: &[Call], before: Before) -> Rebuilt {
    let usable: Vec<Call> = calls.iter().filter(|call| is_usable(call)).copied().collect();
    let found = from_before(&usable);
    let mut walk =
        Walk { odd: Odd { unusable: (calls.len() - usable.len()) as u64, ..Odd::default() }, ..Walk::default() };
    walk.live.clone_from(&found);
    let hidden = before.allocated_bytes.saturating_sub(found.values().fold(0, |sum, size| sum.saturating_add(*size)));
    let mut all = Touched::default();
    found.iter().for_each(|(&addr, &size)| _ = all.insert(page_range(addr, size)));
    let allocs = usable.iter().filter(|call| call.did == Did::Alloc);
    allocs.for_each(|call| _ = all.insert(page_range(call.addr, call.size)));
    // The memory that is touched later was held before, if there was enough of it.
    let idle = before.reserved_bytes.checked_sub(all.bytes().saturating_add(rounded(hidden, PAGE)));
    let was_held = |start: u64, end: u64| idle.is_some() || found.range(start..end).next().is_some();
    walk.held =
        Touched(all.0.iter().map(|(&start, &end)| (start, end)).filter(|&(start, end)| was_held(start, end)).collect());
    let segments_of = |held: &Touched, live: &BTreeMap<u64, u64>| -> Vec<Segment> {
        held.0.iter().map(|(&start, &end)| segment(start, end, live, !was_held(start, end))).collect()
    };
    let mut segments = segments_of(&walk.held, &found);
    let (unseen, assumed) = hidden_segments(&all, hidden, idle.unwrap_or(0));
    segments.extend(unseen.iter().cloned());
    usable.iter().for_each(|call| walk.apply(call));
    let start = Start { segments, assumed };
    let start = (!start.is_empty()).then_some(start);
    let mut segments = segments_of(&walk.held, &walk.live);
    segments.extend(unseen);
    let end = Expected { config_is_unknown: true, end_is_unknown: true, segments, ..Expected::default() };
    Rebuilt { events: walk.events, start, end, remarks: walk.odd.remarks() }
}

/// Returns whether a call has a size and an address that memory can have.
fn is_usable(call: &Call) -> bool {
    let fits = || call.addr >= PAGE && call.addr <= u64::MAX - call.size - PAGE;
    call.size > 0 && call.size < MAX_REQUEST && (call.did == Did::Fail || fits())
}

fn rounded(bytes: u64, unit: u64) -> u64 {
    bytes.saturating_add(unit - 1) / unit * unit
}

/// Returns the pages around a block.
fn page_range(addr: u64, size: u64) -> (u64, u64) {
    (addr / PAGE * PAGE, rounded(addr + size, PAGE))
}

/// Returns the blocks, with their sizes, that are freed and were not allocated by any call.
fn from_before(calls: &[Call]) -> BTreeMap<u64, u64> {
    let (mut found, mut live, mut seen) = (BTreeMap::new(), BTreeSet::new(), Touched::default());
    for &Call { did, addr, size, .. } in calls {
        match did {
            Did::Fail => {}
            Did::Alloc => {
                seen.insert((addr, addr + size));
                live.insert(addr);
            }
            Did::Free if live.remove(&addr) => {}
            // Memory that the calls allocated before is no block from before.
            Did::Free if seen.overlaps((addr, addr + size)) => {}
            Did::Free => {
                seen.insert((addr, addr + size));
                found.insert(addr, size);
            }
        }
    }
    found
}

/// Returns the segment of a range, with the blocks that are in it.
fn segment(start: u64, end: u64, live: &BTreeMap<u64, u64>, is_expandable: bool) -> Segment {
    let mut blocks = Vec::new();
    let mut at = start;
    for (&addr, &size) in live.range(start..end) {
        push(&mut blocks, at, addr - at, BlockState::Inactive);
        push(&mut blocks, addr, size, BlockState::ActiveAllocated);
        at = addr + size;
    }
    push(&mut blocks, at, end - at, BlockState::Inactive);
    let bytes = |of: fn(&ExpectedBlock) -> u64| blocks.iter().map(of).sum();
    Segment {
        address: start,
        total_size: end - start,
        allocated_size: bytes(|block| block.requested_size),
        active_size: bytes(|block| block.requested_size),
        requested_size: bytes(|block| block.requested_size),
        segment_type: "large".to_owned(),
        is_expandable,
        blocks,
        ..Segment::default()
    }
}

fn push(blocks: &mut Vec<ExpectedBlock>, address: u64, size: u64, state: BlockState) {
    let requested_size = if state == BlockState::Inactive { 0 } else { size };
    if size > 0 {
        blocks.push(ExpectedBlock { address, size, requested_size, state });
    }
}

/// Returns memory at addresses that no call uses: a block for all blocks that no call shows, and
/// idle memory. Also returns the number of blocks.
fn hidden_segments(used: &Touched, hidden: u64, idle: u64) -> (Vec<Segment>, u64) {
    let (mut segments, mut assumed) = (Vec::new(), 0);
    let mut at = used.0.last_key_value().map_or(PAGE, |(_, &end)| end.saturating_add(PAGE));
    let hidden = rounded(hidden, UNIT);
    for (held, bytes) in [(hidden, rounded(hidden, PAGE)), (0, idle / PAGE * PAGE)] {
        let end = at.checked_add(bytes).filter(|end| *end < u64::MAX - PAGE);
        let Some(end) = end.filter(|_| bytes > 0 && bytes < MAX_REQUEST) else { continue };
        let block = BTreeMap::from_iter((held > 0).then_some((at, held)));
        segments.push(segment(at, end, &block, false));
        assumed += block.len() as u64;
        at = end + PAGE;
    }
    (segments, assumed)
}

/// Disjoint ranges, each joined with the ranges next to it: start → end.
#[derive(Default)]
struct Touched(BTreeMap<u64, u64>);

impl Touched {
    fn bytes(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).fold(0, u64::saturating_add)
    }

    fn overlaps(&self, (start, end): (u64, u64)) -> bool {
        self.0.range(..end).next_back().is_some_and(|(_, &stop)| stop > start)
    }

    /// Adds a range. Returns the parts of it that were not there.
    fn insert(&mut self, (start, end): (u64, u64)) -> Vec<(u64, u64)> {
        let mut new = Vec::new();
        let (mut at, mut joined) = (start, (start, end));
        if let Some((&before, &stop)) = self.0.range(..start).next_back().filter(|(_, stop)| **stop >= start) {
            at = stop.max(start);
            joined = (before, end.max(stop));
        }
        while let Some((&next, &stop)) = self.0.range(start..=end).next() {
            if next > at {
                new.push((at, next));
            }
            at = at.max(stop);
            joined.1 = joined.1.max(stop);
            self.0.remove(&next);
        }
        if at < end {
            new.push((at, end));
        }
        self.0.insert(joined.0, joined.1);
        new
    }
}

/// Calls that do not fit the ones before.
#[derive(Default)]
struct Odd {
    /// Frees of blocks that are not allocated.
    frees: u64,
    /// Blocks that were allocated again without a free.
    unfreed: u64,
    /// Calls with sizes or addresses that no memory has.
    unusable: u64,
}

impl Odd {
    fn remarks(&self) -> Vec<String> {
        let all = [
            (self.frees, "frees are of blocks that are not allocated, and were left out"),
            (self.unfreed, "blocks were allocated again without a free, and count as freed then"),
            (self.unusable, "events have sizes or addresses that no memory has, and were left out"),
        ];
        all.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect()
    }
}

/// The memory while the calls are walked through.
#[derive(Default)]
struct Walk {
    /// The blocks, with their sizes.
    live: BTreeMap<u64, u64>,
    held: Touched,
    events: Vec<Event>,
    odd: Odd,
}

impl Walk {
    fn apply(&mut self, call: &Call) {
        let &Call { did, addr, size, stream, place } = call;
        let of = RecordFacts { stream, note: Note::None, pool: None, place };
        let event = |action, addr, size| Event { addr, size, of, action };
        match did {
            Did::Fail => self.events.push(event(Action::OutOfMemory, 0, size)),
            Did::Alloc => {
                let last =
                    |live: &BTreeMap<u64, u64>| live.range(..addr + size).next_back().map(|(at, bytes)| (*at, *bytes));
                while let Some((other, bytes)) = last(&self.live).filter(|(at, bytes)| at + bytes > addr) {
                    self.live.remove(&other);
                    self.odd.unfreed += 1;
                    self.events.extend(FREE.map(|action| event(action, other, bytes)));
                }
                let new = self.held.insert(page_range(addr, size));
                let of = RecordFacts { stream: 0, ..of };
                let map = |(start, end)| Event { of, ..event(Action::SegmentMap, start, end - start) };
                self.events.extend(new.into_iter().map(map));
                self.live.insert(addr, size);
                self.events.push(event(Action::Alloc, addr, size));
            }
            Did::Free => match self.live.remove(&addr) {
                None => self.odd.frees += 1,
                Some(size) => self.events.extend(FREE.map(|action| event(action, addr, size))),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Before, Call, Did, PAGE, Rebuilt, Touched, rebuilt};
    use crate::trace::{Action, Place};

    fn calls(of: &[(Did, u64, u64)]) -> Vec<Call> {
        let call = |(line, &(did, addr, size))| Call { did, addr, size, stream: 0, place: Place::Line(line) };
        (2..).zip(of).map(call).collect()
    }

    fn actions(rebuilt: &Rebuilt) -> Vec<(char, u64, u64)> {
        rebuilt.events.iter().map(|event| (event.action.letter(), event.addr, event.size)).collect()
    }

    const A: u64 = 16 * PAGE;

    #[test]
    fn ranges_are_joined_and_say_what_is_new() {
        let mut ranges = Touched::default();
        assert_eq!(ranges.insert((10, 20)), [(10, 20)]);
        assert_eq!(ranges.insert((30, 40)), [(30, 40)]);
        assert_eq!(ranges.insert((12, 18)), []);
        assert_eq!(ranges.insert((5, 35)), [(5, 10), (20, 30)]);
        assert_eq!(ranges.insert((40, 41)), [(40, 41)]);
        assert_eq!(ranges.0.into_iter().collect::<Vec<_>>(), [(5, 41)]);
    }

    #[test]
    fn pages_are_held_from_the_first_touch_on() {
        let made = rebuilt(
            &calls(&[(Did::Alloc, A, 512), (Did::Alloc, A + 512, PAGE), (Did::Free, A, 512), (Did::Fail, 0, 7)]),
            Before::default(),
        );
        let expected = [
            ('M', A, PAGE),
            ('a', A, 512),
            ('M', A + PAGE, PAGE),
            ('a', A + 512, PAGE),
            ('f', A, 512),
            ('c', A, 512),
            ('O', 0, 7),
        ];
        assert_eq!(actions(&made), expected);
        assert!(made.start.is_none() && made.remarks.is_empty());
    }

    #[test]
    fn what_was_there_before_is_in_the_start() {
        let before = Before { allocated_bytes: 3 * PAGE, reserved_bytes: 20 * PAGE };
        let made = rebuilt(&calls(&[(Did::Free, A, PAGE), (Did::Alloc, A, 512)]), before);
        assert_eq!(actions(&made), [('f', A, PAGE), ('c', A, PAGE), ('a', A, 512)]);
        let start = made.start.expect("a block from before");
        assert_eq!((start.live_bytes(), start.assumed), (3 * PAGE, 1));
        assert_eq!(start.segments.iter().map(|segment| segment.total_size).sum::<u64>(), 20 * PAGE);
    }

    #[test]
    fn calls_that_do_not_fit_are_counted() {
        let odd = [
            (Did::Alloc, A, 512),
            (Did::Free, A + 8, 8),
            (Did::Alloc, A, 1024),
            (Did::Alloc, 1, 1),
            (Did::Alloc, u64::MAX, 9),
        ];
        let made = rebuilt(&calls(&odd), Before::default());
        assert_eq!(made.events.iter().filter(|event| event.action == Action::Alloc).count(), 2);
        assert_eq!(made.remarks.iter().map(|remark| &remark[..2]).collect::<Vec<_>>(), ["1 ", "1 ", "2 "]);
    }
}
