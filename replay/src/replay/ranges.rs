//! Finds the address ranges of a record's expandable segments. Each range was mapped part by part.

use crate::program::Settings;
use crate::trace::{Action, Event, Segment, Start, Trace};

/// Upper bound of a device's memory in bytes (64 TiB), for a record without known distances.
const LARGEST_DEVICE: u64 = 1 << 46;

/// A reservation is 9/8 of a device's memory, rounded up to a granule.
const RESERVED_NINTHS: u64 = 9;
const DEVICE_EIGHTHS: u64 = 8;

/// Upper bound of a granule in bytes (1 GiB).
const ROUNDING: u64 = 1 << 30;

/// The ranges of a record, with the mapped bytes of each range at the present event.
pub(super) struct Ranges {
    /// Sorted by address.
    ranges: Vec<Range>,
    /// Upper bound of the recorded device's memory, from the distances between segments. At least
    /// the most memory that the record holds: of a small device, the distances tell little.
    pub(super) device_bytes: u64,
}

/// The addresses of an expandable segment.
#[derive(Debug, PartialEq, Eq)]
struct Range {
    start: u64,
    /// The end of the addresses ever mapped.
    end: u64,
    /// The heap: the stream, and whether the blocks are small.
    heap: (u64, bool),
    /// Bytes mapped at the present event.
    mapped: u64,
}

impl Ranges {
    /// Returns the ranges of a whole record, in the state before the first event.
    ///
    /// Memory is mapped at the start of a range, or directly after mapped memory. All parts ever
    /// mapped in a range are therefore contiguous, and there is a distance between any two ranges.
    /// In a record that starts in the middle of a program, a range may have gaps that are never
    /// mapped again. A gap is between two parts of one heap, with no other segment in between.
    pub(super) fn of(trace: &Trace, settings: &Settings) -> Self {
        let parts = trace.start.iter().flat_map(|start| &start.segments);
        let (expandable, ordinary): (Vec<&Segment>, Vec<_>) = parts.partition(|segment| segment.is_expandable);
        let map = |event: &Event| Range {
            start: event.addr,
            end: event.addr + event.size,
            heap: (event.of.stream, !event.size.is_multiple_of(settings.config.large_segment_size())),
            mapped: 0,
        };
        let maps = trace.events.iter().filter(|event| event.action == Action::SegmentMap).map(map);
        let mut pieces: Vec<Range> = expandable.into_iter().map(part).chain(maps).collect();
        pieces.sort_unstable_by_key(|piece| piece.start);
        let obtained = trace.events.iter().filter(|event| event.action == Action::SegmentAlloc).map(|event| event.addr);
        let mut others: Vec<u64> = obtained.chain(ordinary.into_iter().map(|segment| segment.address)).collect();
        others.sort_unstable();
        let mut ranges: Vec<Range> = Vec::new();
        for piece in pieces {
            let has_gaps = |last: &Range| {
                let between = others.partition_point(|&start| start < last.end);
                trace.start.is_some()
                    && last.heap == piece.heap
                    && others.get(between).is_none_or(|&start| start > piece.start)
            };
            match ranges.last_mut() {
                Some(last) if last.end >= piece.start || has_gaps(last) => {
                    last.end = last.end.max(piece.end);
                    last.mapped += piece.mapped;
                }
                _ => ranges.push(piece),
            }
        }
        others.extend(ranges.iter().map(|range| range.start));
        others.sort_unstable();
        let room = ranges.iter().filter_map(|range| {
            let next = others.partition_point(|&start| start < range.end);
            Some(others.get(next)? - range.start)
        });
        let reservation = room.min().unwrap_or(u64::MAX);
        let by_distance = (reservation.saturating_sub(ROUNDING) / RESERVED_NINTHS * DEVICE_EIGHTHS).min(LARGEST_DEVICE);
        Self { ranges, device_bytes: by_distance.max(most_held(trace)) }
    }

    /// Returns the addresses that the device hands out for the state before the first event. An
    /// ordinary segment takes its own address, and the first mapped part of a range takes the start
    /// of the range.
    pub(super) fn first_addresses(&self, start: &Start) -> Vec<u64> {
        let mut addresses = Vec::new();
        for segment in &start.segments {
            let address = if segment.is_expandable { self.around(segment.address).start } else { segment.address };
            if addresses.last() != Some(&address) {
                addresses.push(address);
            }
        }
        addresses
    }

    /// Counts the bytes of an event that maps memory. Returns whether the range was unmapped
    /// before.
    pub(super) fn map(&mut self, event: &Event) -> bool {
        let mapped = self.mapped(event.addr);
        *mapped += event.size;
        *mapped == event.size
    }

    /// Counts the bytes of an event that unmaps memory.
    pub(super) fn unmap(&mut self, event: &Event) {
        *self.mapped(event.addr) -= event.size;
    }

    fn mapped(&mut self, addr: u64) -> &mut u64 {
        let next = self.ranges.partition_point(|range| range.start <= addr);
        &mut self.ranges[next - 1].mapped
    }

