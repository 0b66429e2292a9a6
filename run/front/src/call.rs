//! The way of a call: to the process's state, or to the driver.

use crate::addresses::of_driver;
use cachalot_cuda::CuResult;
use cachalot_cuda::driver::types::CuStream;
use cachalot_run::ledger::Kind;
use cachalot_run::serve::{self, Process, is_first_launch, process};
use core::cell::Cell;
use core::ffi::c_void;
use core::ptr::NonNull;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    /// Whether the thread is inside a served call. Constant and without a destructor, so an ending thread may still
    /// call.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// A served call.
struct Inside;

impl Inside {
    /// Begins a call. `None` inside a served call: the driver may call functions by name, and finds ours.
    #[inline]
    fn enter() -> Option<Self> {
        // Only then is there a value, whose end is the end of the call.
        (!INSIDE.replace(true)).then(|| Self)
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        INSIDE.set(false);
    }
}

/// Makes a call of the function `NAMES[index]`. `serve` asks the process's state. `pass` calls the driver's function at the
/// given address: in a process without a state, in a forked child, and inside a served call.
///
/// A panic of `serve` ends as code 999 (`CUDA_ERROR_UNKNOWN`).
#[inline]
pub(crate) fn call(
    index: usize,
    serve: impl FnOnce(&'static Process) -> CuResult,
    pass: impl FnOnce(NonNull<c_void>) -> CuResult,
) -> CuResult {
    if let Some(process) = process()
        && let Some(inside) = Inside::enter()
    {
        let answer = catch_unwind(AssertUnwindSafe(|| serve(process)));
        drop(inside);
        return answer.unwrap_or(CuResult::UNKNOWN);
    }
    of_driver(index).map_or(CuResult::CALL_REQUIRES_NEWER_DRIVER, pass)
}

/// Makes a call of the function `NAMES[index]`, which takes or frees memory without saying how much. `pass` calls the
/// driver's function at the given address. The process's state books the memory by the driver's figure. Beyond the limit, `undo`
/// gives the memory back and returns true, or the memory stays.
///
/// A panic ends as for [`call`].
pub(crate) fn measured(
    index: usize,
    kind: Kind,
    pass: impl FnOnce(NonNull<c_void>) -> CuResult,
    undo: impl FnOnce(&Process) -> bool,
) -> CuResult {
    let real = || of_driver(index).map_or(CuResult::CALL_REQUIRES_NEWER_DRIVER, pass);
    if let Some(process) = process()
        && let Some(inside) = Inside::enter()
    {
        let answer = catch_unwind(AssertUnwindSafe(|| process.measured(kind, real, || undo(process))));
        drop(inside);
        return answer.unwrap_or(CuResult::UNKNOWN);
    }
    real()
}

/// Makes a launch by the function `NAMES[index]`, as [`touching`] does. `handle` names the function or the graph. At the first launch
/// the driver loads code, or takes memory for the graph, which is measured under `kind` where the options ask for full books.
#[inline]
pub(crate) fn launched(
    index: usize,
    kind: Kind,
    handle: usize,
    pass: impl FnOnce(NonNull<c_void>) -> CuResult,
) -> CuResult {
    awake(|| {
        if is_first_launch(handle) {
            return measured(index, kind, pass, |_| false);
        }
        of_driver(index).map_or(CuResult::CALL_REQUIRES_NEWER_DRIVER, pass)
    })
}

/// Makes a call of the function `NAMES[index]`, by which the driver or a device reads or writes memory. Memory that sleeps is
/// awake before `pass` begins, and stays awake until `pass` returns.
#[inline]
pub(crate) fn touching(index: usize, pass: impl FnOnce(NonNull<c_void>) -> CuResult) -> CuResult {
    awake(|| of_driver(index).map_or(CuResult::CALL_REQUIRES_NEWER_DRIVER, pass))
}

/// Makes a call while the memory is kept awake, or returns the code of memory that cannot wake. Inside a served call nothing is
/// kept: the served call's own way keeps the memory that it uses.
#[inline]
fn awake(call: impl FnOnce() -> CuResult) -> CuResult {
    // Most programs never sleep, and pay a load.
    if !serve::may_sleep() || INSIDE.get() {
        return call();
    }
    match serve::enter() {
        Ok(_entered) => call(),
        Err(code) => code,
    }
}

/// Returns the per-thread default stream in place of 0, as the driver's functions with `_ptsz` read the argument.
#[inline]
pub(crate) fn per_thread(stream: CuStream) -> CuStream {
    if stream.is_null() { CuStream::PER_THREAD } else { stream }
}

#[cfg(test)]
mod tests {
    use super::Inside;

    #[test]
    fn a_call_inside_a_call_is_the_drivers_until_the_outer_one_ends() {
        let outer = Inside::enter().expect("the first call");
        assert!(Inside::enter().is_none());
        // The refusal has not ended the outer call.
        assert!(Inside::enter().is_none());
        drop(outer);
        assert!(Inside::enter().is_some());
    }
}
