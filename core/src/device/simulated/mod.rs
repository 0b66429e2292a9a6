//! A device in memory, for tests, replays and programs without a GPU. It is deterministic, and as
//! strict as a driver.
//!
//! Addresses come from a script or are counted up; released addresses are reused. An event
//! completes when the test lets its stream progress, or when a caller waits for the event. Pauses
//! and calls advance the device's own clock and take no real time: each call advances it by the
//! estimated time of that call on a real device. Any call can be made to fail.

use crate::device::{CaptureMark, DeviceError, DeviceResult, ErrorKind, Event, PhysicalHandle};
use crate::pool::PoolId;
use crate::units::{DevicePtr, StreamId};
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
use spin::Mutex;

mod addresses;
mod contents;
mod costs;
mod device_memory;
mod failure;
mod graph;
mod mappings;
#[cfg(all(test, not(loom)))]
mod tests;
mod work;

pub use crate::device::Call;
pub use addresses::{AddressSpace, Space};
use contents::HostMemory;
use costs::Meter;
pub use costs::{CostPoint, DriverCosts};
pub use failure::Failure;
use graph::Graph;
use mappings::PhysicalMemory;
use work::{StreamPoint, Streams};

/// The resources of a device that have not been released.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Outstanding {
    /// Segments.
    pub segments: usize,
    /// Reserved ranges of addresses.
    pub reservations: usize,
    /// Mappings.
    pub mappings: usize,
    /// Physical handles.
    pub handles: usize,
}

/// A device in memory, without hardware: a [`DeviceMemory`](crate::device::DeviceMemory) with
/// [`VirtualMemory`](crate::device::VirtualMemory) and [`Contents`](crate::device::Contents).
#[derive(Debug)]
pub struct SimulatedDevice(Mutex<DeviceState>);

/// The alignment of segments and reservations, in bytes.
const ALIGNMENT: u64 = 2 << 20;

/// The distance between the address ranges of [numbered](SimulatedDevice::numbered) devices, in
/// bytes.
const DEVICE_STRIDE: u64 = 1 << 44;

/// The end of the addresses of a device that has no number.
const LAST_ADDRESS: u64 = 1 << 58;

/// The fewest addresses that a device takes from the space at a time.
const SPAN: u64 = 1 << 40;

/// The state of a device, under its lock.
#[derive(Clone, Default, Debug)]
struct DeviceState {
    /// The device memory in bytes.
    capacity: u64,
    /// The device memory in use, in bytes.
    used: u64,
    /// The highest value of `used`.
    peak: u64,
    /// The memory of the host that can be mapped, in bytes.
    capacity_of_host: u64,
    /// The memory of the host that is allocated, in bytes.
    used_of_host: u64,
    /// The space that the device's addresses come from.
    space: Space,
    /// The ranges taken from `space`. They are returned when the device is dropped.
    spans: Vec<Range<u64>>,
    /// The part of the last range that is still unused.
    fresh: Range<u64>,
    /// Addresses that are returned before any others.
    script: VecDeque<u64>,
    /// Released addresses by length. The lowest one is reused first.
    vacant: BTreeMap<u64, BTreeSet<u64>>,
    /// Segments: address → length.
    segments: BTreeMap<u64, u64>,
    /// Reservations: address → length.
    reservations: BTreeMap<u64, u64>,
    /// Mappings: address → length, handle, whether accessible.
    mappings: BTreeMap<u64, (u64, u64, bool)>,
    /// The mappings that the program was told about: address → length.
    told: BTreeMap<u64, u64>,
    /// The addresses of overwritten bytes that the allocator reported.
    damage: Vec<DevicePtr>,
    /// Physical handles by number.
    physical: BTreeMap<u64, PhysicalMemory>,
    /// The number of the latest handle.
    handles: u64,
    /// Events: number → the place where it was recorded, if it was.
    events: BTreeMap<u64, Option<StreamPoint>>,
    /// The events for which streams can wait.
    events_for_streams: BTreeSet<u64>,
    /// The most events for streams that there can be at a time.
    most_events_for_streams: usize,
    /// Whether events can be recorded after the work of all streams.
    records_all: bool,
    /// The number of the latest event.
    events_made: u64,
    /// The streams that were used so far.
    streams: Streams,
    /// The work that the capturing streams captured.
    graph: Graph,
    /// The streams that each host route leads, by the number of the route.
    led: BTreeMap<u64, BTreeSet<StreamId>>,
    /// The pools whose segments the device supplies.
    supplied_pools: BTreeSet<PoolId>,
    /// Supplied segments: address → pool.
    supplied: BTreeMap<u64, PoolId>,
    /// The granularity of virtual memory in bytes; 0 ⟺ there is no virtual memory.
    granularity: u64,
    /// Whether physical memory can be exported.
    exports: bool,
    /// The saved contents, and the copies.
    host: HostMemory,
    /// How often each call was made.
    calls: [u64; Call::ALL.len()],
    /// The estimated time of the calls.
    meter: Meter,
    /// The failures to inject.
    failures: Vec<Failure>,
    /// Whether segments cost time for each byte.
    pins: bool,
    /// The error with which the context was lost. Every later call returns it.
    lost: Option<DeviceError>,
    /// Calls made after the context was lost.
    calls_after_loss: u64,
    /// The time of all pauses, in microseconds.
    clock_us: u64,
    /// How many ticks were added so that each reading of the clock is later than the previous one.
    looks: u64,
    /// The latest time at which a pause may end.
    patience_us: u64,
}

