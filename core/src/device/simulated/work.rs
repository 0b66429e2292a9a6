//! The streams of a simulated device: how far each stream has progressed, what it waits for, and
//! which memory its work uses.
//!
//! A *place* is a position in a stream: each event and each piece of work takes the next place.
//!
//! ```text
//! stream 1   place 1 ── place 2 ──────────────────┐
//! stream 2   place 1 ───────────── waits for (1, 2) ── place 2
//! ```

use super::{DeviceError, DevicePtr, DeviceResult, ErrorKind, PhysicalHandle, SimulatedDevice};
use crate::device::StreamOrder;
use crate::units::StreamId;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

/// The error of a call that a capturing stream does not permit.
const CAPTURING: DeviceError = DeviceError::new(ErrorKind::NotPermittedInCapture, 900);

/// A position in a stream. It covers all events and work up to this number.
pub(super) type StreamPoint = (StreamId, u64);

/// Part of a physical handle or of a segment: the number of the handle, and the bytes within it. A
/// segment has handle 0, and the bytes are addresses.
pub(super) type PhysicalPart = (u64, Range<u64>);

/// How far a stream has progressed.
#[derive(Clone, Debug, Default)]
struct Stream {
    /// How many places were taken so far.
    queued: u64,
    /// How many places are complete.
    complete: u64,
    /// Whether the stream is capturing a graph.
    capturing: bool,
    /// The waits: work after the first place waits for the second place.
    waits: Vec<(u64, StreamPoint)>,
}

/// Incomplete work, and the memory that it uses.
#[derive(Clone, Debug)]
struct Work {
    place: StreamPoint,
    addresses: Range<u64>,
    pieces: Vec<PhysicalPart>,
}

impl SimulatedDevice {
    /// Makes the device finish all work as soon as it is queued, so an event is complete once it is
    /// recorded. By default, work is only done when a test lets its stream progress, or when a
    /// caller waits.
    #[must_use]
    pub fn with_work_done_at_once(self) -> Self {
        self.0.lock().streams.done_at_once = true;
        self
    }

    /// Makes the device say which streams are [idle](crate::StreamOrder::is_idle): those on which
    /// all events and launches are complete. By default, the device does not know whether a program
    /// has queued more work.
    #[must_use]
    pub fn with_idle_streams_told(self) -> Self {
        self.0.lock().streams.tells_idle = true;
        self
    }

    /// Declares that no work is ever queued on `stream`, as on the stream of the host. An event
    /// recorded there is complete at once, and the stream
    /// [cannot be ordered](crate::StreamOrder::can_order).
    #[must_use]
    pub fn with_idle_stream(self, stream: StreamId) -> Self {
        self.0.lock().streams.idle.insert(stream);
        self
    }

    /// Lets the device create at most `most` events for streams at a time. After that, it creates
    /// events for which only the host can wait.
    #[must_use]
    pub fn with_order_events(self, most: usize) -> Self {
        self.0.lock().most_events_for_streams = most;
        self
    }

    /// Lets the device's streams end [without a report](crate::StreamOrder::reports_end).
    #[must_use]
    pub fn with_unreported_ends(self) -> Self {
        self.0.lock().streams.reports_no_end = true;
        self
    }

    /// Lets the device record events
    /// [after the work of all streams](crate::StreamOrder::record_all). The simulated work is
    /// complete by then.
    #[must_use]
    pub fn with_fences_of_all(self) -> Self {
        self.0.lock().records_all = true;
        self
    }

    /// Lets a stream end without a report. Its work goes on. If the allocator names the stream in a
    /// later call, that call panics, except for the calls that are permitted after the end of an
    /// unreported stream.
    pub fn let_go(&self, stream: StreamId) {
        self.0.lock().streams.gone.insert(stream);
    }

    /// Makes the later work of the program on `stream` come after its current work on `awaited`.
    /// This uses an event that belongs to the program.
    ///
    /// # Errors
    /// The first error of a call to the device. The streams may be ordered even after an error.
    pub fn order(&self, stream: StreamId, awaited: StreamId) -> DeviceResult<()> {
        let event = self.create_order_event()?;
        let ordered = self.record(event, awaited).and_then(|()| self.order_behind(stream, event));
        ordered.and(self.destroy_event(event))
    }

