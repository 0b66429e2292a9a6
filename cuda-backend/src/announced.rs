//! Records the announced work of streams that may be gone when a block is freed.
//!
//! [`stream_in_use`](CudaDevice::stream_in_use) names the stream, so it may use the handle, and
//! records an event. A block that is freed later waits for that event and names no stream.

use crate::announced_work::{Known, Noted};
use crate::context_wait::Captures;
use crate::device::CudaDevice;
use crate::device_event::DeviceEvent;
use crate::driver::result::CuResult;
use crate::driver::types::{CuContext, CuEvent, CuStream};
use crate::handle::Handle;
use crate::shared_event::SharedEvent;
use crate::spare_events::SpareEvents;
use crate::streams::StreamIdentity;
#[cfg(doc)]
use cachalot_core::StreamOrder;
use cachalot_core::{DeviceResult, StreamId};

impl CudaDevice {
    /// Returns the number of a stream that uses a block of another stream, as
    /// [`stream_id`](Self::stream_id) does. Must be called **after** the work that uses the block
    /// was queued.
    ///
    /// Unless the host [reports](StreamIdentity::Reported) the ends of streams, this records an
    /// event after that work, because the stream may be destroyed before the block is freed.
    /// Records nothing on a stream that captures.
    ///
    /// # Errors
    /// As for [`stream_id`](Self::stream_id), and those of the driver.
    pub fn stream_in_use(&self, stream: CuStream) -> DeviceResult<StreamId> {
        let mut number = self.stream_id(stream)?;
        let handle = Handle::vouched(stream);
        if !self.may_be_gone(number) || self.is_created_capturing(&handle)? {
            return Ok(number);
        }
        // The call names the stream, so the driver can be asked for its id. A new stream with an
        // old handle then gets its own number.
        let asked = if self.identity == StreamIdentity::Asked { Some(number) } else { self.driver_number(&handle)? };
        number = asked.unwrap_or(number);
        self.look()?;
        let mut known = self.streams.work.known(number, self.cu_context());
        // Only a stream that was not known adds an entry to the record, so only then others must
        // go.
        if known.is_none() {
            self.sweep_announced(number);
        }
        loop {
            let announced = self.announce(number, &handle, known.as_ref(), asked.is_some());
            self.spare_events.give_up(&self.context, known.map(|known| known.event));
            match announced {
                Ok(None) => return Ok(number),
                Ok(faster) => known = faster,
                Err(error) => {
                    self.spare_events.give_up(&self.context, self.streams.work.doubt(number, self.cu_context()));
                    return Err(error);
                }
            }
        }
    }

    /// Records an event after the present work of a stream. It records the event of the stream's
    /// latest announcement again, unless freed blocks wait for it: recorded after later work, it
    /// would delay them for as long as the stream is in use. If another thread was faster, returns
    /// the event to try again with.
    fn announce(
        &self,
        number: StreamId,
        handle: &Handle<'_>,
        known: Option<&Known>,
        is_identified: bool,
    ) -> DeviceResult<Option<Known>> {
        if let Some(known) = known {
            if !is_identified {
                // The event may come after the work of an earlier stream with the same handle, and
                // this must remain so.
                self.chain(known.event.event(), handle)?;
            }
            if !known.event.is_waited_for() {
                self.record_named(known.event.event().handle, handle)?;
                let is_behind = self.streams.work.note_again(number, known);
                return Ok(if is_behind { None } else { self.streams.work.known(number, self.cu_context()) });
            }
        }
        match self.streams.work.note(number, self.new_announcement(handle)?, known) {
            Noted::Kept(earlier) => {
                self.spare_events.give_up(&self.context, earlier);
                Ok(None)
            }
            Noted::Known { known, unused } => {
                self.spare_events.give_up(&self.context, [unused]);
                Ok(Some(known))
            }
        }
    }