/// The contents of new memory are at least this number, which is above every number that a test
/// writes.
const UNWRITTEN: u64 = 1 << 63;

/// The error of a call with an invalid argument.
const INVALID: DeviceError = DeviceError::new(ErrorKind::InvalidArgument, 1);
/// The error of a call that found no memory or addresses.
const NO_MEMORY: DeviceError = DeviceError::new(ErrorKind::OutOfMemory, 2);

impl SimulatedDevice {
    /// Creates a device with `capacity` bytes, and with virtual memory in granules of 2 MiB.
    pub fn new(capacity: u64) -> Self {
        Self::within(Space::default(), capacity)
    }

    /// Creates a device like [`new`](Self::new), in a separate range of addresses: each number has
    /// 2^44 bytes of addresses, and devices with different numbers share no address.
    pub fn numbered(number: u32, capacity: u64) -> Self {
        let start = DEVICE_STRIDE.saturating_mul(u64::from(number) + 1);
        Self::within(Arc::new(AddressSpace::new(start..start.saturating_add(DEVICE_STRIDE))), capacity)
    }

    /// Returns a device in the same state, with the same addresses, events and pages. Calls can be
    /// tried on it without an effect on the original.
    #[must_use]
    pub fn duplicate(&self) -> Self {
        // Only the original device returns the addresses taken so far.
        let mut state = self.0.lock().clone();
        state.spans.clear();
        Self(Mutex::new(state))
    }

    /// Creates a device like [`new`](Self::new), with addresses from `space`. Two devices in the
    /// same space never share an address. If the space has no addresses left, the device is out of
    /// memory.
    pub fn within(space: impl Into<Space>, capacity: u64) -> Self {
        Self(Mutex::new(DeviceState {
            capacity,
            space: space.into(),
            granularity: ALIGNMENT,
            meter: Meter::new(DriverCosts::h200()),
            patience_us: u64::MAX,
            most_events_for_streams: usize::MAX,
            ..DeviceState::default()
        }))
    }

    /// Removes virtual memory from the device.
    #[must_use]
    pub fn without_virtual_memory(self) -> Self {
        self.0.lock().granularity = 0;
        self
    }

    /// Makes segments cost time for each byte, as [pinned](crate::Segments::pins) host memory does.
    #[must_use]
    pub fn with_pinned_segments(self) -> Self {
        self.0.lock().pins = true;
        self
    }

    /// Lets the device export physical memory. The descriptors are the numbers of the handles, not
    /// open files.
    #[must_use]
    pub fn with_exports(self) -> Self {
        self.0.lock().exports = true;
        self
    }

    /// Sets the addresses of the next segments and reservations, in this order.
    pub fn script_addresses(&self, addresses: impl IntoIterator<Item = u64>) {
        self.0.lock().script.extend(addresses);
    }

    /// Keeps the device's addresses reserved in the space even after the device is dropped.
    pub fn keep_addresses(&self) {
        self.0.lock().spans.clear();
    }

