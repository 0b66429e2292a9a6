//! The interface of a simulated device: segments, events and streams, and the clock.

use super::{Call, INVALID, SimulatedDevice};
use crate::device::explanation::Explanation;
use crate::device::oom::OutOfMemory;
use crate::device::{
    CaptureMark, Contents, DeviceError, DeviceResult, ErrorKind, Event, Host, MemoryInfo, Segments, StreamOrder,
    VirtualMemory,
};
use crate::pool::PoolId;
use crate::trace::{CallSite, TraceEntry};
use crate::units::{DevicePtr, StreamId};

impl Segments for SimulatedDevice {
    fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        let mut state = self.0.lock();
        state.enter(Call::Obtain, bytes)?;
        state.use_memory(bytes)?;
        let address = state.take_address(bytes).inspect_err(|_| state.used -= bytes)?;
        state.segments.insert(address, bytes);
        Ok(DevicePtr(address))
    }

    fn release(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let mut state = self.0.lock();
        state.enter(Call::Release, bytes)?;
        if state.segments.get(&base.0) != Some(&bytes) {
            return Err(INVALID);
        }
        // Like the CUDA driver, this waits for all work that uses the segment.
        state.streams.finish(&(base.0..base.0 + bytes));
        state.segments.remove(&base.0);
        state.supplied.remove(&base.0);
        state.used -= bytes;
        state.vacant.entry(bytes).or_default().insert(base.0);
        Ok(())
    }

    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        let mut state = self.0.lock();
        state.enter(Call::MemoryInfo, 0)?;
        Ok(MemoryInfo { free: state.capacity - state.used, total: state.capacity })
    }

    fn process_use(&self) -> Option<u64> {
        None
    }

    fn owed(&self) -> u64 {
        0
    }

    fn shares_host_memory(&self) -> bool {
        false
    }

    fn lacks(&self, _: u64) -> bool {
        false
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        None
    }

    fn supplies(&self, pool: PoolId) -> bool {
        self.0.lock().supplied_pools.contains(&pool)
    }

    fn pins(&self) -> bool {
        self.0.lock().pins
    }

    fn is_ordered(&self) -> bool {
        false
    }

    fn obtain_on(&self, _: StreamId, bytes: u64) -> DeviceResult<DevicePtr> {
        self.obtain(bytes)
    }

    fn obtain_for(&self, pool: PoolId, bytes: u64) -> DeviceResult<DevicePtr> {
        let base = self.obtain(bytes)?;
        self.0.lock().supplied.insert(base.0, pool);
        Ok(base)
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        (self.0.lock().granularity != 0).then_some(self)
    }

    fn contents(&self) -> Option<&dyn Contents> {
        Some(self)
    }
}

impl StreamOrder for SimulatedDevice {
    fn create_event(&self) -> DeviceResult<Event> {
        let mut state = self.0.lock();
        state.enter(Call::CreateEvent, 0)?;
        state.events_made += 1;
        let event = state.events_made;
        state.events.insert(event, None);
        Ok(Event(event))
    }

    fn create_order_event(&self) -> DeviceResult<Event> {
        let event = self.create_event()?;
        let mut state = self.0.lock();
        if state.events_for_streams.len() < state.most_events_for_streams {
            state.events_for_streams.insert(event.0);
        }
        Ok(event)
    }

    fn orders(&self, event: Event) -> bool {
        self.0.lock().events_for_streams.contains(&event.0)
    }

    fn destroy_event(&self, event: Event) -> DeviceResult<()> {
        let mut state = self.0.lock();
        state.enter(Call::DestroyEvent, 0)?;
        state.events_for_streams.remove(&event.0);
        state.events.remove(&event.0).map(|_| ()).ok_or(INVALID)
    }

    fn record(&self, event: Event, stream: StreamId) -> DeviceResult<()> {
        let mut state = self.0.lock();
        state.streams.assert_there(stream);
        state.record(event, stream)
    }

    fn record_announced(&self, event: Event, stream: StreamId) -> DeviceResult<()> {
        let mut state = self.0.lock();
        if stream == StreamId::EVERY { state.record_behind_all(event) } else { state.record(event, stream) }
    }

    fn record_all(&self, event: Event) -> DeviceResult<()> {
        self.0.lock().record_behind_all(event)
    }

    fn can_record_all(&self) -> bool {
        self.0.lock().records_all
    }

    fn is_complete(&self, event: Event) -> DeviceResult<bool> {
        let mut state = self.0.lock();
        state.enter(Call::IsComplete, 0)?;
        state.is_complete(event)
    }

    fn wait(&self, event: Event) -> DeviceResult<()> {
        let mut state = self.0.lock();
        state.enter(Call::Wait, 0)?;
        state.is_complete(event)?;
        if let Some(Some(place)) = state.events.get(&event.0).copied() {
            state.streams.complete(place);
        }
        Ok(())
    }

