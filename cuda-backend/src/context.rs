//! The context of a device, and the rules for driver calls in it.
//!
//! Every call goes through [`Context::enter`], which takes three steps:
//!
//! * Check the health. In a forked child ([`ErrorKind::Forked`]) and after the first sticky error,
//!   the call fails without a driver call. A context that the program has reset or destroyed is
//!   lost, too. A primary context has the same handle when it is made anew, so the ids are
//!   compared. A driver crashes when it is called with an event or a stream of a context that is
//!   gone (asked of driver 580), so each call checks first.
//! * Make the context current and the capture mode relaxed, for the calling thread.
//! * Return a [`Scope`]. When it is dropped, on every path, it restores the caller's context and
//!   capture mode.

use crate::driver::Driver;
use crate::driver::result::CuResult;
use crate::driver::types::{CuCaptureMode, CuContext};
use crate::fork;
use cachalot_core::{DeviceError, DeviceResult, ErrorKind};
use core::sync::atomic::{AtomicU32, Ordering};

/// A context of the driver, and whether the context still works.
#[derive(Debug)]
pub(crate) struct Context {
    /// The driver that created the context.
    driver: &'static Driver,
    /// The driver's handle of the context.
    handle: CuContext,
    /// The driver's id of the context, which no other context of the process ever has. `None` if
    /// the driver gives no ids, and for a context that serves only one call.
    id: Option<u64>,
    /// The first sticky code that any call returned, or 0 iff no call returned a sticky code.
    lost: AtomicU32,
}

/// A period in which the state of the calling thread suits a context. When the scope is dropped, it
/// restores the caller's state.
pub(crate) struct Scope<'a> {
    /// The context that the thread works in.
    context: &'a Context,
    /// Whether the context was pushed, so that the drop must pop.
    pushed: bool,
    /// The capture mode to restore, or `None` iff the mode was relaxed already.
    mode: Option<CuCaptureMode>,
}

impl Context {
    /// Wraps a context that belongs to `driver`. The caller keeps the context alive.
    pub(crate) const fn new(driver: &'static Driver, handle: CuContext) -> Self {
        Self { driver, handle, id: None, lost: AtomicU32::new(CuResult::SUCCESS.0) }
    }

    /// Wraps a context as [`new`](Self::new) does, and notes its id, so that each call finds out
    /// whether the context is still the same. Calls the driver.
    pub(crate) fn identified(driver: &'static Driver, handle: CuContext) -> Self {
        Self { id: ask_id(driver, handle).and_then(Result::ok), ..Self::new(driver, handle) }
    }

    /// Returns the driver of the context.
    pub(crate) const fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// Returns the driver's handle of the context.
    pub(crate) const fn handle(&self) -> CuContext {
        self.handle
    }

    /// Checks that calls can still succeed. Calls no driver.
    ///
    /// # Errors
    /// [`ErrorKind::Forked`] in a forked child; otherwise the first sticky error that a call
    /// returned.
    pub(crate) fn health(&self) -> DeviceResult<()> {
        if fork::in_child() {
            return Err(DeviceError::new(ErrorKind::Forked, CuResult::NOT_INITIALIZED.0));
        }
        // Relaxed, because the code is the whole message and publishes no other memory.
        match CuResult(self.lost.load(Ordering::Relaxed)) {
            CuResult::SUCCESS => Ok(()),
            CuResult::INVALID_CONTEXT => Err(DeviceError::new(ErrorKind::ContextLost, CuResult::INVALID_CONTEXT.0)),
            lost => Err(lost.error()),
        }
    }

    /// Checks the [health](Self::health), and asks the driver whether the context is still the one
    /// that was wrapped.
    ///
    /// # Errors
    /// As for [`health`](Self::health). [`ErrorKind::ContextLost`] with code 709 if the program has
    /// reset or destroyed the context.
    pub(crate) fn look(&self) -> DeviceResult<()> {
        self.health()?;
        let Some(known) = self.id else { return Ok(()) };
        match ask_id(self.driver, self.handle) {
            Some(Ok(id)) if id != known => self.check(CuResult::CONTEXT_IS_DESTROYED),
            Some(Err(CuResult::INVALID_CONTEXT)) => self.check(CuResult::CONTEXT_IS_DESTROYED),
            // Any other code may be an error of earlier work.
            Some(Err(code)) if code.is_sticky() => self.check(code),
            _ => Ok(()),
        }
    }

    /// Returns whether the program has reset or destroyed the context.
    pub(crate) fn is_gone(&self) -> bool {
        let lost = CuResult(self.lost.load(Ordering::Relaxed));
        [CuResult::CONTEXT_IS_DESTROYED, CuResult::INVALID_CONTEXT].contains(&lost)
    }

    /// Converts the code of a call in this context to a result. Remembers the first sticky code.
    pub(crate) fn check(&self, code: CuResult) -> DeviceResult<()> {
        if code.is_success() {
            return Ok(());
        }
        if code.is_sticky() {
            self.lose(code);
        }
        Err(code.error())
    }

    /// Converts the answer of a call in this context, as [`check`](Self::check) converts a code.
    pub(crate) fn answer<T>(&self, answer: Result<T, CuResult>) -> DeviceResult<T> {
        answer.or_else(|code| self.check(code).and(Err(code.error())))
    }

