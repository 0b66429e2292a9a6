//! Operations on streams and events of a device, addressed by the allocator's stream numbers.

use crate::context::Context;
use crate::context_wait::{keep_bytes, wait_for_context};
use crate::device::CudaDevice;
use crate::driver::Driver;
use crate::driver::result::CuResult;
use crate::driver::types::{CuCaptureStatus, CuContext, CuEvent, CuEventFlags, CuStream};
use crate::kept_bytes::KeptBytes;
use crate::streams::{Remaining, StreamIdentity, Streams, Target, UnrecordedEnd};
use cachalot_core::{DeviceError, DeviceResult, Event, StreamId, StreamOrder};
use std::sync::{MutexGuard, PoisonError};

/// Number of retired streams examined when another stream is retired, so that the list of retired
/// streams stays short.
const SWEPT_AT_ONCE: usize = 16;

impl CudaDevice {
    /// Returns the allocator's number of a stream. Handle 0 and `CU_STREAM_LEGACY` have one number;
    /// `CU_STREAM_PER_THREAD` has another number in each thread.
    ///
    /// Takes no lock. With [`StreamIdentity::Reported`] the call makes no driver call.
    ///
    /// # Errors
    /// [`InvalidArgument`](cachalot_core::ErrorKind::InvalidArgument) with code 400 if no stream
    /// can have this handle. An invalid handle that could belong to a stream is not detected. With
    /// [`StreamIdentity::Asked`] also as for [`health`](Self::health).
    #[inline]
    pub fn stream_id(&self, stream: CuStream) -> DeviceResult<StreamId> {
        if self.identity == StreamIdentity::Asked {
            self.health()?;
            // Querying the id of a capturing stream would invalidate the capture in every mode, and a capturing
            // stream cannot be destroyed.
            if Streams::is_created(stream)
                && !self.is_created_capturing(stream)?
                && let Some(number) = self.driver_number(stream)?
            {
                return Ok(number);
            }
        }
        self.streams.number(stream).ok_or(CuResult::INVALID_HANDLE.error())
    }

    /// Returns the number of a stream that uses a block of another stream, as
    /// [`stream_id`](Self::stream_id) does. Must be called **after** the work that uses the block was
    /// queued.
    ///
    /// With [`StreamIdentity::Asked`] records an event behind that work, because the stream may be
    /// destroyed, without a report, before the block is freed. Records nothing on a capturing stream.
    ///
    /// # Errors
    /// As for [`stream_id`](Self::stream_id); the driver's.
    pub fn stream_in_use(&self, stream: CuStream) -> DeviceResult<StreamId> {
        let number = self.stream_id(stream)?;
        if !self.is_identified(self.streams.target(number)) || self.is_created_capturing(stream)? {
            return Ok(number);
        }
        let _scope = self.context.enter()?;
        let event = match self.streams.event_of_use(stream, self.cu_context()) {
            Some(event) => event,
            None => CuEvent(self.create_event()?.0 as usize),
        };
        self.record_handle(event, stream)?;
        let spare = self.streams.note_use(number, event, self.cu_context());
        self.spare_events().extend(spare);
        Ok(number)
    }

    /// Reports that the host is about to destroy a stream, and returns the stream's number. Must be
    /// called **before** `cuStreamDestroy`; the handle must not be used afterwards.
    ///
    /// The stream's work need not be complete: an event is recorded behind the work, and later
    /// operations on the old number use the event. The next stream with the same handle gets
    /// another number.
    ///
    /// For the calling thread's own default stream, reports that the thread is about to end. The
    /// number of a thread's default stream is never given to another thread.
    ///
    /// # Errors
    /// [`InvalidArgument`](cachalot_core::ErrorKind::InvalidArgument) for the legacy default
    /// stream, which cannot be destroyed;
    /// [`NotPermittedInCapture`](cachalot_core::ErrorKind::NotPermittedInCapture) for a capturing
    /// stream; as for [`health`](Self::health). After an error the number is unchanged. If only the
    /// event fails, the stream is retired, and a later wait for the stream waits for the whole
    /// context.
    pub fn stream_destroyed(&self, stream: CuStream) -> DeviceResult<StreamId> {
        let _scope = self.context.enter()?;
        let number = self.streams.number(stream).ok_or(CuResult::INVALID_HANDLE.error())?;
        match self.streams.target(number) {
            Target::Live(_) => {}
            Target::OwnPerThread => return Ok(number),
            _ => return Err(CuResult::INVALID_HANDLE.error()),
        }
        if self.is_handle_capturing(stream)? {
            return Err(CuResult::STREAM_CAPTURE_UNSUPPORTED.error());
        }
        self.sweep();
        let end = self.last_event(stream).map(|event| (event, self.cu_context()));
        if end.is_none() {
            // The wait will be for the stream's context. What cannot be kept now may be there later.
            let _ = self.in_context(self.context_of(stream).unwrap_or(CuContext::NULL), keep_bytes);
        }
        self.streams.retire(stream, end).ok_or(CuResult::OUT_OF_MEMORY.error())
    }