    fn order_behind(&self, stream: StreamId, event: Event) -> DeviceResult<()> {
        let mut state = self.0.lock();
        state.streams.assert_there(stream);
        state.enter(Call::OrderBehind, 0)?;
        // With a real device, the host would have to wait.
        let waits = state.events.contains_key(&event.0) && !state.events_for_streams.contains(&event.0);
        assert!(!waits, "{stream:?} is ordered after an event that was not made for it");
        match state.events.get(&event.0).copied() {
            None => Err(INVALID),
            Some(None) => Ok(()),
            Some(Some(place)) => state.streams.wait(stream, place),
        }
    }

    fn can_order(&self, stream: StreamId) -> bool {
        self.0.lock().streams.has_work(stream)
    }

    fn reports_end(&self, stream: StreamId) -> bool {
        self.0.lock().streams.reports_end(stream)
    }

    fn synchronize(&self, stream: StreamId) -> DeviceResult<()> {
        let mut state = self.0.lock();
        state.enter(Call::Synchronize, 0)?;
        state.streams.synchronize(stream)
    }

    fn synchronize_without_memory(&self, _: StreamId) -> DeviceResult<()> {
        // No wait of this device needs memory.
        Err(DeviceError::new(ErrorKind::Unsupported, 0))
    }

    fn synchronize_all(&self) -> DeviceResult<()> {
        let mut state = self.0.lock();
        state.enter(Call::SynchronizeAll, 0)?;
        state.streams.synchronize_all()
    }

    fn is_idle(&self, stream: StreamId) -> DeviceResult<Option<bool>> {
        let mut state = self.0.lock();
        // If the device cannot say, this does not count as a call.
        let idle = state.streams.is_idle(stream);
        idle.map(|idle| state.enter(Call::IsIdle, 0).map(|()| idle)).transpose()
    }

    fn is_capturing(&self, stream: StreamId) -> DeviceResult<bool> {
        let mut state = self.0.lock();
        state.streams.assert_there(stream);
        state.enter(Call::IsCapturing, 0)?;
        Ok(state.streams.is_capturing(stream))
    }

    fn mark_capture(&self, stream: StreamId, mark: Option<CaptureMark>) -> DeviceResult<Option<CaptureMark>> {
        let mut state = self.0.lock();
        state.streams.assert_there(stream);
        let entered = state.enter(Call::MarkCapture, 0);
        if let (Err(_), Some(mark)) = (entered, mark) {
            state.graph.remove_mark(mark);
        }
        entered.map(|()| state.graph.mark(stream, mark))
    }

    fn is_behind(&self, stream: StreamId, mark: CaptureMark) -> DeviceResult<bool> {
        let mut state = self.0.lock();
        state.streams.assert_there(stream);
        state.enter(Call::IsBehind, 0)?;
        Ok(state.graph.is_behind(stream, mark))
    }

    fn remove_mark(&self, mark: CaptureMark) {
        self.0.lock().graph.remove_mark(mark);
    }
}

/// Of the reports to the program, only those about mappings and damage are recorded.
impl Host for SimulatedDevice {
    fn thread_id(&self) -> u64 {
        0
    }

    /// Advances the clock. Returns false if the pause would end too late.
    fn pause(&self, us: u64) -> bool {
        let mut state = self.0.lock();
        let end = state.clock_us.saturating_add(us);
        let patient = end <= state.patience_us;
        if patient {
            state.clock_us = end;
        }
        patient
    }

    /// Returns the time of all pauses and calls in nanoseconds, plus two for each time the clock
    /// was read.
    fn ticks(&self) -> u64 {
        let mut state = self.0.lock();
        state.looks += 2;
        state.clock_us.saturating_mul(1000).saturating_add(state.meter.total_ns()).saturating_add(state.looks)
    }

    /// Returns the time since the creation of the device, not since the Unix epoch.
    fn time_us(&self, ticks: u64) -> u64 {
        ticks / 1000
    }

    fn leads(&self, route: u64, stream: StreamId) -> bool {
        self.0.lock().led.get(&route).is_some_and(|streams| streams.contains(&stream))
    }

    fn on_shortage(&self, _: u64) -> bool {
        false
    }

    fn on_out_of_memory(&self, _: &OutOfMemory) {}

    fn on_missing_virtual_memory(&self) {}

    /// Panics if the mapping is not accessible, or if the program already knows it.
    fn on_map(&self, at: DevicePtr, bytes: u64) {
        self.0.lock().tell_mapped(at.0, bytes);
    }

    /// Panics if the program does not know the mapping.
    fn on_unmap(&self, at: DevicePtr, bytes: u64) {
        self.0.lock().tell_unmapped(at.0, bytes);
    }

    fn on_event(&self, _: &TraceEntry, _: PoolId) {}

    fn on_damage(&self, block: &Explanation) {
        self.0.lock().damage.push(block.address);
    }

    fn call_site(&self, _: CallSite) -> u32 {
        0
    }
}
