//! The events of a device: recorded, and reported to the host.

use super::Allocator;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::trace::{TraceEntry, TraceExtent};
use crate::units::DeviceIndex;

view! {
    /// The events of a device: a view of an [`Allocator`], returned by [`Allocator::trace`].
    ///
    /// Device: not called by any of the methods.
    Tracing,
    /// Returns the events of `device`.
    trace
}

impl<D: DeviceMemory, R: Lock, S: Storage> Tracing<'_, D, R, S> {
    /// Records the latest `capacity` events from now on, 40 bytes each; 0 ends the recording.
    /// Earlier events are dropped.
    ///
    /// Events are reported without gaps: with more than 16 streams and pools busy at a time, up to
    /// a few hundred of the `capacity` events may be left out.
    ///
    /// # Errors
    /// [`Error::TableFull`]: there is no room for `capacity` events.
    pub fn record(&self, capacity: usize) -> Result<(), Error> {
        let arena = self.begin("record_trace");
        let tunes = arena.settings.config.lock().tunes();
        if arena.recorder().start(capacity, tunes) { Ok(()) } else { Err(Error::TableFull("trace entries")) }
    }

    /// Calls `visit` with every recorded event, oldest first. `visit` must not call the allocator:
    /// the trace is locked.
    pub fn for_each(&self, visit: impl FnMut(&TraceEntry)) {
        self.begin("for_each_trace_entry").recorder().visit(visit);
    }

    /// Returns how much of the history [`for_each`](Self::for_each) has. If events were dropped,
    /// peaks of the history are those of its rest.
    pub fn extent(&self) -> TraceExtent {
        self.begin("trace_extent").recorder().extent()
    }

    /// Sets whether each event is reported to the host at the moment of the event, through
    /// [`Host::on_event`](crate::Host::on_event). At first no event is. For a call in progress on
    /// another thread, the last event may be missing or reported in excess.
    ///
    /// The events are [recorded](Self::record) independently of the reports.
    pub fn report(&self, on: bool) {
        self.arena.recorder().set_reports(on);
    }

    /// Sets whether the free of each block requested from now on waits for the work of the block's
    /// own stream, as for that of announced streams. The event
    /// [`FreeCompleted`](crate::Action::FreeCompleted) then tells that no work known at the free
    /// uses the block. At first no free does: the next block at the address goes to the same
    /// stream.
    ///
    /// Blocks served from a plan are left out. Later frees call the device to record an event.
    pub fn watch_frees(&self, on: bool) {
        self.arena.guarding.watch_frees(&self.arena.driver.flags, on);
    }
}
