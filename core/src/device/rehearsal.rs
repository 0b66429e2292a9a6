//! A stand-in for a device while requests are tried on a copy of an allocator: with
//! the device's events, pages and free memory, and without any effect.

use crate::device::forward::{ForwardHost, ForwardSegments, ForwardStreamOrder, ForwardVirtualMemory, Forwarder};
use crate::device::{Bare, DeviceError, DeviceResult, ErrorKind, Event, MemoryInfo, PhysicalHandle, VirtualMemory};
use crate::pool::PoolId;
use crate::units::{DevicePtr, StreamId};
use alloc::collections::{BTreeMap, BTreeSet};
use spin::Mutex;

/// The first address of the device: above those of every device.
const FIRST_ADDRESS: u64 = 1 << 60;

/// The first number of an event and of a physical handle: above the numbers of drivers, which are addresses.
const FIRST_NUMBER: u64 = 1 << 60;

/// The alignment of segments and reservations, in bytes.
const ALIGNMENT: u64 = 2 << 20;

/// Memory of a device without a known size: above the memory of any device, and small enough to be multiplied.
pub(crate) const UNKNOWN_MEMORY: u64 = 1 << 44;

/// The answers of the copied allocator's device.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// The stream of the requests.
    pub stream: StreamId,
    /// The streams capturing a graph.
    pub capturing: BTreeSet<u64>,
    /// The streams whose end the host does not report.
    pub unreported: BTreeSet<u64>,
    /// Whether the device can order the stream.
    pub can_order: bool,
    /// The thread of the requests.
    pub thread: u64,
    /// The host's route for the requests.
    pub route: Option<u64>,
    /// The pool of the requests, if the host supplies the pool's segments.
    pub supplied: Option<PoolId>,
    /// The granularity of virtual memory, or `None` without virtual memory.
    pub granularity: Option<u64>,
    /// Free memory and all memory, if the device has told.
    pub memory: Option<MemoryInfo>,
    /// The length of each page, by handle.
    pub pages: BTreeMap<u64, u64>,
}

/// The device of a copy.
#[derive(Debug)]
pub(crate) struct RehearsalDevice {
    answers: Answers,
    state: Mutex<RehearsedDevice>,
}

#[derive(Debug)]
struct RehearsedDevice {
    /// The next address.
    next_address: u64,
    /// The number of the next event and the next page.
    next_number: u64,
    /// Free memory in bytes. `None` if unknown.
    free: Option<u64>,
    /// The length of each page, by handle.
    pages: BTreeMap<u64, u64>,
    /// The events waited for.
    complete: BTreeSet<u64>,
}

impl RehearsedDevice {
    fn take(&mut self, bytes: u64) -> DeviceResult<()> {
        let Some(free) = &mut self.free else { return Ok(()) };
        if let Some(left) = free.checked_sub(bytes) {
            *free = left;
            return Ok(());
        }
        Err(DeviceError::new(ErrorKind::OutOfMemory, 0))
    }

    fn give_back(&mut self, bytes: u64) {
        if let Some(free) = &mut self.free {
            *free = free.saturating_add(bytes);
        }
    }

    fn address(&mut self, bytes: u64) -> DevicePtr {
        let at = self.next_address;
        self.next_address += bytes.next_multiple_of(ALIGNMENT);
        DevicePtr(at)
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }
}

impl RehearsalDevice {
    pub(crate) fn new(mut answers: Answers) -> Self {
        let pages = core::mem::take(&mut answers.pages);
        let state = RehearsedDevice {
            next_address: FIRST_ADDRESS,
            next_number: FIRST_NUMBER,
            free: answers.memory.map(|memory| memory.free),
            pages,
            complete: BTreeSet::new(),
        };
        Self { answers, state: Mutex::new(state) }
    }
}

/// All calls not listed have no effect, or no answer.
impl Forwarder for RehearsalDevice {
    type Inner = Bare;

    fn inner(&self) -> DeviceResult<&Bare> {
        Ok(&Bare)
    }
}

