//! The handle of a stream, and every driver call that takes one.
//!
//! The program destroys a stream after it has reported the stream's end. So the handle of a number
//! is used only while a [`Handle`] exists, because the report waits for it. No other code of the
//! crate passes a handle to the driver, except those of the crate's own streams, which are never
//! reported.

use crate::driver::Driver;
use crate::driver::result::CuResult;
use crate::driver::types::{CuCaptureStatus, CuContext, CuDevicePtr, CuEvent, CuGraphNode, CuStream};
use crate::in_use::Use;
use cachalot_core::StreamId;

/// The handle of a stream. The stream exists as long as the value lives.
///
/// No call waits for work of a stream, except [`synchronize`](Self::synchronize). A report of a
/// stream's end waits until these values are dropped, so a value lives only for a few short driver
/// calls.
#[derive(Debug)]
pub(crate) struct Handle<'a> {
    stream: CuStream,
    /// The number of the stream, and the use for which the report of the stream's end waits. `None`
    /// if only the caller's thread may report the end.
    used: Option<(StreamId, Use<'a>)>,
}

impl Handle<'static> {
    /// Returns the handle of a stream that the caller guarantees to exist: a stream that the
    /// program names in a call, a default stream, or a stream of the crate.
    pub(crate) const fn vouched(stream: CuStream) -> Self {
        Self { stream, used: None }
    }
}

impl<'a> Handle<'a> {
    /// Returns the handle of the stream with a number. The number was still in the table after
    /// `used` had started.
    pub(crate) const fn held(stream: CuStream, number: StreamId, used: Use<'a>) -> Self {
        Self { stream, used: Some((number, used)) }
    }

    /// Returns the handle for comparison, not for calls of the driver.
    pub(crate) const fn key(&self) -> u64 {
        self.stream.0 as u64
    }

    /// Returns the number with which the stream was looked up. The end of the stream may have been
    /// reported since then.
    pub(crate) fn number(&self) -> Option<StreamId> {
        self.used.as_ref().map(|(number, _)| *number)
    }

    /// Returns whether another thread may report the end of the stream.
    pub(crate) const fn may_end(&self) -> bool {
        self.used.is_some()
    }

    /// Returns whether the stream captures. Breaks no capture.
    pub(crate) fn status(&self, driver: &Driver) -> Result<CuCaptureStatus, CuResult> {
        let mut status = CuCaptureStatus::NONE;
        // SAFETY: `status` outlives the call, which writes one integer to it; the stream exists.
        done(unsafe { driver.stream_is_capturing(self.stream, &raw mut status) }).map(|()| status)
    }

    /// Returns the driver's id of the stream. Breaks the capture of a stream that captures.
    pub(crate) fn id(&self, driver: &Driver) -> Result<u64, CuResult> {
        let mut id = 0;
        // SAFETY: as for `status`.
        done(unsafe { driver.stream_get_id(self.stream, &raw mut id) }).map(|()| id)
    }

    /// Returns the context of a created stream. This is permitted in every state of a capture.
    pub(crate) fn context(&self, driver: &Driver) -> Result<CuContext, CuResult> {
        let mut context = CuContext::NULL;
        // SAFETY: as for `status`.
        done(unsafe { driver.stream_get_ctx(self.stream, &raw mut context) }).map(|()| context)
    }

    /// Asks whether all work of the stream is complete.
    pub(crate) fn query(&self, driver: &Driver) -> CuResult {
        // SAFETY: takes no host pointers; the stream exists.
        unsafe { driver.stream_query(self.stream) }
    }

    /// Waits for the work of the stream. This is only for streams if no other thread may report the
    /// end meanwhile.
    pub(crate) fn synchronize(&self, driver: &Driver) -> CuResult {
        debug_assert!(!self.may_end(), "the report of the end would wait for the work");
        // SAFETY: takes no host pointers; the stream exists.
        unsafe { driver.stream_synchronize(self.stream) }
    }

    /// Records an event of the entered context after the work of the stream.
    pub(crate) fn record(&self, driver: &Driver, event: CuEvent) -> CuResult {
        // SAFETY: takes no host pointers; the stream exists, and the caller has the event.
        unsafe { driver.event_record(event, self.stream) }
    }