    /// Lets `stream` finish all of its work, and everything that this work waits for. Afterwards,
    /// the events recorded so far are complete.
    pub fn complete(&self, stream: StreamId) {
        let streams = &mut self.0.lock().streams;
        streams.complete(streams.end(stream));
    }

    /// Lets `stream` progress past its oldest incomplete event, and past all work that this event
    /// waits for.
    pub fn complete_one(&self, stream: StreamId) {
        let streams = &mut self.0.lock().streams;
        streams.complete(streams.next(stream));
    }

    /// Starts or ends the capture of a graph on `stream`. Streams that capture at the same time
    /// capture the same graph.
    pub fn set_capturing(&self, stream: StreamId, capturing: bool) {
        let mut state = self.0.lock();
        state.streams.set_capturing(stream, capturing);
        state.graph.set_capturing(stream, capturing);
    }

    /// Captures a piece of work on `stream`, which must be capturing.
    pub fn capture_work(&self, stream: StreamId) {
        self.0.lock().graph.work(stream);
    }

    /// Makes everything that `stream` captures from now on come after the work that `awaited`
    /// captured. Both streams are capturing afterwards.
    pub fn capture_wait(&self, stream: StreamId, awaited: StreamId) {
        let mut state = self.0.lock();
        state.streams.set_capturing(stream, true);
        state.graph.wait(stream, awaited);
    }

    /// Returns how many marks are left in graphs.
    pub fn capture_marks(&self) -> usize {
        self.0.lock().graph.marks()
    }

    /// Sets the streams that the host route `route` leads, replacing the ones set before.
    pub fn set_led(&self, route: u64, streams: impl IntoIterator<Item = StreamId>) {
        self.0.lock().led.insert(route, streams.into_iter().collect());
    }

    /// Starts or stops supplying the segments of a private pool. The segments are memory of the
    /// device.
    pub fn set_supplied(&self, pool: PoolId, supplied: bool) {
        let pools = &mut self.0.lock().supplied_pools;
        if supplied {
            pools.insert(pool);
        } else {
            pools.remove(&pool);
        }
    }

    /// Returns the supplied segments that were not released, by address, and the pool of each.
    pub fn supplied(&self) -> Vec<(DevicePtr, PoolId)> {
        self.0.lock().supplied.iter().map(|(&base, &pool)| (DevicePtr(base), pool)).collect()
    }

    /// Returns the time of all pauses since creation, in microseconds.
    pub fn now_us(&self) -> u64 {
        self.0.lock().clock_us
    }

    /// Refuses pauses that would end later than `until_us` microseconds after creation.
    pub fn set_patience(&self, until_us: u64) {
        self.0.lock().patience_us = until_us;
    }

    /// Injects a failure.
    pub fn fail(&self, failure: Failure) {
        self.0.lock().failures.push(failure);
    }

    /// Removes all injected failures.
    pub fn clear_failures(&self) {
        self.0.lock().failures.clear();
    }

    /// Returns how often `call` was made.
    pub fn calls(&self, call: Call) -> u64 {
        self.0.lock().calls[call as usize]
    }

    /// Returns how many calls were made after the context was lost. They all failed.
    pub fn calls_after_loss(&self) -> u64 {
        self.0.lock().calls_after_loss
    }

    /// Returns the resources that were not released.
    pub fn outstanding(&self) -> Outstanding {
        let state = self.0.lock();
        Outstanding {
            segments: state.segments.len(),
            reservations: state.reservations.len(),
            mappings: state.mappings.len(),
            handles: state.physical.values().filter(|physical| !physical.dropped).count(),
        }
    }

    /// Returns the ranges that were released and are reused before any other, ascending by size
    /// and address. Devices with equal ranges place what follows at equal addresses.
    pub fn vacant(&self) -> Vec<Range<u64>> {
        let state = self.0.lock();
        let of_size = |(&bytes, bases)| BTreeSet::iter(bases).map(move |&base| base..base + bytes);
        state.vacant.iter().flat_map(of_size).collect()
    }

    /// Returns how many bytes of device memory are in use.
    pub fn used(&self) -> u64 {
        self.0.lock().used
    }

