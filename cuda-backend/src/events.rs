//! Implements the core's trait for the events of a device and the order of its streams.

use crate::context_wait::Captures;
use crate::device::CudaDevice;
use crate::device_event::DeviceEvent;
use crate::driver::result::CuResult;
use crate::driver::types::CuEvent;
use crate::spare_events;
#[cfg(doc)]
use cachalot_core::ErrorKind;
use cachalot_core::{CaptureMark, DeviceResult, Event, StreamId, StreamOrder};

impl CudaDevice {
    /// Returns the driver's handle of an event, which a device has made.
    #[must_use]
    pub const fn cu_event(event: Event) -> CuEvent {
        DeviceEvent::of(event).handle
    }

    /// Asks the driver whether an event is complete. The event has no stand-ins.
    pub(crate) fn query(&self, event: CuEvent) -> DeviceResult<bool> {
        // SAFETY: takes no host pointers; the device made the event, and no event is queried after
        // destruction.
        let ask = || unsafe { self.driver().event_query(event) };
        let mode = self.context.enter_mode()?;
        match ask() {
            CuResult::NOT_READY => return Ok(false),
            // The driver wants a context, or the context of the event is gone. The answer in the
            // context tells which.
            CuResult::INVALID_CONTEXT | CuResult::INVALID_HANDLE => drop(mode),
            code => return self.context.check(code).map(|()| true),
        }
        let _scope = self.context.enter()?;
        match ask() {
            CuResult::NOT_READY => Ok(false),
            code => self.context.check(code).map(|()| true),
        }
    }
}

impl StreamOrder for CudaDevice {
    fn create_event(&self) -> DeviceResult<Event> {
        Ok(spare_events::create(&self.context)?.number())
    }

    /// Creates an event for which the wait of a stream is never lost. If the driver makes no more
    /// of them, creates an event for which [`order_behind`](Self::order_behind) waits on the host.
    fn create_order_event(&self) -> DeviceResult<Event> {
        Ok(spare_events::create_for_streams(&self.context)?.number())
    }

    fn orders(&self, event: Event) -> bool {
        DeviceEvent::of(event).is_for_streams
    }

    fn destroy_event(&self, event: Event) -> DeviceResult<()> {
        let event = DeviceEvent::of(event);
        self.end_stand_ins(event.handle);
        // The device made the event, and the allocator destroys each event once.
        spare_events::destroy(&self.context, event)
    }

    /// Records `event` after all work queued on `stream`.
    ///
    /// * A stream of another device: a stream of this device waits for the foreign stream, and the
    ///   event is recorded after the wait.
    /// * Another thread's own default stream: the event is recorded on the legacy default stream,
    ///   which is ordered after it.
    /// * A retired stream: there is no stream left to record on. The call waits on the host until
    ///   its work is complete.
    /// * A stream that captures: the call is refused with [`ErrorKind::NotPermittedInCapture`],
    ///   because a later query of the event would invalidate the capture.
    fn record(&self, event: Event, stream: StreamId) -> DeviceResult<()> {
        self.record_number(DeviceEvent::of(event).handle, stream)
    }

    /// Records `event` after the announced work of `stream`, as [`record`](Self::record) does if
    /// the host reports the end of the stream. Otherwise the event of
    /// [`stream_in_use`](CudaDevice::stream_in_use) is used in its place. If none was recorded, the
    /// call waits on the host for all work of the context.
    fn record_announced(&self, event: Event, stream: StreamId) -> DeviceResult<()> {
        self.record_announced_number(DeviceEvent::of(event).handle, stream)
    }

    fn record_all(&self, event: Event) -> DeviceResult<()> {
        self.end_stand_ins(DeviceEvent::of(event).handle);
        self.context.call(|driver| {
            // SAFETY: takes no host pointers; the context is this device's, and the device made the
            // event.
            unsafe { driver.ctx_record_event(self.cu_context(), DeviceEvent::of(event).handle) }
        })
    }

    fn can_record_all(&self) -> bool {
        self.driver().ctx_record_event.is_some()
    }

    fn is_complete(&self, event: Event) -> DeviceResult<bool> {
        let event = DeviceEvent::of(event).handle;
        let Some(others) = self.stand_ins.of(event) else { return self.query(event) };
        let complete = self.are_complete(&others);
        if complete == Ok(true) {
            // Otherwise the next announcement of the stream would need another event.
            self.spare_events.give_up(&self.context, self.stand_ins.complete(event, &others));
        }
        self.spare_events.give_up(&self.context, others);
        complete
    }

    fn wait(&self, event: Event) -> DeviceResult<()> {
        let event = DeviceEvent::of(event).handle;
        if let Some(others) = self.stand_ins.of(event) {
            let waited = others.iter().try_for_each(|other| self.wait(other.event().number()));
            self.spare_events.give_up(&self.context, others);
            return waited;
        }
        self.context.call(|driver| {
            // SAFETY: takes no host pointers; the device made the event, and no event is waited for
            // after destruction.
            unsafe { driver.event_synchronize(event) }
        })
    }

    /// Orders later work on `stream` after `event`.
    ///
    /// Waits on the host instead if the event was not made for streams, if the stream has no handle
    /// because it is retired or another thread's own default stream, or if the driver does not have
    /// `cuStreamWaitEvent`. A stream that captures is refused with
    /// [`ErrorKind::NotPermittedInCapture`], because the wait would become part of the graph.
    fn order_behind(&self, stream: StreamId, event: Event) -> DeviceResult<()> {
        self.order_number(stream, DeviceEvent::of(event))
    }

    /// Returns false for a stream without a handle, for which the host would wait: a retired one,
    /// or another thread's own default stream.
    fn can_order(&self, stream: StreamId) -> bool {
        self.streams.handle(stream).is_some()
    }

    /// Returns false for created streams, unless the host
    /// [reports](crate::StreamIdentity::Reported) their ends.
    fn reports_end(&self, stream: StreamId) -> bool {
        self.is_reported(stream)
    }

    fn synchronize(&self, stream: StreamId) -> DeviceResult<()> {
        self.synchronize_number(stream, Captures::Keep)
    }

    /// Waits as [`synchronize`](StreamOrder::synchronize) does, and on a full device with an event
    /// of the context.
    fn synchronize_without_memory(&self, stream: StreamId) -> DeviceResult<()> {
        self.synchronize_number(stream, Captures::MayBreak)
    }

    /// Waits with an event of the context, if the driver has the call (12.5). Otherwise frees
    /// memory, which blocks the calls of other threads.
    ///
    /// Recording an event of the context breaks captures of its streams. The allocator first asks
    /// about every capture that it knows.
    fn synchronize_all(&self) -> DeviceResult<()> {
        self.wait_for_all_work()
    }

    fn is_idle(&self, stream: StreamId) -> DeviceResult<Option<bool>> {
        self.is_number_idle(stream)
    }

    fn is_capturing(&self, stream: StreamId) -> DeviceResult<bool> {
        self.is_number_capturing(stream)
    }

    fn mark_capture(&self, stream: StreamId, mark: Option<CaptureMark>) -> DeviceResult<Option<CaptureMark>> {
        self.capture_marks.extend(&self.context, self.streams.capturing(stream).as_ref(), mark)
    }

    fn is_behind(&self, stream: StreamId, mark: CaptureMark) -> DeviceResult<bool> {
        self.capture_marks.is_behind(&self.context, stream, self.streams.capturing(stream).as_ref(), mark)
    }

    fn remove_mark(&self, mark: CaptureMark) {
        self.capture_marks.remove(mark);
    }
}
