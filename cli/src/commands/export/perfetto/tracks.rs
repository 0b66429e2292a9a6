//! Writes the packets of a trace: tracks, values, slices, instants.

use super::lanes::{Interval, lanes};
use super::schema::{
    CLOCK_REALTIME, COUNTER, Clock, ClockSnapshot, CounterDescriptor, Data, DebugAnnotation, INSTANT, ORDER_EXPLICIT,
    SLICE_BEGIN, SLICE_END, STATE_CLEARED, Trace, TracePacket, TrackDescriptor, TrackEvent, UNIT_BYTES, Value,
};
use prost::Message;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::io::{self, Write};

/// Most frames of a stack in a note.
pub(super) const MOST_FRAMES: usize = 64;

/// A slice with its notes.
pub(super) struct Slice {
    pub(super) name: String,
    pub(super) interval: Interval,
    pub(super) notes: Vec<DebugAnnotation>,
}

/// A trace during the write.
pub(super) struct Tracks<'w> {
    to: &'w mut dyn Write,
    /// The number of the next track. Numbers are unique among the traces of other files, so that
    /// traces can be merged.
    next: u64,
    /// The number of the writer, which is unique like the numbers of tracks.
    sequence: u32,
    base_ns: i64,
    buffer: Vec<u8>,
}

/// Returns a note with a number.
pub(super) fn uint(name: &str, value: u64) -> DebugAnnotation {
    DebugAnnotation { name: Some(name.to_owned()), value: Some(Value::Uint(value)) }
}

/// Returns a note with an address.
pub(super) fn pointer(name: &str, value: u64) -> DebugAnnotation {
    DebugAnnotation { name: Some(name.to_owned()), value: Some(Value::Pointer(value)) }
}

/// Returns a note with a text.
pub(super) fn text(name: &str, value: String) -> DebugAnnotation {
    DebugAnnotation { name: Some(name.to_owned()), value: Some(Value::Text(value)) }
}

impl<'w> Tracks<'w> {
    /// Starts a trace. `name` chooses the numbers of the tracks.
    pub(super) fn new(to: &'w mut dyn Write, name: &str, base_ns: i64) -> io::Result<Self> {
        let mut hasher = DefaultHasher::new();
        ("cachalot", name).hash(&mut hasher);
        let hash = hasher.finish();
        // The high bits keep the numbers apart from those of other writers, which count from 1.
        let (next, sequence) = (hash | 1 << 63, (hash >> 32) as u32 | 1 << 31);
        let mut tracks = Self { to, next, sequence, base_ns, buffer: Vec::new() };
        let clocks = vec![Clock { clock_id: Some(CLOCK_REALTIME), timestamp: Some(0) }];
        let snapshot = ClockSnapshot { clocks, primary_trace_clock: Some(CLOCK_REALTIME as i32) };
        tracks.packet(TracePacket {
            sequence_flags: Some(STATE_CLEARED),
            data: Some(Data::ClockSnapshot(snapshot)),
            ..TracePacket::default()
        })?;
        Ok(tracks)
    }

    /// Adds a track below another one, and returns its number.
    pub(super) fn track(&mut self, parent: Option<u64>, name: &str, rank: i32) -> io::Result<u64> {
        self.describe(parent, name, rank, None)
    }

    /// Adds a track with values in bytes.
    pub(super) fn counter(&mut self, parent: u64, name: &str, rank: i32) -> io::Result<u64> {
        self.describe(Some(parent), name, rank, Some(CounterDescriptor { unit: Some(UNIT_BYTES) }))
    }

    /// Writes a value in bytes.
    pub(super) fn value(&mut self, track: u64, time_ns: i64, value: u64) -> io::Result<()> {
        let counter_value = Some(value.cast_signed());
        self.event(time_ns, TrackEvent { counter_value, ..event(COUNTER, track) })
    }

    /// Writes an instant.
    pub(super) fn instant(
        &mut self,
        track: u64,
        time_ns: i64,
        name: &str,
        debug_annotations: Vec<DebugAnnotation>,
    ) -> io::Result<()> {
        self.event(time_ns, TrackEvent { name: Some(name.to_owned()), debug_annotations, ..event(INSTANT, track) })
    }

    /// Writes slices on tracks of one name, which Perfetto shows as one track. `track` is the name
    /// and the rank.
    pub(super) fn slices(
        &mut self,
        parent: u64,
        (name, rank): (&str, i32),
        slices: Vec<Slice>,
        nests: bool,
    ) -> io::Result<()> {
        let intervals: Vec<Interval> = slices.iter().map(|slice| slice.interval).collect();
        let mut by_lane: Vec<Vec<Slice>> = Vec::new();
        for (slice, lane) in slices.into_iter().zip(lanes(&intervals, nests)) {
            if by_lane.len() <= lane {
                by_lane.resize_with(lane + 1, Vec::new);
            }
            by_lane[lane].push(slice);
        }
        for mut lane in by_lane {
            let track = self.track(Some(parent), name, rank)?;
            lane.sort_by_key(|slice| (slice.interval.start, std::cmp::Reverse(slice.interval.end)));
            let mut ends: Vec<i64> = Vec::new();
            for Slice { name, interval, notes } in lane {
                while let Some(end) = ends.pop_if(|end| *end <= interval.start) {
                    self.event(end, event(SLICE_END, track))?;
                }
                let begin = TrackEvent { name: Some(name), debug_annotations: notes, ..event(SLICE_BEGIN, track) };
                self.event(interval.start, begin)?;
                ends.push(interval.end);
            }
            while let Some(end) = ends.pop() {
                self.event(end, event(SLICE_END, track))?;
            }
        }
        Ok(())
    }

    fn describe(
        &mut self,
        parent_uuid: Option<u64>,
        name: &str,
        rank: i32,
        counter: Option<CounterDescriptor>,
    ) -> io::Result<u64> {
        let uuid = self.next;
        self.next = self.next.wrapping_add(1);
        let has_children = counter.is_none();
        let descriptor = TrackDescriptor {
            uuid: Some(uuid),
            name: Some(name.to_owned()),
            parent_uuid,
            counter,
            child_ordering: has_children.then_some(ORDER_EXPLICIT),
            sibling_order_rank: Some(rank),
            ..TrackDescriptor::default()
        };
        self.packet(TracePacket { data: Some(Data::TrackDescriptor(descriptor)), ..TracePacket::default() })?;
        Ok(uuid)
    }

    fn event(&mut self, time_ns: i64, event: TrackEvent) -> io::Result<()> {
        // Perfetto has no times before the base.
        let time = u64::try_from(time_ns.saturating_sub(self.base_ns)).unwrap_or(0);
        self.packet(TracePacket {
            timestamp: Some(time),
            timestamp_clock_id: Some(CLOCK_REALTIME),
            data: Some(Data::TrackEvent(event)),
            ..TracePacket::default()
        })
    }

    fn packet(&mut self, packet: TracePacket) -> io::Result<()> {
        let packet = TracePacket { trusted_packet_sequence_id: Some(self.sequence), ..packet };
        self.buffer.clear();
        // A vector takes every message.
        let _ = Trace { packet: vec![packet] }.encode(&mut self.buffer);
        self.to.write_all(&self.buffer)
    }
}

/// Returns an event of a type on a track.
fn event(r#type: i32, track: u64) -> TrackEvent {
    TrackEvent { r#type: Some(r#type), track_uuid: Some(track), ..TrackEvent::default() }
}
