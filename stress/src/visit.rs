//! A visit: the use of a block by another stream, complete when the stream has completed its work
//! so far.

use crate::stage::Device;
use cachalot_core::{DeviceResult, Event, StreamId, StreamOrder};
use cachalot_cuda::driver::types::CuStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The end of the work queued on a stream at the time of the visit.
#[derive(Debug)]
pub(crate) struct Visit {
    device: &'static Device,
    stream: StreamId,
    event: Event,
    over: AtomicBool,
}

impl Visit {
    /// Records the present end of a stream.
    ///
    /// # Errors
    /// The device's. No event is then recorded.
    pub(crate) fn mark(device: &'static Device, handle: CuStream, stream: StreamId) -> DeviceResult<Arc<Self>> {
        let event = device.take_event()?;
        // Created before the recording, so that the drop returns the event if the recording fails.
        let visit = Self { device, stream, event, over: AtomicBool::new(false) };
        device.record(event, handle)?;
        Ok(Arc::new(visit))
    }

    /// Returns the visiting stream.
    pub(crate) fn stream(&self) -> StreamId {
        self.stream
    }

    /// Returns whether the stream has completed the visit, or `None` if the device returns an
    /// error.
    pub(crate) fn is_over(&self) -> Option<bool> {
        if self.over.load(Ordering::Acquire) {
            return Some(true);
        }
        let over = self.device.cuda.is_complete(self.event).ok()?;
        self.over.fetch_or(over, Ordering::Release);
        Some(over)
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.device.return_event(self.event);
    }
}
