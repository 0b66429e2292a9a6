//! The driver functions, each said once: a row gives the symbols, the first driver version with the
//! function, and the conditions.
//!
//! ```text
//! kind {                                     the file of `calls` with the functions
//!     name, name_ptsz: 11020, Init, Safe;
//!           └ the variant for programs whose stream 0 is the thread's own, where there is one
//! }
//! ```
//!
//! From the rows come the exported symbols (`exports`), the numbers and names (`functions`), and
//! the methods for Rust tests (`api`). The signatures are those of `cachalot-cuda-abi`.
//!
//! Functions of one name are in the order of their versions.

/// Hands the rows to a macro.
macro_rules! functions {
    ($to:ident) => {
        $to! {
            by_hand {
                cuGetErrorName: 6000, Nothing, Safe;
                cuGetErrorString: 6000, Nothing, Safe;
            }
            start {
                cuInit: 2000, Nothing, Safe;
                cuGetExportTable: 3000, Nothing, Safe;
                cuEmulatedUnknownFunction: 2000, Nothing, Safe;
                cuDriverGetVersion: 2020, Nothing, Safe;
                cuGetProcAddress: 11030, Nothing, Safe;
                cuGetProcAddress_v2: 12000, Nothing, Safe;
            }
            device {
                cuDeviceGet: 2000, Init, Safe;
                cuDeviceGetCount: 2000, Init, Safe;
                cuDeviceGetAttribute: 2000, Init, Safe;
                cuDeviceGetName: 2000, Init, Safe;
                cuDeviceTotalMem_v2: 3020, Init, Safe;
                cuDeviceGetPCIBusId: 4010, Init, Safe;
                cuDeviceGetUuid_v2: 11040, Init, Safe;
                cuDeviceCanAccessPeer: 4000, Init, Safe;
            }
            pool {
                cuDeviceGetDefaultMemPool: 11020, Init, Safe;
                cuDeviceGetMemPool: 11020, Init, Safe;
                cuDeviceSetMemPool: 11020, Init, Safe;
                cuMemPoolCreate: 11020, Init, Unsafe;
                cuMemPoolDestroy: 11020, Init, Unsafe;
                cuMemPoolGetAttribute: 11020, Init, Unsafe;
                cuMemPoolSetAttribute: 11020, Init, Unsafe;
                cuMemPoolSetAccess: 11020, Init, Unsafe;
                cuMemPoolTrimTo: 11020, Init, Unsafe;
                cuMemAllocAsync, cuMemAllocAsync_ptsz: 11020, Init, Safe;
                cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz: 11020, Init, Safe;
                cuMemFreeAsync, cuMemFreeAsync_ptsz: 11020, Init, Safe;
            }
            context {
                cuCtxEnablePeerAccess: 4000, Context, Unsafe;
                cuCtxDisablePeerAccess: 4000, Context, Unsafe;
                cuDevicePrimaryCtxRetain: 7000, Init, Safe;
                cuDevicePrimaryCtxRelease_v2: 11000, Init, Safe;
                cuDevicePrimaryCtxReset_v2: 11000, Init, Unsafe;
                cuDevicePrimaryCtxGetState: 7000, Init, Safe;
                cuDevicePrimaryCtxSetFlags_v2: 11000, Init, Safe;
                cuCtxGetCurrent: 4000, Init, Safe;
                cuCtxSetCurrent: 4000, Init, Safe;
                cuCtxPushCurrent_v2: 4000, Init, Safe;
                cuCtxPopCurrent_v2: 4000, Init, Safe;
                cuCtxGetDevice: 2000, Init, Safe;
                cuCtxGetId: 12000, Init, Safe;
                cuCtxGetDevice_v2: 13000, Init, Safe;
                cuCtxSynchronize: 2000, Context, Safe;
                cuCtxSynchronize_v2: 13000, Init, Safe;
                cuCtxRecordEvent: 12050, Init, Safe;
                cuCtxWaitEvent: 12050, Init, Safe;
                cuCtxCreate_v2: 3020, Init, Unsafe;
                cuCtxCreate_v3: 11040, Init, Unsafe;
                cuCtxCreate_v4: 12050, Init, Unsafe;
                cuCtxDestroy_v2: 4000, Init, Unsafe;
                cuCtxAttach: 2000, Context, Safe;
                cuCtxDetach: 2000, Init, Unsafe;
            }
            green {
                cuGreenCtxCreate: 12040, Init, Unsafe;
                cuGreenCtxDestroy: 12040, Init, Unsafe;
                cuCtxFromGreenCtx: 12040, Init, Safe;
            }
            memory {
                cuMemAlloc_v2: 3020, Context, Unsafe;
                cuMemAllocPitch_v2: 3020, Context, Unsafe;
                cuMemAllocManaged: 6000, Context, Unsafe;
                cuMemFree_v2: 3020, Init, Unsafe;
                cuMemGetInfo_v2: 3020, Context, Safe;
                cuMemGetAddressRange_v2: 3020, Context, Safe;
            }
            array {
                cuArrayCreate_v2: 3020, Context, Unsafe;
                cuArray3DCreate_v2: 3020, Context, Unsafe;
                cuArrayDestroy: 2000, Init, Unsafe;
                cuMipmappedArrayCreate: 5000, Context, Unsafe;
                cuMipmappedArrayDestroy: 5000, Init, Unsafe;
            }
            pointer {
                cuPointerGetAttribute: 4000, Init, Safe;
                cuPointerGetAttributes: 7000, Init, Safe;
                cuPointerSetAttribute: 6000, Init, Unsafe;
            }
            ipc {
                cuIpcGetMemHandle: 4010, Context, Safe;
                cuIpcOpenMemHandle_v2: 11000, Context, Unsafe;
                cuIpcCloseMemHandle: 4010, Context, Unsafe;
            }
            host {
                cuMemAllocHost_v2: 3020, Context, Unsafe;
                cuMemHostAlloc: 2020, Context, Unsafe;
                cuMemFreeHost: 2000, Init, Unsafe;
                cuMemHostRegister_v2: 6050, Context, Unsafe;
                cuMemHostUnregister: 4000, Init, Unsafe;
                cuMemHostGetDevicePointer_v2: 3020, Context, Safe;
            }
            transfer {
                cuMemcpy, cuMemcpy_ptds: 4000, Context, Safe;
                cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds: 3020, Context, Safe;
                cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds: 3020, Context, Safe;
                cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds: 3020, Context, Safe;
                cuMemcpyPeer, cuMemcpyPeer_ptds: 4000, Context, Safe;
                cuMemcpyAsync, cuMemcpyAsync_ptsz: 4000, Init, Safe;
                cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz: 3020, Init, Safe;
                cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz: 3020, Init, Safe;
                cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz: 3020, Init, Safe;
                cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz: 4000, Init, Safe;
                cuMemPrefetchAsync, cuMemPrefetchAsync_ptsz: 8000, Init, Safe;
                cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2_ptsz: 12020, Init, Safe;
            }
            rows {
                cuMemcpy2D_v2, cuMemcpy2D_v2_ptds: 3020, Context, Safe;
                cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds: 3020, Context, Safe;
                cuMemcpy3D_v2, cuMemcpy3D_v2_ptds: 3020, Context, Safe;
                cuMemcpy3DPeer, cuMemcpy3DPeer_ptds: 4000, Context, Safe;
                cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz: 3020, Init, Safe;
                cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz: 3020, Init, Safe;
                cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz: 4000, Init, Safe;
            }
            fill {
                cuMemsetD8_v2, cuMemsetD8_v2_ptds: 3020, Context, Safe;
                cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds: 3020, Context, Safe;
                cuMemsetD8Async, cuMemsetD8Async_ptsz: 3020, Init, Safe;
                cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz: 3020, Init, Safe;
                cuMemsetD16_v2, cuMemsetD16_v2_ptds: 3020, Context, Safe;
                cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds: 3020, Context, Safe;
                cuMemsetD16Async, cuMemsetD16Async_ptsz: 3020, Init, Safe;
                cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz: 3020, Init, Safe;
                cuMemsetD32_v2, cuMemsetD32_v2_ptds: 3020, Context, Safe;
                cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds: 3020, Context, Safe;
                cuMemsetD32Async, cuMemsetD32Async_ptsz: 3020, Init, Safe;
                cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz: 3020, Init, Safe;
            }
            value {
                cuStreamWaitValue32, cuStreamWaitValue32_ptsz: 8000, Init, Safe;
                cuStreamWaitValue32_v2, cuStreamWaitValue32_v2_ptsz: 11070, Init, Safe;
                cuStreamWaitValue64, cuStreamWaitValue64_ptsz: 9000, Init, Safe;
                cuStreamWaitValue64_v2, cuStreamWaitValue64_v2_ptsz: 11070, Init, Safe;
                cuStreamWriteValue32, cuStreamWriteValue32_ptsz: 8000, Init, Safe;
                cuStreamWriteValue32_v2, cuStreamWriteValue32_v2_ptsz: 11070, Init, Safe;
                cuStreamWriteValue64, cuStreamWriteValue64_ptsz: 9000, Init, Safe;
                cuStreamWriteValue64_v2, cuStreamWriteValue64_v2_ptsz: 11070, Init, Safe;
                cuStreamBatchMemOp, cuStreamBatchMemOp_ptsz: 8000, Init, Safe;
                cuStreamBatchMemOp_v2, cuStreamBatchMemOp_v2_ptsz: 11070, Init, Safe;
            }
            virtual_memory {
                cuMemGetAllocationGranularity: 10020, Init, Safe;
                cuMemAddressReserve: 10020, Init, Safe;
                cuMemAddressFree: 10020, Init, Safe;
                cuMemCreate: 10020, Init, Safe;
                cuMemRelease: 10020, Init, Safe;
                cuMemMap: 10020, Init, Safe;
                cuMemUnmap: 10020, Init, Safe;
                cuMemSetAccess: 10020, Init, Safe;
                cuMemExportToShareableHandle: 10020, Init, Safe;
                cuMemImportFromShareableHandle: 10020, Init, Safe;
            }
            event {
                cuEventCreate: 2000, Context, Safe;
                cuEventRecord, cuEventRecord_ptsz: 2000, Init, Safe;
                cuEventQuery: 2000, Init, Safe;
                cuEventSynchronize: 2000, Init, Safe;
                cuEventElapsedTime: 2000, Init, Safe;
                cuEventElapsedTime_v2: 12080, Init, Safe;
                cuEventDestroy_v2: 4000, Init, Safe;
                cuStreamWaitEvent, cuStreamWaitEvent_ptsz: 3020, Init, Safe;
            }
            stream {
                cuStreamCreate: 2000, Context, Safe;
                cuStreamCreateWithPriority: 5050, Context, Safe;
                cuStreamGetPriority, cuStreamGetPriority_ptsz: 5050, Init, Safe;
                cuStreamGetFlags, cuStreamGetFlags_ptsz: 5050, Init, Safe;
                cuCtxGetStreamPriorityRange: 5050, Context, Safe;
                cuStreamDestroy_v2: 4000, Init, Safe;
                cuStreamSynchronize, cuStreamSynchronize_ptsz: 2000, Init, Safe;
                cuStreamQuery, cuStreamQuery_ptsz: 2000, Init, Safe;
                cuStreamGetId, cuStreamGetId_ptsz: 12000, Init, Safe;
                cuStreamGetCtx, cuStreamGetCtx_ptsz: 9020, Init, Safe;
                cuStreamGetCtx_v2, cuStreamGetCtx_v2_ptsz: 12050, Init, Safe;
                cuLaunchHostFunc, cuLaunchHostFunc_ptsz: 10000, Init, Safe;
            }
            capture {
                cuStreamIsCapturing, cuStreamIsCapturing_ptsz: 10000, Init, Safe;
                cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz: 11030, Init, Safe;
                cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz: 12030, Init, Safe;
                cuThreadExchangeStreamCaptureMode: 10010, Init, Safe;
                cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz: 10010, Init, Safe;
                cuStreamEndCapture, cuStreamEndCapture_ptsz: 10000, Init, Safe;
                cuGraphNodeGetDependencies: 10000, Init, Safe;
                cuGraphNodeGetDependencies_v2: 12030, Init, Safe;
            }
            module {
                cuModuleLoadData: 2000, Context, Unsafe;
                cuModuleLoadDataEx: 2010, Context, Unsafe;
                cuModuleLoadFatBinary: 2000, Context, Unsafe;
                cuLibraryLoadData: 12000, Init, Safe;
                cuLibraryUnload: 12000, Init, Safe;
                cuLibraryGetModule: 12000, Context, Safe;
                cuLibraryGetKernel: 12000, Init, Safe;
                cuKernelGetFunction: 12000, Context, Safe;
                cuModuleUnload: 2000, Context, Unsafe;
                cuModuleGetFunction: 2000, Context, Safe;
                cuLaunchKernel, cuLaunchKernel_ptsz: 4000, Context, Safe;
                cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz: 9000, Context, Safe;
                cuLaunchKernelEx, cuLaunchKernelEx_ptsz: 11060, Context, Safe;
            }
            function {
                cuFuncGetAttribute: 2020, Context, Safe;
                cuFuncSetAttribute: 9000, Context, Safe;
                cuFuncSetCacheConfig: 3000, Context, Safe;
            }
            graph {
                cuGraphCreate: 10000, Init, Safe;
                cuGraphInstantiate_v2: 11000, Init, Safe;
                cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz: 12000, Init, Safe;
                cuGraphInstantiateWithFlags: 11040, Init, Safe;
                cuGraphUpload, cuGraphUpload_ptsz: 11010, Init, Safe;
                cuGraphLaunch, cuGraphLaunch_ptsz: 10000, Init, Safe;
                cuGraphExecDestroy: 10000, Init, Safe;
                cuGraphDestroy: 10000, Init, Safe;
            }
        }
    };
}
pub(crate) use functions;

