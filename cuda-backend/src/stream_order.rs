//! Streams and events of a device, by the allocator's numbers.

use crate::context::Context;
use crate::device::CudaDevice;
use crate::driver::Driver;
use crate::driver::result::CuResult;
use crate::driver::types::{CuCaptureStatus, CuContext, CuEvent, CuEventFlags, CuStream, CuStreamFlags};
use crate::streams::{Doubt, Last, StreamIdentity, Streams, Target};
use cachalot_core::{DeviceError, DeviceMemory, DeviceResult, Event, StreamId};
use core::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

/// How many retired streams are looked at when another one is retired, so that the list of them stays short.
const SWEPT_AT_ONCE: usize = 16;

impl CudaDevice {
    /// The allocator's number of a stream. 0 and `CU_STREAM_LEGACY` are the same; `CU_STREAM_PER_THREAD` is another
    /// stream in each thread.
    ///
    /// Takes no lock. With [`StreamIdentity::Reported`] it calls no driver.
    ///
    /// # Errors
    /// [`InvalidArgument`](cachalot_core::ErrorKind::InvalidArgument) with code 400 if no stream can have this
    /// handle. A handle that could be a stream's but is none cannot be told from one.
    /// With [`StreamIdentity::Asked`] also those of [`health`](Self::health).
    #[inline]
    pub fn stream_id(&self, stream: CuStream) -> DeviceResult<StreamId> {
        if self.identity == StreamIdentity::Asked
            && let Some(number) = self.asked(stream)?
        {
            return Ok(number);
        }
        self.streams.number(stream).ok_or(CuResult::INVALID_HANDLE.error())
    }

