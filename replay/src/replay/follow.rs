//! Follows a record: makes every implied call on an allocator whose device hands out the recorded
//! addresses.
//!
//! A record lists events, not calls. A free and an allocation are their own calls. The events
//! between two calls are attributed by three rules:
//!
//! * A completion right after its own free is part of the free. Any later completion was found by
//!   the event check at the start of the next request, or by a wait for all events.
//! * Releases belong to the next request if the request would now release exactly the first of the
//!   segments. Otherwise the releases belong to an `empty_cache`.
//! * All events before a free, or at the end of the record, belong to an `empty_cache`.
//!
//! `attribute.rs` decides between the remaining readings.
//!
//! A request whose pool is known to be private is led into that pool of the allocator. The graphs
//! of a pool are destroyed when the record releases memory of the pool.

use super::Simulated;
use super::ranges::Ranges;
use super::trials::Trials;
use crate::program::{DEVICE, OnDevice, Operation, Program, Run, Settings, Subject};
use crate::trace::{Action, Event, Note, Trace};
use cachalot_core::simulated::{Call, Failure};
use cachalot_core::{DeviceError, Error, ErrorKind, MIB, PoolId, SnapshotSegment, StreamId, TraceEntry};
use std::collections::HashMap;

/// First of the streams on which freed blocks wait. A record does not name the streams behind a
/// block's events. Each waiting block has its own stream number, so that blocks can be completed in
/// any order.
const FIRST_WAITING_STREAM: u64 = 1 << 63;

/// How many calls are made before the allocator's trace is read.
const CALLS_PER_READING: usize = 1 << 16;

/// The stream of memory that the host orders, on which no work is queued (`HOST_STREAM` of the CUDA
/// device).
const HOST_STREAM: StreamId = StreamId(0xffff << 48);

/// Largest number of trace events per call, releases of segments excluded. A trace has at most as
/// many releases as the record has events.
const EVENTS_PER_CALL: usize = 8;

/// Number of the seeds that a graph's first capture registers for a generator, and the size of a
/// seed in bytes.
const SEEDS: usize = 2;
const SEED_BYTES: u64 = 8;

/// A live or waiting block of the record.
pub(super) struct RecordedBlock {
    pub(super) slot: u32,
    /// The stream whose work the block waits for, after the free and before the completion.
    pub(super) waits_for: Option<StreamId>,
}

/// State of the record with regard to captures.
#[derive(PartialEq, Eq)]
enum Capture {
    /// No graph is being captured.
    Off,
    /// The cache was emptied. The given number of seeds is requested before the capture starts.
    Preparing(usize),
    /// Requests come from the graphs' pool.
    On,
}

/// A record being followed.
pub(super) struct Follower<'t> {
    pub(super) trace: &'t Trace,
    pub(super) events: &'t [Event],
    pub(super) run: Run<Simulated>,
    pub(super) program: Program,
    /// The allocator's own trace so far.
    pub(super) entries: Vec<TraceEntry>,
    pub(super) ranges: Ranges,
    /// Recorded address → block.
    pub(super) held: HashMap<u64, RecordedBlock>,
    vacant_slots: Vec<u32>,
    /// Number of held blocks that wait.
    pub(super) waiting: usize,
    pub(super) waiting_streams: u64,
    capture: Capture,
    captured_streams: Vec<u64>,
    captures: usize,
    /// The pool that requests are led into.
    route: PoolId,
    /// Whether allocator and record hold different memory. Recorded addresses may then be taken, so
    /// the device hands out no more.
    astray: bool,
    /// Bytes held from the device according to the record.
    pub(super) recorded_bytes: u64,
    pub(super) settings: &'t Settings,
    /// Number of the event with which the present call starts.
    pub(super) position: usize,
    pub(super) trials: Trials,
    unread_calls: usize,
}

impl<'t> Follower<'t> {
    /// Creates a follower in the state before the first event.
    pub(super) fn new(trace: &'t Trace, settings: &'t Settings) -> Result<Self, Error> {
        let events = &trace.events;
        let ranges = Ranges::of(trace, settings);
        let device = super::spilled::device(ranges.device_bytes).with_idle_stream(HOST_STREAM);
        let run = Run::new(OnDevice::create(device, settings)?);
        // A recorded program did not search again, so neither may its replay.
        run.allocator.settings(DEVICE)?.set_second_search(false);
        let mut follower = Self {
            trace,
            events,
            run,
            program: Program::default(),
            entries: Vec::with_capacity(events.len()),
            ranges,
            held: HashMap::new(),
            vacant_slots: Vec::new(),
            waiting: 0,
            waiting_streams: 0,
            capture: Capture::Off,
            captured_streams: Vec::new(),
            captures: 0,
            route: PoolId::DEFAULT,
            astray: false,
            recorded_bytes: 0,
            settings,
            position: 0,
            trials: Trials::default(),
            unread_calls: 0,
        };
        if let Some(start) = &trace.start {
            follower.begin(start)?;
            follower.program.start = follower.program.operations.len();
        }
        follower.start_trace()?;
        Ok(follower)
    }