/// Hands the arguments of a function to a macro, as [`cachalot_cuda_abi::function!`] does, also
/// those of the function that no header declares.
macro_rules! signature {
    (cuEmulatedUnknownFunction => $to:path { $($given:tt)* }) => {
        $to! { { $($given)* } (number: u64, doubled: *mut u64) }
    };
    ($symbol:ident => $($to:tt)*) => { cachalot_cuda_abi::function! { $symbol => $($to)* } };
}
pub(crate) use signature;

/// What the types of the signatures are here: handles are numbers of 64 bits, and attributes are
/// integers.
pub(crate) mod types {
    pub(crate) use crate::values::structs::{
        Access as CuMemAccessDesc, ArrayShape as CudaArrayDescriptor, Copy2D as CudaMemcpy2D, Copy3D as CudaMemcpy3D,
        Copy3D as CudaMemcpy3DPeer, InstantiateParams as CudaGraphInstantiateParams, IpcMemory as CuIpcMemHandle,
        LaunchConfig as CuLaunchConfig, Location as CuMemLocation, PoolProperties as CuMemPoolProps,
        Properties as CuMemAllocationProp, SolidShape as CudaArray3DDescriptor,
    };
    use std::ffi::{c_int, c_void};

    /// Declares names of types.
    macro_rules! names {
        ($($name:ident)* = $type:ty) => { $(pub(crate) type $name = $type;)* };
    }
    names! {
        CuArray CuContext CuDevicePtr CuEvent CuFunction CuGraph CuGraphExec CuGraphNode CuGreenContext CuKernel CuLibrary
        CuMemHandle CuMemoryPool CuMipmappedArray CuModule CuStream = u64
    }
    names! {
        CuCaptureMode CuCaptureStatus CuDevice CuDeviceAttribute CuDriverProcAddressQueryResult CuGranularity CuMemHandleType
        CuMemPoolAttribute CuPointerAttribute = c_int
    }
    names! { CuEventFlags CuMemHostRegisterFlags CuResult CuStreamFlags = u32 }
    names! { CuUuid = [u8; 16] }
    names! { CuGraphEdgeData = [u8; 8] }
    names! { CuStreamBatchMemOpParams = [u64; 6] }
    names! { CuHostFn = Option<unsafe extern "C" fn(*mut c_void)> }
}
