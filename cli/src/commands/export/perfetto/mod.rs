//! Perfetto's native trace: counters of memory over time, annotations, and the largest blocks.
//!
//! ```text
//! file ─┬─ device 0 ─┬─ reserved, allocated, pending         counters
//!       │            ├─ pool P stream S ─┬─ reserved
//!       │            │                   └─ allocated        counters, if there are several
//!       │            ├─ annotations                          slices
//!       │            ├─ out of memory, marks                 instants
//!       │            └─ blocks                               slices of the largest blocks
//!       └─ …
//! ```

mod blocks;
mod lanes;
mod schema;
mod tracks;

use super::{EventTimes, progress_of};
use cachalot_replay::inspect::{Change, History, Placement, Sums};
use cachalot_replay::range::EarlierStacks;
use cachalot_snapshot::{Event, Frame, Snapshot, Stack};
use std::io::{self, Write};
use tracks::{Tracks, text, uint};

/// Options of a trace.
pub(super) struct Options {
    /// The time that is 0 in the trace, in nanoseconds since 1970.
    pub(super) base_ns: i64,
    /// Number of blocks.
    pub(super) blocks: usize,
    /// The stacks of the blocks from before a range.
    pub(super) before: EarlierStacks,
}

/// Most pairs of pool and stream with counters: those with the most reserved memory.
const MOST_PLACES: usize = 100;

/// Events between two updates of the progress bar.
const PART: usize = 1 << 16;

/// Writes the trace of a snapshot.
pub(super) fn write(to: &mut dyn Write, snapshot: &Snapshot, name: &str, options: &Options) -> io::Result<()> {
    let mut tracks = Tracks::new(to, name, options.base_ns)?;
    let root = tracks.track(None, name, 0)?;
    let progress = progress_of(snapshot);
    let mut devices: Vec<i64> = snapshot.segments.iter().map(|segment| segment.device).collect();
    devices.extend((0..).zip(&snapshot.device_traces).filter(|(_, trace)| !trace.is_empty()).map(|(device, _)| device));
    devices.sort_unstable();
    devices.dedup();
    for device in devices {
        let mut largest = blocks::Largest::new(snapshot, device, options.blocks);
        let history = History::of(snapshot, device, |mut life| {
            if life.start.is_none() {
                life.stack = life.stack.or_else(|| options.before.get(&(device, life.address)));
            }
            largest.add(life);
        });
        let parent = tracks.track(Some(root), &format!("device {device}"), device as i32)?;
        let events = usize::try_from(device).ok().and_then(|device| snapshot.device_traces.get(device));
        let events = events.map_or(&[][..], |events| events);
        let marks = tracks.track(Some(parent), "marks", 200)?;
        let mut counters = Counters::new(&mut tracks, parent, &history)?;
        counters.start(&mut tracks, events)?;
        let mut clock = EventTimes::new();
        for (number, (event, (change, place))) in events.iter().zip(history.steps()).enumerate() {
            let time = clock.next(event);
            counters.change(&mut tracks, time, place, change)?;
            mark(&mut tracks, marks, time, event)?;
            if number % PART == PART - 1 {
                progress.advance(PART as u64);
            }
        }
        largest.write(&mut tracks, parent)?;
        annotations(&mut tracks, parent, snapshot, device)?;
    }
    progress.finish();
    Ok(())
}

/// The counters of a device: of the whole device, and of each pool and stream.
struct Counters {
    /// Reserved, allocated and pending memory.
    device: [u64; 3],
    sums: Sums,
    /// Reserved and allocated memory of each place of the history. `None` without tracks.
    places: Vec<Option<[u64; 2]>>,
    of_places: Vec<Sums>,
}

impl Counters {
    fn new(tracks: &mut Tracks<'_>, parent: u64, history: &History) -> io::Result<Self> {
        let names = ["reserved", "allocated", "pending"];
        let mut device = [0; 3];
        for (at, name) in names.into_iter().enumerate() {
            device[at] = tracks.counter(parent, name, at as i32)?;
        }
        let of_places = history.start().to_vec();
        let sums = of_places.iter().copied().fold(Sums::default(), Sums::plus);
        let mut places = vec![None; of_places.len()];
        for (rank, place) in (10..).zip(shown(history)) {
            let track = tracks.track(Some(parent), &name_of(history.places()[place]), rank)?;
            places[place] = Some([tracks.counter(track, "reserved", 0)?, tracks.counter(track, "allocated", 1)?]);
        }
        Ok(Self { device, sums, places, of_places })
    }

    /// Writes every value before the first event. The time is that of the first event, or 0.
    fn start(&self, tracks: &mut Tracks<'_>, trace: &[Event]) -> io::Result<()> {
        // A nanosecond earlier, so that the first event's values come afterwards.
        let time = trace.first().map_or(0, |first| EventTimes::new().next(first)).saturating_sub(1).max(0);
        let Sums { reserved, allocated, pending } = self.sums;
        for (track, value) in self.device.into_iter().zip([reserved, allocated, pending]) {
            tracks.value(track, time, value)?;
        }
        for (tracks_of, sums) in self.places.iter().zip(&self.of_places) {
            if let Some([reserved, allocated]) = *tracks_of {
                tracks.value(reserved, time, sums.reserved)?;
                tracks.value(allocated, time, sums.allocated)?;
            }
        }
        Ok(())
    }