    pub(super) fn start_trace(&mut self) -> Result<(), Error> {
        self.unread_calls = 0;
        let calls = CALLS_PER_READING.min(self.events.len());
        let capacity = calls * EVENTS_PER_CALL + self.events.len();
        self.run.allocator.trace(DEVICE)?.record(capacity)
    }

    pub(super) fn read_trace(&mut self) -> Result<(), Error> {
        let entries = &mut self.entries;
        self.run.allocator.trace(DEVICE).map(|trace| trace.for_each(|entry| entries.push(*entry)))
    }

    /// Follows the record up to event number `end`: makes all calls before the event.
    ///
    /// # Errors
    /// The number of the event at which the allocator refused a call, and the reason. Lack of
    /// memory is no such refusal.
    pub(super) fn follow(&mut self, end: usize) -> Result<(), (usize, Error)> {
        let mut at = 0;
        while at < end {
            at = self.follow_from(at).map_err(|error| (at, error))?;
            if self.unread_calls >= CALLS_PER_READING {
                self.read_trace().and_then(|()| self.start_trace()).map_err(|error| (at, error))?;
            }
        }
        self.read_trace().map_err(|error| (at, error))
    }

    /// Follows the call that starts at event `at`, with all events of the call. Returns the number
    /// of the next call's first event.
    pub(super) fn follow_from(&mut self, at: usize) -> Result<usize, Error> {
        self.position = at;
        let event = self.events[at];
        if (event.of.note == Note::Capture) != (self.capture != Capture::Off) {
            return self.turn_capture(at);
        }
        if event.action == Action::FreeRequested {
            return self.follow_free(at);
        }
        // The free that it is part of may be the last event before the record starts.
        if at == 0 && event.action == Action::FreeCompleted {
            self.complete(event.addr)?;
            return Ok(1);
        }
        let rest = &self.events[at..];
        let between = rest.iter().take_while(|next| !next.action.is_call() && next.of.note == event.of.note).count();
        let (events, call) = (&rest[..between], rest.get(between));
        match call {
            Some(call) if call.of.note == event.of.note && call.action != Action::FreeRequested => {
                self.follow_request(events, call)?;
                Ok(at + between + 1)
            }
            _ => {
                self.empty_cache(events)?;
                Ok(at + between)
            }
        }
    }

    fn perform(&mut self, operation: Operation) -> Result<(), Error> {
        self.program.operations.push(operation);
        self.unread_calls += 1;
        self.run.perform(operation)
    }

    fn follow_free(&mut self, at: usize) -> Result<usize, Error> {
        let event = &self.events[at];
        let next = self.events.get(at + 1);
        let completes = next.is_some_and(|next| next.action == Action::FreeCompleted && next.addr == event.addr);
        if completes {
            let slot = self.held.remove(&event.addr).expect("a consistent record frees what it holds").slot;
            self.vacant_slots.push(slot);
            self.perform(Operation::Free { slot })?;
            return Ok(at + 2);
        }
        self.free_and_wait(event.addr)?;
        Ok(at + 1)
    }

    /// Frees the block at a recorded address. The block waits on a new stream.
    pub(super) fn free_and_wait(&mut self, addr: u64) -> Result<(), Error> {
        let stream = StreamId(FIRST_WAITING_STREAM + self.waiting_streams);
        self.waiting_streams += 1;
        self.waiting += 1;
        let held = self.held.get_mut(&addr).expect("a consistent record frees what it holds");
        held.waits_for = Some(stream);
        let slot = held.slot;
        self.perform(Operation::RecordStream { slot, stream })?;
        self.perform(Operation::Free { slot })
    }

    /// Ends the wait of the block at a recorded address. Returns the stream of the wait.
    fn stop_waiting(&mut self, addr: u64) -> StreamId {
        let held = self.held.remove(&addr).expect("a consistent record completes what it freed");
        self.vacant_slots.push(held.slot);
        self.waiting -= 1;
        held.waits_for.expect("a consistent record frees before it completes")
    }

    fn complete(&mut self, addr: u64) -> Result<(), Error> {
        let stream = self.stop_waiting(addr);
        self.perform(Operation::Complete { stream })
    }

