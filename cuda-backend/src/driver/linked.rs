//! The driver that the program links: the functions of `cuda-driver-sys`, in the same table.
//!
//! That crate binds CUDA 10.2. Entry points that are younger are looked up by name among what the program has loaded,
//! where `-lcuda` has put the driver's library.

use super::table::Table;
use core::ffi::{CStr, c_void};
use core::ptr::NonNull;
use libloading::os::unix::Library;

/// What the emulated driver exports and no other does.
const EMULATED_MARK: &CStr = c"cachalot_emulated_driver";

/// The linked driver's table, where it comes from, and whether it is the emulated driver.
pub(super) fn table() -> (Table, String, bool) {
    // SAFETY: what `-lcuda` links under a versioned name has the signature that the name stands for, and what is linked
    // stays loaded.
    let table = unsafe { Table::fill(|symbol| linked(symbol).or_else(|| loaded(symbol))) };
    (table, "the linked driver".to_owned(), loaded(EMULATED_MARK).is_some())
}

/// The address of a symbol anywhere in the program, if it has it.
fn loaded(symbol: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: the symbol is only taken as an address here; `Table::fill` gives it its type.
    let found = unsafe { Library::this().get::<*mut c_void>(symbol) };
    found.ok().and_then(|symbol| NonNull::new(symbol.into_raw()))
}

/// Declares which symbols `cuda-driver-sys` binds.
macro_rules! bound {
    ($($symbol:ident)*) => {
        /// The address of a symbol that `cuda-driver-sys` binds. Naming it here is what makes the linker keep the library.
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
    cuMemAlloc_v2 cuMemFree_v2 cuMemGetInfo_v2 cuMemGetAddressRange_v2 cuMemsetD8Async
    cuMemcpyHtoD_v2 cuMemcpyDtoH_v2 cuMemcpyHtoDAsync_v2 cuMemcpyDtoHAsync_v2 cuMemcpyDtoDAsync_v2
    cuMemGetAllocationGranularity cuMemAddressReserve cuMemAddressFree cuMemCreate cuMemRelease cuMemMap cuMemUnmap
    cuMemSetAccess
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
            // 11.0 gave this one its second version.
            let younger = entry.symbol == c"cuDevicePrimaryCtxRelease_v2";
            assert_eq!(linked(entry.symbol).is_some(), !younger, "{:?}", entry.symbol);
        }
    }
}
