//! Errors: the runtime's names for the driver's numbers, and the last error of each thread.

use crate::code::{Answer, INVALID_VALUE};
use crate::driver;
use std::cell::Cell;
use std::ffi::{CStr, c_char};

/// Number and name of every code of the emulated driver and the runtime. The text is given for
/// codes without a text in the driver.
const NAMES: &[(u32, &CStr, Option<&CStr>)] = &[
    (0, c"cudaSuccess", None),
    (1, c"cudaErrorInvalidValue", None),
    (2, c"cudaErrorMemoryAllocation", None),
    (3, c"cudaErrorInitializationError", None),
    (4, c"cudaErrorCudartUnloading", None),
    (9, c"cudaErrorInvalidConfiguration", Some(c"invalid configuration argument")),
    (21, c"cudaErrorInvalidMemcpyDirection", Some(c"invalid copy direction for memcpy")),
    (34, c"cudaErrorStubLibrary", None),
    (35, c"cudaErrorInsufficientDriver", Some(c"CUDA driver version is insufficient for CUDA runtime version")),
    (36, c"cudaErrorCallRequiresNewerDriver", None),
    (46, c"cudaErrorDevicesUnavailable", None),
    (98, c"cudaErrorInvalidDeviceFunction", Some(c"invalid device function")),
    (100, c"cudaErrorNoDevice", None),
    (101, c"cudaErrorInvalidDevice", None),
    (200, c"cudaErrorInvalidKernelImage", None),
    (201, c"cudaErrorDeviceUninitialized", None),
    (205, c"cudaErrorMapBufferObjectFailed", None),
    (206, c"cudaErrorUnmapBufferObjectFailed", None),
    (209, c"cudaErrorNoKernelImageForDevice", None),
    (211, c"cudaErrorNotMapped", None),
    (214, c"cudaErrorECCUncorrectable", None),
    (217, c"cudaErrorPeerAccessUnsupported", None),
    (220, c"cudaErrorNvlinkUncorrectable", None),
    (226, c"cudaErrorContained", None),
    (301, c"cudaErrorFileNotFound", None),
    (304, c"cudaErrorOperatingSystem", None),
    (400, c"cudaErrorInvalidResourceHandle", None),
    (401, c"cudaErrorIllegalState", None),
    (500, c"cudaErrorSymbolNotFound", None),
    (600, c"cudaErrorNotReady", None),
    (700, c"cudaErrorIllegalAddress", None),
    (701, c"cudaErrorLaunchOutOfResources", None),
    (702, c"cudaErrorLaunchTimeout", None),
    (704, c"cudaErrorPeerAccessAlreadyEnabled", None),
    (705, c"cudaErrorPeerAccessNotEnabled", None),
    (708, c"cudaErrorSetOnActiveProcess", None),
    (709, c"cudaErrorContextIsDestroyed", None),
    (710, c"cudaErrorAssert", None),
    (714, c"cudaErrorHardwareStackError", None),
    (715, c"cudaErrorIllegalInstruction", None),
    (716, c"cudaErrorMisalignedAddress", None),
    (717, c"cudaErrorInvalidAddressSpace", None),
    (718, c"cudaErrorInvalidPc", None),
    (719, c"cudaErrorLaunchFailure", None),
    (721, c"cudaErrorTensorMemoryLeak", None),
    (800, c"cudaErrorNotPermitted", None),
    (801, c"cudaErrorNotSupported", None),
    (900, c"cudaErrorStreamCaptureUnsupported", None),
    (901, c"cudaErrorStreamCaptureInvalidated", None),
    (902, c"cudaErrorStreamCaptureMerge", None),
    (903, c"cudaErrorStreamCaptureUnmatched", None),
    (904, c"cudaErrorStreamCaptureUnjoined", None),
    (905, c"cudaErrorStreamCaptureIsolation", None),
    (906, c"cudaErrorStreamCaptureImplicit", None),
    (907, c"cudaErrorCapturedEvent", None),
    (908, c"cudaErrorStreamCaptureWrongThread", None),
    (909, c"cudaErrorTimeout", None),
    (911, c"cudaErrorExternalDevice", None),
    (999, c"cudaErrorUnknown", None),
];

thread_local! {
    static LAST: Cell<u32> = const { Cell::new(0) };
}

/// Runs a call of the runtime, stores an error for `cudaGetLastError`, and returns the code.
pub(crate) fn told(call: impl FnOnce() -> Answer<()>) -> u32 {
    match call() {
        Ok(()) => 0,
        Err(code) => {
            LAST.set(code);
            code
        }
    }
}

/// Writes a result, or refuses null.
pub(crate) fn write<T>(to: *mut T, value: T) -> Answer<()> {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller of the exported function guarantees a valid pointer to write to.
    unsafe { to.write(value) };
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetLastError() -> u32 {
    LAST.replace(0)
}

#[unsafe(no_mangle)]
extern "C" fn cudaPeekAtLastError() -> u32 {
    LAST.get()
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorName(code: u32) -> *const c_char {
    let named = NAMES.iter().find(|entry| entry.0 == code);
    named.map_or(c"unrecognized error code", |entry| entry.1).as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetErrorString(code: u32) -> *const c_char {
    let unknown = c"unrecognized error code".as_ptr();
    let Some((_, _, text)) = NAMES.iter().find(|entry| entry.0 == code) else { return unknown };
    if let Some(text) = text {
        return text.as_ptr();
    }
    let mut text = std::ptr::null();
    let asked = driver::driver().and_then(|driver| driver.cuGetErrorString(code, &raw mut text));
    if asked.is_ok() { text } else { unknown }
}