    /// Queues work on `stream` that uses the `bytes` from `at` on. The work is done when `stream`
    /// reaches it. Until then the memory cannot be unmapped.
    ///
    /// # Errors
    /// A sentence that names the mistake: part of the memory is not accessible or is being copied,
    /// the stream is capturing, or earlier work uses the same physical memory, at any address, and
    /// the two are not ordered.
    pub fn launch(&self, stream: StreamId, at: DevicePtr, bytes: u64) -> Result<(), &'static str> {
        let mut state = self.0.lock();
        let pieces = state.pieces(at.0..at.0 + bytes).ok_or("work uses memory that is not accessible")?;
        if state.host.copies(&(at.0..at.0 + bytes)) {
            return Err("work uses memory that is being copied");
        }
        match state.streams.launch(stream, at.0..at.0 + bytes, pieces) {
            Ok(true) => Ok(()),
            Ok(false) => Err("work uses memory that other work uses, with no order between them"),
            Err(_) => Err("work is queued on a capturing stream"),
        }
    }

    /// Returns the physical memory under the `bytes` from `at` on, as handles and the bytes within
    /// them. A segment has handle 0, and the bytes are addresses. `None` if part of the memory is
    /// not accessible.
    pub fn physical(&self, at: DevicePtr, bytes: u64) -> Option<Vec<(PhysicalHandle, Range<u64>)>> {
        let pieces = self.0.lock().pieces(at.0..at.0 + bytes)?;
        Some(pieces.into_iter().map(|(handle, bytes)| (PhysicalHandle(handle), bytes)).collect())
    }
}

/// All streams of a device.
#[derive(Clone, Debug, Default)]
pub(super) struct Streams {
    by_id: BTreeMap<StreamId, Stream>,
    work: Vec<Work>,
    /// Whether work is done as soon as it is queued.
    done_at_once: bool,
    /// Whether the device knows of all work of its streams.
    tells_idle: bool,
    /// Whether the allocator is never told that a stream ends.
    reports_no_end: bool,
    /// The streams that ended without a report.
    gone: BTreeSet<StreamId>,
    /// The streams that never have work.
    idle: BTreeSet<StreamId>,
}

impl Streams {
    /// Panics if a stream has ended, because a real driver may crash on its handle.
    pub(super) fn assert_there(&self, stream: StreamId) {
        assert!(!self.gone.contains(&stream), "{stream:?} has gone");
    }

    /// Returns whether the allocator is told when a stream ends.
    pub(super) fn reports_end(&self, stream: StreamId) -> bool {
        !self.reports_no_end && !self.gone.contains(&stream)
    }

    /// Returns whether all work up to `place` is complete.
    pub(super) fn is_complete(&self, (stream, place): StreamPoint) -> bool {
        self.by_id.get(&stream).is_none_or(|stream| stream.complete >= place)
    }

    /// Completes all work up to `place`, and all work that it waits for.
    pub(super) fn complete(&mut self, place: StreamPoint) {
        let mut pending = vec![place];
        while let Some((stream, place)) = pending.pop() {
            let stream = self.by_id.entry(stream).or_default();
            stream.complete = stream.complete.max(place);
            stream.waits.retain(|&(behind, awaited)| {
                let reached = behind < place;
                if reached {
                    pending.push(awaited);
                }
                !reached
            });
        }
        let streams = &self.by_id;
        self.work.retain(|work| streams.get(&work.place.0).is_none_or(|stream| stream.complete < work.place.1));
    }

    /// Returns whether work may ever be queued on a stream.
    pub(super) fn has_work(&self, stream: StreamId) -> bool {
        !self.idle.contains(&stream)
    }

    /// Returns whether a stream that is not capturing has finished all of its work. `None` if this
    /// is unknown.
    pub(super) fn is_idle(&self, stream: StreamId) -> Option<bool> {
        let known = self.done_at_once || self.tells_idle;
        (known && !self.is_capturing(stream)).then(|| self.is_complete(self.end(stream)))
    }

    /// Returns the last place of a stream.
    pub(super) fn end(&self, stream: StreamId) -> StreamPoint {
        (stream, self.by_id.get(&stream).map_or(0, |stream| stream.queued))
    }

    /// Returns the first place of a stream that is not complete, or the last place if all are.
    pub(super) fn next(&self, stream: StreamId) -> StreamPoint {
        let next = self.by_id.get(&stream).map_or(0, |stream| stream.queued.min(stream.complete + 1));
        (stream, next)
    }

    /// Takes the next place of a stream.
    ///
    /// # Errors
    /// The stream is capturing.
    pub(super) fn queue(&mut self, stream: StreamId) -> DeviceResult<StreamPoint> {
        let entry = self.by_id.entry(stream).or_default();
        if entry.capturing {
            return Err(CAPTURING);
        }
        entry.queued += 1;
        if self.done_at_once || self.idle.contains(&stream) {
            entry.complete = entry.queued;
        }
        Ok((stream, entry.queued))
    }