    /// Makes one call of `empty_cache` for all `events`, completions and releases.
    fn empty_cache(&mut self, events: &[Event]) -> Result<(), Error> {
        self.destroy_graphs(events)?;
        // The call would find them itself, but in its own order, and what a merged block remembers
        // depends on it.
        for event in events.iter().filter(|event| event.action == Action::FreeCompleted) {
            self.complete(event.addr)?;
        }
        self.perform(Operation::EmptyCache)?;
        // Memory that no request follows: the replay has no call that obtains it, and is astray
        // from here on.
        for event in events.iter().filter(|event| event.action == Action::SegmentMap) {
            self.ranges.map(event);
        }
        self.account(events);
        Ok(())
    }

    /// Destroys the graphs that the program destroyed before `events`: those of the pools that the
    /// events release memory of.
    fn destroy_graphs(&mut self, events: &[Event]) -> Result<(), Error> {
        if self.run.pools().is_empty() || !events.iter().any(|event| event.action.is_release()) {
            return Ok(());
        }
        let segments = self.run.allocator.snapshot();
        let is_released = |segment: &&SnapshotSegment| {
            let (start, end) = (segment.address.0, segment.address.0 + segment.total_size);
            events.iter().any(|event| event.action.is_release() && (start..end).contains(&event.addr))
        };
        let mut released: Vec<PoolId> = segments.iter().filter(is_released).map(|segment| segment.pool).collect();
        released.retain(|pool| self.run.pools().contains(pool));
        released.sort_unstable();
        released.dedup();
        for pool in released {
            if self.route == pool {
                self.lead(PoolId::DEFAULT)?;
            }
            self.perform(Operation::Destroy { pool })?;
        }
        Ok(())
    }

    /// Leads later requests into a pool, unless they go there.
    fn lead(&mut self, pool: PoolId) -> Result<(), Error> {
        if self.route == pool {
            return Ok(());
        }
        self.route = pool;
        self.perform(Operation::Route { pool })
    }

    fn follow_request(&mut self, events: &[Event], call: &Event) -> Result<(), Error> {
        // What is asked of the allocator from here on depends on the request's pool.
        self.lead(self.trace.pools.of(call).unwrap_or_default())?;
        let completions = events.iter().take_while(|event| event.action == Action::FreeCompleted).count();
        let waits = self.waits_itself(events, completions, call)?;
        let (found, mut events) = events.split_at(waits.unwrap_or(completions));
        for event in found {
            self.complete(event.addr)?;
        }
        while let Some(first) = events.first().filter(|event| event.action.is_release()) {
            let releases = |event: &Event| event.action.is_release() || event.action == Action::FreeCompleted;
            let (cached, rest) = events.split_at(events.iter().take_while(|event| releases(event)).count());
            // Their memory goes back with the rest of the cache, whoever releases it.
            self.destroy_graphs(cached)?;
            if self.releases(first.addr, call)? && self.releases_all(cached) || self.compacts(cached, rest) {
                break;
            }
            self.empty_cache(cached)?;
            events = rest;
        }
        self.turn_capture_on(call)?;
        self.request(events, call)
    }

    /// Makes the request. The device hands out the addresses of the segments in `events`.
    fn request(&mut self, events: &[Event], call: &Event) -> Result<(), Error> {
        let (bytes, stream) = (call.size, StreamId(call.of.stream));
        let before = self.obtained();
        let script = self.script(events);
        // Found by the request's own wait, which may hand out the very same address.
        let completions = events.iter().filter(|event| event.action == Action::FreeCompleted);
        let found: Vec<StreamId> = completions.map(|event| self.stop_waiting(event.addr)).collect();
        let fails = call.action == Action::OutOfMemory;
        if fails {
            self.exhaust_device(events);
            self.perform(Operation::Refused { bytes, stream })?;
            self.run.device().clear_failures();
        } else {
            let slot = self.vacant_slots.pop().unwrap_or_else(|| {
                self.program.slots += 1;
                self.program.slots - 1
            });
            self.held.insert(call.addr, RecordedBlock { slot, waits_for: None });
            self.perform(Operation::Malloc { bytes, stream, slot })?;
        }
        for stream in found {
            // If it did not wait after all, its blocks are free from here on all the same.
            self.perform(Operation::Complete { stream })?;
        }
        self.take_back(script, self.obtained() - before);
        self.account(events);
        Ok(())
    }

    /// Tells the device the addresses of the next segments. Returns the number of addresses.
    fn script(&mut self, events: &[Event]) -> u64 {
        let mut addresses = Vec::new();
        for event in events {
            let begins = match event.action {
                Action::SegmentAlloc => true,
                Action::SegmentMap => self.ranges.map(event),
                _ => false,
            };
            if begins && !self.astray {
                addresses.push(event.addr);
            }
        }
        let count = addresses.len() as u64;
        self.run.device().script_addresses(addresses);
        count
    }