    /// Returns the most bytes of device memory that were in use so far.
    pub fn peak_used(&self) -> u64 {
        self.0.lock().peak
    }

    /// Sets the peak of [`peak_used`](Self::peak_used) to the current use.
    pub fn reset_peak_used(&self) {
        let mut state = self.0.lock();
        state.peak = state.used;
    }

    /// Returns whether every byte of the range is accessible, in a segment or in an accessible
    /// mapping.
    pub fn is_accessible(&self, at: DevicePtr, bytes: u64) -> bool {
        self.0.lock().pieces(at.0..at.0 + bytes).is_some()
    }
}

impl DeviceState {
    /// Counts and charges a call for `bytes` bytes. Returns an error if the call has to fail.
    fn enter(&mut self, call: Call, bytes: u64) -> DeviceResult<()> {
        self.meter.charge(call, [bytes]);
        self.count(call)
    }

    /// Counts a call that was already charged. Returns an error if the call has to fail.
    fn count(&mut self, call: Call) -> DeviceResult<()> {
        let count = &mut self.calls[call as usize];
        *count += 1;
        if let Some(error) = self.lost {
            self.calls_after_loss += 1;
            return Err(error);
        }
        let fails = |f: &&Failure| f.call == call && (f.nth == *count || f.persistent && f.nth <= *count);
        let Some(failure) = self.failures.iter().find(fails) else { return Ok(()) };
        self.lost = Some(failure.error).filter(|error| error.kind == ErrorKind::ContextLost);
        Err(failure.error)
    }

    /// Returns an address with room for `bytes`: the next one of the script, or else one that was
    /// released, or else a new one.
    fn take_address(&mut self, bytes: u64) -> DeviceResult<u64> {
        if let Some(address) = self.script.pop_front() {
            return Ok(address);
        }
        if let Some(address) = self.vacant.get_mut(&bytes).and_then(BTreeSet::pop_first) {
            return Ok(address);
        }
        let length = bytes.checked_next_multiple_of(ALIGNMENT).ok_or(NO_MEMORY)?;
        if self.fresh.end - self.fresh.start < length {
            let span = self.space.take(length.max(SPAN)).ok_or(NO_MEMORY)?;
            // If a span starts where the previous one ends, it continues that one, so a long range
            // may be in both.
            let start = if span.start == self.fresh.end { self.fresh.start } else { span.start };
            self.fresh = start..span.end;
            self.spans.push(span);
        }
        let address = self.fresh.start;
        self.fresh.start += length;
        Ok(address)
    }

    /// Takes `bytes` from the device's memory.
    fn use_memory(&mut self, bytes: u64) -> DeviceResult<()> {
        if bytes == 0 {
            return Err(INVALID);
        }
        if self.capacity - self.used < bytes {
            return Err(NO_MEMORY);
        }
        self.used += bytes;
        self.peak = self.peak.max(self.used);
        Ok(())
    }

    /// Records an event at the current end of a stream.
    fn record(&mut self, event: Event, stream: StreamId) -> DeviceResult<()> {
        self.enter(Call::Record, 0)?;
        if !self.events.contains_key(&event.0) {
            return Err(INVALID);
        }
        let place = self.streams.queue(stream)?;
        self.events.insert(event.0, Some(place));
        Ok(())
    }

    /// Waits for all work and records an event after it. The event is complete at once.
    fn record_behind_all(&mut self, event: Event) -> DeviceResult<()> {
        self.enter(Call::Record, 0)?;
        self.streams.synchronize_all()?;
        let state = self.events.get_mut(&event.0).ok_or(INVALID)?;
        *state = None;
        Ok(())
    }

    /// Returns whether an event is complete.
    fn is_complete(&self, event: Event) -> DeviceResult<bool> {
        match self.events.get(&event.0) {
            None => Err(INVALID),
            // As with the CUDA driver, an event that was never recorded is complete.
            Some(None) => Ok(true),
            Some(Some(place)) => Ok(self.streams.is_complete(*place)),
        }
    }
}

impl Drop for SimulatedDevice {
    fn drop(&mut self) {
        let DeviceState { space, spans, .. } = self.0.get_mut();
        spans.drain(..).for_each(|span| space.release_memory(span));
    }
}
