//! `cuGetProcAddress` in both versions: the driver's answer, with our function in place of a
//! replaced function.
//!
//! The real resolver decides by the caller's version and flags which function of a name is meant.
//! Only the returned address tells the meaning, so the address decides and never the name.

use crate::addresses::{index_of, of_driver};
use crate::exports::{OURS, index};
use cachalot_cuda::CuResult;
use cachalot_cuda::driver::types::CuDriverProcAddressQueryResult;
use cachalot_cuda_abi::{function, pointer};
use core::ffi::{c_char, c_int, c_void};
use core::ptr::NonNull;

/// `cuGetProcAddress` of CUDA 11.3 to 11.8.
type First = function!(cuGetProcAddress => pointer {});
/// `cuGetProcAddress_v2`, with the reason of a missing function. The reason's pointer may be null.
type Second = function!(cuGetProcAddress_v2 => pointer {});

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGetProcAddress(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> CuResult {
    let Some(address) = of_driver(const { index("cuGetProcAddress") }) else {
        return CuResult::CALL_REQUIRES_NEWER_DRIVER;
    };
    // SAFETY: the address is the driver's function of this name, with this signature.
    let real = unsafe { core::mem::transmute::<NonNull<c_void>, First>(address) };
    // SAFETY: the arguments are the caller's.
    let answer = unsafe { real(symbol, function, version, flags) };
    // SAFETY: the driver was given the same pointer.
    unsafe { replace(answer, function) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    function: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut CuDriverProcAddressQueryResult,
) -> CuResult {
    let Some(address) = of_driver(const { index("cuGetProcAddress_v2") }) else {
        return CuResult::CALL_REQUIRES_NEWER_DRIVER;
    };
    // SAFETY: the address is the driver's function of this name, with this signature.
    let real = unsafe { core::mem::transmute::<NonNull<c_void>, Second>(address) };
    // SAFETY: the arguments are the caller's.
    let answer = unsafe { real(symbol, function, version, flags, status) };
    // SAFETY: the driver was given the same pointer.
    unsafe { replace(answer, function) }
}

/// Puts our function in place of the driver's function at `*function`, and returns `answer`.
///
/// # Safety
/// After a successful answer, `function` is null or points to the pointer written by the driver.
unsafe fn replace(answer: CuResult, function: *mut *mut c_void) -> CuResult {
    if answer.is_success() && !function.is_null() {
        // SAFETY: the driver has just written the pointer, or left the caller's own.
        let found = unsafe { *function };
        if let Some(index) = NonNull::new(found).and_then(index_of) {
            // SAFETY: as for the read.
            unsafe { *function = OURS[index].0 };
        }
    }
    answer
}
