//! Entry points of the driver that the program links, through the functions of `cuda-driver-sys`.
//!
//! `cuda-driver-sys` binds CUDA 10.2. Younger entry points are looked up by name among the symbols
//! that the program has loaded, since `-lcuda` loads the driver's library.

use super::table::Table;
use core::ffi::{CStr, c_void};
use core::ptr::NonNull;
use libloading::os::unix::Library;

/// A symbol that only the emulated driver exports.
const EMULATED_MARK: &CStr = c"cachalot_emulated_driver";

/// Returns the linked driver's table, its origin for messages, and whether the driver is the
/// emulated driver.
pub(super) fn table() -> (Table, String, bool) {
    // SAFETY: a function linked by `-lcuda` under a versioned name has the signature of the
    // versioned name. A linked library stays loaded.
    let table = unsafe { Table::fill(|symbol| linked(symbol).or_else(|| loaded(symbol))) };
    (table, "the linked driver".to_owned(), loaded(EMULATED_MARK).is_some())
}

/// Returns the address of a symbol anywhere in the program, or `None` if no loaded library has the
/// symbol.
fn loaded(symbol: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: the symbol is only used as an address here; `Table::fill` gives the address a type.
    let found = unsafe { Library::this().get::<*mut c_void>(symbol) };
    found.ok().and_then(|symbol| NonNull::new(symbol.into_raw()))
}

/// Lists the symbols that `cuda-driver-sys` binds.
macro_rules! bound {
    ($($symbol:ident)*) => {
        /// Returns the address of a symbol that `cuda-driver-sys` binds. Naming each symbol makes
        /// the linker keep the driver's library.
        fn linked(symbol: &CStr) -> Option<NonNull<c_void>> {
            let name = symbol.to_bytes();
            $(
                if name == stringify!($symbol).as_bytes() {
                    return NonNull::new(cuda_driver_sys::$symbol as *mut c_void);
                }
            )*
            None
        }
    };
}

bound! {
    cuInit cuDriverGetVersion cuGetErrorName cuGetErrorString
    cuDeviceGet cuDeviceGetCount cuDeviceGetAttribute cuDeviceGetName cuDeviceTotalMem_v2 cuDeviceGetPCIBusId
    cuDeviceCanAccessPeer cuCtxEnablePeerAccess cuCtxDisablePeerAccess
    cuDevicePrimaryCtxRetain cuCtxGetCurrent cuCtxPushCurrent_v2 cuCtxPopCurrent_v2 cuCtxGetDevice cuCtxSynchronize
    cuCtxSetCurrent cuCtxCreate_v2 cuCtxDestroy_v2
    cuMemAlloc_v2 cuMemFree_v2 cuMemGetInfo_v2 cuMemGetAddressRange_v2 cuMemsetD8Async cuMemHostRegister_v2 cuMemHostUnregister
    cuMemcpyHtoD_v2 cuMemcpyDtoH_v2 cuMemcpyHtoDAsync_v2 cuMemcpyDtoHAsync_v2 cuMemcpyDtoDAsync_v2
    cuMemGetAllocationGranularity cuMemAddressReserve cuMemAddressFree cuMemCreate cuMemRelease cuMemMap cuMemUnmap
    cuMemSetAccess cuMemExportToShareableHandle
    cuEventCreate cuEventRecord cuEventQuery cuEventSynchronize cuEventDestroy_v2
    cuStreamSynchronize cuStreamQuery cuStreamIsCapturing cuThreadExchangeStreamCaptureMode cuStreamGetCtx
    cuStreamWaitEvent cuStreamCreate cuStreamDestroy_v2 cuLaunchHostFunc
    cuModuleLoadData cuModuleUnload cuModuleGetFunction cuLaunchKernel
    cuStreamBeginCapture_v2 cuStreamEndCapture cuGraphLaunch cuGraphExecDestroy cuGraphDestroy
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::table::ENTRY_POINTS;

    #[test]
    fn every_required_entry_is_linked_or_younger_than_the_bindings() {
        for entry in ENTRY_POINTS.iter().filter(|entry| entry.required) {
            // CUDA 11.0 added the second version of this function.
            let younger = entry.symbol == c"cuDevicePrimaryCtxRelease_v2";
            assert_eq!(linked(entry.symbol).is_some(), !younger, "{:?}", entry.symbol);
        }
    }
}
