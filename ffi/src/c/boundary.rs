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

/// Runs a hot function: by its straight path, the body, or if that declines, `anew`, which begins
/// from the start with [`with_instance`]. The path also declines where only the complete check of
/// the handle knows whether the allocator is live. A panic poisons the allocator, and `failed`
/// returns its status.
#[inline(always)]
pub(crate) fn straight<T>(
    allocator: *const cachalot_allocator,
    body: impl FnOnce(&'static Instance) -> Option<T>,
    failed: impl FnOnce(cachalot_status) -> T,
    anew: impl FnOnce() -> T,
) -> T {
    let done = match handle::undoubted(allocator) {
        Some(instance) => match catch_unwind(AssertUnwindSafe(|| body(instance))) {
            Ok(done) => done,
            Err(payload) => return failed(poisoned(allocator, payload)),
        },
        None => None,
    };
    // The only call, so that it is inlined.
    match done {
        Some(done) => done,
        None => anew(),
    }
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
