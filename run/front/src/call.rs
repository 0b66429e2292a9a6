//! The way of a call.

use crate::addresses::of_driver;
use cachalot_cuda::CuResult;
use core::ffi::c_void;
use core::ptr::NonNull;

/// Makes a call of the function `NAMES[index]`. `pass` calls the driver's function at the given address.
#[inline]
pub(crate) fn call(index: usize, pass: impl FnOnce(NonNull<c_void>) -> CuResult) -> CuResult {
    of_driver(index).map_or(CuResult::CALL_REQUIRES_NEWER_DRIVER, pass)
}
