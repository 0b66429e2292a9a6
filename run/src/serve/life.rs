//! Contexts, streams and captures, from start to end.

use crate::charge::{DeviceCharge, DriverFigures, Holding};
use crate::ledger::Kind;
use crate::real::Real;
use crate::serve::contexts::Green;
use crate::serve::process::Process;
use crate::serve::served::{DEVICE, Served};
use cachalot_cuda::CuResult;
use cachalot_cuda::driver::types::{
    CuCaptureMode, CuCaptureStatus, CuContext, CuDevice, CuGraph, CuGraphEdgeData, CuGraphNode, CuGreenContext,
    CuStream,
};
use cachalot_cuda::log;
use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard, PoisonError};

impl Process {
    /// `cuCtxCreate_v2`. The context is noted: a free waits for the context's work, too.
    ///
    /// # Safety
    /// `context` is null or writable.
    pub unsafe fn ctx_create_v2(&self, context: *mut CuContext, flags: c_uint, device: CuDevice) -> CuResult {
        // SAFETY: the arguments are the caller's.
        let call = || unsafe { self.real.ctx_create(context, flags, device) };
        // SAFETY: the driver writes the handle if it succeeds.
        unsafe { self.create_context(context, device, call) }
    }

    /// `cuCtxCreate_v3`.
    ///
    /// # Safety
    /// `context` is null or writable, and `affinity` has `count` entries.
    pub unsafe fn ctx_create_v3(
        &self,
        context: *mut CuContext,
        affinity: *mut c_void,
        count: c_int,
        flags: c_uint,
        device: CuDevice,
    ) -> CuResult {
        // SAFETY: the arguments are the caller's.
        let call = || unsafe { self.real.ctx_create_v3(context, affinity, count, flags, device) };
        // SAFETY: the driver writes the handle if it succeeds.
        unsafe { self.create_context(context, device, call) }
    }

    /// `cuCtxCreate_v4`.
    ///
    /// # Safety
    /// `context` is null or writable, and `parameters` is null or readable.
    pub unsafe fn ctx_create_v4(
        &self,
        context: *mut CuContext,
        parameters: *mut c_void,
        flags: c_uint,
        device: CuDevice,
    ) -> CuResult {
        // SAFETY: the arguments are the caller's.
        let call = || unsafe { self.real.ctx_create_v4(context, parameters, flags, device) };
        // SAFETY: the driver writes the handle if it succeeds.
        unsafe { self.create_context(context, device, call) }
    }

    /// `cuDevicePrimaryCtxRetain`.
    ///
    /// # Safety
    /// `context` is null or writable.
    pub unsafe fn device_primary_ctx_retain(&self, context: *mut CuContext, device: CuDevice) -> CuResult {
        let _primaries = self.lock_primaries();
        // SAFETY: the arguments are the caller's.
        let call = || unsafe { self.real.device_primary_ctx_retain(context, device) };
        let code = if is_active(self.real, device) {
            let code = call();
            // SAFETY: the driver has written the handle after success.
            unsafe { self.note_created(code, context) }
        } else {
            // SAFETY: as above.
            unsafe { self.create_context(context, device, call) }
        };
        if code.is_success() && !context.is_null() {
            // SAFETY: as above.
            self.open_waiting(device, unsafe { context.read() });
        }
        code
    }

    /// Creates a context by `call`, and charges what the driver takes for it: a program that asks
    /// for the free memory next sizes its own by the answer.
    ///
    /// # Safety
    /// After success of `call`, `context` is readable.
    unsafe fn create_context(
        &self,
        context: *mut CuContext,
        device: CuDevice,
        call: impl FnOnce() -> CuResult,
    ) -> CuResult {
        if context.is_null() || !self.counts_contexts() {
            let code = call();
            // SAFETY: the caller vouches for it.
            return unsafe { self.note_created(code, context) };
        }
        let charge = self.charge.of_device(self.real, device);
        let figures = || {
            let is_there = self.current_device() == Some(device);
            is_there.then(|| DriverFigures::of_current(self.real).ok()).flatten()
        };
        let (code, bytes) = charge.around_context(figures, call);
        // SAFETY: the caller vouches for it.
        let code = unsafe { self.note_created(code, context) };
        if code.is_success() {
            // SAFETY: as above.
            let context = unsafe { context.read() };
            match bytes {
                Some(bytes) => self.charge_context(charge, context, bytes),
                None => tell_of_uncounted_contexts(),
            }
        }
        code
    }

