//! The way of a call: to the process's state, or to the driver.

use crate::addresses::{known, of_driver};
use cachalot_cuda::CuResult;
use cachalot_cuda::driver::types::CuStream;
use cachalot_run::ledger::Kind;
use cachalot_run::serve::{self, Process, is_first_launch, process};
use cachalot_run::sleep::{OuterReadGuard, Serving};
use core::ffi::c_void;
use core::ptr::NonNull;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Makes a call of the function `NAMES[index]`. `serve` asks the process's state. `pass` calls the
/// driver's function at the given address: in a process without a state, in a forked child, and
/// inside a served call.
///
/// A panic of `serve` ends as code 999 (`CUDA_ERROR_UNKNOWN`).
#[inline]
pub(crate) fn call(
    index: usize,
    serve: impl FnOnce(&'static Process) -> CuResult,
    pass: impl FnOnce(NonNull<c_void>) -> CuResult,
) -> CuResult {
    if let Some(process) = process()
        && let Some(inside) = Serving::enter()
    {
        let answer = catch_unwind(AssertUnwindSafe(|| serve(process)));
        drop(inside);
        return answer.unwrap_or(CuResult::UNKNOWN);
    }
    of_driver(index).map_or(CuResult::CALL_REQUIRES_NEWER_DRIVER, pass)
}

/// Makes a call of the function `NAMES[index]`, which takes or frees (`gives`) memory without
/// saying how much. `pass` calls the driver's function at the given address. The process's state
/// books the memory by the driver's figure. Beyond the limit, `undo` gives the memory back and
/// returns true, or the memory stays.
///
/// A panic ends as for [`call`].
#[cold]
pub(crate) fn measured(
    index: usize,
    kind: Kind,
    gives: bool,
    pass: impl FnOnce(NonNull<c_void>) -> CuResult,
    undo: impl FnOnce(&Process) -> bool,
) -> CuResult {
    let real = || of_driver(index).map_or(CuResult::CALL_REQUIRES_NEWER_DRIVER, pass);
    if let Some(process) = process()
        && let Some(inside) = Serving::enter()
    {
        let answer = catch_unwind(AssertUnwindSafe(|| process.measured(kind, gives, real, || undo(process))));
        drop(inside);
        return answer.unwrap_or(CuResult::UNKNOWN);
    }
    real()
}

/// Makes a launch by the function `NAMES[index]`, as [`touching`] does, where the options ask for
/// full books. `handle` names the function or the graph. At the first launch the driver loads code,
/// or takes memory for the graph, which is measured under `kind`.
#[cold]
pub(crate) fn launched(
    index: usize,
    kind: Kind,
    handle: usize,
    pass: impl FnOnce(NonNull<c_void>) -> CuResult,
) -> CuResult {
    match serve::enter() {
        Ok(_awake) if is_first_launch(handle) => measured(index, kind, false, pass, |_| false),
        Ok(_awake) => of_driver(index).map_or(CuResult::CALL_REQUIRES_NEWER_DRIVER, pass),
        Err(code) => code,
    }
}

/// Makes a call of the function `NAMES[index]`, by which the driver or a device reads or writes
/// memory. Memory that sleeps is awake before `pass` begins, and stays awake until `pass` returns.
#[cold]
pub(crate) fn touching(index: usize, pass: impl FnOnce(NonNull<c_void>) -> CuResult) -> CuResult {
    match serve::enter() {
        Ok(_awake) => of_driver(index).map_or(CuResult::CALL_REQUIRES_NEWER_DRIVER, pass),
        Err(code) => code,
    }
}

/// The way of a call to the driver's function.
pub(crate) enum Way {
    /// Nothing is left to do: most programs never sleep.
    Jump(NonNull<c_void>),
    /// The memory stays awake until the driver's call has ended.
    Visit,
    /// The general way of the row's group: a process's first call, for example.
    General,
}

/// Returns the way of a [touching](touching) call of the function `NAMES[index]`. Calls nothing, so
/// that the exported function leaves the arguments where they are: a launch has eleven, and to
/// write them again costs some nanoseconds.
#[inline]
pub(crate) fn way(index: usize) -> Way {
    if serve::may_sleep() { Way::Visit } else { known(index).map_or(Way::General, Way::Jump) }
}

/// Takes a guard, and returns the driver's function `NAMES[index]` to be called under it. `None`:
/// the call goes the general way, because memory may be asleep, for example. Calls nothing, as
/// [`way`] does.
#[inline]
pub(crate) fn visit(index: usize) -> Option<(NonNull<c_void>, OuterReadGuard<'static>)> {
    Some((known(index)?, serve::fast_guard()?))
}

/// Returns the way of a [launch](launched), as [`way`] does.
#[inline]
pub(crate) fn way_of_launch(index: usize) -> Way {
    if serve::tells_first_launches() { Way::General } else { way(index) }
}

/// Returns the per-thread default stream in place of 0, as the driver's functions with `_ptsz` read
/// the argument.
#[inline]
pub(crate) fn per_thread(stream: CuStream) -> CuStream {
    if stream.is_null() { CuStream::PER_THREAD } else { stream }
}
