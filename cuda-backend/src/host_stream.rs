//! A GPU with another stream, that of the host.

use crate::device::CudaDevice;
use cachalot_core::forward::{ForwardHost, ForwardSegments, ForwardStreamOrder, Forwarder};
use cachalot_core::{CaptureMark, DeviceResult, Event, StreamId, StreamOrder};

/// The stream of the host. It has no work, so it is always complete. No stream of the driver has
/// this number.
pub const HOST_STREAM: StreamId = StreamId(0xffff << 48);

/// A device of the driver that also has the stream [`HOST_STREAM`], for memory that the host
/// orders.
#[derive(Debug)]
pub struct HostStream(pub CudaDevice);

impl Forwarder for HostStream {
    type Inner = CudaDevice;

    #[inline]
    fn inner(&self) -> DeviceResult<&CudaDevice> {
        Ok(&self.0)
    }
}

impl ForwardStreamOrder for HostStream {
    /// Records `event` as [`CudaDevice`] does. On [`HOST_STREAM`], which has no work, the event
    /// keeps its earlier state. It may still be after other work, so a wait for the event may take
    /// longer than needed, but never ends too early.
    #[inline]
    fn record(&self, event: Event, stream: StreamId) -> DeviceResult<()> {
        if stream == HOST_STREAM { self.0.health() } else { self.0.record(event, stream) }
    }

    #[inline]
    fn record_announced(&self, event: Event, stream: StreamId) -> DeviceResult<()> {
        if stream == HOST_STREAM { self.0.health() } else { self.0.record_announced(event, stream) }
    }

    /// Orders later work on `stream` after `event`. The host is ordered by waiting.
    #[inline]
    fn order_behind(&self, stream: StreamId, event: Event) -> DeviceResult<()> {
        if stream == HOST_STREAM { self.0.wait(event) } else { self.0.order_behind(stream, event) }
    }

    #[inline]
    fn can_order(&self, stream: StreamId) -> bool {
        stream != HOST_STREAM
    }

    #[inline]
    fn reports_end(&self, stream: StreamId) -> bool {
        stream == HOST_STREAM || self.0.reports_end(stream)
    }

    #[inline]
    fn synchronize(&self, stream: StreamId) -> DeviceResult<()> {
        if stream == HOST_STREAM { self.0.health() } else { self.0.synchronize(stream) }
    }

    #[inline]
    fn is_idle(&self, stream: StreamId) -> DeviceResult<Option<bool>> {
        if stream == HOST_STREAM { self.0.health().map(|()| Some(true)) } else { self.0.is_idle(stream) }
    }

    #[inline]
    fn is_capturing(&self, stream: StreamId) -> DeviceResult<bool> {
        if stream == HOST_STREAM { self.0.health().map(|()| false) } else { self.0.is_capturing(stream) }
    }

    /// Marks nothing. A graph reads memory of the host at each launch, and the host writes to
    /// memory at once, so no block that a graph uses is reused before the capture ends.
    #[inline]
    fn mark_capture(&self, _: StreamId, _: Option<CaptureMark>) -> DeviceResult<Option<CaptureMark>> {
        Ok(None)
    }
}

impl ForwardSegments for HostStream {}
impl ForwardHost for HostStream {}
