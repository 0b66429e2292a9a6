//! The operations on streams and events of a device, by the allocator's stream numbers.

use crate::context::Context;
use crate::context_wait::{Captures, keep_bytes, wait_for_context};
use crate::device::CudaDevice;
use crate::device_event::DeviceEvent;
use crate::driver::result::CuResult;
use crate::driver::types::{CuCaptureStatus, CuContext, CuEvent, CuStream};
use crate::handle::Handle;
use crate::kept_bytes::KeptBytes;
use crate::retired_streams::UnrecordedEnd;
use crate::shared_event::SharedEvent;
use crate::spare_events;
use crate::streams::{Remaining, StreamIdentity, Streams, Target};
use cachalot_core::{DeviceResult, ErrorKind, StreamId, StreamOrder};

/// The number of retired streams that are examined when another one is retired, so that their list
/// remains short.
const SWEPT_AT_ONCE: usize = 16;

impl CudaDevice {
    /// Returns the allocator's number of a stream. Handle 0 and `CU_STREAM_LEGACY` have the same
    /// number, and `CU_STREAM_PER_THREAD` has another number in each thread.
    ///
    /// Takes no lock. Makes no driver call, except with [`StreamIdentity::Asked`].
    ///
    /// # Errors
    /// [`InvalidArgument`](cachalot_core::ErrorKind::InvalidArgument) with code 400 if no stream
    /// can have the handle. An invalid handle is not detected if a stream could have it. With
    /// [`StreamIdentity::Asked`], also as for [`health`](Self::health), and those of the driver.
    #[inline]
    pub fn stream_id(&self, stream: CuStream) -> DeviceResult<StreamId> {
        if self.identity == StreamIdentity::Asked {
            return self.asked_stream_id(stream);
        }
        self.streams.number(stream).ok_or(CuResult::INVALID_HANDLE.error())
    }

    /// Returns the number of a stream, after asking the driver for its id.
    // Out of line, because the other identities, which ask nothing, would otherwise save registers
    // for the calls.
    #[inline(never)]
    fn asked_stream_id(&self, stream: CuStream) -> DeviceResult<StreamId> {
        self.health()?;
        // A query of the id of a stream that captures would invalidate the capture in every mode,
        // and such a stream cannot be destroyed.
        let handle = Handle::vouched(stream);
        if Streams::is_created(stream)
            && !self.is_created_capturing(&handle)?
            && let Some(number) = self.driver_number(&handle)?
        {
            return Ok(number);
        }
        self.streams.number(stream).ok_or(CuResult::INVALID_HANDLE.error())
    }

    /// Reports that the host is about to destroy a stream, and returns its number. Must be called
    /// **before** `cuStreamDestroy`, and the handle must not be used afterwards.
    ///
    /// The work of the stream need not be complete: an event is recorded after it, and later
    /// operations on the old number use this event. The next stream with the same handle gets
    /// another number.
    ///
    /// Waits for the calls of other threads that are using the handle, on any device with the same
    /// table of streams. No such call waits for work of the stream.
    ///
    /// For the calling thread's own default stream, reports that the thread is about to end. The
    /// number of a thread's default stream is never given to another thread.
    ///
    /// # Errors
    /// [`InvalidArgument`](cachalot_core::ErrorKind::InvalidArgument) for the legacy default
    /// stream, which cannot be destroyed;
    /// [`NotPermittedInCapture`](cachalot_core::ErrorKind::NotPermittedInCapture) for a stream that
    /// captures; as for [`health`](Self::health). After an error the number is unchanged. If only
    /// the event fails, the stream is retired, and a later wait for it waits for the whole context.
    pub fn stream_destroyed(&self, stream: CuStream) -> DeviceResult<StreamId> {
        let _scope = self.context.enter()?;
        let number = self.streams.number(stream).ok_or(CuResult::INVALID_HANDLE.error())?;
        if !Streams::is_of_created(number) {
            let is_own = matches!(self.streams.hold(number), Target::OwnPerThread);
            return if is_own { Ok(number) } else { Err(CuResult::INVALID_HANDLE.error()) };
        }
        let handle = Handle::vouched(stream);
        if self.is_handle_capturing(&handle)? {
            return Err(CuResult::STREAM_CAPTURE_UNSUPPORTED.error());
        }
        self.sweep();
        let end = self.last_event(&handle).map(|event| SharedEvent::new(event, self.cu_context()));
        if end.is_none() {
            // A wait will be for the whole context of the stream. Bytes that cannot be kept now may
            // be available later.
            let _ = self.in_context(self.context_of(&handle).unwrap_or(CuContext::NULL), keep_bytes);
        }
        let retired = self.streams.retire(stream, end.clone());
        self.spare_events.give_up(&self.context, end);
        retired.ok_or(CuResult::OUT_OF_MEMORY.error())
    }

