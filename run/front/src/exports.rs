//! The functions in place of the driver's, a row for each.
//!
//! A row has the symbol, and the symbol of the variant whose stream 0 is the thread's own. The
//! parameters are those of `cachalot-cuda-abi`. The group of the row decides the way of a call:
//!
//! ```text
//! served      answered by the named method of the process's state, which takes the parameters, and what the row
//!             has in parentheses
//! measured    answered by the driver, and the taken memory is booked under the named kind
//! ending      answered by the driver, which frees memory of the named kind, and measured
//! created     an array, answered by the driver and measured; beyond the limit, the named function destroys the array,
//!             which is the first parameter
//! launched    a launch, measured under the named kind at the first of the function or graph, which is the parameter with
//!             the number, and touching
//! touching    answered by the driver, which reads or writes memory of devices
//! ```
//!
//! A program finds a function by the driver's address, and the first row with the address is the
//! program's function. So the newest version of a name comes first, whose addresses are the widest.

#![allow(clippy::wildcard_imports, reason = "the types of every signature")]

use crate::call::{Way, call, launched, measured, per_thread, touching, visit, way, way_of_launch};
use cachalot_cuda::CuResult;
use cachalot_cuda::driver::types::*;
use cachalot_cuda_abi::{function, pointer, symbol};
use cachalot_run::ledger::Kind;
use cachalot_run::serve::tells_first_launches;
use core::convert::identity;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::NonNull;

/// The address of a function, for a table in use by all threads.
pub(crate) struct Address(pub(crate) *mut c_void);

// SAFETY: the address of code is a number, and code is never written.
unsafe impl Sync for Address {}

/// A parameter, as the driver's functions with `_ptsz` read it.
trait Own: Sized {
    /// Returns the per-thread default stream in place of stream 0, and every other parameter as it
    /// is.
    fn own(self) -> Self {
        self
    }
}

impl Own for CuStream {
    fn own(self) -> Self {
        per_thread(self)
    }
}

impl<T> Own for *mut T {}
impl<T> Own for *const T {}
impl Own for u32 {}
impl Own for usize {}
impl Own for CuDevicePtr {}
impl Own for CuMemoryPool {}
impl Own for CuFunction {}
impl Own for CuGraph {}
impl Own for CuGraphExec {}
impl Own for CuCaptureMode {}

/// Returns a parameter as the driver's functions with `_ptsz` read it.
fn own<T: Own>(parameter: T) -> T {
    parameter.own()
}

/// Sends a call the way of the row's group. `$at` is the place of the row's name, and `$real`
/// returns the call of the driver's function, made where it is needed: a value made before would
/// write the arguments to memory.
macro_rules! answer {
    (served, $at:ident, $real:ident, [$method:ident $(($($more:expr),*))?], ($($given:expr),*)) => {
        call(
            $at,
            |process| {
                // SAFETY: the arguments are the caller's, who calls the driver's function of this
                // name.
                unsafe { process.$method($($given,)* $($($more),*)?) }
            },
            $real(),
        )
    };
    (measured, $at:ident, $real:ident, [$kind:ident], $given:tt) => {
        measured($at, Kind::$kind, false, $real(), |_| false)
    };
    (ending, $at:ident, $real:ident, [$kind:ident], $given:tt) => {
        measured($at, Kind::$kind, true, $real(), |_| false)
    };
    (created, $at:ident, $real:ident, [$destroy:ident], ($array:expr $(, $more:expr)*)) => {
        measured($at, Kind::Array, false, $real(), |process| {
            // SAFETY: the call has succeeded, so the driver has written the array, which the caller
            // does not know yet.
            unsafe { process.real().$destroy($array.read()) }.is_success()
        })
    };
    (launched, $at:ident, $real:ident, [$kind:ident.$place:tt], ($($given:expr),*)) => {
        if tells_first_launches() {
            launched($at, Kind::$kind, ($($given,)*).$place.0, $real())
        } else {
            touching($at, $real())
        }
    };
    (touching, $at:ident, $real:ident, [], $given:tt) => { touching($at, $real()) };
}