    /// Returns whether contexts are counted: somebody wants to know.
    fn counts_contexts(&self) -> bool {
        self.options.limit.is_some() || self.options.group.is_some() || self.options.wants_full_books()
    }

    /// Charges the memory that the driver takes for a context, also beyond the limit: the driver
    /// has it already.
    pub(super) fn charge_context(&self, charge: Arc<DeviceCharge>, context: CuContext, bytes: u64) {
        if bytes > 0 {
            self.charge.holdings().add(Holding { charge, kind: Kind::Context, bytes, context }, context.0 as u64);
        }
    }

    /// Notes a context written by the driver to `context`, unless `code` is an error.
    ///
    /// # Safety
    /// After success `context` is readable.
    unsafe fn note_created(&self, code: CuResult, context: *mut CuContext) -> CuResult {
        if code.is_success() && !context.is_null() {
            // SAFETY: the caller vouches for it.
            self.frees.add_context(unsafe { context.read() });
        }
        code
    }

    /// `cuCtxDestroy_v2`. The context's memory goes with the context, and the allocator is
    /// forgotten.
    ///
    /// # Safety
    /// The context lives, and no thread uses the context during the call.
    pub unsafe fn ctx_destroy(&self, context: CuContext) -> CuResult {
        // SAFETY: the context is the caller's.
        self.end_context(context, || unsafe { self.real.ctx_destroy(context) }, |code| code.is_success())
    }

    /// `cuCtxAttach`. The context has a use more.
    ///
    /// # Safety
    /// `context` is null or writable.
    pub unsafe fn ctx_attach(&self, context: *mut CuContext, flags: c_uint) -> CuResult {
        // SAFETY: the arguments are the caller's.
        let code = unsafe { self.real.ctx_attach(context, flags) };
        if code.is_success() && !context.is_null() {
            // SAFETY: the driver has written the handle after success.
            self.attached().push(unsafe { context.read() });
        }
        code
    }

    /// `cuCtxDetach`. A use of the context ends, and the context with the last.
    ///
    /// # Safety
    /// The context lives, and no thread uses the context during the last call.
    pub unsafe fn ctx_detach(&self, context: CuContext) -> CuResult {
        self.end_context(
            context,
            // SAFETY: the context is the caller's.
            || unsafe { self.real.ctx_detach(context) },
            |code| code.is_success() && !self.was_attached(context),
        )
    }

    /// Makes a call that may destroy a context, and forgets the context if it is `gone`. No thread
    /// parks or wakes meanwhile.
    fn end_context(
        &self,
        context: CuContext,
        call: impl FnOnce() -> CuResult,
        gone: impl FnOnce(&CuResult) -> bool,
    ) -> CuResult {
        self.between_parks(context, || {
            let mut ended = None;
            let code = self.frees.end_context(context, call, gone, || ended = self.forget_context(context));
            // Memory of `cuMemCreate` is the device's, not the context's: the driver leaves it
            // where it is.
            if let Some(served) = ended {
                served.device().end();
            }
            code
        })
    }

    /// Takes back a call of [`ctx_attach`](Self::ctx_attach). Returns whether there was one.
    fn was_attached(&self, context: CuContext) -> bool {
        let mut attached = self.attached();
        let at = attached.iter().position(|&of| of == context);
        at.map(|at| attached.swap_remove(at)).is_some()
    }

