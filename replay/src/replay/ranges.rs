//! Where a record's expandable segments lie: each is a range of addresses that was mapped bit by bit.

use crate::program::Settings;
use crate::trace::{Action, Event, Segment, Start, Trace};

/// No device has more memory than this, in bytes (64 TiB): what a device is given that nothing is known of.
const LARGEST_DEVICE: u64 = 1 << 46;

/// Reservations are this many ninths of a device's eighths (9/8), rounded up to a granule.
const RESERVED_NINTHS: u64 = 9;
const DEVICE_EIGHTHS: u64 = 8;

/// A reservation is a whole number of granules; the larger one is at most this long, in bytes (1 GiB).
const ROUNDING: u64 = 1 << 30;

/// The ranges of a record, and how much of each is mapped at some point of it.
pub(super) struct Ranges {
    /// By address.
    ranges: Vec<Range>,
    /// The memory that the recorded device can have had at most, as far as the distances of its segments tell.
    pub(super) device_bytes: u64,
}

/// The addresses of one expandable segment.
#[derive(Debug, PartialEq, Eq)]
struct Range {
    start: u64,
    /// The end of what is ever mapped.
    end: u64,
    /// Whose it is: the stream, and whether its blocks are small.
    heap: (u64, bool),
    /// Bytes that are mapped now.
    mapped: u64,
}

impl Ranges {
    /// The ranges of a whole record, before its first event.
    ///
    /// Memory is always mapped from the start of a range, or right behind what is mapped. Everything that is ever mapped in one
    /// range is therefore contiguous, and ranges are apart. Of a record that begins in the middle, a range may have gaps that are
    /// never mapped again; they lie between parts of one heap, with nothing of another between them.
    pub(super) fn of(trace: &Trace, settings: &Settings) -> Self {
        let parts = trace.start.iter().flat_map(|start| &start.segments);
        let (expandable, ordinary): (Vec<&Segment>, Vec<_>) = parts.partition(|segment| segment.is_expandable);
        let map = |event: &Event| Range {
            start: event.addr,
            end: event.addr + event.size,
            heap: (event.stream, !event.size.is_multiple_of(settings.config.large_segment_size())),
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
        let device_bytes =
            (reservation.saturating_sub(ROUNDING) / RESERVED_NINTHS * DEVICE_EIGHTHS).min(LARGEST_DEVICE);
        Self { ranges, device_bytes }
    }

    /// The addresses that the device hands out for the state before the first event: one for each ordinary segment, and the
    /// start of a range at its first mapped part.
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

    /// Follows an event that maps. True if it begins a range of which nothing is mapped.
    pub(super) fn map(&mut self, event: &Event) -> bool {
        let mapped = self.mapped(event.addr);
        *mapped += event.size;
        *mapped == event.size
    }

    /// Follows an event that unmaps.
    pub(super) fn unmap(&mut self, event: &Event) {
        *self.mapped(event.addr) -= event.size;
    }

    fn mapped(&mut self, addr: u64) -> &mut u64 {
        let next = self.ranges.partition_point(|range| range.start <= addr);
        &mut self.ranges[next - 1].mapped
    }

    /// The range around an address that is mapped at some point.
    fn around(&self, addr: u64) -> &Range {
        &self.ranges[self.ranges.partition_point(|range| range.start <= addr) - 1]
    }
}

/// A part that is mapped before the first event.
fn part(segment: &Segment) -> Range {
    let Segment { address: start, total_size: mapped, stream, .. } = *segment;
    Range { start, end: start + mapped, heap: (stream, segment.segment_type == "small"), mapped }
}

#[cfg(test)]
mod tests {
    use super::{LARGEST_DEVICE, Range, Ranges};
    use crate::program::Settings;
    use crate::trace::{Action, Event, Note, Place, Segment, Start, Trace};
    use cachalot_core::Config;
    use std::path::PathBuf;

    fn event(action: Action, addr: u64, size: u64) -> Event {
        Event { action, addr, size, stream: 0, note: Note::None, place: Place::Line(1) }
    }

    fn ranges(events: &[Event], start: Option<Start>) -> Ranges {
        let trace = Trace {
            name: String::new(),
            file: PathBuf::new(),
            device: 0,
            events: events.to_vec(),
            start,
            expected: None,
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
    fn without_neighbours_the_device_is_as_large_as_any() {
        let events = [event(Action::SegmentMap, 1 << 40, 100), event(Action::SegmentAlloc, 512, 512)];
        assert_eq!(ranges(&events, None).device_bytes, LARGEST_DEVICE);
    }
}
