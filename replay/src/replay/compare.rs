//! Compares the record's events with the allocator's own trace, call by call.

use crate::trace::{Action, Event};
use cachalot_core::{Action as Did, TraceEntry};
use std::ops::Range;

/// Agreement of two sequences of events.
#[derive(Debug, Default)]
pub(super) struct Agreement {
    /// Number of compared events of the record.
    pub(super) checked: u64,
    /// Number of differing events. An event on only one side counts as a difference.
    pub(super) mismatches: u64,
    /// The first call whose events differ.
    pub(super) first: Option<First>,
}

/// The first difference.
#[derive(Debug)]
pub(super) struct First {
    /// The record's events up to the call, from the end of the previous call.
    pub(super) recorded: Range<usize>,
    /// The events of the replay.
    pub(super) done: Vec<TraceEntry>,
}

/// Compares a whole record with the trace of a replay.
pub(super) fn compare(recorded: &[Event], done: &[TraceEntry]) -> Agreement {
    let mut comparison = Agreement::default();
    let (mut at, mut done) = (0, done);
    while at < recorded.len() || !done.is_empty() {
        let length = through_call(&recorded[at..], |event| event.action.is_call());
        let call = &recorded[at..at + length];
        let (mine, mut rest) = done.split_at(through_call(done, |entry| is_call(entry.action)));
        if was_given_back(call, mine) {
            rest = &rest[through_call(rest, |entry| is_call(entry.action))..];
        }
        comparison.checked += length as u64;
        let differences = differences(call, mine);
        if differences > 0 && comparison.first.is_none() {
            comparison.first = Some(First { recorded: at..at + length, done: mine.to_vec() });
        }
        comparison.mismatches += differences;
        (at, done) = (at + length, rest);
    }
    comparison
}

/// Returns the number of elements up to and with the first call.
fn through_call<T>(events: &[T], is_call: impl FnMut(&T) -> bool) -> usize {
    events.iter().position(is_call).map_or(events.len(), |at| at + 1)
}

/// Returns whether a request failed in the record and succeeded in the replay. The replay frees the
/// block at once, a call without a recorded event.
fn was_given_back(recorded: &[Event], done: &[TraceEntry]) -> bool {
    recorded.last().is_some_and(|event| event.action == Action::OutOfMemory)
        && done.last().is_some_and(|entry| entry.action == Did::Alloc)
}

fn differences(recorded: &[Event], done: &[TraceEntry]) -> u64 {
    let (mut recorded, mut done): (Vec<Fact>, Vec<Fact>) =
        (recorded.iter().map(Fact::recorded).collect(), done.iter().map(Fact::done).collect());
    sort_completions(&mut recorded);
    sort_completions(&mut done);
    let different = recorded.iter().zip(&done).filter(|(recorded, done)| recorded != done).count();
    (different + recorded.len().abs_diff(done.len())) as u64
}

/// Sorts completions in a row. A single event check finds all of them, and the order has no effect
/// on the program.
fn sort_completions(facts: &mut [Fact]) {
    for run in facts.chunk_by_mut(|one, next| one.action == 'c' && next.action == 'c') {
        run.sort_unstable();
    }
}

/// The compared fields of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Fact {
    action: char,
    addr: u64,
    size: u64,
    stream: u64,
}

impl Fact {
    fn recorded(event: &Event) -> Self {
        Self { action: event.action.letter(), addr: event.addr, size: event.size, stream: event.of.stream }
    }

    fn done(entry: &TraceEntry) -> Self {
        let action = Action::from(entry.action);
        Self {
            action: action.letter(),
            // In its place the trace has the device's free memory, which a record does not know.
            addr: if action == Action::OutOfMemory { 0 } else { entry.addr.0 },
            size: entry.size,
            stream: entry.stream.0,
        }
    }
}

fn is_call(did: Did) -> bool {
    Action::from(did).is_call()
}

#[cfg(test)]
mod tests {
    use super::{Did, compare};
    use crate::trace::{Action, Event, Note, Place, RecordFacts};
    use cachalot_core::{DevicePtr, StreamId, TraceEntry};

    fn recorded(rows: &[(&str, u64)]) -> Vec<Event> {
        let event = |(&(letter, addr), line): (&(&str, u64), u32)| Event {
            action: Action::from_letter(letter).expect("a letter of the format"),
            addr,
            size: 512,
            of: RecordFacts { stream: 7, note: Note::None, pool: None, place: Place::Line(line) },
        };
        rows.iter().zip(2..).map(event).collect()
    }

    fn done(rows: &[(Did, u64)]) -> Vec<TraceEntry> {
        let entry = |&(action, addr): &(Did, u64)| TraceEntry {
            action,
            site: 0,
            addr: DevicePtr(addr),
            size: 512,
            stream: StreamId(7),
            time_us: 0,
        };
        rows.iter().map(entry).collect()
    }

    #[test]
    fn equal_sequences_agree_whatever_the_order_of_completions() {
        let record = recorded(&[("A", 1), ("a", 1), ("f", 1), ("f", 2), ("c", 2), ("c", 1), ("a", 1), ("F", 1)]);
        let same = done(&[
            (Did::SegmentAlloc, 1),
            (Did::Alloc, 1),
            (Did::FreeRequested, 1),
            (Did::FreeRequested, 2),
            (Did::FreeCompleted, 1),
            (Did::FreeCompleted, 2),
            (Did::Alloc, 1),
            (Did::SegmentFree, 1),
        ]);
        let comparison = compare(&record, &same);
        assert_eq!((comparison.checked, comparison.mismatches), (8, 0));
        assert!(comparison.first.is_none());
    }

    #[test]
    fn a_difference_stays_within_its_call() {
        let record = recorded(&[("A", 1), ("a", 1), ("a", 2), ("F", 9), ("a", 3), ("f", 1)]);
        let other = done(&[
            (Did::SegmentAlloc, 1),
            (Did::Alloc, 1),
            (Did::SegmentAlloc, 5),
            (Did::Alloc, 5),
            (Did::Alloc, 3),
            (Did::FreeRequested, 1),
            (Did::SegmentFree, 1),
        ]);
        let comparison = compare(&record, &other);
        // Line 4 obtained a segment and another address; line 5 was not done; something was
        // released at the end.
        assert_eq!(comparison.mismatches, 2 + 2 + 1);
        let first = comparison.first.expect("a difference");
        assert_eq!((first.recorded, first.done.len()), (2..3, 2));
    }

    #[test]
    fn a_request_that_no_longer_fails_is_one_difference() {
        let record = recorded(&[("O", 0), ("a", 1)]);
        let other = done(&[(Did::Alloc, 1), (Did::FreeRequested, 1), (Did::FreeCompleted, 1), (Did::Alloc, 1)]);
        // The completion of what was given back stands before the next call.
        assert_eq!(compare(&record, &other).mismatches, 1 + 2);
        let same = done(&[(Did::OutOfMemory, 77), (Did::Alloc, 1)]);
        assert_eq!(compare(&recorded(&[("O", 0), ("a", 1)]), &same).mismatches, 0);
    }
}