/// The way of a call of the row's group.
macro_rules! way {
    (launched, $at:ident) => {
        way_of_launch($at)
    };
    (touching, $at:ident) => {
        way($at)
    };
    ($group:ident, $at:ident) => {
        Way::General
    };
}

/// Declares the functions, the table of their names and the table of their addresses.
macro_rules! exports {
    ($($group:ident {
        $($($name:ident),+ $(=> $answer:ident $(.$place:tt)? $(($($more:tt)*))?)?;)*
    })*) => {
        /// The exported symbols: the functions of the table and the two resolvers.
        pub(crate) const NAMES: &[&CStr] = &[
            $($($(symbol!($name),)+)*)*
            c"cuGetProcAddress",
            c"cuGetProcAddress_v2",
        ];

        /// Our functions, in the order of [`NAMES`].
        pub(crate) static OURS: [Address; NAMES.len()] = [
            $($($(Address($name as *mut c_void),)+)*)*
            Address(crate::resolver::cuGetProcAddress as *mut c_void),
            Address(crate::resolver::cuGetProcAddress_v2 as *mut c_void),
        ];

        $($(row! { $group [$($name)+] [$($answer $(.$place)? $(($($more)*))?)?] })*)*
    };
}

/// Defines the function of a row, and the variant whose stream 0 is the thread's own.
macro_rules! row {
    ($group:ident [$name:ident $($own:ident)?] $answer:tt) => {
        function! { $name => export { $group identity $name $answer } }
        $(function! { $own => export { $group own $own $answer } })?
    };
}

/// Defines a function. `$given` is what becomes of a parameter before the process's state has it.
macro_rules! export {
    (
        { $group:ident $given:ident $name:ident $answer:tt }
        ($($argument:ident: $type:ty),*)
    ) => {
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> CuResult {
            type Function = function!($name => pointer {});
            unsafe extern "C" fn answer($($argument: $type),*) -> CuResult {
                let at = const { index(stringify!($name)) };
                let real = || move |address: NonNull<c_void>| {
                    // SAFETY: the address is the driver's function of this name, with this
                    // signature.
                    let real = unsafe { core::mem::transmute::<NonNull<c_void>, Function>(address) };
                    // SAFETY: the arguments are the caller's, who calls the driver's function of
                    // this name.
                    unsafe { real($($argument),*) }
                };
                answer!($group, at, real, $answer, ($($given($argument)),*))
            }
            // Never inlined: the exported function would write the arguments for this further call
            // before every jump, too.
            #[inline(never)]
            unsafe extern "C" fn inside($($argument: $type),*) -> CuResult {
                let Some((real, visit)) = visit(const { index(stringify!($name)) }) else {
                    // SAFETY: the arguments are the caller's, who calls the driver's function of
                    // this name.
                    return unsafe { answer($($argument),*) };
                };
                // SAFETY: the address is the driver's function of this name, with this signature.
                let real = unsafe { core::mem::transmute::<NonNull<c_void>, Function>(real) };
                // SAFETY: as above.
                let answer = unsafe { real($($argument),*) };
                drop(visit);
                answer
            }
            let _at = const { index(stringify!($name)) };
            let to: Function = match way!($group, _at) {
                // SAFETY: the address is the driver's function of this name, with this signature.
                Way::Jump(real) => unsafe { core::mem::transmute::<NonNull<c_void>, Function>(real) },
                Way::Visit => inside,
                Way::General => answer,
            };
            // One jump for all, with the arguments where they are. Of several the compiler makes
            // calls. SAFETY: the arguments are the caller's, who calls the driver's function of
            // this name.
            unsafe { to($($argument),*) }
        }
    };
}

