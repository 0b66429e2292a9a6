//! A stand-in for a device while requests are tried on a copy of an allocator. It has the device's
//! events, pages and free memory, but its calls have no effect on the device.

use crate::device::forward::{ForwardHost, ForwardSegments, ForwardStreamOrder, ForwardVirtualMemory, Forwarder};
use crate::device::{Bare, DeviceError, DeviceResult, ErrorKind, Event, MemoryInfo, PhysicalHandle, VirtualMemory};
use crate::pool::PoolId;
use crate::units::{DevicePtr, StreamId};
use alloc::collections::{BTreeMap, BTreeSet};
use spin::Mutex;

/// The first address: it is above the addresses of every real device.
const FIRST_ADDRESS: u64 = 1 << 60;

/// The first number of an event and of a physical handle. It is above the numbers that drivers use,
/// which are addresses.
const FIRST_NUMBER: u64 = 1 << 60;

/// The alignment of segments and reservations, in bytes.
const ALIGNMENT: u64 = 2 << 20;

/// The memory of a device that did not report a size: more than any device has, but small enough to
/// be multiplied.
pub(crate) const UNKNOWN_MEMORY: u64 = 1 << 44;

/// The answers that the device of the copied allocator would give.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// The stream of the requests.
    pub stream: StreamId,
    /// The streams that are capturing a graph.
    pub capturing: BTreeSet<u64>,
    /// The streams that end without a report of the host.
    pub unreported: BTreeSet<u64>,
    /// Whether the device can make the stream wait.
    pub can_order: bool,
    /// The thread of the requests.
    pub thread: u64,
    /// The host's route for the requests, if any.
    pub route: Option<u64>,
    /// The pool of the requests, if the host supplies its segments.
    pub supplied: Option<PoolId>,
    /// The granularity of virtual memory, or `None` if there is none.
    pub granularity: Option<u64>,
    /// The free memory and all memory, if the device reported it.
    pub memory: Option<MemoryInfo>,
    /// The length of each page of the device, by handle.
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
    /// The next address to hand out.
    next_address: u64,
    /// The number of the next event or page.
    next_number: u64,
    /// The free memory in bytes. `None` if it is unknown.
    free: Option<u64>,
    /// The length of each page of the device, by handle.
    pages: BTreeMap<u64, u64>,
    /// The events that were waited for.
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

/// Calls that are not listed here have no effect, and answer like `Bare`.
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

    /// How much memory the host has for a pool is unknown, so every request succeeds.
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

    fn create_order_event(&self) -> DeviceResult<Event> {
        ForwardStreamOrder::create_event(self)
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

    /// No work makes progress during a rehearsal, so only a wait completes an event.
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

    fn create_at_host(&self, _: u64) -> DeviceResult<PhysicalHandle> {
        Ok(PhysicalHandle(self.state.lock().number()))
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{ALIGNMENT, Answers, FIRST_ADDRESS, FIRST_NUMBER, RehearsalDevice};
    use crate::device::{Host, Segments, StreamOrder};
    use crate::pool::PoolId;
    use crate::units::StreamId;
    use alloc::collections::BTreeSet;

    const STREAM: StreamId = StreamId(5);
    const OTHER: StreamId = StreamId(6);
    const POOL: PoolId = PoolId(0, 3);

    #[test]
    fn it_answers_as_the_device_has_answered() {
        let ordered = |can_order| RehearsalDevice::new(Answers { stream: STREAM, can_order, ..Answers::default() });
        let answers = Answers {
            capturing: BTreeSet::from([5]),
            unreported: BTreeSet::from([6]),
            thread: 77,
            route: Some(9),
            supplied: Some(POOL),
            granularity: Some(4096),
            ..Answers::default()
        };
        let device = RehearsalDevice::new(answers);
        assert_eq!([STREAM, OTHER].map(|stream| device.is_capturing(stream).unwrap()), [true, false]);
        assert_eq!([STREAM, OTHER].map(|stream| device.reports_end(stream)), [true, false]);
        assert_eq!([STREAM, OTHER].map(|stream| ordered(false).can_order(stream)), [false, true]);
        assert_eq!([STREAM, OTHER].map(|stream| ordered(true).can_order(stream)), [true, true]);
        assert_eq!([8, 9].map(|route| device.leads(route, STREAM)), [false, true]);
        assert_eq!([PoolId(0, 4), POOL].map(|pool| device.supplies(pool)), [false, true]);
        assert_eq!((device.thread_id(), device.virtual_memory().unwrap().granularity()), (77, 4096));
    }

    #[test]
    fn every_segment_and_every_reservation_has_addresses_of_its_own() {
        let device = RehearsalDevice::new(Answers { granularity: Some(4096), ..Answers::default() });
        let bytes = 3 * ALIGNMENT / 2;
        let memory = device.virtual_memory().unwrap();
        let bases = [
            device.obtain(bytes).unwrap(),
            device.obtain_for(POOL, bytes).unwrap(),
            memory.reserve(bytes).unwrap(),
            device.obtain(1).unwrap(),
        ];
        assert_eq!(bases.map(|base| base.0 - FIRST_ADDRESS), [0, 2, 4, 6].map(|steps| steps * ALIGNMENT));
        let handles = [memory.create(4096).unwrap().0, memory.create(4096).unwrap().0];
        assert!(handles[0] > FIRST_NUMBER && handles[1] > handles[0], "{handles:?} are no numbers of a driver");
    }

    #[test]
    fn only_a_wait_completes_an_event_and_only_until_it_is_recorded_again() {
        let device = RehearsalDevice::new(Answers::default());
        let events = [device.create_event().unwrap(), device.create_event().unwrap()];
        let complete = || events.map(|event| device.is_complete(event).unwrap());
        device.record(events[0], STREAM).unwrap();
        assert_eq!(complete(), [false, false]);
        device.wait(events[0]).unwrap();
        assert_eq!(complete(), [true, false]);
        device.record(events[0], STREAM).unwrap();
        assert_eq!(complete(), [false, false]);
        events.iter().for_each(|&event| device.wait(event).unwrap());
        device.record_announced(events[1], STREAM).unwrap();
        assert_eq!(complete(), [true, false]);
        device.destroy_event(events[0]).unwrap();
        assert_eq!(complete(), [false, false]);
    }
}
