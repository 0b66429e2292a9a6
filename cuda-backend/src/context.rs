//! One device's context, and the rules under which the driver is called in it.
//!
//! Every call goes through [`Context::enter`]. It answers [`ErrorKind::Forked`] in a forked child and repeats the first
//! sticky error once there was one, both without a driver call; it makes this context the calling thread's, and the
//! thread's capture mode relaxed; and what it changed it changes back when the [`Scope`] ends, however it ends.

use crate::driver::Driver;
use crate::driver::result::CuResult;
use crate::driver::types::{CuCaptureMode, CuContext};
use crate::fork;
use cachalot_core::{DeviceError, DeviceResult, ErrorKind};
use core::sync::atomic::{AtomicU32, Ordering};

/// A context of the driver, and whether it still works.
#[derive(Debug)]
pub(crate) struct Context {
    /// The driver that it belongs to.
    driver: &'static Driver,
    /// Its handle.
    handle: CuContext,
    /// The first sticky code that any call answered; 0 iff there was none.
    lost: AtomicU32,
}

/// The time during which the calling thread's state suits this context. Ends by restoring the caller's.
pub(crate) struct Scope<'a> {
    /// Where the thread is.
    context: &'a Context,
    /// Whether the context was pushed, so that it must be popped.
    pushed: bool,
    /// The capture mode to restore, if it was changed.
    mode: Option<CuCaptureMode>,
}

impl Context {
    /// Wraps a context that belongs to `driver` and is kept alive by the caller.
    pub(crate) const fn new(driver: &'static Driver, handle: CuContext) -> Self {
        Self { driver, handle, lost: AtomicU32::new(CuResult::SUCCESS.0) }
    }

    /// The driver.
    pub(crate) const fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// The handle.
    pub(crate) const fn handle(&self) -> CuContext {
        self.handle
    }

    /// Whether calls can still succeed. Calls no driver.
    ///
    /// # Errors
    /// [`ErrorKind::Forked`] in a forked child; else the first sticky error that a call answered.
    pub(crate) fn health(&self) -> DeviceResult<()> {
        if fork::in_child() {
            return Err(DeviceError::new(ErrorKind::Forked, CuResult::NOT_INITIALIZED.0));
        }
        // Relaxed: the code is the whole message, nothing is published with it.
        match CuResult(self.lost.load(Ordering::Relaxed)) {
            CuResult::SUCCESS => Ok(()),
            CuResult::INVALID_CONTEXT => Err(DeviceError::new(ErrorKind::ContextLost, CuResult::INVALID_CONTEXT.0)),
            lost => Err(lost.error()),
        }
    }

    /// Takes note of what a call in this context answered: success, or an error, which is remembered if it is sticky.
    pub(crate) fn check(&self, code: CuResult) -> DeviceResult<()> {
        if code.is_success() {
            return Ok(());
        }
        if code.is_sticky() {
            self.lose(code);
        }
        Err(code.error())
    }

    /// Makes no more calls from here on: they answer [`ErrorKind::Deinitialized`], unless the context was lost before.
    pub(crate) fn close(&self) {
        self.lose(CuResult::DEINITIALIZED);
    }

    /// Remembers that the context is lost, unless an earlier code did so.
    fn lose(&self, code: CuResult) {
        let _ = self.lost.compare_exchange(CuResult::SUCCESS.0, code.0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Prepares the calling thread for calls in this context, until the scope is dropped.
    ///
    /// # Errors
    /// As for [`health`](Self::health), and those of the driver; the thread is then as it was.
    pub(crate) fn enter(&self) -> DeviceResult<Scope<'_>> {
        self.health()?;
        let mut scope = Scope { context: self, pushed: false, mode: None };
        let mut current = CuContext::NULL;
        // SAFETY: `current` outlives the call, which writes one handle to it.
        self.check(unsafe { self.driver.ctx_get_current(&raw mut current) })?;
        if current != self.handle {
            // SAFETY: the handle is that of a context which this value's owner keeps alive; should the program have
            // destroyed it all the same, the driver says so.
            let code = unsafe { self.driver.ctx_push_current(self.handle) };
            scope.pushed = code.is_success() || self.is_current(code);
            if code == CuResult::INVALID_CONTEXT {
                // The context was destroyed or reset behind our back: no later call can succeed.
                self.lose(code);
                return Err(DeviceError::new(ErrorKind::ContextLost, code.0));
            }
            self.check(code)?;
        }
        if self.driver.thread_exchange_stream_capture_mode.is_some() {
            let mut mode = CuCaptureMode::RELAXED;
            // SAFETY: `mode` outlives the call, which swaps it with the calling thread's.
            let code = unsafe { self.driver.thread_exchange_stream_capture_mode(&raw mut mode) };
            // An error may be one of earlier work, and the modes swapped all the same: what came back tells.
            scope.mode = (mode != CuCaptureMode::RELAXED).then_some(mode);
            self.check(code)?;
        }
        Ok(scope)
    }

    /// Whether this context is the thread's although pushing it answered `code`, an error of earlier work.
    fn is_current(&self, code: CuResult) -> bool {
        let mut current = CuContext::NULL;
        // SAFETY: `current` outlives the call, which writes one handle to it.
        code != CuResult::DEINITIALIZED
            && unsafe { self.driver.ctx_get_current(&raw mut current) }.is_success()
            && current == self.handle
    }

    /// Makes one call in this context. `call` answers the driver's code.
    ///
    /// # Errors
    /// Those of [`enter`](Self::enter), and the call's own.
    #[inline]
    pub(crate) fn call(&self, call: impl FnOnce(&Driver) -> CuResult) -> DeviceResult<()> {
        let _scope = self.enter()?;
        self.check(call(self.driver))
    }
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        let driver = self.context.driver;
        // A driver that is shutting down may crash when called, and has no state left that could be restored.
        if self.context.lost.load(Ordering::Relaxed) == CuResult::DEINITIALIZED.0 {
            return;
        }
        if let Some(mut mode) = self.mode {
            // SAFETY: `mode` outlives the call, which swaps it with the calling thread's.
            let code = unsafe { driver.thread_exchange_stream_capture_mode(&raw mut mode) };
            // The result of the call itself stands; only a lost context is worth remembering.
            let _ = self.context.check(code);
        }
        if self.pushed {
            let mut popped = CuContext::NULL;
            // SAFETY: `popped` outlives the call; the topmost context is the one that `enter` pushed, since scopes end
            // in the reverse order of their beginning.
            let code = unsafe { driver.ctx_pop_current(&raw mut popped) };
            let _ = self.context.check(code);
        }
    }
}
