//! Events, and the order of a device's streams.

use crate::device::forwarder::{Forwarder, device_trait};
use crate::device::{CaptureMark, DeviceError, DeviceResult, ErrorKind, Event};
use crate::units::StreamId;

device_trait! {
    /// The order of a device's streams: when streams have finished their work, and how one stream
    /// waits for another.
    pub trait StreamOrder: Send + Sync;

    /// Forwards [`StreamOrder`], except for the methods that the implementation defines.
    pub trait ForwardStreamOrder, to Forwarder::inner;

    /// Creates an event. The allocator records an event many times before it destroys it.
    ///
    /// # Errors
    /// Any error of the device.
    fn create_event(&self) -> DeviceResult<Event> [CreateEvent];

    /// Creates an event for [`order_behind`](Self::order_behind), and otherwise does the same as
    /// [`create_event`](Self::create_event). To order a stream after an event from `create_event`,
    /// the host may have to wait.
    ///
    /// # Errors
    /// Any error of the device.
    fn create_order_event(&self) -> DeviceResult<Event> [CreateEvent];

    /// Returns whether [`order_behind`](Self::order_behind) makes a stream wait for `event`, rather
    /// than the host. This is true for an event from
    /// [`create_order_event`](Self::create_order_event), unless the device had no more of them and
    /// created another kind. Does not call the driver.
    fn orders(&self, event: Event) -> bool = true;

    /// Destroys an event. Streams may still be waiting for it.
    ///
    /// # Errors
    /// Any error of the device.
    fn destroy_event(&self, event: Event) -> DeviceResult<()> [DestroyEvent];

    /// Records `event` at the current end of `stream`.
    ///
    /// # Errors
    /// Any error of the device. The event then counts as unrecorded, and never as complete.
    fn record(&self, event: Event, stream: StreamId) -> DeviceResult<()> [Record];

    /// Records `event` after the announced work of `stream`
    /// ([`record_stream`](crate::Allocator::record_stream)). The stream may have ended, with or
    /// without a [report](Self::reports_end).
    ///
    /// A device that cannot tell which work was announced records the event after all work of the
    /// stream. For [`StreamId::EVERY`], `event` is recorded after all work of the device's context,
    /// and the call may wait for that work.
    ///
    /// # Errors
    /// The errors of [`record`](Self::record).
    fn record_announced(&self, event: Event, stream: StreamId) -> DeviceResult<()> [Record];

    /// Records `event` after all work queued so far on every stream of the device's context. Does
    /// not block. This is called only if [`can_record_all`](Self::can_record_all) returns true, and
    /// not while the allocator knows of a capture, because it would break the capture.
    ///
    /// # Errors
    /// The errors of [`record`](Self::record).
    fn record_all(&self, event: Event) -> DeviceResult<()> [Record] = Err(DeviceError::new(ErrorKind::Unsupported, 0));

    /// Returns whether the device implements [`record_all`](Self::record_all). Does not call the
    /// driver.
    fn can_record_all(&self) -> bool = false;

    /// Returns whether all work before `event` on the event's stream is done. Does not block.
    ///
    /// # Errors
    /// Anything except yes or no. The event then does not count as complete.
    fn is_complete(&self, event: Event) -> DeviceResult<bool> [IsComplete];

    /// Blocks the calling thread until `event` is complete.
    ///
    /// # Errors
    /// The errors of [`is_complete`](Self::is_complete).
    fn wait(&self, event: Event) -> DeviceResult<()> [Wait];

    /// Makes the work queued on `stream` from now on wait for `event`, which has been recorded. The
    /// event may be recorded again or destroyed right afterwards.
    ///
    /// Does not block the calling thread if the device can order streams and the event was created
    /// for it ([`create_order_event`](Self::create_order_event)). Otherwise the call may block
    /// until the event is complete.
    ///
    /// # Errors
    /// Any error of the device. The streams then do not count as ordered.
    fn order_behind(&self, stream: StreamId, event: Event) -> DeviceResult<()> [OrderBehind];

    /// Returns whether [`order_behind`](Self::order_behind) makes the work of `stream` wait, rather
    /// than the host. If the host would have to wait, a request prefers to obtain memory. Does not
    /// call the driver.
    fn can_order(&self, stream: StreamId) -> bool = false;

    /// Returns whether the allocator is told that `stream` ends
    /// ([`stream_destroyed`](crate::Allocator::stream_destroyed)) before it is gone. If not, the
    /// stream may be gone at any time except during a call that names it. Then only calls that name
    /// the stream use it, except for [`record_announced`](Self::record_announced) and
    /// [`synchronize`](Self::synchronize). Does not call the driver.
    fn reports_end(&self, stream: StreamId) -> bool = true;

    /// Blocks the calling thread until all work queued on `stream` so far is done. Breaks no
    /// capture.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] if the wait needs memory that the device does not have; any error
    /// of the device.
    fn synchronize(&self, stream: StreamId) -> DeviceResult<()> [Synchronize];

    /// Waits as [`synchronize`](Self::synchronize) does, in a way that needs no memory of the
    /// device. This is called if `synchronize` did not have the memory, and not while the allocator
    /// knows of a capture, because it may break captures.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the device has no such way; any error of the device.
    fn synchronize_without_memory(&self, stream: StreamId) -> DeviceResult<()> [Synchronize] = Err(DeviceError::new(ErrorKind::Unsupported, 0));

    /// Blocks the calling thread until all work queued so far on every stream of the device's
    /// context is done. If the device can tell which work other threads queue during the call, the
    /// call does not wait for that work.
    ///
    /// This is not called while the allocator knows of a capture.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the device cannot wait for a whole context;
    /// [`ErrorKind::NotPermittedInCapture`] if a stream captures; any error of the device.
    fn synchronize_all(&self) -> DeviceResult<()> [SynchronizeAll];

    /// Returns whether all work queued on `stream` is complete. If the stream may have ended
    /// without a [report](Self::reports_end), this is about all announced work. Returns `None` if
    /// the device cannot say without an event, or if the stream captures a graph.
    ///
    /// # Errors
    /// Any error of the device.
    fn is_idle(&self, stream: StreamId) -> DeviceResult<Option<bool>> [IsIdle] = Ok(None);

    /// Returns whether `stream` is capturing a graph. An event recorded on a capturing stream
    /// becomes part of the graph, and cannot be waited for.
    ///
    /// # Errors
    /// Any error of the device.
    fn is_capturing(&self, stream: StreamId) -> DeviceResult<bool> [IsCapturing] = Ok(false);

    /// Marks the work that `stream` has captured so far. This creates a new mark or extends `mark`,
    /// which then marks the work of several streams. Returns `None` if the stream does not capture
    /// a graph, or captures another graph than that of `mark`; in this case, and on an error,
    /// `mark` is removed. Also returns `None` if the device cannot look into a graph during a
    /// capture.
    ///
    /// # Errors
    /// Any error of the device.
    fn mark_capture(&self, stream: StreamId, mark: Option<CaptureMark>) -> DeviceResult<Option<CaptureMark>> [MarkCapture] = Ok(None);

    /// Returns whether everything that `stream` captures from now on comes after the work of `mark`
    /// in the graph. False if `stream` does not capture a graph or captures another one than that
    /// of `mark`, and if the mark covers no work.
    ///
    /// # Errors
    /// Any error of the device.
    fn is_behind(&self, stream: StreamId, mark: CaptureMark) -> DeviceResult<bool> [IsBehind] = Ok(false);

    /// Removes a mark.
    fn remove_mark(&self, mark: CaptureMark);
}