    /// Makes all later work on `stream` wait for `awaited`.
    ///
    /// # Errors
    /// The stream is capturing.
    pub(super) fn wait(&mut self, stream: StreamId, awaited: StreamPoint) -> DeviceResult<()> {
        let done = self.is_complete(awaited);
        let entry = self.by_id.entry(stream).or_default();
        if entry.capturing {
            return Err(CAPTURING);
        }
        if !done && awaited.0 != stream {
            entry.waits.push((entry.queued, awaited));
        }
        Ok(())
    }

    /// Lets a stream finish all of its work. As under CUDA, a wait is an operation of the stream,
    /// even if no work follows it.
    ///
    /// # Errors
    /// The stream is capturing.
    pub(super) fn synchronize(&mut self, stream: StreamId) -> DeviceResult<()> {
        if self.is_capturing(stream) {
            return Err(CAPTURING);
        }
        self.complete(self.end(stream));
        let entry = self.by_id.entry(stream).or_default();
        for (_, awaited) in core::mem::take(&mut entry.waits) {
            self.complete(awaited);
        }
        Ok(())
    }

    /// Lets all streams finish all of their work.
    ///
    /// # Errors
    /// A stream is capturing.
    pub(super) fn synchronize_all(&mut self) -> DeviceResult<()> {
        if self.by_id.values().any(|stream| stream.capturing) {
            return Err(CAPTURING);
        }
        let ends: Vec<StreamPoint> = self.by_id.iter().map(|(&stream, entry)| (stream, entry.queued)).collect();
        ends.into_iter().for_each(|end| self.complete(end));
        Ok(())
    }

    /// Returns whether a stream is capturing.
    pub(super) fn is_capturing(&self, stream: StreamId) -> bool {
        self.by_id.get(&stream).is_some_and(|stream| stream.capturing)
    }

    /// Starts or ends the capture of a graph on a stream.
    pub(super) fn set_capturing(&mut self, stream: StreamId, capturing: bool) {
        self.by_id.entry(stream).or_default().capturing = capturing;
    }

    /// Queues work that uses memory. Returns true if all earlier work on this memory comes before
    /// it.
    ///
    /// # Errors
    /// The stream is capturing.
    pub(super) fn launch(
        &mut self,
        stream: StreamId,
        addresses: Range<u64>,
        pieces: Vec<PhysicalPart>,
    ) -> DeviceResult<bool> {
        let place = self.queue(stream)?;
        let preceding = self.preceding(place);
        let overlaps = |work: &&Work| work.pieces.iter().any(|one| pieces.iter().any(|other| overlap(one, other)));
        let precedes = |work: &Work| preceding.get(&work.place.0).is_some_and(|&reached| work.place.1 <= reached);
        let ordered = self.work.iter().filter(overlaps).all(precedes);
        if !self.done_at_once {
            self.work.push(Work { place, addresses, pieces });
        }
        Ok(ordered)
    }

    /// Returns whether incomplete work uses some of the addresses.
    pub(super) fn uses(&self, addresses: &Range<u64>) -> bool {
        self.work.iter().any(|work| work.addresses.start < addresses.end && addresses.start < work.addresses.end)
    }

    /// Completes all work that uses some of the addresses.
    pub(super) fn finish(&mut self, addresses: &Range<u64>) {
        let uses = |work: &&Work| work.addresses.start < addresses.end && addresses.start < work.addresses.end;
        while let Some(place) = self.work.iter().find(uses).map(|work| work.place) {
            self.complete(place);
        }
    }

    /// Returns how far each stream that `place` waits for has progressed when `place` starts.
    fn preceding(&self, place: StreamPoint) -> BTreeMap<StreamId, u64> {
        let mut reached = BTreeMap::new();
        let mut pending = vec![place];
        while let Some((stream, place)) = pending.pop() {
            let before = reached.entry(stream).or_insert(0);
            if *before >= place {
                continue;
            }
            *before = place;
            let waits = self.by_id.get(&stream).into_iter().flat_map(|stream| &stream.waits);
            pending.extend(waits.filter(|&&(behind, _)| behind < place).map(|&(_, awaited)| awaited));
        }
        reached
    }
}

