//! Events, and the order of a device's streams.

use crate::device::forwarder::{Forwarder, device_trait};
use crate::device::{CaptureMark, DeviceError, DeviceResult, ErrorKind, Event};
use crate::units::StreamId;

device_trait! {
    /// The order of a device's streams: tells when streams have finished their work, and orders
    /// streams.
    pub trait StreamOrder: Send + Sync;

    /// Forwards [`StreamOrder`], except for the methods written in the implementation.
    pub trait ForwardStreamOrder, to Forwarder::inner;

    /// Creates an event. The allocator records an event many times before destroying it.
    ///
    /// # Errors
    /// Any error of the device.
    fn create_event(&self) -> DeviceResult<Event> [CreateEvent];

    /// Creates an event for [`order_behind`](Self::order_behind), else as
    /// [`create_event`](Self::create_event) does. After an event of `create_event`, a stream may
    /// be ordered by a wait of the host.
    ///
    /// # Errors
    /// Any error of the device.
    fn create_order_event(&self) -> DeviceResult<Event> [CreateEvent];

    /// Returns whether [`order_behind`](Self::order_behind) makes a stream wait for `event`, and
    /// not the host: of an event of [`create_order_event`](Self::create_order_event), unless the
    /// device had no more of these and made another one. Calls no device.
    fn orders(&self, event: Event) -> bool = true;

    /// Destroys an event. Streams may still be ordered after the event.
    ///
    /// # Errors
    /// Any error of the device.
    fn destroy_event(&self, event: Event) -> DeviceResult<()> [DestroyEvent];

    /// Records `event` at the present end of `stream`.
    ///
    /// # Errors
    /// Any error of the device. The event then counts as unrecorded, and never as complete.
    fn record(&self, event: Event, stream: StreamId) -> DeviceResult<()> [Record];

    /// Records `event` behind the announced work of `stream`
    /// ([`record_stream`](crate::Allocator::record_stream)). The stream may have ended, with or
    /// without a [report](Self::reports_end).
    ///
    /// A device unable to distinguish the announced work records behind all work of the stream. For
    /// [`StreamId::EVERY`], `event` comes behind all work of the device's context; the call may
    /// wait for that work.
    ///
    /// # Errors
    /// The errors of [`record`](Self::record).
    fn record_announced(&self, event: Event, stream: StreamId) -> DeviceResult<()> [Record];

    /// Records `event` behind all work queued so far on every stream of the device's context. Does
    /// not block. Called only if [`can_record_all`](Self::can_record_all), and not while the
    /// allocator knows of a capture, which the call would break.
    ///
    /// # Errors
    /// The errors of [`record`](Self::record).
    fn record_all(&self, event: Event) -> DeviceResult<()> [Record] = Err(DeviceError::new(ErrorKind::Unsupported, 0));

    /// Returns whether the device has [`record_all`](Self::record_all). Calls no device.
    fn can_record_all(&self) -> bool = false;

    /// Returns whether all work before `event` on the event's stream is done. Does not block.
    ///
    /// # Errors
    /// Any answer other than yes and no. The event then does not count as complete.
    fn is_complete(&self, event: Event) -> DeviceResult<bool> [IsComplete];

    /// Blocks the calling thread until `event` is complete.
    ///
    /// # Errors
    /// The errors of [`is_complete`](Self::is_complete).
    fn wait(&self, event: Event) -> DeviceResult<()> [Wait];

    /// Makes the work queued on `stream` from now on wait for `event`, which is recorded.
    /// The event may be recorded again or destroyed right afterwards.
    ///
    /// Does not block the calling thread where the device can order streams, and the event is made
    /// for it ([`create_order_event`](Self::create_order_event)). Elsewhere the call may block
    /// until the event is complete.
    ///
    /// # Errors
    /// Any error of the device. The order then does not count as established.
    fn order_behind(&self, stream: StreamId, event: Event) -> DeviceResult<()> [OrderBehind];

    /// Returns whether [`order_behind`](Self::order_behind) makes the work of `stream` wait, and
    /// not the host. If the host would wait, a request obtains memory in preference. Calls no
    /// device.
    fn can_order(&self, stream: StreamId) -> bool = false;

    /// Returns whether the allocator is told of the end of `stream`
    /// ([`stream_destroyed`](crate::Allocator::stream_destroyed)) before the stream goes. If not,
    /// the stream may have gone at any moment outside a call with the stream's name. Only calls
    /// with the stream's name then use the stream, except for
    /// [`record_announced`](Self::record_announced) and [`synchronize`](Self::synchronize). Calls
    /// no device.
    fn reports_end(&self, stream: StreamId) -> bool = true;

    /// Blocks the calling thread until all work queued on `stream` so far is done.
    ///
    /// # Errors
    /// Any error of the device.
    fn synchronize(&self, stream: StreamId) -> DeviceResult<()> [Synchronize];

    /// Blocks the calling thread until all work queued so far on every stream of the device's
    /// context is done. If the device can distinguish work queued by other threads during the call,
    /// the call does not wait for this work.
    ///
    /// Not called while the allocator knows of a capture.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the device has no wait for a whole context;
    /// [`ErrorKind::NotPermittedInCapture`] if a stream captures; any error of the device.
    fn synchronize_all(&self) -> DeviceResult<()> [SynchronizeAll];

    /// Returns whether all work queued on `stream` is complete: of a stream that may have ended
    /// without a [report](Self::reports_end), all announced work. Returns `None` if the device
    /// cannot tell without an event, or if the stream captures a graph.
    ///
    /// # Errors
    /// Any error of the device.
    fn is_idle(&self, stream: StreamId) -> DeviceResult<Option<bool>> [IsIdle] = Ok(None);

    /// Returns whether `stream` is capturing a graph. An event recorded on a capturing stream
    /// becomes part of the graph, and could not be waited for.
    ///
    /// # Errors
    /// Any error of the device.
    fn is_capturing(&self, stream: StreamId) -> DeviceResult<bool> [IsCapturing] = Ok(false);

    /// Marks the work captured so far by `stream`: with a new mark, or with `mark`, which then
    /// marks the work of several streams. Returns `None` if the stream captures no graph, or a
    /// graph different from the graph of `mark`; `mark` is removed then, as on an error. Returns
    /// `None` also if the device cannot look into a graph during capture.
    ///
    /// # Errors
    /// Any error of the device.
    fn mark_capture(&self, stream: StreamId, mark: Option<CaptureMark>) -> DeviceResult<Option<CaptureMark>> [MarkCapture] = Ok(None);

    /// Returns whether all later captures of `stream` come after the work of `mark` in the graph.
    /// False if `stream` captures no graph or a graph different from the graph of `mark`, and if no
    /// work was captured at the mark.
    ///
    /// # Errors
    /// Any error of the device.
    fn is_behind(&self, stream: StreamId, mark: CaptureMark) -> DeviceResult<bool> [IsBehind] = Ok(false);

    /// Removes a mark.
    fn remove_mark(&self, mark: CaptureMark);
}