    /// Makes the device fail every allocation beyond the segments in `events`: a recorded failure
    /// need not come from a limit.
    fn exhaust_device(&self, events: &[Event]) {
        let device = self.run.device();
        let obtained = events.iter().filter(|event| event.action == Action::SegmentAlloc).count() as u64;
        for (call, more) in [(Call::Obtain, obtained), (Call::Create, 0)] {
            device.fail(Failure {
                call,
                nth: device.calls(call) + more + 1,
                persistent: true,
                error: DeviceError::new(ErrorKind::OutOfMemory, 0),
            });
        }
    }

    /// Returns the number of addresses that the device has handed out.
    fn obtained(&self) -> u64 {
        self.run.device().calls(Call::Obtain) + self.run.device().calls(Call::Reserve)
    }

    /// Uses up the scripted addresses that the device did not hand out.
    fn take_back(&mut self, told: u64, taken: u64) {
        self.astray |= told != taken;
        for _ in taken..told {
            // The next address of the script goes to whoever asks next; a unit of memory is lost
            // with it.
            let _lost = cachalot_core::Segments::obtain(self.run.device(), cachalot_core::UNIT);
        }
    }

    /// Counts the bytes that the record holds from the device.
    fn account(&mut self, events: &[Event]) {
        for event in events {
            match event.action {
                Action::SegmentAlloc | Action::SegmentMap => self.recorded_bytes += event.size,
                Action::SegmentFree => self.recorded_bytes -= event.size,
                Action::SegmentUnmap => {
                    self.recorded_bytes -= event.size;
                    self.ranges.unmap(event);
                }
                _ => {}
            }
        }
        self.astray |= self.recorded_bytes != self.run.device().used();
    }

    /// Enters or leaves the part of the record with the capture note.
    fn turn_capture(&mut self, at: usize) -> Result<usize, Error> {
        if self.events[at].of.note == Note::None {
            if std::mem::replace(&mut self.capture, Capture::Off) == Capture::On {
                self.perform(Operation::EndCapture)?;
            }
            return Ok(at);
        }
        // A capture is preceded by a call that empties the cache, whether or not anything of it is
        // in the record.
        let noted = &self.events[at..];
        let emptied = noted
            .iter()
            .take_while(|event| event.of.note == Note::Capture)
            .take_while(|event| event.action.is_release() || event.action == Action::FreeCompleted)
            .count();
        self.empty_cache(&noted[..emptied])?;
        let is_first = self.captures == 0 && self.run.pools().is_empty();
        let seeds = if is_first && has_seeds(&noted[emptied..]) { SEEDS } else { 0 };
        self.captures += 1;
        self.capture = Capture::Preparing(seeds);
        self.captured_streams.clear();
        Ok(at + emptied)
    }

    /// Starts the capture before the first request in the noted part that is no seed.
    fn turn_capture_on(&mut self, call: &Event) -> Result<(), Error> {
        match self.capture {
            Capture::Off => return Ok(()),
            Capture::Preparing(seeds) if seeds > 0 => {
                self.capture = Capture::Preparing(seeds - 1);
                return Ok(());
            }
            Capture::Preparing(_) => {
                self.capture = Capture::On;
                self.perform(Operation::BeginCapture)?;
            }
            Capture::On => {}
        }
        if !self.captured_streams.contains(&call.of.stream) {
            self.captured_streams.push(call.of.stream);
            self.perform(Operation::Capture { stream: StreamId(call.of.stream) })?;
        }
        Ok(())
    }
}

/// Whether the noted events start with the two seeds of a generator, made before the capture. They
/// then come from the default pool, as the record proves: the next small request, of the graphs'
/// pool, finds no room next to them.
fn has_seeds(noted: &[Event]) -> bool {
    let requests = || {
        let noted = noted.iter().take_while(|event| event.of.note == Note::Capture);
        noted.enumerate().filter(|(_, event)| event.action == Action::Alloc && event.size <= MIB)
    };
    let seeds = requests().take(SEEDS).filter(|(_, event)| event.size == SEED_BYTES).count();
    let first_is_seed =
        noted.iter().find(|event| event.action == Action::Alloc).is_some_and(|event| event.size == SEED_BYTES);
    let next_obtains = requests().nth(SEEDS).is_none_or(|(at, _)| {
        let obtains = |event: &Event| matches!(event.action, Action::SegmentAlloc | Action::SegmentMap);
        at > 0 && obtains(&noted[at - 1])
    });
    seeds == SEEDS && first_is_seed && next_obtains
}