impl ForwardSegments for RehearsalDevice {
    fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        let mut state = self.state.lock();
        state.take(bytes)?;
        Ok(state.address(bytes))
    }

    fn release(&self, _: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.state.lock().give_back(bytes);
        Ok(())
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        let free = self.state.lock().free;
        let total = self.answers.memory.map_or(UNKNOWN_MEMORY, |memory| memory.total);
        Ok(MemoryInfo { free: free.unwrap_or(total), total })
    }

    fn supplies(&self, pool: PoolId) -> bool {
        self.answers.supplied == Some(pool)
    }

    /// The host's memory for a pool is unknown: every request succeeds.
    fn obtain_for(&self, _: PoolId, bytes: u64) -> DeviceResult<DevicePtr> {
        Ok(self.state.lock().address(bytes))
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        self.answers.granularity.map(|_| self as &dyn VirtualMemory)
    }
}

impl ForwardStreamOrder for RehearsalDevice {
    fn create_event(&self) -> DeviceResult<Event> {
        Ok(Event(self.state.lock().number()))
    }

    fn destroy_event(&self, event: Event) -> DeviceResult<()> {
        self.state.lock().complete.remove(&event.0);
        Ok(())
    }

    fn record(&self, event: Event, _: StreamId) -> DeviceResult<()> {
        self.state.lock().complete.remove(&event.0);
        Ok(())
    }

    fn record_announced(&self, event: Event, stream: StreamId) -> DeviceResult<()> {
        ForwardStreamOrder::record(self, event, stream)
    }

    /// No work makes progress during a rehearsal: only a wait completes an event.
    fn is_complete(&self, event: Event) -> DeviceResult<bool> {
        Ok(self.state.lock().complete.contains(&event.0))
    }

    fn wait(&self, event: Event) -> DeviceResult<()> {
        self.state.lock().complete.insert(event.0);
        Ok(())
    }

    fn order_behind(&self, _: StreamId, _: Event) -> DeviceResult<()> {
        Ok(())
    }

    fn reports_end(&self, stream: StreamId) -> bool {
        !self.answers.unreported.contains(&stream.0)
    }

    fn can_order(&self, stream: StreamId) -> bool {
        stream != self.answers.stream || self.answers.can_order
    }

    fn synchronize(&self, _: StreamId) -> DeviceResult<()> {
        Ok(())
    }

    fn synchronize_all(&self) -> DeviceResult<()> {
        Ok(())
    }

    fn is_capturing(&self, stream: StreamId) -> DeviceResult<bool> {
        Ok(self.answers.capturing.contains(&stream.0))
    }
}

impl ForwardHost for RehearsalDevice {
    fn thread_id(&self) -> u64 {
        self.answers.thread
    }

    fn leads(&self, route: u64, _: StreamId) -> bool {
        self.answers.route == Some(route)
    }
}

impl ForwardVirtualMemory for RehearsalDevice {
    fn granularity(&self) -> u64 {
        self.answers.granularity.unwrap_or(ALIGNMENT)
    }

    fn reserve(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        Ok(self.state.lock().address(bytes))
    }

    fn unreserve(&self, _: DevicePtr, _: u64) -> DeviceResult<()> {
        Ok(())
    }

    fn create(&self, bytes: u64) -> DeviceResult<PhysicalHandle> {
        let mut state = self.state.lock();
        state.take(bytes)?;
        let handle = state.number();
        state.pages.insert(handle, bytes);
        Ok(PhysicalHandle(handle))
    }

    fn destroy(&self, handle: PhysicalHandle) -> DeviceResult<()> {
        let mut state = self.state.lock();
        let bytes = state.pages.remove(&handle.0).unwrap_or(0);
        state.give_back(bytes);
        Ok(())
    }

    fn map(&self, _: DevicePtr, _: u64, _: PhysicalHandle) -> DeviceResult<()> {
        Ok(())
    }

    fn set_access(&self, _: DevicePtr, _: u64) -> DeviceResult<()> {
        Ok(())
    }

    fn unmap(&self, _: DevicePtr, _: u64) -> DeviceResult<()> {
        Ok(())
    }
}
