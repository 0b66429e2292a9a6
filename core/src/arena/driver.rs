//! Calls to the device: none once its context is lost, and no event is recorded while a graph is captured.

use crate::arena::{Arena, flags};
use crate::device::{DeviceError, DeviceMemory, DeviceResult, ErrorKind};
use crate::sync::{AtomicU32, Lock, Ordering};
use crate::tables::Storage;

/// Leave to record events; see [`Arena::may_record`].
pub(crate) struct Recording<'a>(&'a AtomicU32);

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Leave to record events, unless a graph is being captured; none begins to be while it is kept.
    pub(crate) fn may_record(&self) -> Option<Recording<'_>> {
        self.recording.fetch_add(1, Ordering::SeqCst);
        let leave = Recording(&self.recording);
        (self.attention.load(Ordering::SeqCst) & flags::CAPTURE == 0).then_some(leave)
    }

    /// A graph is about to be captured, and [`flags::CAPTURE`] says so: waits for those who looked before. An event that is
    /// recorded on a stream which begins to capture meanwhile would become part of the graph.
    pub(crate) fn wait_for_recordings(&self) {
        while self.recording.load(Ordering::SeqCst) > 0 {
            core::hint::spin_loop();
        }
    }

    /// An error if the context is lost: the one that lost it.
    pub(crate) fn health(&self) -> DeviceResult<()> {
        if self.attention.load(Ordering::Acquire) & flags::LOST != 0 {
            return Err(DeviceError::new(ErrorKind::ContextLost, self.lost.load(Ordering::Relaxed) as u32));
        }
        Ok(())
    }

    /// Calls the device, unless the context is lost, and remembers if this loses it.
    pub(crate) fn call<T>(&self, call: impl FnOnce() -> DeviceResult<T>) -> DeviceResult<T> {
        self.health()?;
        self.noted(call())
    }

    /// The result of a call to the device, if it lost the context also remembered.
    pub(crate) fn noted<T>(&self, result: DeviceResult<T>) -> DeviceResult<T> {
        if let Err(error) = &result
            && error.kind == ErrorKind::ContextLost
        {
            let code = u64::from(error.code);
            // Of several threads' errors the first counts; it is there before the flag is.
            let _first = self.lost.compare_exchange(u64::MAX, code, Ordering::Relaxed, Ordering::Relaxed);
            self.attention.fetch_or(flags::LOST, Ordering::Release);
        }
        result
    }
}
