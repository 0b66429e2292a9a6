//! Where a record's expandable segments lie: each is a range of addresses that was mapped bit by bit.

use crate::trace::{Action, Event};

/// No device has more memory than this, in bytes (64 TiB): what a device is given that nothing is known of.
const LARGEST_DEVICE: u64 = 1 << 46;

/// Reservations are this many ninths of a device's eighths (9/8), rounded up to a granule.
const RESERVED_NINTHS: u64 = 9;
const DEVICE_EIGHTHS: u64 = 8;

/// A reservation is a whole number of granules; the larger one is at most this long, in bytes (1 GiB).
const ROUNDING: u64 = 1 << 30;

/// The ranges of a record, and how much of each is mapped at some point of it.
pub(super) struct Ranges {
    /// By address: start, end of what is ever mapped, bytes mapped now.
    ranges: Vec<(u64, u64, u64)>,
    /// The memory that the recorded device can have had at most, as far as the distances of its segments tell.
    pub(super) device_bytes: u64,
}

impl Ranges {
    /// The ranges of a whole record, before its first event.
    ///
    /// Memory is always mapped from the start of a range, or right behind what is mapped. Everything that is
    /// ever mapped in one range is therefore contiguous, and ranges are apart.
    pub(super) fn of(events: &[Event]) -> Self {
        let mut maps: Vec<(u64, u64)> = events
            .iter()
            .filter(|event| event.action == Action::SegmentMap)
            .map(|event| (event.addr, event.addr + event.size))
            .collect();
        maps.sort_unstable();
        let mut ranges: Vec<(u64, u64, u64)> = Vec::new();
        for (start, end) in maps {
            match ranges.last_mut() {
                Some(last) if last.1 >= start => last.1 = last.1.max(end),
                _ => ranges.push((start, end, 0)),
            }
        }
        let mut others: Vec<u64> = events
            .iter()
            .filter(|event| event.action == Action::SegmentAlloc)
            .map(|event| event.addr)
            .chain(ranges.iter().map(|range| range.0))
            .collect();
        others.sort_unstable();
        let room = ranges.iter().filter_map(|range| {
            let next = others.partition_point(|&start| start < range.1);
            Some(others.get(next)? - range.0)
        });
        let reservation = room.min().unwrap_or(u64::MAX);
        let device_bytes =
            (reservation.saturating_sub(ROUNDING) / RESERVED_NINTHS * DEVICE_EIGHTHS).min(LARGEST_DEVICE);
        Self { ranges, device_bytes }
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
        let next = self.ranges.partition_point(|range| range.0 <= addr);
        &mut self.ranges[next - 1].2
    }
}

#[cfg(test)]
mod tests {
    use super::{LARGEST_DEVICE, Ranges};
    use crate::trace::{Action, Event, Note};

    fn event(action: Action, addr: u64, size: u64) -> Event {
        Event { action, addr, size, stream: 0, note: Note::None, line: 1 }
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
        let mut ranges = Ranges::of(&events);
        assert_eq!(ranges.ranges, [(low, low + 150, 0), (high, high + 100, 0)]);
        assert!(ranges.device_bytes < (2 << 40) * 8 / 9 && ranges.device_bytes > (2 << 40) * 8 / 9 - (2 << 30));
        assert!(ranges.map(&events[0]));
        assert!(ranges.map(&events[1]));
        assert!(!ranges.map(&events[2]));
        ranges.unmap(&events[3]);
        ranges.unmap(&events[4]);
        assert!(ranges.map(&events[5]));
    }

    #[test]
    fn without_neighbours_the_device_is_as_large_as_any() {
        let events = [event(Action::SegmentMap, 1 << 40, 100), event(Action::SegmentAlloc, 512, 512)];
        assert_eq!(Ranges::of(&events).device_bytes, LARGEST_DEVICE);
    }
}