    /// The number of a stream that uses a block of another stream, as [`stream_id`](Self::stream_id)
    /// gives it. To be called **after** the work that uses the block was queued.
    ///
    /// With [`StreamIdentity::Asked`] an event is recorded behind that work, because nothing tells whether
    /// the stream still exists when the block is freed. Not while the stream captures.
    ///
    /// # Errors
    /// Those of [`stream_id`](Self::stream_id); the driver's.
    pub fn stream_in_use(&self, stream: CuStream) -> DeviceResult<StreamId> {
        let number = self.stream_id(stream)?;
        if !self.is_asked_for(self.streams.target(number)) || self.is_created_capturing(stream)? {
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

    /// Says that the host is about to destroy a stream, and answers the number that it had. To be called **before**
    /// `cuStreamDestroy`; afterwards the handle is not the host's to use.
    ///
    /// Its work need not be done: an event is recorded after it, and what is asked of the old number from then on is
    /// answered by that event. The handle's next stream gets another number.
    ///
    /// Of the calling thread's own default stream it says that the thread is about to end. That stream keeps its number,
    /// which no other thread ever has.
    ///
    /// # Errors
    /// [`InvalidArgument`](cachalot_core::ErrorKind::InvalidArgument) for the legacy default stream, which cannot be
    /// destroyed; [`NotPermittedInCapture`](cachalot_core::ErrorKind::NotPermittedInCapture) for one that captures;
    /// those of [`health`](Self::health). The number is then as it was. Should the event fail, the
    /// stream is retired all the same, and whoever needs it done waits for the whole context.
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
        self.streams.retire(stream, end).ok_or(CuResult::OUT_OF_MEMORY.error())
    }

    /// The number of the capture that a stream takes part in, unique in the process; `None` if it does not capture.
    ///
    /// # Errors
    /// [`Unsupported`](cachalot_core::ErrorKind::Unsupported) without the entry point; the driver's.
    pub fn capture_id(&self, stream: CuStream) -> DeviceResult<Option<u64>> {
        let (mut status, mut id) = (CuCaptureStatus::NONE, 0);
        self.context.call(|driver| {
            // SAFETY: both variables outlive the call, which writes one integer to each; the rest is not asked for.
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

    /// [`DeviceMemory::record`].
    pub(crate) fn record_number(&self, event: CuEvent, stream: StreamId) -> DeviceResult<()> {
        let _scope = self.context.enter()?;
        let target = self.streams.target(stream);
        if self.is_asked_for(target)
            && let Some(announced) = self.streams.announced(stream)
        {
            // The stream may be destroyed, so its handle is left alone.
            return self.record_behind(event, announced);
        }
        match self.usable(stream)? {
            Some(stream) => self.record_handle(event, stream),
            // The event keeps its earlier state, which is done: events in use are not recorded anew.
            None => self.wait_for_retired(stream),
        }
    }

    /// [`DeviceMemory::synchronize`].
    pub(crate) fn synchronize_number(&self, stream: StreamId) -> DeviceResult<()> {
        let _scope = self.context.enter()?;
        let target = self.streams.target(stream);
        if let Target::Live(handle) = target
            && self.is_asked_for(target)
        {
            // Nothing reports the streams of a host whose streams are asked for: this one may be
            // destroyed, and a real driver crashes on the handle of such a stream.
            return self.wait_for_all_of(self.streams.present_context(handle));
        }
        match self.usable(stream)? {
            // SAFETY: takes no host pointers; the host vouches for streams that it did not report as destroyed.
            Some(stream) => self.context.check(unsafe { self.driver().stream_synchronize(stream) }),
            None => self.wait_for_retired(stream),
        }
    }

    /// [`DeviceMemory::is_capturing`]. True also of the legacy stream while a blocking stream captures: nothing can be
    /// recorded on it then, though it does not capture itself.
    pub(crate) fn is_number_capturing(&self, stream: StreamId) -> DeviceResult<bool> {
        self.health()?;
        let handle = match self.streams.target(stream) {
            Target::Live(stream) => return self.is_created_capturing(stream),
            Target::OwnPerThread => CuStream::PER_THREAD,
            Target::Legacy | Target::OtherPerThread => CuStream::LEGACY,
            Target::Retired => return Ok(false),
        };
        let _scope = self.context.enter()?;
        self.is_handle_capturing(handle)
    }

    /// Whether a stream is capturing, or unusable because another one is. For a default stream the context is entered.
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

    /// The handle to use for a number; `None` if its stream was retired, or is found here to be gone. The context is
    /// entered.
    ///
    /// # Errors
    /// [`NotPermittedInCapture`](cachalot_core::ErrorKind::NotPermittedInCapture) if the stream captures, or
    /// cannot be used because another one does: to record on it or to wait for it would spoil the capture.
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
            // Nothing reports the streams of a host whose streams are asked for: this one was destroyed, and its handle was not
            // given to another yet.
            Err(error) if is_of_dead_handle(error) && self.is_asked_for(target) => {
                self.streams.retire_gone(number);
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        let moved = matches!(target, Target::Live(_)) && self.driver_number(handle)?.is_some_and(|now| now != number);
        Ok((!moved).then_some(handle))
    }

    /// Whether the driver is asked which stream a created stream's handle is.
    fn is_asked_for(&self, target: Target) -> bool {
        self.identity == StreamIdentity::Asked && matches!(target, Target::Live(_))
    }

    /// The present number of a stream after asking the driver for its own. `None` where the driver does not say: it is too
    /// old, or the handle is a default stream's, or the stream captures. Asking for the number of a capturing stream
    /// would spoil the capture, in every mode; and such a stream cannot be destroyed.
    fn asked(&self, stream: CuStream) -> DeviceResult<Option<StreamId>> {
        self.health()?;
        if !Streams::is_created(stream) || self.is_created_capturing(stream)? {
            return Ok(None);
        }
        self.driver_number(stream)
    }

    /// The present number of a created stream that does not capture, after asking the driver for its own. `None` where
    /// the driver does not say.
    fn driver_number(&self, stream: CuStream) -> DeviceResult<Option<StreamId>> {
        let mut id = 0;
        // SAFETY: `id` outlives the call, which writes one integer to it; the host vouches for streams that it did not
        // report as destroyed.
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

    /// Whether a created stream is capturing. Needs no context and spoils no capture, so that neither is prepared for;
    /// a driver that does want a context is asked again in this one.
    fn is_created_capturing(&self, stream: CuStream) -> DeviceResult<bool> {
        match self.is_handle_capturing(stream) {
            Err(error) if error.code == CuResult::INVALID_CONTEXT.0 => {
                let _scope = self.context.enter()?;
                self.is_handle_capturing(stream)
            }
            answer => answer,
        }
    }

    /// An event of this device behind everything on a stream, if one could be recorded. The context is entered.
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

    /// Forgets retired streams whose work is done, and keeps their events for the next ones. The context is entered.
    ///
    /// Such an event is never destroyed while the device is open, because another thread may still wait for it: that
    /// thread may then wait for a later stream's end as well, which is longer than needed and never too short.
    fn sweep(&self) {
        for (number, event) in self.streams.next_ended(self.cu_context(), SWEPT_AT_ONCE) {
            // Only the caller who took it off the list has the event to give away.
            if self.is_complete(Event(event.0 as u64)) == Ok(true) && self.streams.finish(number) {
                self.spare_events().push(event);
            }
        }
    }

    /// The spare events. A thread that panicked while it held the lock left whole entries only.
    fn spare_events(&self) -> MutexGuard<'_, Vec<CuEvent>> {
        self.spare_events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks until a retired stream's work is done. The context is entered.
    fn wait_for_retired(&self, number: StreamId) -> DeviceResult<()> {
        match self.streams.last(number) {
            None => Ok(()),
            // It stays listed until a sweep finds it done.
            Some(Last::Event(event)) => self.wait(Event(event.0 as u64)),
            Some(Last::Contexts(doubts)) => {
                for Doubt { context, .. } in &doubts {
                    self.wait_for_all_of(*context)?;
                }
                self.streams.settle(number, &doubts);
                Ok(())
            }
        }
    }

    /// Blocks until everything that is queued in a context is done; null means this device's. The
    /// context of this device is entered.
    fn wait_for_all_of(&self, context: CuContext) -> DeviceResult<()> {
        if context.is_null() || context == self.cu_context() {
            wait_for_context(&self.context)
        } else {
            wait_for_context(&Context::new(self.driver(), context))
        }
    }

    /// Records on a stream of the entered context.
    fn record_here(&self, event: CuEvent, stream: CuStream) -> CuResult {
        // SAFETY: takes no host pointers; the host vouches for streams that it did not report as destroyed.
        unsafe { self.driver().event_record(event, stream) }
    }

    /// Records an event of this device on a created stream, of this device or another. The context is entered.
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

    /// The context of a created stream, if the driver tells. Permitted in every state of a capture.
    fn context_of(&self, stream: CuStream) -> Option<CuContext> {
        let mut context = CuContext::NULL;
        // SAFETY: `context` outlives the call, which writes one handle to it.
        let code = unsafe { self.driver().stream_get_ctx(stream, &raw mut context) };
        (code.is_success() && !context.is_null()).then_some(context)
    }

    /// Records `event` so that it comes after everything on a stream of another context: an event of that context is
    /// waited for by a stream of this one, and `event` recorded behind the wait.
    fn record_across(&self, event: CuEvent, stream: CuStream, foreign: CuContext) -> DeviceResult<()> {
        let bridge = self.bridge()?;
        let theirs = Context::new(self.driver(), foreign);
        let mut there = CuEvent::NULL;
        theirs.call(|driver| {
            // SAFETY: `there` outlives the call, which writes one handle to it.
            let created = unsafe { driver.event_create(&raw mut there, CuEventFlags::DISABLE_TIMING) };
            if created.is_success() { record_or_destroy(driver, there, stream) } else { created }
        })?;
        // SAFETY: takes no host pointers; both handles are live.
        let waited = unsafe { self.driver().stream_wait_event(bridge, there, 0) };
        // SAFETY: takes no host pointers; the driver keeps what the wait above needs of the event.
        let destroyed = unsafe { self.driver().event_destroy(there) };
        self.context.check(waited)?;
        self.context.check(self.record_here(event, bridge))?;
        self.context.check(destroyed)
    }

    /// Records `event` so that it comes after another event, of this context or not. It comes after the
    /// earlier ones on the bridge too, which is longer than needed and never too short.
    fn record_behind(&self, event: CuEvent, other: CuEvent) -> DeviceResult<()> {
        let bridge = self.bridge()?;
        // SAFETY: takes no host pointers; events of announced work live as long as the device.
        self.context.check(unsafe { self.driver().stream_wait_event(bridge, other, 0) })?;
        self.context.check(self.record_here(event, bridge))
    }

    /// The stream of this device on which others' are waited for, made when first needed. The context is entered.
    fn bridge(&self) -> DeviceResult<CuStream> {
        let present = CuStream(self.bridge.load(Ordering::Acquire));
        if !present.is_null() {
            return Ok(present);
        }
        let mut made = CuStream::NULL;
        // SAFETY: `made` outlives the call, which writes one handle to it.
        self.context.check(unsafe { self.driver().stream_create(&raw mut made, CuStreamFlags::NON_BLOCKING) })?;
        match self.bridge.compare_exchange(0, made.0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(made),
            Err(earlier) => {
                // SAFETY: takes no host pointers; nobody else has seen this stream.
                let _ = unsafe { self.driver().stream_destroy(made) };
                Ok(CuStream(earlier))
            }
        }
    }

    /// Destroys what was made here for the sake of streams. Nobody else is inside a call of this device.
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
        let bridge = CuStream(self.bridge.swap(0, Ordering::AcqRel));
        if !bridge.is_null() {
            // SAFETY: takes no host pointers; the stream was made here and is taken out of use above.
            let destroyed = unsafe { self.driver().stream_destroy(bridge) };
            result = result.and(self.context.check(destroyed));
        }
        result
    }
}

/// Whether a call in an entered context failed because the stream was destroyed. CUDA 13.0 answers as if there were no context.
fn is_of_dead_handle(error: DeviceError) -> bool {
    [CuResult::INVALID_HANDLE.0, CuResult::INVALID_CONTEXT.0].contains(&error.code)
}

/// Blocks until everything that is queued in a context is done, the work of destroyed streams too.
///
/// `cuCtxSynchronize` does not serve: while a stream of the context captures, in whatever mode and thread, it fails and breaks
/// the capture, and no call tells of captures on streams that are not known here. To free device memory waits for as much, and
/// is permitted meanwhile to a thread in relaxed mode (on an H100 with CUDA 13.0: for kernels of blocking and non-blocking
/// streams after their `cuStreamDestroy`, beside captures of each mode). Only where there is no memory left the context is
/// synchronized.
fn wait_for_context(context: &Context) -> DeviceResult<()> {
    context.call(|driver| {
        let mut address = 0;
        // SAFETY: `address` outlives the call, which writes one address to it.
        match unsafe { driver.mem_alloc(&raw mut address, 1) } {
            // SAFETY: takes no host pointers; the memory was just obtained, and nothing has its address.
            CuResult::SUCCESS => unsafe { driver.mem_free(address) },
            // SAFETY: takes no arguments.
            CuResult::OUT_OF_MEMORY => unsafe { driver.ctx_synchronize() },
            code => code,
        }
    })
}

/// Records a fresh event, or destroys it if that fails.
fn record_or_destroy(driver: &Driver, event: CuEvent, stream: CuStream) -> CuResult {
    // SAFETY: takes no host pointers; the event is fresh, and the host vouches for the stream.
    let recorded = unsafe { driver.event_record(event, stream) };
    if !recorded.is_success() {
        // SAFETY: takes no host pointers; nobody else has seen this event. The first code stands.
        let _ = unsafe { driver.event_destroy(event) };
    }
    recorded
}