/// Returns the place of a name in [`NAMES`].
///
/// # Panics
/// If the table lacks the name; the compiler evaluates every call.
pub(crate) const fn index(name: &str) -> usize {
    let mut at = 0;
    while at < NAMES.len() {
        if equal(NAMES[at].to_bytes(), name.as_bytes()) {
            return at;
        }
        at += 1;
    }
    panic!("a name of the table")
}

/// Compares two texts, in constants.
const fn equal(one: &[u8], other: &[u8]) -> bool {
    let mut at = 0;
    while at < one.len() && at < other.len() && one[at] == other[at] {
        at += 1;
    }
    at == one.len() && at == other.len()
}

exports! {
    served {
        // Memory that is served.
        cuMemAlloc_v2 => mem_alloc;
        cuMemFree_v2 => mem_free;
        cuMemAllocPitch_v2 => mem_alloc_pitch;
        cuMemAllocAsync, cuMemAllocAsync_ptsz => mem_alloc_async;
        cuMemFreeAsync, cuMemFreeAsync_ptsz => mem_free_async;
        cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz => mem_alloc_from_pool_async;
        cuDeviceSetMemPool => device_set_mem_pool;
        // Memory that is counted.
        cuMemAllocManaged => mem_alloc_managed;
        cuMemHostAlloc => mem_host_alloc;
        cuMemAllocHost_v2 => mem_alloc_host;
        cuMemFreeHost => mem_free_host;
        cuMemCreate => mem_create;
        cuMemRelease => mem_release;
        cuMemGetInfo_v2 => mem_get_info;
        cuDeviceTotalMem_v2 => device_total_mem;
        // Memory that the program maps by itself.
        cuMemMap => mem_map;
        cuMemUnmap => mem_unmap;
        cuMemAddressFree => mem_address_free;
        cuMemSetAccess => mem_set_access;
        cuMemRetainAllocationHandle => mem_retain_allocation_handle;
        cuMemGetAllocationPropertiesFromHandle => mem_get_allocation_properties_from_handle;
        cuMemExportToShareableHandle => mem_export_to_shareable_handle;
        cuMemImportFromShareableHandle => mem_import_from_shareable_handle;
        cuMemGetHandleForAddressRange => mem_get_handle_for_address_range;
        cuMulticastBindMem => multicast_bind_mem;
        cuMulticastBindAddr => multicast_bind_addr;
        // What a program asks about an address.
        cuMemGetAddressRange_v2 => mem_get_address_range;
        cuPointerGetAttribute => pointer_get_attribute;
        cuPointerGetAttributes => pointer_get_attributes;
        cuPointerSetAttribute => pointer_set_attribute;
        // Memory of another process, of a peer, and of a pool.
        cuIpcGetMemHandle => ipc_get_mem_handle;
        cuIpcOpenMemHandle_v2 => ipc_open_mem_handle;
        cuIpcCloseMemHandle => ipc_close_mem_handle;
        cuMemPoolSetAccess => mem_pool_set_access;
        cuMemPoolGetAttribute => mem_pool_get_attribute;
        cuMemPoolSetAttribute => mem_pool_set_attribute;
        cuMemPoolTrimTo => mem_pool_trim_to;
        cuMemPoolDestroy => mem_pool_destroy;
        cuMemPoolExportToShareableHandle => mem_pool_export_to_shareable_handle;
        cuMemPoolExportPointer => mem_pool_export_pointer;
        cuCtxEnablePeerAccess => ctx_enable_peer_access;
        // Contexts, streams and captures.
        cuCtxCreate_v2 => ctx_create_v2;
        cuCtxCreate_v3 => ctx_create_v3;
        cuCtxCreate_v4 => ctx_create_v4;
        cuCtxDestroy_v2 => ctx_destroy;
        cuDevicePrimaryCtxRetain => device_primary_ctx_retain;
        cuDevicePrimaryCtxRelease_v2 => device_primary_ctx_release;
        cuDevicePrimaryCtxReset_v2 => device_primary_ctx_reset;
        cuGreenCtxCreate => green_ctx_create;
        cuGreenCtxDestroy => green_ctx_destroy;
        cuStreamDestroy_v2 => stream_destroy;
        cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz => stream_begin_capture;
        cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz => stream_begin_capture_to_graph;
        // The functions of CUDA 10 and before: older names, and captures of the global mode.
        cuCtxCreate => ctx_create_v2;
        cuCtxDestroy => ctx_destroy;
        cuCtxAttach => ctx_attach;
        cuCtxDetach => ctx_detach;
        cuDevicePrimaryCtxRelease => device_primary_ctx_release;
        cuDevicePrimaryCtxReset => device_primary_ctx_reset;
        cuStreamDestroy => stream_destroy;
        cuStreamBeginCapture, cuStreamBeginCapture_ptsz => stream_begin_capture(CuCaptureMode::GLOBAL);
        cuStreamEndCapture, cuStreamEndCapture_ptsz => stream_end_capture;
    }
    measured {
        // Code and graphs, whose memory the driver takes on its own.
        cuModuleLoad => Module;
        cuModuleLoadData => Module;
        cuModuleLoadDataEx => Module;
        cuModuleLoadFatBinary => Module;
        cuLibraryLoadData => Module;
        cuLibraryLoadFromFile => Module;
        cuGraphInstantiate_v2 => Graph;
        cuGraphInstantiateWithFlags => Graph;
        cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz => Graph;
    }
    ending {
        // The ends of code, graphs and arrays.
        cuModuleUnload => Module;
        cuLibraryUnload => Module;
        cuGraphExecDestroy => Graph;
        cuArrayDestroy => Array;
        cuMipmappedArrayDestroy => Array;
    }
    created {
        // Arrays, whose layout is the driver's own.
        cuArrayCreate_v2 => array_destroy;
        cuArrayCreate => array_destroy;
        cuArray3DCreate_v2 => array_destroy;
        cuArray3DCreate => array_destroy;
        cuMipmappedArrayCreate => mipmapped_array_destroy;
    }
    launched {
        // Launches. At the first, the driver loads the code of a function, and takes what a graph
        // needs on the device.
        cuLaunchKernel, cuLaunchKernel_ptsz => Module.0;
        cuLaunchKernelEx, cuLaunchKernelEx_ptsz => Module.1;
        cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz => Module.0;
        cuGraphUpload, cuGraphUpload_ptsz => Graph.0;
        cuGraphLaunch, cuGraphLaunch_ptsz => Graph.0;
    }
    touching {
        // Copies.
        cuMemcpy, cuMemcpy_ptds; cuMemcpyPeer, cuMemcpyPeer_ptds; cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds; cuMemcpyHtoD;
        cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds; cuMemcpyDtoH; cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds; cuMemcpyDtoD;
        cuMemcpyDtoA_v2, cuMemcpyDtoA_v2_ptds; cuMemcpyDtoA; cuMemcpyAtoD_v2, cuMemcpyAtoD_v2_ptds; cuMemcpyAtoD;
        cuMemcpyHtoA_v2, cuMemcpyHtoA_v2_ptds; cuMemcpyHtoA; cuMemcpyAtoH_v2, cuMemcpyAtoH_v2_ptds; cuMemcpyAtoH;
        cuMemcpyAtoA_v2, cuMemcpyAtoA_v2_ptds; cuMemcpyAtoA; cuMemcpy2D_v2, cuMemcpy2D_v2_ptds; cuMemcpy2D;
        cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds; cuMemcpy2DUnaligned; cuMemcpy3D_v2, cuMemcpy3D_v2_ptds;
        cuMemcpy3D; cuMemcpy3DPeer, cuMemcpy3DPeer_ptds; cuMemcpyAsync, cuMemcpyAsync_ptsz;
        cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz; cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz; cuMemcpyHtoDAsync;
        cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz; cuMemcpyDtoHAsync;
        cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz; cuMemcpyDtoDAsync;
        cuMemcpyHtoAAsync_v2, cuMemcpyHtoAAsync_v2_ptsz; cuMemcpyHtoAAsync;
        cuMemcpyAtoHAsync_v2, cuMemcpyAtoHAsync_v2_ptsz; cuMemcpyAtoHAsync; cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz;
        cuMemcpy2DAsync; cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz; cuMemcpy3DAsync;
        cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz; cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync_v2_ptsz;
        cuMemcpyBatchAsync, cuMemcpyBatchAsync_ptsz; cuMemcpy3DBatchAsync_v2, cuMemcpy3DBatchAsync_v2_ptsz;
        cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync_ptsz;
        // Memory filled.
        cuMemsetD8_v2, cuMemsetD8_v2_ptds; cuMemsetD8; cuMemsetD16_v2, cuMemsetD16_v2_ptds; cuMemsetD16;
        cuMemsetD32_v2, cuMemsetD32_v2_ptds; cuMemsetD32; cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds; cuMemsetD2D8;
        cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds; cuMemsetD2D16; cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds; cuMemsetD2D32;
        cuMemsetD8Async, cuMemsetD8Async_ptsz; cuMemsetD16Async, cuMemsetD16Async_ptsz;
        cuMemsetD32Async, cuMemsetD32Async_ptsz; cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz;
        cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz; cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz;
        // Memory that streams write, wait for, or unpack.
        cuMemBatchDecompressAsync, cuMemBatchDecompressAsync_ptsz; cuStreamWaitValue32_v2, cuStreamWaitValue32_v2_ptsz;
        cuStreamWaitValue32, cuStreamWaitValue32_ptsz; cuStreamWaitValue64_v2, cuStreamWaitValue64_v2_ptsz;
        cuStreamWaitValue64, cuStreamWaitValue64_ptsz; cuStreamWriteValue32_v2, cuStreamWriteValue32_v2_ptsz;
        cuStreamWriteValue32, cuStreamWriteValue32_ptsz; cuStreamWriteValue64_v2, cuStreamWriteValue64_v2_ptsz;
        cuStreamWriteValue64, cuStreamWriteValue64_ptsz; cuStreamBatchMemOp_v2, cuStreamBatchMemOp_v2_ptsz;
        cuStreamBatchMemOp, cuStreamBatchMemOp_ptsz;
        // Managed memory moved between the host and devices, and pages whose contents are given up.
        cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2_ptsz; cuMemPrefetchAsync, cuMemPrefetchAsync_ptsz;
        cuMemPrefetchBatchAsync, cuMemPrefetchBatchAsync_ptsz; cuMemDiscardBatchAsync, cuMemDiscardBatchAsync_ptsz;
        cuMemDiscardAndPrefetchBatchAsync, cuMemDiscardAndPrefetchBatchAsync_ptsz;
        cuStreamAttachMemAsync, cuStreamAttachMemAsync_ptsz;
        // Graphs, and the launches of CUDA 3 and before.
        cuLaunchCooperativeKernelMultiDevice; cuLaunch; cuLaunchGrid; cuLaunchGridAsync;
        // Calls that name an address. The driver refuses an address whose memory is parked.
        cuGraphAddMemcpyNode; cuGraphAddMemsetNode; cuGraphAddNode; cuGraphAddNode_v2; cuGraphMemcpyNodeSetParams;
        cuGraphMemsetNodeSetParams; cuGraphNodeSetParams; cuGraphExecMemcpyNodeSetParams;
        cuGraphExecMemsetNodeSetParams; cuGraphExecNodeSetParams; cuGraphExecUpdate; cuGraphExecUpdate_v2;
        cuTexObjectCreate; cuTexRefSetAddress_v2; cuTexRefSetAddress2D_v3; cuMemGetAccess;
    }
}
