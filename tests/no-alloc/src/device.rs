//! A device whose memory is handed out from the bottom up, closely packed, and taken back from the
//! top.

use cachalot_core::{BasicDevice, DeviceError, DevicePtr, DeviceResult, ErrorKind, Event, MemoryInfo, StreamId, UNIT};
use spin::Mutex;

/// Largest number of segments.
const SEGMENTS: usize = 16;

/// Largest number of events.
const EVENTS: usize = 16;

/// The first address, in the middle of a page of 2 MiB. So segments share pages.
const BOTTOM: u64 = (1 << 30) + 3 * UNIT;

const NO_MEMORY: DeviceError = DeviceError::new(ErrorKind::OutOfMemory, 2);
const INVALID: DeviceError = DeviceError::new(ErrorKind::InvalidArgument, 1);

struct State {
    /// Base, length and state of each segment, in the order of addresses. A released segment stays
    /// until all later segments are released.
    segments: [(u64, u64, bool); SEGMENTS],
    count: usize,
    /// Whether each event is complete. Events from number `events_made` on were never made.
    complete: [bool; EVENTS],
    events_made: usize,
}

/// The device.
pub struct BumpDevice {
    capacity: u64,
    state: Mutex<State>,
}

impl BumpDevice {
    /// A device of `capacity` bytes.
    pub const fn new(capacity: u64) -> Self {
        let state = State { segments: [(0, 0, false); SEGMENTS], count: 0, complete: [false; EVENTS], events_made: 0 };
        Self { capacity, state: Mutex::new(state) }
    }

    /// Completes all queued work of all streams.
    pub fn complete_all(&self) {
        self.state.lock().complete = [true; EVENTS];
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        let state = self.state.lock();
        state.segments[..state.count].iter().filter(|segment| segment.2).map(|segment| segment.1).sum()
    }
}

impl BasicDevice for BumpDevice {
    fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        let mut state = self.state.lock();
        let count = state.count;
        let base = state.segments[..count].last().map_or(BOTTOM, |&(base, len, _)| base + len);
        if count == SEGMENTS || base - BOTTOM + bytes > self.capacity {
            return Err(NO_MEMORY);
        }
        state.segments[count] = (base, bytes, true);
        state.count += 1;
        Ok(DevicePtr(base))
    }

    fn release(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let mut state = self.state.lock();
        let count = state.count;
        let held =
            state.segments[..count].iter_mut().find(|segment| **segment == (base.0, bytes, true)).ok_or(INVALID)?;
        held.2 = false;
        while state.count > 0 && !state.segments[state.count - 1].2 {
            state.count -= 1;
        }
        Ok(())
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        Ok(MemoryInfo { free: self.capacity - self.used(), total: self.capacity })
    }

    fn create_event(&self) -> DeviceResult<Event> {
        let mut state = self.state.lock();
        if state.events_made == EVENTS {
            return Err(NO_MEMORY);
        }
        state.events_made += 1;
        Ok(Event(state.events_made as u64 - 1))
    }

    fn destroy_event(&self, _: Event) -> DeviceResult<()> {
        Ok(())
    }

    fn record(&self, event: Event, _: StreamId) -> DeviceResult<()> {
        self.state.lock().complete[event.0 as usize] = false;
        Ok(())
    }

    fn is_complete(&self, event: Event) -> DeviceResult<bool> {
        Ok(self.state.lock().complete[event.0 as usize])
    }

    fn wait(&self, event: Event) -> DeviceResult<()> {
        self.state.lock().complete[event.0 as usize] = true;
        Ok(())
    }

    fn synchronize(&self, _: StreamId) -> DeviceResult<()> {
        Ok(())
    }

    fn is_capturing(&self, _: StreamId) -> DeviceResult<bool> {
        Ok(false)
    }
}