    /// Returns the id of the capture that a stream takes part in, unique in the process, or `None`
    /// if the stream does not capture.
    ///
    /// # Errors
    /// [`Unsupported`](cachalot_core::ErrorKind::Unsupported) without the entry point; the
    /// driver's.
    pub fn capture_id(&self, stream: CuStream) -> DeviceResult<Option<u64>> {
        let (mut status, mut id) = (CuCaptureStatus::NONE, 0);
        self.context.call(|driver| {
            // SAFETY: both variables outlive the call, which writes one integer to each; null
            // pointers stand for results that are not requested.
            unsafe {
                driver.stream_get_capture_info(
                    stream,
                    &raw mut status,
                    &raw mut id,
                    core::ptr::null_mut(),
                    core::ptr::null_mut(),
                    core::ptr::null_mut(),
                )
            }
        })?;
        Ok((status == CuCaptureStatus::ACTIVE).then_some(id))
    }

    /// Records `event` on the stream with the given number; implements [`StreamOrder::record`].
    pub(crate) fn record_number(&self, event: CuEvent, stream: StreamId) -> DeviceResult<()> {
        self.health()?;
        let target = self.streams.target(stream);
        if let Some(handle) = self.usual(stream, target)
            && self.record_here(event, handle).is_success()
        {
            return Ok(());
        }
        let _scope = self.context.enter()?;
        match self.usable(stream)? {
            Some(stream) => self.record_handle(event, stream),
            // The event keeps its earlier, completed state: the allocator never records an event in
            // use.
            None => self.wait_for_retired(stream),
        }
    }

    /// Records `event` behind the announced work of the stream with the given number; implements
    /// [`StreamOrder::record_announced`].
    pub(crate) fn record_announced_number(&self, event: CuEvent, stream: StreamId) -> DeviceResult<()> {
        let target = self.streams.target(stream);
        let (Target::Live(handle), true) = (target, self.is_identified(target)) else {
            return self.record_number(event, stream);
        };
        // The stream may be destroyed, so the handle is not used.
        let _scope = self.context.enter()?;
        let announced = self.streams.announced(stream);
        if announced.is_empty() {
            // The stream captured when it used the block. The event keeps its completed state.
            return self.wait_for_all_of(self.streams.present_context(handle));
        }
        self.record_behind(event, &announced)
    }

    /// Returns the handle of a created stream that does not capture and that the driver knows by the id of its number: for
    /// calls that need neither a context nor, if they are permitted in a capture, a relaxed capture mode. Makes two short
    /// calls of the driver. Returns `None` if any of them has another answer than usual.
    fn usual(&self, number: StreamId, target: Target) -> Option<CuStream> {
        let Target::Live(stream) = target else { return None };
        let driver = self.driver();
        if self.identity == StreamIdentity::Asked
            || driver.stream_is_capturing.is_none()
            || driver.stream_get_id.is_none()
        {
            return None;
        }
        let (mut status, mut id) = (CuCaptureStatus::NONE, 0);
        // SAFETY: `status` outlives the call, which writes one integer to it; the host vouches for streams not
        // reported as destroyed.
        let code = unsafe { driver.stream_is_capturing(stream, &raw mut status) };
        if !code.is_success() || status != CuCaptureStatus::NONE {
            return None;
        }
        // SAFETY: as above, for `id`.
        let code = unsafe { driver.stream_get_id(stream, &raw mut id) };
        (code.is_success() && self.streams.number_of_id(stream, id) == Some(number)).then_some(stream)
    }

    /// Returns whether all work on the stream with the given number is complete; implements
    /// [`StreamOrder::is_idle`]. Not known of default streams.
    pub(crate) fn is_number_idle(&self, stream: StreamId) -> DeviceResult<Option<bool>> {
        self.health()?;
        let handle = self.usual(stream, self.streams.target(stream));
        let Some(handle) = handle.filter(|_| self.driver().stream_query.is_some()) else { return Ok(None) };
        let _mode = self.context.enter_mode()?;
        // SAFETY: takes no host pointers; the host vouches for streams not reported as destroyed.
        match unsafe { self.driver().stream_query(handle) } {
            CuResult::NOT_READY => Ok(Some(false)),
            // A driver that wants a context.
            CuResult::INVALID_CONTEXT | CuResult::INVALID_HANDLE => Ok(None),
            code => self.context.check(code).map(|()| Some(true)),
        }
    }