/// Returns whether two pieces share a byte.
pub(super) fn overlap(one: &PhysicalPart, other: &PhysicalPart) -> bool {
    one.0 == other.0 && one.1.start < other.1.end && other.1.start < one.1.end
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const A: StreamId = StreamId(1);
    const B: StreamId = StreamId(2);
    const C: StreamId = StreamId(3);

    #[test]
    fn what_waits_is_complete_only_with_what_it_waits_for() {
        let mut streams = Streams::default();
        let first = streams.queue(A).unwrap();
        streams.wait(B, first).unwrap();
        let second = streams.queue(B).unwrap();
        streams.wait(C, second).unwrap();
        let third = streams.queue(C).unwrap();
        let later = streams.queue(A).unwrap();
        streams.complete(third);
        assert!([first, second, third].into_iter().all(|place| streams.is_complete(place)));
        assert!(!streams.is_complete(later), "nothing waits for the later work");
    }

    #[test]
    fn work_before_the_wait_does_not_wait() {
        let mut streams = Streams::default();
        let early = streams.queue(B).unwrap();
        let awaited = streams.queue(A).unwrap();
        streams.wait(B, awaited).unwrap();
        streams.complete(early);
        assert!(!streams.is_complete(awaited));
        let late = streams.queue(B).unwrap();
        streams.complete(late);
        assert!(streams.is_complete(awaited));
    }

    #[test]
    fn a_stream_is_not_done_before_its_waits_are() {
        let mut streams = Streams::default();
        let awaited = streams.queue(A).unwrap();
        streams.wait(B, awaited).unwrap();
        streams.synchronize(B).unwrap();
        assert!(streams.is_complete(awaited));
    }

    #[test]
    fn work_on_memory_in_use_must_be_ordered() {
        let piece = |from: u64| vec![(7, from..from + 10)];
        let mut streams = Streams::default();
        assert_eq!(streams.launch(A, 100..110, piece(0)), Ok(true));
        assert_eq!(streams.launch(A, 200..210, piece(5)), Ok(true), "the same stream, another address");
        assert_eq!(streams.launch(B, 300..310, piece(20)), Ok(true), "other bytes");
        assert_eq!(streams.launch(B, 300..310, piece(9)), Ok(false));
        let used = streams.end(A);
        streams.wait(C, used).unwrap();
        streams.complete((B, 2));
        assert_eq!(streams.launch(C, 400..410, piece(0)), Ok(true), "ordered after A");
        assert!(streams.uses(&(109..111)) && !streams.uses(&(110..111)));
        streams.finish(&(400..401));
        assert!(streams.work.is_empty(), "C has waited for A");
    }

    #[test]
    fn a_wait_orders_nothing_that_was_queued_before() {
        let piece = |from: u64| vec![(7, from..from + 10)];
        let mut streams = Streams::default();
        let early = streams.queue(A).unwrap();
        assert_eq!(streams.launch(B, 100..110, piece(0)), Ok(true));
        streams.wait(A, streams.end(B)).unwrap();
        streams.wait(C, early).unwrap();
        assert_eq!(streams.launch(C, 200..210, piece(0)), Ok(false), "behind the early work alone");
        assert_eq!(streams.launch(A, 300..310, piece(0)), Ok(false), "C is not awaited");
        streams.complete((C, 1));
        assert_eq!(streams.launch(A, 300..310, piece(0)), Ok(true));
    }

    #[test]
    fn only_work_on_the_addresses_is_finished() {
        let mut streams = Streams::default();
        for (stream, from) in [(A, 100), (B, 110), (C, 120)] {
            assert_eq!(streams.launch(stream, from..from + 10, vec![(0, from..from + 10)]), Ok(true));
        }
        streams.finish(&(110..120));
        assert_eq!([A, B, C].map(|stream| streams.is_complete((stream, 1))), [false, true, false]);
    }

    #[test]
    fn work_done_at_once_is_complete_when_it_is_queued_and_uses_nothing() {
        let mut streams = Streams { done_at_once: true, ..Streams::default() };
        let place = streams.queue(A).unwrap();
        assert!(streams.is_complete(place));
        assert!(!streams.is_complete((A, place.1 + 1)), "what is not queued is not done");
        for stream in [A, B] {
            assert_eq!(streams.launch(stream, 100..110, vec![(7, 0..10)]), Ok(true), "no other work is left");
        }
        assert!(!streams.uses(&(0..u64::MAX)));
        streams.set_capturing(A, true);
        assert_eq!(streams.queue(A), Err(CAPTURING));
    }

    #[test]
    fn a_capturing_stream_takes_no_event_and_no_wait() {
        let mut streams = Streams::default();
        let place = streams.queue(A).unwrap();
        streams.set_capturing(B, true);
        assert_eq!(streams.queue(B), Err(CAPTURING));
        assert_eq!(streams.wait(B, place), Err(CAPTURING));
        assert_eq!(streams.synchronize(B), Err(CAPTURING));
    }
}