    /// Returns the id of the capture that a stream takes part in, which is unique in the process,
    /// or `None` if the stream does not capture.
    ///
    /// # Errors
    /// [`Unsupported`](cachalot_core::ErrorKind::Unsupported) without the entry point; those of the
    /// driver.
    pub fn capture_id(&self, stream: CuStream) -> DeviceResult<Option<u64>> {
        let _scope = self.context.enter()?;
        self.context.answer(Handle::vouched(stream).capture(self.driver()))
    }

    /// Records `event` on the stream with the given number; implements [`StreamOrder::record`]. The
    /// allocator calls this only while no announced capture can start.
    pub(crate) fn record_number(&self, event: CuEvent, stream: StreamId) -> DeviceResult<()> {
        self.look()?;
        self.end_stand_ins(event);
        let target = self.streams.hold(stream);
        if let Target::Live(handle) = &target
            && self.is_usual(stream, handle)
            && handle.record(self.driver(), event).is_success()
        {
            return Ok(());
        }
        let _scope = self.context.enter()?;
        match self.usable(stream, target)? {
            Some(handle) => self.record_handle(event, &handle),
            // After this wait all work of the stream is complete. The event keeps its earlier
            // state, which may be after other work of the context, so a wait for it may take longer
            // than needed, but never ends too early.
            None => self.wait_for_retired(stream, Captures::MayBreak),
        }
    }

    /// Returns whether a created stream does not capture, and the driver knows it by the id that
    /// belongs to the number. If so, calls need no context, and no relaxed capture mode if they are
    /// permitted in a capture. Makes two short driver calls. Returns false after any unusual
    /// answer.
    fn is_usual(&self, number: StreamId, handle: &Handle<'_>) -> bool {
        let driver = self.driver();
        self.identity == StreamIdentity::Reported
            && driver.stream_is_capturing.is_some()
            && driver.stream_get_id.is_some()
            && handle.status(driver) == Ok(CuCaptureStatus::NONE)
            && handle.id(driver).is_ok_and(|id| self.streams.number_of_id(handle, id) == Some(number))
    }

    /// Refuses a created stream that captures now. This is called after an event was recorded,
    /// because the event may belong to the graph, and a poll of it or a wait for it would break the
    /// capture.
    ///
    /// A check before the recording would say nothing, because a program may start a capture at any
    /// moment. To record an event in a capture is harmless: the graph gets no node, and the event
    /// can be recorded again.
    pub(crate) fn refuse_capture(&self, handle: &Handle<'_>) -> DeviceResult<()> {
        if self.is_created_capturing(handle)? { Err(CuResult::STREAM_CAPTURE_UNSUPPORTED.error()) } else { Ok(()) }
    }

    /// Returns whether all work on the stream with the given number is complete; implements
    /// [`StreamOrder::is_idle`]. Returns `None` if it is not known, as for default streams. For a
    /// stream that may be gone, only the announced work is known.
    pub(crate) fn is_number_idle(&self, stream: StreamId) -> DeviceResult<Option<bool>> {
        self.look()?;
        if self.may_be_gone(stream) {
            return self.is_announced_complete(stream);
        }
        let Target::Live(handle) = self.streams.hold(stream) else { return Ok(None) };
        if self.driver().stream_query.is_none() || !self.is_usual(stream, &handle) {
            return Ok(None);
        }
        let _mode = self.context.enter_mode()?;
        match handle.query(self.driver()) {
            CuResult::NOT_READY => Ok(Some(false)),
            // The driver wants a context.
            CuResult::INVALID_CONTEXT | CuResult::INVALID_HANDLE => Ok(None),
            code => self.context.check(code).map(|()| Some(true)),
        }
    }

