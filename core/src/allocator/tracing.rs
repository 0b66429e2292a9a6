//! The events of a device: recording them, and reporting them to the host.

use super::Allocator;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::trace::{EventTimes, TraceEntry, TraceExtent};
use crate::units::DeviceIndex;

view! {
    /// The events of a device: a view of an [`Allocator`], returned by [`Allocator::trace`].
    ///
    /// Device: no method calls it.
    Tracing,
    /// Returns the events of `device`.
    trace
}

impl<D: DeviceMemory, R: Lock, S: Storage> Tracing<'_, D, R, S> {
    /// Records the latest `capacity` events from now on, in 40 bytes each; 0 stops the recording.
    /// Earlier events are dropped.
    ///
    /// Events are reported without gaps. For this, up to a few hundred of the `capacity` events may
    /// be left out if more than 16 streams and pools are busy at the same time.
    ///
    /// # Errors
    /// [`Error::TableFull`]: there is no room for `capacity` events.
    pub fn record(&self, capacity: usize) -> Result<(), Error> {
        self.record_with(capacity, EventTimes::Exact)
    }

    /// Records events as [`record`](Self::record) does, with times of another kind. With
    /// [`EventTimes::Numbered`] a recording is cheap enough to be always on.
    ///
    /// # Errors
    /// As for [`record`](Self::record).
    pub fn record_with(&self, capacity: usize, times: EventTimes) -> Result<(), Error> {
        let arena = self.begin("record_trace");
        let tunes = arena.settings.config.lock().tunes();
        if arena.recorder().start(capacity, times, tunes) { Ok(()) } else { Err(Error::TableFull("trace entries")) }
    }

    /// Calls `visit` with every recorded event, oldest first. `visit` must not call the allocator,
    /// because the trace is locked.
    pub fn for_each(&self, visit: impl FnMut(&TraceEntry)) {
        self.begin("for_each_trace_entry").recorder().visit(visit);
    }

    /// Returns how much of the history is available to [`for_each`](Self::for_each). If events were
    /// dropped, the peaks of the history are those of the rest.
    pub fn extent(&self) -> TraceExtent {
        self.begin("trace_extent").recorder().extent()
    }

    /// Sets whether each event is reported to the host as it happens, through
    /// [`Host::on_event`](crate::Host::on_event). By default, no events are reported. If another
    /// thread's call is in progress, its last event may be missing or may be reported although
    /// reports are off.
    ///
    /// [Recorded](Self::record) events are independent of these reports.
    pub fn report(&self, on: bool) {
        self.arena.recorder().set_reports(on);
    }

    /// Sets whether the free of each block requested from now on also waits for the work of the
    /// block's own stream, in the same way as for announced streams. The event
    /// [`FreeCompleted`](crate::Action::FreeCompleted) then means that no work known at the free
    /// uses the block. By default, frees do not wait for it: the next block at the address goes to
    /// the same stream anyway.
    ///
    /// Blocks served from a plan are not affected. Later frees call the device to record an event.
    pub fn watch_frees(&self, on: bool) {
        self.arena.debug.watch_frees(&self.arena.driver.flags, on);
    }
}