    /// Returns the range around an address ever mapped.
    fn around(&self, addr: u64) -> &Range {
        &self.ranges[self.ranges.partition_point(|range| range.start <= addr) - 1]
    }
}

/// Returns the most bytes that a record holds from the device.
fn most_held(trace: &Trace) -> u64 {
    let at_first = trace.start.iter().flat_map(|start| &start.segments).map(|segment| segment.total_size).sum();
    let (_, most) = trace.events.iter().fold((at_first, at_first), |(held, most): (u64, u64), event| {
        let held = match event.action {
            Action::SegmentAlloc | Action::SegmentMap => held.saturating_add(event.size),
            Action::SegmentFree | Action::SegmentUnmap => held.saturating_sub(event.size),
            _ => held,
        };
        (held, most.max(held))
    });
    most
}

/// Returns the range of a part that is mapped before the first event.
fn part(segment: &Segment) -> Range {
    let Segment { address: start, total_size: mapped, stream, .. } = *segment;
    Range { start, end: start + mapped, heap: (stream, segment.segment_type == "small"), mapped }
}

#[cfg(test)]
mod tests {
    use super::{LARGEST_DEVICE, Range, Ranges};
    use crate::program::Settings;
    use crate::trace::{Action, Event, Note, Place, Pools, RecordFacts, Segment, Start, Trace};
    use cachalot_core::Config;
    use std::path::PathBuf;

    fn event(action: Action, addr: u64, size: u64) -> Event {
        let of = RecordFacts { stream: 0, note: Note::None, pool: None, place: Place::Line(1) };
        Event { addr, size, of, action }
    }

    fn ranges(events: &[Event], start: Option<Start>) -> Ranges {
        let trace = Trace {
            name: String::new(),
            file: PathBuf::new(),
            device: 0,
            events: events.to_vec(),
            pools: Pools::default(),
            start,
            expected: None,
            device_free: None,
            has_late_keys: None,
            is_cut: false,
            is_rebuilt: false,
            remarks: Vec::new(),
            stated_peak_bytes: None,
        };
        Ranges::of(&trace, &Settings { config: Config::default(), limit: None })
    }

    fn part(address: u64, total_size: u64, stream: u64) -> Segment {
        Segment { address, total_size, stream, is_expandable: true, ..Segment::default() }
    }

    #[test]
    fn contiguous_maps_are_one_range_in_whatever_order_they_come() {
        let (low, high) = (1 << 40, 3 << 40);
        let events = [
            event(Action::SegmentMap, high, 100),
            event(Action::SegmentMap, low, 100),
            event(Action::SegmentMap, low + 100, 50),
            event(Action::SegmentUnmap, low, 100),
            event(Action::SegmentUnmap, low + 100, 50),
            event(Action::SegmentMap, low, 30),
        ];
        let mut ranges = ranges(&events, None);
        let range = |start, end| Range { start, end, heap: (0, true), mapped: 0 };
        assert_eq!(ranges.ranges, [range(low, low + 150), range(high, high + 100)]);
        assert!(ranges.device_bytes < (2 << 40) * 8 / 9 && ranges.device_bytes > (2 << 40) * 8 / 9 - (2 << 30));
        assert!(ranges.map(&events[0]));
        assert!(ranges.map(&events[1]));
        assert!(!ranges.map(&events[2]));
        ranges.unmap(&events[3]);
        ranges.unmap(&events[4]);
        assert!(ranges.map(&events[5]));
    }

    #[test]
    fn parts_of_one_heap_are_one_range_in_spite_of_gaps() {
        let (low, high, large) = (1 << 40, 3 << 40, 20 << 20);
        let segments = vec![part(low + large, large, 0), part(low + 8 * large, large, 0), part(high, large, 7)];
        let start = Start { segments, assumed: 0 };
        // The start of the range was unmapped before, and is mapped again.
        let again = event(Action::SegmentMap, low, large);
        let mut ranges = ranges(&[again], Some(start.clone()));
        let range = |start, end, stream, mapped| Range { start, end, heap: (stream, false), mapped };
        let whole = range(low, low + 9 * large, 0, 2 * large);
        assert_eq!(ranges.ranges, [whole, range(high, high + large, 7, large)]);
        assert_eq!(ranges.first_addresses(&start), [low, high]);
        assert!(!ranges.map(&again));
    }

    #[test]
    fn a_device_has_room_for_all_that_the_record_holds() {
        // The distance of 1 GiB is that of a device of less than 1 GiB, or of a rounding.
        let (low, large) = (1 << 40, 300 << 20);
        let map = |addr| event(Action::SegmentMap, addr, large);
        let events = [map(low), map(low + (1 << 30)), event(Action::SegmentUnmap, low, large), map(low)];
        assert_eq!(ranges(&events, None).device_bytes, 2 * large);
        assert_eq!(ranges(&events[..1], None).device_bytes, LARGEST_DEVICE);
    }

    #[test]
    fn without_neighbours_the_device_is_as_large_as_any() {
        let events = [event(Action::SegmentMap, 1 << 40, 100), event(Action::SegmentAlloc, 512, 512)];
        assert_eq!(ranges(&events, None).device_bytes, LARGEST_DEVICE);
    }
}