    /// Orders later work on the stream with the given number after `event`; implements
    /// [`StreamOrder::order_behind`].
    pub(crate) fn order_number(&self, stream: StreamId, event: DeviceEvent) -> DeviceResult<()> {
        let _scope = self.context.enter()?;
        let handle = match self.streams.hold(stream) {
            // `usable` would return the legacy stream in its place, but a wait of that stream need
            // not delay later work of this one.
            Target::OtherPerThread => None,
            target => self.usable(stream, target)?,
        };
        let can_wait = self.driver().stream_wait_event.is_some() && !self.stand_ins.has(event.handle);
        let Some(handle) = handle.filter(|_| can_wait) else {
            return self.wait(event.number());
        };
        self.context.check(event.hold_back(self.driver(), &handle))
    }

    /// Waits for the stream with the given number; implements [`StreamOrder::synchronize`].
    ///
    /// The wait for a created stream is a wait for an event, and the stream may end meanwhile. A
    /// capture may start on the stream at any moment of the call, so its id is not queried, because
    /// this would break the capture.
    pub(crate) fn synchronize_number(&self, stream: StreamId, captures: Captures) -> DeviceResult<()> {
        let _scope = self.context.enter()?;
        if self.may_be_gone(stream) {
            // A real driver crashes on the handle of a destroyed stream.
            return self.wait_for_unreported(stream, captures);
        }
        let handle = match self.streams.hold(stream) {
            Target::Live(handle) => {
                self.refuse_capture(&handle)?;
                Some(handle)
            }
            target => self.usable(stream, target)?,
        };
        let Some(handle) = handle else { return self.wait_for_retired(stream, captures) };
        if !handle.may_end() {
            return self.context.check(handle.synchronize(self.driver()));
        }
        let event = self.spare_events.take(&self.context)?;
        let recorded = self.record_handle(event.handle, &handle);
        drop(handle);
        let waited = recorded.and_then(|()| match self.wait(event.number()) {
            // This is the driver's answer for an event of a capture that has started and ended
            // meanwhile.
            Err(error) if error.code == CuResult::INVALID_VALUE.0 => Err(CuResult::STREAM_CAPTURE_UNSUPPORTED.error()),
            waited => waited,
        });
        self.spare_events.keep(&self.context, event);
        waited
    }

    /// Returns whether the stream with the given number captures; implements
    /// [`StreamOrder::is_capturing`]. For the legacy stream, also returns true while a blocking
    /// stream captures, because no event can be recorded on the legacy stream then.
    pub(crate) fn is_number_capturing(&self, stream: StreamId) -> DeviceResult<bool> {
        self.look()?;
        let handle = match self.streams.hold(stream) {
            Target::Live(handle) => {
                return self.is_created_capturing(&handle);
            }
            Target::OwnPerThread => Handle::vouched(CuStream::PER_THREAD),
            Target::Legacy | Target::OtherPerThread => Handle::vouched(CuStream::LEGACY),
            Target::Retired => return Ok(false),
        };
        let _scope = self.context.enter()?;
        self.is_handle_capturing(&handle)
    }

    /// Returns whether a stream captures, or is unusable because another stream captures. For a
    /// default stream the context must be entered.
    fn is_handle_capturing(&self, handle: &Handle<'_>) -> DeviceResult<bool> {
        if self.driver().stream_is_capturing.is_none() {
            return Ok(false);
        }
        match handle.status(self.driver()) {
            Err(CuResult::STREAM_CAPTURE_IMPLICIT) => Ok(true),
            answer => Ok(self.context.answer(answer)? != CuCaptureStatus::NONE),
        }
    }