    /// Orders later work on the stream with the given number behind `event`; implements
    /// [`StreamOrder::order_behind`].
    pub(crate) fn order_number(&self, stream: StreamId, event: CuEvent) -> DeviceResult<()> {
        let _scope = self.context.enter()?;
        let handle = match self.streams.target(stream) {
            // The legacy stream stands for it in `usable`, but need not hold later work of it back.
            Target::OtherPerThread => None,
            _ => self.usable(stream)?,
        };
        let Some(handle) = handle.filter(|_| self.driver().stream_wait_event.is_some()) else {
            return self.wait(Event(event.0 as u64));
        };
        // SAFETY: takes no host pointers; the event is of this device and recorded, and the host
        // vouches for streams not reported as destroyed.
        self.context.check(unsafe { self.driver().stream_wait_event(handle, event, 0) })
    }

    /// Waits for the stream with the given number; implements [`StreamOrder::synchronize`].
    pub(crate) fn synchronize_number(&self, stream: StreamId) -> DeviceResult<()> {
        let _scope = self.context.enter()?;
        let target = self.streams.target(stream);
        if let Target::Live(handle) = target
            && self.is_identified(target)
        {
            // A host with `StreamIdentity::Asked` reports no destroyed stream, and a real driver may
            // crash on the handle of a destroyed stream.
            return self.wait_for_all_of(self.streams.present_context(handle));
        }
        match self.usable(stream)? {
            // SAFETY: takes no host pointers; the host vouches for streams not reported as
            // destroyed.
            Some(stream) => self.context.check(unsafe { self.driver().stream_synchronize(stream) }),
            None => self.wait_for_retired(stream),
        }
    }

    /// Returns whether the stream with the given number captures; implements
    /// [`StreamOrder::is_capturing`]. True for the legacy stream also while a blocking stream
    /// captures: no event can then be recorded on the legacy stream.
    pub(crate) fn is_number_capturing(&self, stream: StreamId) -> DeviceResult<bool> {
        self.health()?;
        let target = self.streams.target(stream);
        let handle = match target {
            Target::Live(handle) => {
                return match self.is_created_capturing(handle) {
                    // The stream was destroyed, and its host reports none.
                    Err(error) if is_of_dead_handle(error) && self.is_identified(target) => {
                        self.streams.retire_gone(stream);
                        Ok(false)
                    }
                    answer => answer,
                };
            }
            Target::OwnPerThread => CuStream::PER_THREAD,
            Target::Legacy | Target::OtherPerThread => CuStream::LEGACY,
            Target::Retired => return Ok(false),
        };
        let _scope = self.context.enter()?;
        self.is_handle_capturing(handle)
    }

    /// Returns whether a stream captures, or is unusable because another stream captures. For a
    /// default stream the context must be entered.
    fn is_handle_capturing(&self, stream: CuStream) -> DeviceResult<bool> {
        if self.driver().stream_is_capturing.is_none() {
            return Ok(false);
        }
        let mut status = CuCaptureStatus::NONE;
        // SAFETY: `status` outlives the call, which writes one integer to it.
        let code = unsafe { self.driver().stream_is_capturing(stream, &raw mut status) };
        if code == CuResult::STREAM_CAPTURE_IMPLICIT {
            return Ok(true);
        }
        self.context.check(code)?;
        Ok(status != CuCaptureStatus::NONE)
    }

