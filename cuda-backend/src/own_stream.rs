//! A stream that belongs to the device itself. It is created when it is first used.

use crate::context::Context;
use crate::driver::types::{CuStream, CuStreamFlags};
use cachalot_core::DeviceResult;
use core::sync::atomic::{AtomicUsize, Ordering};

/// A non-blocking stream, or no stream before the first use. Only code of this crate has its
/// handle.
#[derive(Debug, Default)]
pub(crate) struct OwnStream(AtomicUsize);

impl OwnStream {
    /// Returns the stream, if it was created.
    pub(crate) fn present(&self) -> Option<CuStream> {
        let stream = CuStream(self.0.load(Ordering::Acquire));
        (!stream.is_null()).then_some(stream)
    }

    /// Returns the stream. The first call creates it. Takes no lock.
    pub(crate) fn get(&self, context: &Context) -> DeviceResult<CuStream> {
        if let Some(stream) = self.present() {
            return Ok(stream);
        }
        let mut made = CuStream::NULL;
        context.call(|driver| {
            // SAFETY: `made` outlives the call, which writes one handle to it.
            unsafe { driver.stream_create(&raw mut made, CuStreamFlags::NON_BLOCKING) }
        })?;
        match self.0.compare_exchange(0, made.0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(made),
            Err(earlier) => {
                let _ = destroy(context, made);
                Ok(CuStream(earlier))
            }
        }
    }

    /// Waits for the work of the stream, if it was created.
    pub(crate) fn synchronize(&self, context: &Context) -> DeviceResult<()> {
        let Some(stream) = self.present() else { return Ok(()) };
        context.call(|driver| {
            // SAFETY: takes no host pointers; only `destroy` destroys the stream.
            unsafe { driver.stream_synchronize(stream) }
        })
    }

    /// Destroys the stream, if it was created, when the device is closed. No other thread may be
    /// inside a call of the device.
    pub(crate) fn destroy(&self, context: &Context) -> DeviceResult<()> {
        match CuStream(self.0.swap(0, Ordering::AcqRel)) {
            CuStream::NULL => Ok(()),
            stream => destroy(context, stream),
        }
    }
}

/// Destroys a stream. Only the calling thread has its handle.
fn destroy(context: &Context, stream: CuStream) -> DeviceResult<()> {
    context.call(|driver| {
        // SAFETY: takes no host pointers; the stream was created here, and no other thread has its
        // handle.
        unsafe { driver.stream_destroy(stream) }
    })
}