    /// Returns the usable handle of a stream number, or `None` if the stream is retired or has
    /// disappeared. `target` is the stream of the number. The context is entered.
    ///
    /// # Errors
    /// [`NotPermittedInCapture`](cachalot_core::ErrorKind::NotPermittedInCapture) if the stream
    /// captures, or is unusable because another stream captures. To record on it or to wait for it
    /// would invalidate the capture.
    fn usable<'a>(&self, number: StreamId, target: Target<'a>) -> DeviceResult<Option<Handle<'a>>> {
        let (handle, is_created) = match target {
            Target::Live(handle) => (handle, true),
            Target::OwnPerThread => (Handle::vouched(CuStream::PER_THREAD), false),
            Target::Legacy | Target::OtherPerThread => (Handle::vouched(CuStream::LEGACY), false),
            Target::Retired => return Ok(None),
        };
        match self.is_handle_capturing(&handle) {
            Ok(false) => {}
            Ok(true) => return Err(CuResult::STREAM_CAPTURE_UNSUPPORTED.error()),
            Err(error) => return Err(error),
        }
        let moved = is_created && self.driver_number(&handle)?.is_some_and(|now| now != number);
        Ok((!moved).then_some(handle))
    }

    /// Returns whether a number belongs to a created stream that is not retired and may have ended
    /// without a report. Its handle must not be used, unless the call names the stream.
    pub(crate) fn may_be_gone(&self, number: StreamId) -> bool {
        !self.is_reported(number) && self.streams.is_present(number)
    }

    /// Returns whether the end of a stream is reported, or the stream is a default stream, which
    /// has no end.
    pub(crate) fn is_reported(&self, number: StreamId) -> bool {
        if !Streams::is_of_created(number) {
            return true;
        }
        self.identity == StreamIdentity::Reported && !self.streams.is_unreported(number)
    }

    /// Returns the present number of a created stream that does not capture, by the id from the
    /// driver. Returns `None` if the driver reports no id.
    ///
    /// # Errors
    /// Sticky errors. With [`StreamIdentity::Asked`], also every other error except that of a
    /// driver without ids and those of a capture, because the stream may be new and must not get
    /// the known number.
    pub(crate) fn driver_number(&self, handle: &Handle<'_>) -> DeviceResult<Option<StreamId>> {
        let mut answer = handle.id(self.driver());
        if answer == Err(CuResult::INVALID_CONTEXT) {
            let _scope = self.context.enter()?;
            answer = handle.id(self.driver());
        }
        let id = match self.context.answer(answer) {
            Ok(id) => id,
            Err(error) => {
                let without = matches!(error.kind, ErrorKind::Unsupported | ErrorKind::NotPermittedInCapture);
                let is_known = without || self.identity != StreamIdentity::Asked;
                self.health()?;
                return if is_known { Ok(None) } else { Err(error) };
            }
        };
        if let Some(number) = self.streams.number_of_id(handle, id) {
            return Ok(Some(number));
        }
        let context = self.context_of(handle).unwrap_or(CuContext::NULL);
        self.streams.learn(handle, id, context).ok_or(CuResult::OUT_OF_MEMORY.error()).map(Some)
    }

    /// Returns whether a created stream captures. The first query runs without entering the
    /// context, because it normally needs none and never invalidates a capture. If the driver
    /// demands a context, it is queried again inside it.
    pub(crate) fn is_created_capturing(&self, handle: &Handle<'_>) -> DeviceResult<bool> {
        match self.is_handle_capturing(handle) {
            Err(error) if error.code == CuResult::INVALID_CONTEXT.0 => {
                let _scope = self.context.enter()?;
                self.is_handle_capturing(handle)
            }
            answer => answer,
        }
    }

    /// Returns an event of this device that is recorded after all work of a stream, or `None` if it
    /// could not be recorded. The context is entered.
    fn last_event(&self, handle: &Handle<'_>) -> Option<DeviceEvent> {
        let event = self.spare_events.take(&self.context).ok()?;
        if self.record_handle(event.handle, handle).is_ok() {
            return Some(event);
        }
        self.spare_events.keep(&self.context, event);
        None
    }

    /// Forgets retired streams if their work is complete, and keeps their events for reuse when no
    /// thread waits for them any longer. The context is entered.
    fn sweep(&self) {
        for (number, event) in self.streams.next_ended(self.cu_context(), SWEPT_AT_ONCE) {
            if self.is_complete(event.event().number()) == Ok(true) {
                self.spare_events.give_up(&self.context, self.streams.finish(number));
            }
            self.spare_events.give_up(&self.context, [event]);
        }
    }

    /// Waits until a retired stream's work is complete. The context is entered.
    fn wait_for_retired(&self, number: StreamId, captures: Captures) -> DeviceResult<()> {
        match self.streams.remaining(number) {
            None => Ok(()),
            // The stream remains listed until a sweep finds that the event is complete.
            Some(Remaining::Event(event)) => {
                let waited = self.wait(event.event().number());
                self.spare_events.give_up(&self.context, [event]);
                waited
            }
            Some(Remaining::Contexts(ends)) => {
                for UnrecordedEnd { context, .. } in &ends {
                    self.wait_for_all_of(*context, captures)?;
                }
                self.streams.forget_unrecorded(number, &ends);
                Ok(())
            }
        }
    }

    /// Waits for all work of the context of a stream that may have ended. Waits for the contexts of
    /// all open devices as well, unless the driver was asked for the number: the handle may have
    /// come back in another context.
    pub(crate) fn wait_for_unreported(&self, number: StreamId, captures: Captures) -> DeviceResult<()> {
        let context = self.streams.present_context(number);
        // The context was read before this check, so it is that of the stream, and not of a later
        // stream with the handle.
        if !self.streams.is_present(number) {
            return self.wait_for_retired(number, captures);
        }
        if !context.is_null() {
            self.wait_for_all_of(context, captures)?;
            if self.identity == StreamIdentity::Asked {
                return Ok(());
            }
        }
        self.wait_for_contexts(context, captures)
    }

    /// Waits for all work of the contexts of all open devices except for `done`.
    pub(crate) fn wait_for_contexts(&self, done: CuContext, captures: Captures) -> DeviceResult<()> {
        let open = self.streams.kept_bytes().contexts().into_iter();
        open.filter(|context| *context != done).try_for_each(|context| self.wait_for_all_of(context, captures))
    }

    /// Waits for all queued work of a context. Null means the device's context.
    fn wait_for_all_of(&self, context: CuContext, captures: Captures) -> DeviceResult<()> {
        if self.in_context(context, wait_for_context)? {
            return Ok(());
        }
        let is_own = context.is_null() || context == self.cu_context();
        if is_own && captures == Captures::MayBreak && self.identity != StreamIdentity::Asked {
            // No byte is kept before the first page exists. This wait may break a capture that
            // nobody announced, but without it the device would remain full.
            return self.wait_for_all_work();
        }
        Err(CuResult::OUT_OF_MEMORY.error())
    }

    /// Makes a call for a context, with the bytes kept for waits. Null means the device's context.
    fn in_context<T>(&self, context: CuContext, call: impl FnOnce(&Context, &KeptBytes) -> T) -> T {
        if context.is_null() || context == self.cu_context() {
            call(&self.context, self.streams.kept_bytes())
        } else {
            call(&Context::new(self.driver(), context), self.streams.kept_bytes())
        }
    }

    /// Records an event of the device on a created stream of any device. The context is entered.
    pub(crate) fn record_handle(&self, event: CuEvent, handle: &Handle<'_>) -> DeviceResult<()> {
        let code = handle.record(self.driver(), event);
        if code == CuResult::INVALID_HANDLE
            && let Some(context) = self.context_of(handle)
            && context != self.context.handle()
        {
            self.record_across(event, handle, context)?;
        } else {
            self.context.check(code)?;
        }
        self.refuse_capture(handle)
    }

    /// Returns the context of a created stream, or `None` if the driver does not report it. This is
    /// permitted in every state of a capture.
    fn context_of(&self, handle: &Handle<'_>) -> Option<CuContext> {
        handle.context(self.driver()).ok().filter(|context| !context.is_null())
    }

    /// Records `event` after all work of a stream of another context. A stream of the device waits
    /// for an event of the other context, and `event` is recorded after the wait.
    fn record_across(&self, event: CuEvent, handle: &Handle<'_>, foreign: CuContext) -> DeviceResult<()> {
        let bridge = Handle::vouched(self.bridge.get(&self.context)?);
        let foreign_context = Context::new(self.driver(), foreign);
        let foreign_event = spare_events::create_for_streams(&foreign_context)?;
        let recorded = foreign_context.call(|driver| handle.record(driver, foreign_event.handle));
        let waited = recorded.and_then(|()| self.context.check(foreign_event.hold_back(self.driver(), &bridge)));
        // The driver keeps the event's state for the queued wait.
        let destroyed = spare_events::destroy(&foreign_context, foreign_event);
        waited?;
        self.context.check(bridge.record(self.driver(), event))?;
        destroyed
    }

    /// Destroys the events and the stream that this module has created. No other thread is inside a
    /// call of the device.
    pub(crate) fn drop_streams(&self) -> DeviceResult<()> {
        let _scope = self.context.enter()?;
        let mut result = Ok(());
        for (number, event) in self.streams.next_ended(self.cu_context(), usize::MAX) {
            result = result.and(self.wait(event.event().number()));
            self.spare_events.give_up(&self.context, self.streams.finish(number));
            self.spare_events.give_up(&self.context, [event]);
        }
        self.spare_events.give_up(&self.context, self.stand_ins.drain());
        self.spare_events.give_up(&self.context, self.streams.work.take_all(self.cu_context()));
        result.and(self.spare_events.close(&self.context)).and(self.bridge.destroy(&self.context))
    }
}