    /// Returns the usable handle of a stream number, or `None` if the stream is retired, or has
    /// disappeared. The context is entered.
    ///
    /// # Errors
    /// [`NotPermittedInCapture`](cachalot_core::ErrorKind::NotPermittedInCapture) if the stream
    /// captures, or is unusable because another stream captures: recording or waiting would
    /// invalidate the capture.
    fn usable(&self, number: StreamId) -> DeviceResult<Option<CuStream>> {
        let target = self.streams.target(number);
        let handle = match target {
            Target::Live(stream) => stream,
            Target::OwnPerThread => CuStream::PER_THREAD,
            Target::Legacy | Target::OtherPerThread => CuStream::LEGACY,
            Target::Retired => return Ok(None),
        };
        match self.is_handle_capturing(handle) {
            Ok(false) => {}
            Ok(true) => return Err(CuResult::STREAM_CAPTURE_UNSUPPORTED.error()),
            // A host with `StreamIdentity::Asked` reports no destroyed stream. This stream was
            // destroyed, and no new stream has the handle yet.
            Err(error) if is_of_dead_handle(error) && self.is_identified(target) => {
                self.streams.retire_gone(number);
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        let moved = matches!(target, Target::Live(_)) && self.driver_number(handle)?.is_some_and(|now| now != number);
        Ok((!moved).then_some(handle))
    }

    /// Returns whether the driver identifies the created stream of `target`.
    fn is_identified(&self, target: Target) -> bool {
        self.identity == StreamIdentity::Asked && matches!(target, Target::Live(_))
    }

    /// Returns the present number of a created stream that does not capture, from the driver's own
    /// id. `None` if the driver reports no id.
    fn driver_number(&self, stream: CuStream) -> DeviceResult<Option<StreamId>> {
        let mut id = 0;
        // SAFETY: `id` outlives the call, which writes one integer to `id`; the host vouches for
        // streams not reported as destroyed.
        let mut ask = || unsafe { self.driver().stream_get_id(stream, &raw mut id) };
        let mut code = ask();
        if code == CuResult::INVALID_CONTEXT {
            let _scope = self.context.enter()?;
            code = ask();
        }
        if self.context.check(code).is_err() {
            return self.health().map(|()| None);
        }
        if let Some(number) = self.streams.number_of_id(stream, id) {
            return Ok(Some(number));
        }
        let context = self.context_of(stream).unwrap_or(CuContext::NULL);
        self.streams.learn(stream, id, context).ok_or(CuResult::OUT_OF_MEMORY.error()).map(Some)
    }

    /// Returns whether a created stream captures. The first query runs without entering the
    /// context, since the query normally needs no context and never invalidates a capture. A driver
    /// that demands a context is queried again inside.
    fn is_created_capturing(&self, stream: CuStream) -> DeviceResult<bool> {
        match self.is_handle_capturing(stream) {
            Err(error) if error.code == CuResult::INVALID_CONTEXT.0 => {
                let _scope = self.context.enter()?;
                self.is_handle_capturing(stream)
            }
            answer => answer,
        }
    }

    /// Returns an event of this device recorded behind all work of a stream, or `None` if the
    /// recording failed. The context is entered.
    fn last_event(&self, stream: CuStream) -> Option<CuEvent> {
        let spare = self.spare_events().pop();
        let event = match spare {
            Some(event) => event,
            None => CuEvent(self.create_event().ok()?.0 as usize),
        };
        if self.record_handle(event, stream).is_ok() {
            return Some(event);
        }
        self.spare_events().push(event);
        None
    }

    /// Forgets retired streams whose work is complete, and keeps the streams' events for reuse. The
    /// context is entered.
    ///
    /// An event is never destroyed while the device is open, because another thread may still wait
    /// for the event. A wait for a reused event may also cover the end of a later stream: the wait
    /// is then longer than necessary, never too short.
    fn sweep(&self) {
        for (number, event) in self.streams.next_ended(self.cu_context(), SWEPT_AT_ONCE) {
            // `finish` returns true to one caller only, so each event is pushed once.
            if self.is_complete(Event(event.0 as u64)) == Ok(true) && self.streams.finish(number) {
                self.spare_events().push(event);
            }
        }
    }

    /// Locks the spare events. Ignores poison: a thread that panicked under the lock left whole
    /// entries only.
    fn spare_events(&self) -> MutexGuard<'_, Vec<CuEvent>> {
        self.spare_events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a retired stream's work is complete. The context is entered.
    fn wait_for_retired(&self, number: StreamId) -> DeviceResult<()> {
        match self.streams.remaining(number) {
            None => Ok(()),
            // The stream stays listed until a sweep finds the event complete.
            Some(Remaining::Event(event)) => self.wait(Event(event.0 as u64)),
            Some(Remaining::Contexts(ends)) => {
                for UnrecordedEnd { context, .. } in &ends {
                    self.wait_for_all_of(*context)?;
                }
                self.streams.forget_unrecorded(number, &ends);
                Ok(())
            }
        }
    }

    /// Waits for everything that is queued in a context; null stands for this device's context.
    fn wait_for_all_of(&self, context: CuContext) -> DeviceResult<()> {
        self.in_context(context, wait_for_context)
    }

    /// Makes a call for a context, with the bytes kept for waits; null stands for this device's context.
    fn in_context<T>(&self, context: CuContext, call: impl FnOnce(&Context, &KeptBytes) -> T) -> T {
        if context.is_null() || context == self.cu_context() {
            call(&self.context, self.streams.kept_bytes())
        } else {
            call(&Context::new(self.driver(), context), self.streams.kept_bytes())
        }
    }

    /// Records an event on a stream of the entered context.
    fn record_here(&self, event: CuEvent, stream: CuStream) -> CuResult {
        // SAFETY: takes no host pointers; the host vouches for streams not reported as destroyed.
        unsafe { self.driver().event_record(event, stream) }
    }

    /// Records an event of this device on a created stream of any device. The context is entered.
    fn record_handle(&self, event: CuEvent, stream: CuStream) -> DeviceResult<()> {
        let code = self.record_here(event, stream);
        if code == CuResult::INVALID_HANDLE
            && let Some(context) = self.context_of(stream)
            && context != self.context.handle()
        {
            return self.record_across(event, stream, context);
        }
        self.context.check(code)
    }

    /// Returns the context of a created stream, or `None` if the driver does not report the
    /// context. Permitted in every state of a capture.
    fn context_of(&self, stream: CuStream) -> Option<CuContext> {
        let mut context = CuContext::NULL;
        // SAFETY: `context` outlives the call, which writes one handle to it.
        let code = unsafe { self.driver().stream_get_ctx(stream, &raw mut context) };
        (code.is_success() && !context.is_null()).then_some(context)
    }

    /// Records `event` behind all work of a stream of another context. A stream of this device
    /// waits for an event of the other context, and `event` is recorded behind the wait.
    fn record_across(&self, event: CuEvent, stream: CuStream, foreign: CuContext) -> DeviceResult<()> {
        let bridge = self.bridge.get(&self.context)?;
        let foreign_context = Context::new(self.driver(), foreign);
        let mut foreign_event = CuEvent::NULL;
        foreign_context.call(|driver| {
            // SAFETY: `foreign_event` outlives the call, which writes one handle to it.
            let created = unsafe { driver.event_create(&raw mut foreign_event, CuEventFlags::DISABLE_TIMING) };
            if created.is_success() { record_or_destroy(driver, foreign_event, stream) } else { created }
        })?;
        // SAFETY: takes no host pointers; both handles are live.
        let waited = unsafe { self.driver().stream_wait_event(bridge, foreign_event, 0) };
        // SAFETY: takes no host pointers; the driver keeps the event's state for the queued wait.
        let destroyed = unsafe { self.driver().event_destroy(foreign_event) };
        self.context.check(waited)?;
        self.context.check(self.record_here(event, bridge))?;
        self.context.check(destroyed)
    }

    /// Records `event` so that it completes after other events, of this context or of others.
    /// The event also waits for earlier work of the bridge: longer than needed, never too short.
    fn record_behind(&self, event: CuEvent, others: &[CuEvent]) -> DeviceResult<()> {
        let bridge = self.bridge.get(&self.context)?;
        for &other in others {
            // SAFETY: takes no host pointers; events of announced work live as long as the device.
            self.context.check(unsafe { self.driver().stream_wait_event(bridge, other, 0) })?;
        }
        self.context.check(self.record_here(event, bridge))
    }

    /// Destroys the events and the stream that this module created. No other thread is inside a
    /// call of this device.
    pub(crate) fn drop_streams(&self) -> DeviceResult<()> {
        let _scope = self.context.enter()?;
        let mut result = Ok(());
        for (number, event) in self.streams.next_ended(self.cu_context(), usize::MAX) {
            result = result.and(self.wait(Event(event.0 as u64)));
            self.streams.finish(number);
            self.spare_events().push(event);
        }
        self.spare_events().extend(self.streams.take_uses(self.cu_context()));
        for event in core::mem::take(&mut *self.spare_events()) {
            result = result.and(self.destroy_event(Event(event.0 as u64)));
        }
        result.and(self.bridge.destroy(&self.context))
    }
}

/// Returns whether a call in an entered context failed because the stream was destroyed. CUDA 13.0
/// returns `INVALID_CONTEXT` for a destroyed stream.
fn is_of_dead_handle(error: DeviceError) -> bool {
    [CuResult::INVALID_HANDLE.0, CuResult::INVALID_CONTEXT.0].contains(&error.code)
}

/// Records a new event, or destroys the event if the recording fails.
fn record_or_destroy(driver: &Driver, event: CuEvent, stream: CuStream) -> CuResult {
    // SAFETY: takes no host pointers; the event is new, and the host vouches for the stream.
    let recorded = unsafe { driver.event_record(event, stream) };
    if !recorded.is_success() {
        // SAFETY: takes no host pointers; no other code has the event's handle. The first code
        // stands.
        let _ = unsafe { driver.event_destroy(event) };
    }
    recorded
}