    /// Makes later work of the stream wait for a recorded event.
    pub(crate) fn wait_for(&self, driver: &Driver, event: CuEvent) -> CuResult {
        // SAFETY: takes no host pointers; the stream exists, and the caller has the event.
        unsafe { driver.stream_wait_event(self.stream, event, 0) }
    }

    /// Fills `bytes` of device memory with a value, in the order of the stream.
    ///
    /// # Safety
    /// The range may be written until the stream has completed the fill.
    pub(crate) unsafe fn fill(&self, driver: &Driver, at: CuDevicePtr, value: u8, bytes: usize) -> CuResult {
        // SAFETY: takes no host pointers; the stream exists, and the caller vouches for the range.
        unsafe { driver.memset_d8_async(at, value, bytes, self.stream) }
    }

    /// Allocates memory in the order of the stream, which does not capture.
    pub(crate) fn allocate(&self, driver: &Driver, address: &mut CuDevicePtr, bytes: usize) -> CuResult {
        // SAFETY: `address` outlives the call, which writes one address to it; the stream exists.
        unsafe { driver.mem_alloc_async(&raw mut *address, bytes, self.stream) }
    }

    /// Frees memory of [`allocate`](Self::allocate) in the order of the stream, or at once while
    /// the stream captures, because the free would be a part of the graph.
    pub(crate) fn free(&self, driver: &Driver, at: CuDevicePtr) -> CuResult {
        if self.status(driver) == Ok(CuCaptureStatus::NONE) {
            // SAFETY: takes no host pointers; the stream exists, and the caller has the memory.
            return unsafe { driver.mem_free_async(at, self.stream) };
        }
        // SAFETY: as above.
        unsafe { driver.mem_free(at) }
    }

    /// Returns the id of the stream's capture, or `None` if the stream does not capture or an error
    /// has broken the capture.
    pub(crate) fn capture(&self, driver: &Driver) -> Result<Option<u64>, CuResult> {
        let (mut status, mut id) = (CuCaptureStatus::NONE, 0);
        let null = core::ptr::null_mut();
        // SAFETY: both variables outlive the call, which writes one integer to each; null pointers
        // mean that a result is not requested.
        let code = unsafe {
            driver.stream_get_capture_info(self.stream, &raw mut status, &raw mut id, null, null.cast(), null.cast())
        };
        done(code).map(|()| (status == CuCaptureStatus::ACTIVE).then_some(id))
    }

    /// Returns the result of [`capture`](Self::capture), with the nodes directly before the
    /// stream's next work.
    ///
    /// The caller prevents other calls for the stream meanwhile, because the driver's list of nodes
    /// is valid only until the next call.
    pub(crate) fn capture_ends(&self, driver: &Driver) -> Result<Option<(u64, Vec<CuGraphNode>)>, CuResult> {
        let (mut status, mut id, mut count) = (CuCaptureStatus::NONE, 0, 0);
        let mut nodes: *const CuGraphNode = core::ptr::null();
        // SAFETY: the variables outlive the call, which writes one value to each; the null pointer
        // means that a result is not requested.
        let code = unsafe {
            driver.stream_get_capture_info(
                self.stream,
                &raw mut status,
                &raw mut id,
                core::ptr::null_mut(),
                &raw mut nodes,
                &raw mut count,
            )
        };
        done(code)?;
        if status != CuCaptureStatus::ACTIVE {
            return Ok(None);
        }
        if nodes.is_null() || count == 0 {
            return Ok(Some((id, Vec::new())));
        }
        // SAFETY: the driver has returned `count` nodes from `nodes` on, valid until the next call
        // for the stream.
        let ends = unsafe { core::slice::from_raw_parts(nodes, count) };
        Ok(Some((id, ends.to_vec())))
    }
}

/// Returns the code of a call as an error, unless it succeeded.
fn done(code: CuResult) -> Result<(), CuResult> {
    if code.is_success() { Ok(()) } else { Err(code) }
}
