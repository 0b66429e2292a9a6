//! The memory that each call stack holds at a time: blocks, and memory reserved from the device.

use super::groups::{LiveBlock, live};
use super::past::{self, PastMemory};
use super::peaks::{self, PeakPlace};
use super::{At, PeakOf, Since};
use cachalot_snapshot::{Event, Snapshot, Stack};
use std::collections::{BTreeMap, HashMap};

/// The memory of a call stack on a device. Sizes are in bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Holding<'s> {
    /// The device.
    pub device: i64,
    /// The stack. `None` for memory without a recorded stack.
    pub stack: Option<&'s Stack>,
    /// Number of allocated blocks.
    pub blocks: u64,
    /// Bytes of allocated blocks.
    pub allocated: u64,
    /// Bytes freed by the program and still in use on other streams.
    pub pending: u64,
    /// Bytes of the memory that was reserved from the device for a request of the stack.
    pub reserved: u64,
}

/// The holdings under construction, by device and stack.
#[derive(Default)]
struct Table<'s>(HashMap<(i64, Option<&'s Stack>), Holding<'s>>);

/// Returns the memory of every call stack at a time. At a peak, devices without events are left
/// out.
pub fn holdings<'s>(snapshot: &'s Snapshot, since: &Since, at: At) -> Vec<Holding<'s>> {
    let mut table = Table::default();
    let trace = |device: i64| {
        let trace = usize::try_from(device).ok().and_then(|device| snapshot.device_traces.get(device));
        trace.map_or(&[][..], |trace| trace)
    };
    if at == At::End {
        table.add_blocks(&live(snapshot, since));
        let mut devices: Vec<i64> = snapshot.segments.iter().map(|segment| segment.device).collect();
        devices.sort_unstable();
        devices.dedup();
        for device in devices {
            table.add_segments(snapshot, &past::at_end(snapshot, device), device, trace(device));
        }
    } else {
        let other = if at == At::Reserved { PeakOf::InUse } else { PeakOf::Reserved };
        peaks::at_peaks(snapshot, since, |memory, place| {
            let PeakPlace { device, of, event, .. } = place;
            if of != other {
                table.add_blocks(&peaks::live(memory, snapshot, place));
                table.add_segments(snapshot, memory, device, &trace(device)[..event]);
            }
        });
    }
    table.0.into_values().collect()
}

impl<'s> Table<'s> {
    fn at(&mut self, device: i64, stack: Option<&'s Stack>) -> &mut Holding<'s> {
        let stack = stack.filter(|stack| !stack.is_empty());
        let none = Holding { device, stack, blocks: 0, allocated: 0, pending: 0, reserved: 0 };
        self.0.entry((device, stack)).or_insert(none)
    }

    fn add_blocks(&mut self, found: &[LiveBlock<'s>]) {
        for live in found {
            let holding = self.at(live.device, live.stack);
            if live.is_pending {
                holding.pending += live.size;
            } else {
                holding.blocks += 1;
                holding.allocated += live.size;
            }
        }
    }

    /// Adds the memory of a device. The latest event before the time that reserved a byte has the
    /// stack of the byte; a byte without an event has the stack of the segment at the end.
    fn add_segments(&mut self, snapshot: &'s Snapshot, memory: &PastMemory, device: i64, trace: &'s [Event]) {
        let mut left: BTreeMap<u64, u64> = memory.parts().iter().map(|(&start, part)| (start, part.end)).collect();
        for event in trace.iter().rev().filter(|event| matches!(&*event.action, "segment_alloc" | "segment_map")) {
            if left.is_empty() {
                break;
            }
            if let (Some(address), Ok(bytes)) = (event.addr, u64::try_from(event.size)) {
                let taken = take(&mut left, address, address.saturating_add(bytes));
                if taken > 0 {
                    self.at(device, event.frames.as_ref()).reserved += taken;
                }
            }
        }
        for segment in snapshot.segments.iter().filter(|segment| segment.device == device) {
            let taken = take(&mut left, segment.address, segment.address.saturating_add(segment.total_size));
            if taken > 0 {
                self.at(device, segment.frames.as_ref()).reserved += taken;
            }
        }
        let rest: u64 = left.iter().map(|(start, end)| end - start).sum();
        if rest > 0 {
            self.at(device, None).reserved += rest;
        }
    }
}

/// Removes a range from disjoint ranges, and returns the number of removed bytes.
fn take(ranges: &mut BTreeMap<u64, u64>, start: u64, end: u64) -> u64 {
    let reaches = |&(_, &other): &(&u64, &u64)| other > start;
    let touched: Vec<_> = ranges.range(..end).rev().take_while(reaches).map(|(&from, &to)| (from, to)).collect();
    let mut taken = 0;
    for (from, to) in touched {
        ranges.remove(&from);
        taken += to.min(end) - from.max(start);
        if from < start {
            ranges.insert(from, start);
        }
        if to > end {
            ranges.insert(end, to);
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::take;
    use std::collections::BTreeMap;

    #[test]
    fn a_range_is_taken_once() {
        let mut ranges = BTreeMap::from([(10, 20), (30, 50)]);
        assert_eq!(take(&mut ranges, 15, 35), 10);
        assert_eq!(ranges, BTreeMap::from([(10, 15), (35, 50)]));
        assert_eq!(take(&mut ranges, 15, 35), 0);
        assert_eq!(take(&mut ranges, 36, 37), 1);
        assert_eq!(take(&mut ranges, 0, 100), 19);
        assert!(ranges.is_empty());
    }
}