    /// Returns an event recorded after the present work of a stream, for an announcement.
    fn new_announcement(&self, handle: &Handle<'_>) -> DeviceResult<SharedEvent> {
        // The host polls the event, and without ids from the driver, a stream waits for it, too.
        let is_chained = self.driver().stream_get_id.is_none();
        let take = if is_chained { SpareEvents::take_for_streams } else { SpareEvents::take };
        let event = take(&self.spare_events, &self.context)?;
        match self.record_named(event.handle, handle) {
            Ok(()) => Ok(SharedEvent::new(event, self.cu_context())),
            Err(error) => {
                self.spare_events.keep(&self.context, event);
                Err(error)
            }
        }
    }

    /// Records an event after the present work of a stream that the program names. The context is
    /// entered only if the driver wants one, because to enter it costs as much as the record.
    fn record_named(&self, event: CuEvent, handle: &Handle<'_>) -> DeviceResult<()> {
        match handle.record(self.driver(), event) {
            // The driver wants a context, or the stream is of another one.
            CuResult::INVALID_CONTEXT | CuResult::INVALID_HANDLE => {
                let _scope = self.context.enter()?;
                self.record_handle(event, handle)
            }
            code => self.context.check(code).and_then(|()| self.refuse_capture(handle)),
        }
    }

    /// Orders later work of a stream after an event that is not complete yet.
    fn chain(&self, event: DeviceEvent, handle: &Handle<'_>) -> DeviceResult<()> {
        if self.query(event.handle)? {
            return Ok(());
        }
        let _scope = self.context.enter()?;
        self.context.check(event.hold_back(self.driver(), handle))
    }

    /// Records `event` after the announced work of the stream with the given number; implements
    /// [`StreamOrder::record_announced`].
    pub(crate) fn record_announced_number(&self, event: CuEvent, stream: StreamId) -> DeviceResult<()> {
        if stream != StreamId::EVERY && !self.may_be_gone(stream) {
            return self.record_number(event, stream);
        }
        // The stream may be destroyed, so its handle is not used.
        self.look()?;
        let announced = if stream == StreamId::EVERY { None } else { self.streams.work.events(stream) };
        let others = if let Some(others) = announced {
            others
        } else {
            let _scope = self.context.enter()?;
            if stream == StreamId::EVERY {
                // An event of the context would break a capture that nobody announced.
                self.wait_for_contexts(CuContext::NULL, Captures::MayBreak)?;
            } else {
                // The stream was capturing when it used the block.
                self.wait_for_unreported(stream, Captures::MayBreak)?;
            }
            Vec::new()
        };
        let before = self.stand_ins.set(event, others);
        self.spare_events.give_up(&self.context, before);
        Ok(())
    }

    /// Ends the use of other events in place of `event`, because it is recorded or destroyed.
    pub(crate) fn end_stand_ins(&self, event: CuEvent) {
        let ended = self.stand_ins.end(event);
        self.spare_events.give_up(&self.context, ended);
    }

    /// Returns whether the announced work of a stream is complete, or `None` if the events of the
    /// announcements are not known.
    pub(crate) fn is_announced_complete(&self, stream: StreamId) -> DeviceResult<Option<bool>> {
        let Some(announced) = self.streams.work.events(stream) else { return Ok(None) };
        let complete = self.are_complete(&announced);
        self.spare_events.give_up(&self.context, announced);
        complete.map(Some)
    }

    /// Returns whether all events of `others` are complete.
    pub(crate) fn are_complete(&self, others: &[SharedEvent]) -> DeviceResult<bool> {
        for other in others {
            if !self.query(other.event().handle)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Gives up some of the events after announced work, if the work is complete, because another
    /// stream is announced: `next`.
    fn sweep_announced(&self, next: StreamId) {
        for (number, event) in self.streams.work.take_some(next, self.cu_context()) {
            let is_complete = self.query(event.event().handle) == Ok(true);
            self.spare_events.give_up(&self.context, self.streams.work.put_back(number, event, is_complete));
        }
    }
}
