//! A stay of another stream at a block: over when the stream has come to the end of what it queued there.

use crate::stage::Device;
use cachalot_core::{DeviceMemory, DeviceResult, Event, StreamId};
use cachalot_cuda::driver::types::CuStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The end of what was queued on a stream.
#[derive(Debug)]
pub(crate) struct Visit {
    device: &'static Device,
    stream: StreamId,
    event: Event,
    over: AtomicBool,
}

impl Visit {
    /// Marks the present end of a stream.
    ///
    /// # Errors
    /// The device's: nothing is marked.
    pub(crate) fn mark(device: &'static Device, handle: CuStream, stream: StreamId) -> DeviceResult<Arc<Self>> {
        let event = device.take_event()?;
        // Made first, so that the event goes back if it cannot be recorded.
        let visit = Self { device, stream, event, over: AtomicBool::new(false) };
        device.record(event, handle)?;
        Ok(Arc::new(visit))
    }

    /// The stream that visits.
    pub(crate) fn stream(&self) -> StreamId {
        self.stream
    }

    /// Whether the stream has come so far; `None` if the device does not say.
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
        self.device.keep_event(self.event);
    }
}