    /// Locks the attached contexts.
    fn attached(&self) -> MutexGuard<'_, Vec<CuContext>> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `cuGreenCtxCreate`. The memory of a green context is that of the device's primary context,
    /// which lives as long.
    ///
    /// # Safety
    /// `green` is null or writable, and `resources` is a description of the driver's.
    pub unsafe fn green_ctx_create(
        &self,
        green: *mut CuGreenContext,
        resources: *mut c_void,
        device: CuDevice,
        flags: c_uint,
    ) -> CuResult {
        let _primaries = self.lock_primaries();
        // SAFETY: the arguments are the caller's.
        let code = unsafe { self.real.green_ctx_create(green, resources, device, flags) };
        if !code.is_success() || green.is_null() {
            return code;
        }
        // SAFETY: the driver has written the handle after success.
        let handle = unsafe { green.read() };
        let mut context = CuContext::NULL;
        // SAFETY: `context` outlives the call, which writes one handle to it.
        let converted = unsafe { self.real.ctx_from_green_ctx(&raw mut context, handle) };
        if let Some(root) = self.primary(device).filter(|_| converted.is_success()) {
            self.frees.add_context(root);
            self.contexts.add_green(Green { handle, context, root, device });
        }
        code
    }

    /// `cuGreenCtxDestroy`. The primary context is released, and its memory stays with it.
    ///
    /// # Safety
    /// The green context lives, and no thread uses the green context during the call.
    pub unsafe fn green_ctx_destroy(&self, green: CuGreenContext) -> CuResult {
        // SAFETY: the green context is the caller's.
        let call = || unsafe { self.real.green_ctx_destroy(green) };
        let Some(known) = self.contexts.green(|known| known.handle == green) else { return call() };
        self.end_primary(known.device, false, || {
            let code = call();
            if code.is_success() {
                self.contexts.forget_green(green);
                self.end_captures(|(_, of)| *of == known.context);
            }
            code
        })
    }

    /// `cuDevicePrimaryCtxRelease_v2`. The last release destroys the context.
    ///
    /// # Safety
    /// As the driver's.
    pub unsafe fn device_primary_ctx_release(&self, device: CuDevice) -> CuResult {
        // SAFETY: takes no pointers.
        self.end_primary(device, false, || unsafe { self.real.device_primary_ctx_release(device) })
    }

    /// `cuDevicePrimaryCtxReset_v2`. Destroys the context's memory, streams and code.
    ///
    /// # Safety
    /// No thread uses the context during the call.
    pub unsafe fn device_primary_ctx_reset(&self, device: CuDevice) -> CuResult {
        // SAFETY: takes no pointers.
        self.end_primary(device, true, || unsafe { self.real.device_primary_ctx_reset(device) })
    }

    /// Makes a call to destroy a device's primary context, always or only as the last owner's
    /// call, and forgets a destroyed context.
    fn end_primary(&self, device: CuDevice, always: bool, call: impl FnOnce() -> CuResult) -> CuResult {
        let _primaries = self.lock_primaries();
        let Some(primary) = self.primary(device) else { return call() };
        self.end_context(primary, call, |code| code.is_success() && (always || !is_active(self.real, device)))
    }

    /// Locks the primary contexts' owners.
    pub(super) fn lock_primaries(&self) -> MutexGuard<'_, ()> {
        self.primaries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a device's existing primary context. Called with
    /// [`lock_primaries`](Self::lock_primaries) held: a release meanwhile would not be the last,
    /// and would go unseen.
    pub(super) fn primary(&self, device: CuDevice) -> Option<CuContext> {
        if !is_active(self.real, device) {
            return None;
        }
        let mut context = CuContext::NULL;
        // SAFETY: `context` outlives the call, which writes one handle to it.
        let retained = unsafe { self.real.device_primary_ctx_retain(&raw mut context, device) };
        if !retained.is_success() {
            return None;
        }
        // SAFETY: takes no pointers; gives back what was retained above. The caller's own retention
        // keeps the context.
        let _ = unsafe { self.real.device_primary_ctx_release(device) };
        Some(context)
    }

    /// Forgets everything about a destroyed context. Calls no driver. Called before any thread
    /// learns of a new context: the driver may use the handle again. Returns the context's
    /// allocator, whose device may have memory that outlives the context.
    fn forget_context(&self, context: CuContext) -> Option<Arc<Served>> {
        let ended = self.contexts.forget(context);
        self.charge.holdings().forget(context).into_iter().for_each(|address| self.observe_given(address));
        self.end_captures(|(_, of)| *of == context);
        self.peers.forget(context);
        self.attached().retain(|&of| of != context);
        ended
    }

