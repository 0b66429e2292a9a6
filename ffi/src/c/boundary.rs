//! The panic boundary: the body of every exported function runs in one of these functions, which
//! turn a panic into a status.

use crate::c::abi::{cachalot_allocator, cachalot_status};
use crate::c::handle;
use crate::c::instance::Instance;
use crate::c::status::{CACHALOT_ERROR_PANIC, CACHALOT_OK, Outcome, Status};
use core::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of a function on an allocator. Checks the handle first; a panic poisons the
/// allocator.
#[inline(always)]
pub(crate) fn with_instance(
    allocator: *const cachalot_allocator,
    body: impl FnOnce(&'static Instance) -> Outcome,
) -> cachalot_status {
    guarded(allocator, || body(handle::instance(allocator)?))
}

/// Runs the body of a hot function on an allocator, like [`with_instance`]. Where the fast check of
/// the handle fails, `$rare` runs the body with a `$call` that is not inlined.
// Two copies: after a way back from the complete check, which makes calls, every argument would be
// in a saved register. And a macro: the compiler inlines one closure in neither of two places,
// which costs a pair 29 instructions.
macro_rules! hot {
    ($allocator:expr, $rare:path, |$instance:ident, $call:ident = $inlined:path, or $outlined:path| $body:expr) => {
        match $crate::c::handle::undoubted($allocator) {
            Some($instance) => $crate::c::boundary::guarded($allocator, || {
                let $call = $inlined;
                $body
            }),
            None => $rare($allocator, move |$instance| {
                let $call = $outlined;
                $body
            }),
        }
    };
}
pub(crate) use hot;

/// Runs the body of a hot function if the complete check of the handle passes.
#[cold]
#[inline(never)]
pub(crate) fn rare(
    allocator: *const cachalot_allocator,
    body: impl FnOnce(&'static Instance) -> Outcome,
) -> cachalot_status {
    with_instance(allocator, body)
}

/// Turns the outcome of a function on an allocator into a status. A panic poisons the allocator.
#[inline(always)]
pub(crate) fn guarded(allocator: *const cachalot_allocator, run: impl FnOnce() -> Outcome) -> cachalot_status {
    // A panic may leave the allocator half changed. The poison keeps all later calls out, so no
    // call observes such a state.
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => CACHALOT_OK,
        Ok(Err(status)) => status.number(),
        Err(payload) => poisoned(allocator, payload),
    }
}

/// Runs the body of a function without an allocator. A panic becomes a status.
#[inline]
pub(crate) fn without_instance(body: impl FnOnce() -> Outcome) -> cachalot_status {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => CACHALOT_OK,
        Ok(Err(status)) => status.number(),
        Err(payload) => panicked(payload.as_ref()),
    }
}

/// Runs a body that returns no status and cannot fail. Returns `otherwise` after a panic.
#[inline]
pub(crate) fn infallible<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise)
}

/// Poisons the allocator, records the message of a panic as the last error, and returns the status.
// Out of line with the end of the payload, so that no call keeps registers for a panic.
#[cold]
#[inline(never)]
fn poisoned(allocator: *const cachalot_allocator, payload: Box<dyn Any + Send>) -> cachalot_status {
    handle::poison(allocator);
    let status = panicked(payload.as_ref());
    drop(payload);
    status
}

/// Records the message of a panic as the last error and returns the status.
#[cold]
fn panicked(payload: &(dyn Any + Send)) -> cachalot_status {
    let said = payload.downcast_ref::<&str>().copied();
    let said = said.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason given");
    Status::new(CACHALOT_ERROR_PANIC, format_args!("a fault inside the library: {said}")).number()
}
