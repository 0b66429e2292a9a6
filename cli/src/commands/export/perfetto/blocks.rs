//! The blocks of a trace: those with the most bytes times nanoseconds.

use super::lanes::Interval;
use super::tracks::{Slice, Tracks, pointer, text, uint};
use super::{EventTimes, frames, name_of};
use crate::commands::export::own_frame;
use cachalot_replay::inspect::Life;
use cachalot_snapshot::Snapshot;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;

/// A block by weight. The heap has the lightest block on top.
struct Weighed<'s> {
    /// The weight, and the start and the address, which make the order total.
    key: Reverse<(u128, i64, u64)>,
    interval: Interval,
    life: Life<'s>,
}

impl PartialEq for Weighed<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Weighed<'_> {}

impl PartialOrd for Weighed<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Weighed<'_> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

/// The heaviest blocks of a device.
pub(super) struct Largest<'s> {
    /// The time of each event, in nanoseconds.
    times: Vec<i64>,
    heap: BinaryHeap<Weighed<'s>>,
    most: usize,
}

impl<'s> Largest<'s> {
    /// Creates a list of up to `most` blocks.
    pub(super) fn new(snapshot: &'s Snapshot, device: i64, most: usize) -> Self {
        let trace = usize::try_from(device).ok().and_then(|device| snapshot.device_traces.get(device));
        let mut clock = EventTimes::new();
        let times = trace.map_or(Vec::new(), |trace| trace.iter().map(|event| clock.next(event)).collect());
        Self { times, heap: BinaryHeap::new(), most }
    }

    /// Adds a block, if it is among the heaviest. A block without a start or an end reaches to the
    /// first or the last event.
    pub(super) fn add(&mut self, life: Life<'s>) {
        let (Some(&first), Some(&last)) = (self.times.first(), self.times.last()) else { return };
        let time = |event: Option<usize>, none: i64| event.map_or(none, |event| self.times[event]);
        let interval = Interval { start: time(life.start, first), end: time(life.end, last) };
        let weight = u128::from(life.bytes) * u128::from(interval.end.abs_diff(interval.start));
        self.heap.push(Weighed { key: Reverse((weight, interval.start, life.address)), interval, life });
        if self.heap.len() > self.most {
            self.heap.pop();
        }
    }

    /// Writes the blocks as slices.
    pub(super) fn write(self, tracks: &mut Tracks<'_>, parent: u64) -> io::Result<()> {
        let times = self.times;
        let slices = self.heap.into_iter().map(|Weighed { interval, life, .. }| {
            let mut notes = vec![uint("bytes", life.bytes), pointer("address", life.address)];
            notes.push(text("place", name_of(life.place)));
            if let Some(freed) = life.freed.filter(|_| life.freed != life.end) {
                notes.push(uint("pending_from_ns", times[freed].abs_diff(interval.start)));
            }
            notes.extend(life.stack.map(frames));
            Slice { name: own_frame(life.stack).unwrap_or_else(|| "no stack".to_owned()), interval, notes }
        });
        let slices = slices.collect();
        tracks.slices(parent, ("blocks", 300), slices, false)
    }
}