    /// Refuses all other calls with [`ErrorKind::Deinitialized`], or with the earlier error if
    /// the context was lost before.
    pub(crate) fn close(&self) {
        self.lose(CuResult::DEINITIALIZED);
    }

    /// Remembers a sticky code, unless an earlier sticky code is remembered.
    fn lose(&self, code: CuResult) {
        let _ = self.lost.compare_exchange(CuResult::SUCCESS.0, code.0, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Prepares the calling thread for calls in this context until the scope is dropped.
    ///
    /// # Errors
    /// As for [`look`](Self::look), and those of the driver. After an error the state of the thread
    /// is unchanged.
    pub(crate) fn enter(&self) -> DeviceResult<Scope<'_>> {
        self.look()?;
        let mut scope = Scope { context: self, pushed: false, mode: None };
        let mut current = CuContext::NULL;
        // SAFETY: `current` outlives the call, which writes one handle to it.
        self.check(unsafe { self.driver.ctx_get_current(&raw mut current) })?;
        if current != self.handle {
            // SAFETY: the owner of `self` keeps the context alive. If the program has destroyed the
            // context nevertheless, the driver returns an error.
            let code = unsafe { self.driver.ctx_push_current(self.handle) };
            scope.pushed = code.is_success() || self.is_current(code);
            if code == CuResult::INVALID_CONTEXT {
                // The program has destroyed or reset the context, so no later call can succeed.
                self.lose(code);
                return Err(DeviceError::new(ErrorKind::ContextLost, code.0));
            }
            self.check(code)?;
        }
        self.relax(&mut scope)?;
        Ok(scope)
    }

    /// Makes the capture mode of the calling thread relaxed until the scope is dropped. This is for
    /// calls that need no context.
    ///
    /// # Errors
    /// As for [`enter`](Self::enter).
    pub(crate) fn enter_mode(&self) -> DeviceResult<Scope<'_>> {
        self.look()?;
        let mut scope = Scope { context: self, pushed: false, mode: None };
        self.relax(&mut scope)?;
        Ok(scope)
    }

    /// Makes the capture mode of the calling thread relaxed.
    fn relax(&self, scope: &mut Scope<'_>) -> DeviceResult<()> {
        if self.driver.thread_exchange_stream_capture_mode.is_some() {
            let mut mode = CuCaptureMode::RELAXED;
            // SAFETY: `mode` outlives the call, which swaps it with the calling thread's.
            let code = unsafe { self.driver.thread_exchange_stream_capture_mode(&raw mut mode) };
            // The code is checked later, because a swap that succeeded may return an error of
            // earlier work. The mode written to `mode` shows whether the modes were swapped.
            scope.mode = (mode != CuCaptureMode::RELAXED).then_some(mode);
            self.check(code)?;
        }
        Ok(())
    }

    /// Returns whether this context is that of the thread although the push returned `code`, which
    /// may be an error of earlier work.
    fn is_current(&self, code: CuResult) -> bool {
        let mut current = CuContext::NULL;
        // SAFETY: `current` outlives the call, which writes one handle to it.
        code != CuResult::DEINITIALIZED
            && unsafe { self.driver.ctx_get_current(&raw mut current) }.is_success()
            && current == self.handle
    }

    /// Makes one call in this context. `call` returns the driver's code.
    ///
    /// # Errors
    /// As for [`enter`](Self::enter), and the call's own.
    #[inline]
    pub(crate) fn call(&self, call: impl FnOnce(&Driver) -> CuResult) -> DeviceResult<()> {
        let _scope = self.enter()?;
        self.check(call(self.driver))
    }
}

/// Asks the driver for the id of a context. Returns `None` if the driver gives no ids.
fn ask_id(driver: &Driver, handle: CuContext) -> Option<Result<u64, CuResult>> {
    driver.ctx_get_id?;
    let mut id = 0;
    // SAFETY: `id` outlives the call, which writes one number to it. The driver refuses the handle
    // of a context that is gone.
    let code = unsafe { driver.ctx_get_id(handle, &raw mut id) };
    Some(if code.is_success() { Ok(id) } else { Err(code) })
}

impl Drop for Scope<'_> {
    fn drop(&mut self) {
        let driver = self.context.driver;
        // A driver that is shutting down may crash when called, and has no state left to restore.
        if self.context.lost.load(Ordering::Relaxed) == CuResult::DEINITIALIZED.0 {
            return;
        }
        if let Some(mut mode) = self.mode {
            // SAFETY: `mode` outlives the call, which swaps it with the calling thread's.
            let code = unsafe { driver.thread_exchange_stream_capture_mode(&raw mut mode) };
            // Other errors are ignored, because the result of the caller's own call counts. `check`
            // records a lost context.
            let _ = self.context.check(code);
        }
        if self.pushed {
            let mut popped = CuContext::NULL;
            // SAFETY: `popped` outlives the call. The topmost context is the one that `enter`
            // pushed, because scopes end in the reverse order of their starts.
            let code = unsafe { driver.ctx_pop_current(&raw mut popped) };
            let _ = self.context.check(code);
        }
    }
}