    /// Writes the values that an event changes.
    fn change(&mut self, tracks: &mut Tracks<'_>, time: i64, place: usize, change: Change) -> io::Result<()> {
        self.sums = self.sums.after(change);
        self.of_places[place] = self.of_places[place].after(change);
        let [reserved, allocated, pending] = self.device;
        let of_place = self.of_places[place];
        let [place_reserved, place_allocated] = self.places[place].map_or([None; 2], |pair| pair.map(Some));
        for (track, change, value) in [
            (Some(reserved), change.reserved, self.sums.reserved),
            (Some(allocated), change.allocated, self.sums.allocated),
            (Some(pending), change.pending, self.sums.pending),
            (place_reserved, change.reserved, of_place.reserved),
            (place_allocated, change.allocated, of_place.allocated),
        ] {
            if let Some(track) = track.filter(|_| change != 0) {
                tracks.value(track, time, value)?;
            }
        }
        Ok(())
    }
}

/// Returns the places with counters in order of pool and stream: none if there is only a single
/// place, which is the device.
fn shown(history: &History) -> Vec<usize> {
    let mut most: Vec<u64> = history.start().iter().map(|sums| sums.reserved).collect();
    let mut now = history.start().to_vec();
    for (change, place) in history.steps() {
        now[place] = now[place].after(change);
        most[place] = most[place].max(now[place].reserved);
    }
    let mut places: Vec<usize> = (0..most.len()).filter(|&place| most[place] > 0).collect();
    if places.len() < 2 {
        return Vec::new();
    }
    places.sort_by_key(|&place| (std::cmp::Reverse(most[place]), history.places()[place]));
    places.truncate(MOST_PLACES);
    places.sort_by_key(|&place| {
        let Placement { stream, pool } = history.places()[place];
        (pool, stream)
    });
    places
}

/// Returns the name of a place.
fn name_of(place: Placement) -> String {
    let pool = match place.pool {
        Some((0, 0)) => "default pool".to_owned(),
        Some((first, second)) => format!("pool {first}.{second}"),
        None => "released segments".to_owned(),
    };
    if place.stream == 0 { format!("{pool}, default stream") } else { format!("{pool}, stream {:#x}", place.stream) }
}

/// Writes an instant for an event that is no change of memory: a failed request, a mark of the
/// program, or an action that is not known here.
fn mark(tracks: &mut Tracks<'_>, track: u64, time: i64, event: &Event) -> io::Result<()> {
    let note = event.details.as_ref().and_then(|details| details.user_metadata.as_deref()).unwrap_or("");
    match &*event.action {
        "oom" => {
            let wanted = uint("bytes", event.size.unsigned_abs());
            let free = uint("device_free", event.device_free().unwrap_or(0).unsigned_abs());
            tracks.instant(track, time, "out of memory", vec![wanted, free])
        }
        "snapshot" => tracks.instant(track, time, "snapshot", Vec::new()),
        "annotate" | "user_defined" => {
            let name = if note.is_empty() { &*event.action } else { note };
            tracks.instant(track, time, name, Vec::new())
        }
        "alloc" | "free_requested" | "free_completed" | "segment_alloc" | "segment_free" | "segment_map"
        | "segment_unmap" => Ok(()),
        unknown => tracks.instant(track, time, unknown, vec![uint("bytes", event.size.unsigned_abs())]),
    }
}

/// Writes the marks of profilers as slices. A mark without an end reaches to the last mark.
fn annotations(tracks: &mut Tracks<'_>, parent: u64, snapshot: &Snapshot, device: i64) -> io::Result<()> {
    let all = snapshot.external_annotations.iter().flatten().filter(|mark| mark.device == device);
    let (mut open, mut found) = (Vec::new(), Vec::new());
    let mut last = i64::MIN;
    for mark in all {
        let time = mark.time_us.saturating_mul(1000);
        last = last.max(time);
        if mark.stage == "START" {
            open.push((mark.name.as_str(), time));
        } else if let Some(at) = open.iter().rposition(|(name, _)| *name == mark.name) {
            let (name, start) = open.remove(at);
            found.push((name, lanes::Interval { start, end: time.max(start) }));
        }
    }
    found.extend(open.into_iter().map(|(name, start)| (name, lanes::Interval { start, end: last.max(start) })));
    let slices: Vec<tracks::Slice> = found
        .into_iter()
        .map(|(name, interval)| tracks::Slice { name: name.to_owned(), interval, notes: Vec::new() })
        .collect();
    tracks.slices(parent, ("annotations", 100), slices, true)
}

/// Returns a note with the frames of a stack, the innermost first.
fn frames(stack: &Stack) -> schema::DebugAnnotation {
    let telling = stack.telling();
    let lines: Vec<String> = telling.into_iter().take(tracks::MOST_FRAMES).map(Frame::label).collect();
    text("stack", lines.join("\n"))
}