    /// `cuStreamDestroy_v2`. Memory of the stream becomes available to all requests.
    ///
    /// # Safety
    /// The stream lives, and no thread uses the stream during the call.
    pub unsafe fn stream_destroy(&self, stream: CuStream) -> CuResult {
        for served in self.contexts.all() {
            // A stream that never had memory needs no report.
            if served.is_ordered()
                && let Ok(number) = served.device().cuda().stream_destroyed(stream)
            {
                // A failure leaves memory cached for a stream that makes no other requests.
                let _ = served.allocator().stream_destroyed(DEVICE, number);
            }
        }
        // SAFETY: the stream is the caller's.
        let code = unsafe { self.real.stream_destroy(stream) };
        if code.is_success() {
            self.end_captures(|(of, _)| *of == stream);
        }
        code
    }

    /// `cuStreamBeginCapture_v2`.
    ///
    /// # Safety
    /// The stream lives.
    pub unsafe fn stream_begin_capture(&self, stream: CuStream, mode: CuCaptureMode) -> CuResult {
        // SAFETY: the arguments are the caller's.
        self.begin_capture(stream, || unsafe { self.real.stream_begin_capture(stream, mode) })
    }

    /// `cuStreamBeginCaptureToGraph`.
    ///
    /// # Safety
    /// The stream and the graph live, and the arrays have `count` entries.
    pub unsafe fn stream_begin_capture_to_graph(
        &self,
        stream: CuStream,
        graph: CuGraph,
        dependencies: *const CuGraphNode,
        edges: *const CuGraphEdgeData,
        count: usize,
        mode: CuCaptureMode,
    ) -> CuResult {
        // SAFETY: the arguments are the caller's.
        self.begin_capture(stream, || unsafe {
            self.real.stream_begin_capture_to_graph(stream, graph, dependencies, edges, count, mode)
        })
    }

    /// Starts a capture by `call`. From before the call on, no event of a context is recorded.
    fn begin_capture(&self, stream: CuStream, call: impl FnOnce() -> CuResult) -> CuResult {
        // The captured calls may use memory, and a wake in the middle of a capture would break it.
        self.awake(|| {
            self.frees.capture_begins();
            let code = call();
            if code.is_success() {
                self.capturing().push((stream, self.current().unwrap_or_default()));
            } else {
                self.frees.capture_ended();
            }
            code
        })
    }

    /// `cuStreamEndCapture`.
    ///
    /// # Safety
    /// The stream lives, and `graph` is null or writable.
    pub unsafe fn stream_end_capture(&self, stream: CuStream, graph: *mut CuGraph) -> CuResult {
        // SAFETY: the arguments are the caller's.
        let code = unsafe { self.real.stream_end_capture(stream, graph) };
        // Some errors end a capture, others do not: the driver knows.
        self.end_captures(|(of, _)| *of == stream && !captures(self.real, *of));
        code
    }

    /// Forgets the captures named by `ended`.
    fn end_captures(&self, ended: impl Fn(&(CuStream, CuContext)) -> bool) {
        self.capturing().retain(|capture| {
            let has_ended = ended(capture);
            if has_ended {
                self.frees.capture_ended();
            }
            !has_ended
        });
    }
}

/// Tells once that nothing knows what contexts take.
fn tell_of_uncounted_contexts() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        log::warning(format_args!(
            "what a context takes is not counted: libnvidia-ml.so.1 does not report it, and no other context of the device was current"
        ));
    }
}

/// Returns whether a stream captures. Asking breaks no capture.
fn captures(real: &Real, stream: CuStream) -> bool {
    let mut status = CuCaptureStatus::NONE;
    // SAFETY: `status` outlives the call, which writes one number to it.
    let code = unsafe { real.stream_is_capturing(stream, &raw mut status) };
    code.is_success() && status != CuCaptureStatus::NONE
}

/// Returns whether a device's primary context exists.
fn is_active(real: &Real, device: CuDevice) -> bool {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: both variables outlive the call, which writes one integer to each.
    let code = unsafe { real.device_primary_ctx_get_state(device, &raw mut flags, &raw mut active) };
    code.is_success() && active != 0
}
