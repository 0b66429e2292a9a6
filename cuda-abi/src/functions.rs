//! The driver's functions, a row for each: the symbol, the symbol of the variant for programs whose
//! stream 0 is the thread's own (`_ptsz`, `_ptds`), and the arguments. Each returns a `CUresult`.
//!
//! The test `header` of `cachalot-cuda` compares every row with `cuda.h`.

/// Makes [`function!`] and [`FUNCTIONS`] of the rows. `$d` is a dollar for the inner macro.
macro_rules! functions {
    ($d:tt $($($symbol:ident),+: $arguments:tt;)*) => {
        /// Hands the arguments of a function of the driver to a macro of the caller, after what the
        /// caller gives in braces:
        ///
        /// ```
        /// use cachalot_cuda_abi::function;
        /// use cachalot_cuda_abi::types::CuDevicePtr;
        ///
        /// macro_rules! pointer {
        ///     ({} ($($argument:ident: $type:ty),*)) => { unsafe extern "C" fn($($type),*) -> u32 };
        /// }
        /// type Free = function!(cuMemFree_v2 => pointer {});
        ///
        /// let free: Option<Free> = None;
        /// ```
        ///
        /// The names of the types mean what they mean at the caller: those of
        /// [`types`](crate::types), or types of the same layout.
        #[macro_export]
        macro_rules! function {
            $($(
                ($symbol => $d to:path { $d($d given:tt)* }) => { $d to! { { $d($d given)* } $arguments } };
            )+)*
        }

        /// Every function: its symbol, and its arguments as they are written in the row.
        pub const FUNCTIONS: &[(&str, &str)] = &[
            $($((stringify!($symbol), stringify!($arguments)),)+)*
        ];
    };
}

functions! { $
    // Start, and what is known of the driver.
    cuInit: (flags: u32);
    cuDriverGetVersion: (version: *mut c_int);
    cuGetErrorName: (error: CuResult, name: *mut *const c_char);
    cuGetErrorString: (error: CuResult, text: *mut *const c_char);
    cuGetExportTable: (table: *mut *const c_void, id: *const CuUuid);
    cuGetProcAddress: (symbol: *const c_char, address: *mut *mut c_void, version: c_int, flags: u64);
    cuGetProcAddress_v2: (
        symbol: *const c_char, address: *mut *mut c_void, version: c_int, flags: u64,
        status: *mut CuDriverProcAddressQueryResult);

    // Devices.
    cuDeviceGet: (device: *mut CuDevice, ordinal: c_int);
    cuDeviceGetCount: (count: *mut c_int);
    cuDeviceGetAttribute: (value: *mut c_int, attribute: CuDeviceAttribute, device: CuDevice);
    cuDeviceGetName: (name: *mut c_char, length: c_int, device: CuDevice);
    cuDeviceTotalMem_v2: (bytes: *mut usize, device: CuDevice);
    cuDeviceGetPCIBusId: (id: *mut c_char, length: c_int, device: CuDevice);
    cuDeviceGetUuid_v2: (uuid: *mut CuUuid, device: CuDevice);
    cuDeviceCanAccessPeer: (can_access: *mut c_int, device: CuDevice, peer: CuDevice);

    // Contexts.
    cuCtxEnablePeerAccess: (peer: CuContext, flags: u32);
    cuCtxDisablePeerAccess: (peer: CuContext);
    cuDevicePrimaryCtxRetain: (context: *mut CuContext, device: CuDevice);
    cuDevicePrimaryCtxRelease: (device: CuDevice);
    cuDevicePrimaryCtxRelease_v2: (device: CuDevice);
    cuCtxGetCurrent: (context: *mut CuContext);
    cuCtxPushCurrent_v2: (context: CuContext);
    cuCtxPopCurrent_v2: (context: *mut CuContext);
    cuCtxGetId: (context: CuContext, id: *mut u64);
    cuCtxGetDevice: (device: *mut CuDevice);
    cuCtxGetDevice_v2: (device: *mut CuDevice, context: CuContext);
    cuCtxSynchronize: ();
    cuCtxSynchronize_v2: (context: CuContext);
    cuCtxRecordEvent: (context: CuContext, event: CuEvent);
    cuCtxSetCurrent: (context: CuContext);
    cuCtxCreate: (context: *mut CuContext, flags: u32, device: CuDevice);
    cuCtxCreate_v2: (context: *mut CuContext, flags: u32, device: CuDevice);
    cuCtxCreate_v3: (context: *mut CuContext, affinity: *mut c_void, count: c_int, flags: u32, device: CuDevice);
    cuCtxCreate_v4: (context: *mut CuContext, parameters: *mut c_void, flags: u32, device: CuDevice);
    cuCtxDestroy: (context: CuContext);
    cuCtxDestroy_v2: (context: CuContext);
    cuDevicePrimaryCtxReset: (device: CuDevice);
    cuDevicePrimaryCtxReset_v2: (device: CuDevice);
    cuDevicePrimaryCtxGetState: (device: CuDevice, flags: *mut u32, active: *mut c_int);
    cuCtxAttach: (context: *mut CuContext, flags: u32);
    cuCtxDetach: (context: CuContext);
    cuGreenCtxCreate: (green: *mut CuGreenContext, resources: *mut c_void, device: CuDevice, flags: u32);
    cuGreenCtxDestroy: (green: CuGreenContext);
    cuCtxFromGreenCtx: (context: *mut CuContext, green: CuGreenContext);
    cuDevicePrimaryCtxSetFlags_v2: (device: CuDevice, flags: u32);
    cuCtxWaitEvent: (context: CuContext, event: CuEvent);
    cuCtxGetStreamPriorityRange: (least: *mut c_int, greatest: *mut c_int);

    // Memory.
    cuMemAlloc_v2: (address: *mut CuDevicePtr, bytes: usize);
    cuMemFree_v2: (address: CuDevicePtr);
    cuMemGetInfo_v2: (free: *mut usize, total: *mut usize);
    cuMemAllocPitch_v2: (address: *mut CuDevicePtr, pitch: *mut usize, width: usize, height: usize, element: u32);
    cuMemAllocManaged: (address: *mut CuDevicePtr, bytes: usize, flags: u32);

    // Addresses and their attributes.
    cuMemGetAddressRange_v2: (base: *mut CuDevicePtr, bytes: *mut usize, address: CuDevicePtr);
    cuPointerGetAttribute: (data: *mut c_void, attribute: CuPointerAttribute, address: CuDevicePtr);
    cuPointerGetAttributes: (
        count: u32, attributes: *mut CuPointerAttribute, data: *mut *mut c_void, address: CuDevicePtr);
    cuPointerSetAttribute: (value: *const c_void, attribute: CuPointerAttribute, address: CuDevicePtr);
    cuMemGetAccess: (flags: *mut u64, location: *const c_void, address: CuDevicePtr);

    // Pinned memory of the host.
    cuMemHostRegister_v2: (address: *mut c_void, bytes: usize, flags: CuMemHostRegisterFlags);
    cuMemHostUnregister: (address: *mut c_void);
    cuMemHostAlloc: (address: *mut *mut c_void, bytes: usize, flags: u32);
    cuMemAllocHost_v2: (address: *mut *mut c_void, bytes: usize);
    cuMemFreeHost: (address: *mut c_void);
    cuMemHostGetDevicePointer_v2: (address: *mut CuDevicePtr, memory: *mut c_void, flags: u32);

    // Memory pools of the driver.
    cuDeviceGetDefaultMemPool: (pool: *mut CuMemoryPool, device: CuDevice);
    cuMemPoolGetAttribute: (pool: CuMemoryPool, attribute: CuMemPoolAttribute, value: *mut c_void);
    cuMemAllocAsync, cuMemAllocAsync_ptsz: (address: *mut CuDevicePtr, bytes: usize, stream: CuStream);
    cuMemFreeAsync, cuMemFreeAsync_ptsz: (address: CuDevicePtr, stream: CuStream);
    cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz: (
        address: *mut CuDevicePtr, bytes: usize, pool: CuMemoryPool, stream: CuStream);
    cuMemPoolSetAccess: (pool: CuMemoryPool, descriptors: *const CuMemAccessDesc, count: usize);
    cuMemPoolExportToShareableHandle: (handle: *mut c_void, pool: CuMemoryPool, kind: CuMemHandleType, flags: u64);
    cuMemPoolExportPointer: (data: *mut c_void, address: CuDevicePtr);
    cuMemPoolSetAttribute: (pool: CuMemoryPool, attribute: CuMemPoolAttribute, value: *mut c_void);
    cuMemPoolDestroy: (pool: CuMemoryPool);
    cuMemPoolTrimTo: (pool: CuMemoryPool, keep: usize);
    cuDeviceGetMemPool: (pool: *mut CuMemoryPool, device: CuDevice);
    cuDeviceSetMemPool: (device: CuDevice, pool: CuMemoryPool);
    cuMemPoolCreate: (pool: *mut CuMemoryPool, properties: *const CuMemPoolProps);

    // Virtual memory.
    cuMemGetAllocationGranularity: (
        granularity: *mut usize, properties: *const CuMemAllocationProp, option: CuGranularity);
    cuMemAddressReserve: (address: *mut CuDevicePtr, bytes: usize, alignment: usize, hint: CuDevicePtr, flags: u64);
    cuMemAddressFree: (address: CuDevicePtr, bytes: usize);
    cuMemCreate: (handle: *mut CuMemHandle, bytes: usize, properties: *const CuMemAllocationProp, flags: u64);
    cuMemRelease: (handle: CuMemHandle);
    cuMemMap: (address: CuDevicePtr, bytes: usize, offset: usize, handle: CuMemHandle, flags: u64);
    cuMemUnmap: (address: CuDevicePtr, bytes: usize);
    cuMemSetAccess: (address: CuDevicePtr, bytes: usize, descriptors: *const CuMemAccessDesc, count: usize);
    cuMemExportToShareableHandle: (shareable: *mut c_void, handle: CuMemHandle, kind: CuMemHandleType, flags: u64);
    cuMemRetainAllocationHandle: (handle: *mut CuMemHandle, address: *mut c_void);
    cuMemImportFromShareableHandle: (handle: *mut CuMemHandle, shareable: *mut c_void, kind: CuMemHandleType);
    cuMemGetAllocationPropertiesFromHandle: (properties: *mut CuMemAllocationProp, handle: CuMemHandle);
    cuMemGetHandleForAddressRange: (handle: *mut c_void, address: CuDevicePtr, bytes: usize, kind: u32, flags: u64);

    // Memory of other processes, and of several devices.
    cuMulticastBindMem: (multicast: CuMemHandle, at: usize, memory: CuMemHandle, offset: usize, bytes: usize, flags: u64);
    cuMulticastBindAddr: (multicast: CuMemHandle, at: usize, address: CuDevicePtr, bytes: usize, flags: u64);
    cuIpcGetMemHandle: (handle: *mut CuIpcMemHandle, address: CuDevicePtr);
    cuIpcOpenMemHandle_v2: (address: *mut CuDevicePtr, handle: CuIpcMemHandle, flags: u32);
    cuIpcCloseMemHandle: (address: CuDevicePtr);

    // Arrays and textures.
    cuArrayDestroy: (array: CuArray);
    cuMipmappedArrayDestroy: (array: CuMipmappedArray);
    cuArrayCreate: (array: *mut CuArray, shape: *const c_void);
    cuArrayCreate_v2: (array: *mut CuArray, shape: *const CudaArrayDescriptor);
    cuArray3DCreate: (array: *mut CuArray, shape: *const c_void);
    cuArray3DCreate_v2: (array: *mut CuArray, shape: *const CudaArray3DDescriptor);
    cuMipmappedArrayCreate: (array: *mut CuMipmappedArray, shape: *const CudaArray3DDescriptor, levels: u32);
    cuTexObjectCreate: (texture: *mut u64, resource: *const c_void, description: *const c_void, view: *const c_void);
    cuTexRefSetAddress_v2: (offset: *mut usize, texture: CuTexRef, address: CuDevicePtr, bytes: usize);
    cuTexRefSetAddress2D_v3: (texture: CuTexRef, description: *const c_void, address: CuDevicePtr, pitch: usize);

    // Copies.
    cuMemcpyHtoD: (to: u32, from: *const c_void, bytes: u32);
    cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds: (to: CuDevicePtr, from: *const c_void, bytes: usize);
    cuMemcpyDtoH: (to: *mut c_void, from: u32, bytes: u32);
    cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds: (to: *mut c_void, from: CuDevicePtr, bytes: usize);
    cuMemcpyHtoDAsync: (to: u32, from: *const c_void, bytes: u32, stream: CuStream);
    cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz: (
        to: CuDevicePtr, from: *const c_void, bytes: usize, stream: CuStream);
    cuMemcpyDtoHAsync: (to: *mut c_void, from: u32, bytes: u32, stream: CuStream);
    cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz: (to: *mut c_void, from: CuDevicePtr, bytes: usize, stream: CuStream);
    cuMemcpyDtoDAsync: (to: u32, from: u32, bytes: u32, stream: CuStream);
    cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz: (to: CuDevicePtr, from: CuDevicePtr, bytes: usize, stream: CuStream);
    cuMemcpy, cuMemcpy_ptds: (to: CuDevicePtr, from: CuDevicePtr, bytes: usize);
    cuMemcpyPeer, cuMemcpyPeer_ptds: (
        to: CuDevicePtr, to_context: CuContext, from: CuDevicePtr, from_context: CuContext, bytes: usize);
    cuMemcpyDtoD: (to: u32, from: u32, bytes: u32);
    cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds: (to: CuDevicePtr, from: CuDevicePtr, bytes: usize);
    cuMemcpyDtoA: (to: CuArray, to_offset: u32, from: u32, bytes: u32);
    cuMemcpyDtoA_v2, cuMemcpyDtoA_v2_ptds: (to: CuArray, to_offset: usize, from: CuDevicePtr, bytes: usize);
    cuMemcpyAtoD: (to: u32, from: CuArray, from_offset: u32, bytes: u32);
    cuMemcpyAtoD_v2, cuMemcpyAtoD_v2_ptds: (to: CuDevicePtr, from: CuArray, from_offset: usize, bytes: usize);
    cuMemcpyHtoA: (to: CuArray, to_offset: u32, from: *const c_void, bytes: u32);
    cuMemcpyHtoA_v2, cuMemcpyHtoA_v2_ptds: (to: CuArray, to_offset: usize, from: *const c_void, bytes: usize);
    cuMemcpyAtoH: (to: *mut c_void, from: CuArray, from_offset: u32, bytes: u32);
    cuMemcpyAtoH_v2, cuMemcpyAtoH_v2_ptds: (to: *mut c_void, from: CuArray, from_offset: usize, bytes: usize);
    cuMemcpyAtoA: (to: CuArray, to_offset: u32, from: CuArray, from_offset: u32, bytes: u32);
    cuMemcpyAtoA_v2, cuMemcpyAtoA_v2_ptds: (
        to: CuArray, to_offset: usize, from: CuArray, from_offset: usize, bytes: usize);
    cuMemcpy2D: (copy: *const c_void);
    cuMemcpy2D_v2, cuMemcpy2D_v2_ptds: (copy: *const CudaMemcpy2D);
    cuMemcpy2DUnaligned: (copy: *const c_void);
    cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds: (copy: *const CudaMemcpy2D);
    cuMemcpy3D: (copy: *const c_void);
    cuMemcpy3D_v2, cuMemcpy3D_v2_ptds: (copy: *const CudaMemcpy3D);
    cuMemcpy3DPeer, cuMemcpy3DPeer_ptds: (copy: *const CudaMemcpy3DPeer);
    cuMemcpyAsync, cuMemcpyAsync_ptsz: (to: CuDevicePtr, from: CuDevicePtr, bytes: usize, stream: CuStream);
    cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz: (
        to: CuDevicePtr, to_context: CuContext, from: CuDevicePtr, from_context: CuContext, bytes: usize,
        stream: CuStream);
    cuMemcpyHtoAAsync: (to: CuArray, to_offset: u32, from: *const c_void, bytes: u32, stream: CuStream);
    cuMemcpyHtoAAsync_v2, cuMemcpyHtoAAsync_v2_ptsz: (
        to: CuArray, to_offset: usize, from: *const c_void, bytes: usize, stream: CuStream);
    cuMemcpyAtoHAsync: (to: *mut c_void, from: CuArray, from_offset: u32, bytes: u32, stream: CuStream);
    cuMemcpyAtoHAsync_v2, cuMemcpyAtoHAsync_v2_ptsz: (
        to: *mut c_void, from: CuArray, from_offset: usize, bytes: usize, stream: CuStream);
    cuMemcpy2DAsync: (copy: *const c_void, stream: CuStream);
    cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz: (copy: *const CudaMemcpy2D, stream: CuStream);
    cuMemcpy3DAsync: (copy: *const c_void, stream: CuStream);
    cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz: (copy: *const CudaMemcpy3D, stream: CuStream);
    cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz: (copy: *const CudaMemcpy3DPeer, stream: CuStream);
    cuMemcpyBatchAsync, cuMemcpyBatchAsync_ptsz: (
        to: *mut CuDevicePtr, from: *mut CuDevicePtr, sizes: *mut usize, count: usize, attributes: *mut c_void,
        places: *mut usize, kinds: usize, failed: *mut usize, stream: CuStream);
    cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync_v2_ptsz: (
        to: *mut CuDevicePtr, from: *mut CuDevicePtr, sizes: *mut usize, count: usize, attributes: *mut c_void,
        places: *mut usize, kinds: usize, stream: CuStream);
    cuMemcpy3DBatchAsync, cuMemcpy3DBatchAsync_ptsz: (
        count: usize, copies: *mut c_void, failed: *mut usize, flags: u64, stream: CuStream);
    cuMemcpy3DBatchAsync_v2, cuMemcpy3DBatchAsync_v2_ptsz: (
        count: usize, copies: *mut c_void, flags: u64, stream: CuStream);

    // Memory filled.
    cuMemsetD8Async, cuMemsetD8Async_ptsz: (address: CuDevicePtr, value: u8, bytes: usize, stream: CuStream);
    cuMemsetD8: (to: u32, value: u8, count: u32);
    cuMemsetD8_v2, cuMemsetD8_v2_ptds: (to: CuDevicePtr, value: u8, count: usize);
    cuMemsetD16: (to: u32, value: u16, count: u32);
    cuMemsetD16_v2, cuMemsetD16_v2_ptds: (to: CuDevicePtr, value: u16, count: usize);
    cuMemsetD32: (to: u32, value: u32, count: u32);
    cuMemsetD32_v2, cuMemsetD32_v2_ptds: (to: CuDevicePtr, value: u32, count: usize);
    cuMemsetD2D8: (to: u32, pitch: u32, value: u8, width: u32, height: u32);
    cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds: (to: CuDevicePtr, pitch: usize, value: u8, width: usize, height: usize);
    cuMemsetD2D16: (to: u32, pitch: u32, value: u16, width: u32, height: u32);
    cuMemsetD2D16_v2, cuMemsetD2D16_v2_ptds: (to: CuDevicePtr, pitch: usize, value: u16, width: usize, height: usize);
    cuMemsetD2D32: (to: u32, pitch: u32, value: u32, width: u32, height: u32);
    cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds: (to: CuDevicePtr, pitch: usize, value: u32, width: usize, height: usize);
    cuMemsetD16Async, cuMemsetD16Async_ptsz: (to: CuDevicePtr, value: u16, count: usize, stream: CuStream);
    cuMemsetD32Async, cuMemsetD32Async_ptsz: (to: CuDevicePtr, value: u32, count: usize, stream: CuStream);
    cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz: (
        to: CuDevicePtr, pitch: usize, value: u8, width: usize, height: usize, stream: CuStream);
    cuMemsetD2D16Async, cuMemsetD2D16Async_ptsz: (
        to: CuDevicePtr, pitch: usize, value: u16, width: usize, height: usize, stream: CuStream);
    cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz: (
        to: CuDevicePtr, pitch: usize, value: u32, width: usize, height: usize, stream: CuStream);

    // Managed memory moved between the host and devices, and pages without contents.
    cuMemPrefetchAsync, cuMemPrefetchAsync_ptsz: (address: CuDevicePtr, count: usize, device: CuDevice, stream: CuStream);
    cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2_ptsz: (
        address: CuDevicePtr, count: usize, location: CuMemLocation, flags: u32, stream: CuStream);
    cuMemPrefetchBatchAsync, cuMemPrefetchBatchAsync_ptsz: (
        addresses: *mut CuDevicePtr, sizes: *mut usize, count: usize, locations: *mut c_void, places: *mut usize,
        kinds: usize, flags: u64, stream: CuStream);
    cuMemDiscardBatchAsync, cuMemDiscardBatchAsync_ptsz: (
        addresses: *mut CuDevicePtr, sizes: *mut usize, count: usize, flags: u64, stream: CuStream);
    cuMemDiscardAndPrefetchBatchAsync, cuMemDiscardAndPrefetchBatchAsync_ptsz: (
        addresses: *mut CuDevicePtr, sizes: *mut usize, count: usize, locations: *mut c_void, places: *mut usize,
        kinds: usize, flags: u64, stream: CuStream);
    cuStreamAttachMemAsync, cuStreamAttachMemAsync_ptsz: (
        stream: CuStream, address: CuDevicePtr, bytes: usize, flags: u32);

    // Memory that streams write, wait for, or unpack.
    cuMemBatchDecompressAsync, cuMemBatchDecompressAsync_ptsz: (
        parameters: *mut c_void, count: usize, flags: u32, failed: *mut usize, stream: CuStream);
    cuStreamWaitValue32, cuStreamWaitValue32_ptsz: (stream: CuStream, address: CuDevicePtr, value: u32, flags: u32);
    cuStreamWaitValue32_v2, cuStreamWaitValue32_v2_ptsz: (stream: CuStream, address: CuDevicePtr, value: u32, flags: u32);
    cuStreamWaitValue64, cuStreamWaitValue64_ptsz: (stream: CuStream, address: CuDevicePtr, value: u64, flags: u32);
    cuStreamWaitValue64_v2, cuStreamWaitValue64_v2_ptsz: (stream: CuStream, address: CuDevicePtr, value: u64, flags: u32);
    cuStreamWriteValue32, cuStreamWriteValue32_ptsz: (stream: CuStream, address: CuDevicePtr, value: u32, flags: u32);
    cuStreamWriteValue32_v2, cuStreamWriteValue32_v2_ptsz: (
        stream: CuStream, address: CuDevicePtr, value: u32, flags: u32);
    cuStreamWriteValue64, cuStreamWriteValue64_ptsz: (stream: CuStream, address: CuDevicePtr, value: u64, flags: u32);
    cuStreamWriteValue64_v2, cuStreamWriteValue64_v2_ptsz: (
        stream: CuStream, address: CuDevicePtr, value: u64, flags: u32);
    cuStreamBatchMemOp, cuStreamBatchMemOp_ptsz: (
        stream: CuStream, count: u32, operations: *mut CuStreamBatchMemOpParams, flags: u32);
    cuStreamBatchMemOp_v2, cuStreamBatchMemOp_v2_ptsz: (
        stream: CuStream, count: u32, operations: *mut CuStreamBatchMemOpParams, flags: u32);

    // Streams and events.
    cuEventCreate: (event: *mut CuEvent, flags: CuEventFlags);
    cuEventRecord, cuEventRecord_ptsz: (event: CuEvent, stream: CuStream);
    cuEventQuery: (event: CuEvent);
    cuEventSynchronize: (event: CuEvent);
    cuEventDestroy_v2: (event: CuEvent);
    cuStreamSynchronize, cuStreamSynchronize_ptsz: (stream: CuStream);
    cuStreamQuery, cuStreamQuery_ptsz: (stream: CuStream);
    cuStreamGetId, cuStreamGetId_ptsz: (stream: CuStream, id: *mut u64);
    cuStreamGetCtx, cuStreamGetCtx_ptsz: (stream: CuStream, context: *mut CuContext);
    cuStreamGetCtx_v2, cuStreamGetCtx_v2_ptsz: (stream: CuStream, context: *mut CuContext, green: *mut CuGreenContext);
    cuStreamWaitEvent, cuStreamWaitEvent_ptsz: (stream: CuStream, event: CuEvent, flags: u32);
    cuStreamCreate: (stream: *mut CuStream, flags: CuStreamFlags);
    cuStreamDestroy: (stream: CuStream);
    cuStreamDestroy_v2: (stream: CuStream);
    cuLaunchHostFunc, cuLaunchHostFunc_ptsz: (stream: CuStream, function: CuHostFn, user_data: *mut c_void);
    cuEventElapsedTime: (milliseconds: *mut f32, from: CuEvent, to: CuEvent);
    cuEventElapsedTime_v2: (milliseconds: *mut f32, from: CuEvent, to: CuEvent);
    cuStreamCreateWithPriority: (stream: *mut CuStream, flags: CuStreamFlags, priority: c_int);
    cuStreamGetPriority, cuStreamGetPriority_ptsz: (stream: CuStream, priority: *mut c_int);
    cuStreamGetFlags, cuStreamGetFlags_ptsz: (stream: CuStream, flags: *mut u32);

    // Captures.
    cuStreamIsCapturing, cuStreamIsCapturing_ptsz: (stream: CuStream, status: *mut CuCaptureStatus);
    cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz: (
        stream: CuStream, status: *mut CuCaptureStatus, id: *mut u64, graph: *mut CuGraph,
        dependencies: *mut *const CuGraphNode, dependency_count: *mut usize);
    cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz: (
        stream: CuStream, status: *mut CuCaptureStatus, id: *mut u64, graph: *mut CuGraph,
        dependencies: *mut *const CuGraphNode, edges: *mut *const CuGraphEdgeData, dependency_count: *mut usize);
    cuThreadExchangeStreamCaptureMode: (mode: *mut CuCaptureMode);
    cuStreamBeginCapture, cuStreamBeginCapture_ptsz: (stream: CuStream);
    cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz: (stream: CuStream, mode: CuCaptureMode);
    cuStreamEndCapture, cuStreamEndCapture_ptsz: (stream: CuStream, graph: *mut CuGraph);
    cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph_ptsz: (
        stream: CuStream, graph: CuGraph, dependencies: *const CuGraphNode, edges: *const CuGraphEdgeData, count: usize,
        mode: CuCaptureMode);

    // Code, and launches.
    cuModuleLoadData: (module: *mut CuModule, image: *const c_void);
    cuModuleUnload: (module: CuModule);
    cuModuleGetFunction: (function: *mut CuFunction, module: CuModule, name: *const c_char);
    cuFuncGetAttribute: (value: *mut c_int, attribute: u32, function: CuFunction);
    cuFuncSetAttribute: (function: CuFunction, attribute: u32, value: c_int);
    cuFuncSetCacheConfig: (function: CuFunction, config: u32);
    cuLaunchKernel, cuLaunchKernel_ptsz: (
        function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared_bytes: u32, stream: CuStream, parameters: *mut *mut c_void, extra: *mut *mut c_void);
    cuModuleLoad: (module: *mut CuModule, path: *const c_char);
    cuModuleLoadDataEx: (
        module: *mut CuModule, image: *const c_void, count: u32, options: *mut u32, values: *mut *mut c_void);
    cuModuleLoadFatBinary: (module: *mut CuModule, image: *const c_void);
    cuLibraryLoadData: (
        library: *mut CuLibrary, code: *const c_void, options: *mut u32, values: *mut *mut c_void, count: u32,
        library_options: *mut u32, library_values: *mut *mut c_void, library_count: u32);
    cuLibraryLoadFromFile: (
        library: *mut CuLibrary, path: *const c_char, options: *mut u32, values: *mut *mut c_void, count: u32,
        library_options: *mut u32, library_values: *mut *mut c_void, library_count: u32);
    cuLibraryUnload: (library: CuLibrary);
    cuLaunchKernelEx, cuLaunchKernelEx_ptsz: (
        config: *const CuLaunchConfig, function: CuFunction, parameters: *mut *mut c_void, extra: *mut *mut c_void);
    cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz: (
        function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared: u32, stream: CuStream, parameters: *mut *mut c_void);
    cuLaunchCooperativeKernelMultiDevice: (launches: *mut c_void, count: u32, flags: u32);
    cuLaunch: (function: CuFunction);
    cuLaunchGrid: (function: CuFunction, width: c_int, height: c_int);
    cuLaunchGridAsync: (function: CuFunction, width: c_int, height: c_int, stream: CuStream);
    cuLibraryGetModule: (module: *mut CuModule, library: CuLibrary);
    cuLibraryGetKernel: (kernel: *mut CuKernel, library: CuLibrary, name: *const c_char);
    cuKernelGetFunction: (function: *mut CuFunction, kernel: CuKernel);

    // Graphs.
    cuGraphInstantiateWithFlags: (executable: *mut CuGraphExec, graph: CuGraph, flags: u64);
    cuGraphLaunch, cuGraphLaunch_ptsz: (executable: CuGraphExec, stream: CuStream);
    cuGraphExecDestroy: (executable: CuGraphExec);
    cuGraphDestroy: (graph: CuGraph);
    cuGraphNodeGetDependencies: (node: CuGraphNode, dependencies: *mut CuGraphNode, count: *mut usize);
    cuGraphNodeGetDependencies_v2: (
        node: CuGraphNode, dependencies: *mut CuGraphNode, properties: *mut CuGraphEdgeData, count: *mut usize);
    cuDeviceGetGraphMemAttribute: (device: CuDevice, attribute: u32, value: *mut c_void);
    cuGraphInstantiate_v2: (
        executable: *mut CuGraphExec, graph: CuGraph, node: *mut CuGraphNode, text: *mut c_char, bytes: usize);
    cuGraphInstantiateWithParams, cuGraphInstantiateWithParams_ptsz: (
        executable: *mut CuGraphExec, graph: CuGraph, parameters: *mut CudaGraphInstantiateParams);
    cuGraphUpload, cuGraphUpload_ptsz: (executable: CuGraphExec, stream: CuStream);
    cuGraphAddMemcpyNode: (
        node: *mut CuGraphNode, graph: CuGraph, dependencies: *const CuGraphNode, count: usize, copy: *const c_void,
        context: CuContext);
    cuGraphAddMemsetNode: (
        node: *mut CuGraphNode, graph: CuGraph, dependencies: *const CuGraphNode, count: usize, fill: *const c_void,
        context: CuContext);
    cuGraphAddNode: (
        node: *mut CuGraphNode, graph: CuGraph, dependencies: *const CuGraphNode, count: usize,
        parameters: *mut c_void);
    cuGraphAddNode_v2: (
        node: *mut CuGraphNode, graph: CuGraph, dependencies: *const CuGraphNode, edges: *const CuGraphEdgeData,
        count: usize, parameters: *mut c_void);
    cuGraphMemcpyNodeSetParams: (node: CuGraphNode, copy: *const c_void);
    cuGraphMemsetNodeSetParams: (node: CuGraphNode, fill: *const c_void);
    cuGraphNodeSetParams: (node: CuGraphNode, parameters: *mut c_void);
    cuGraphExecMemcpyNodeSetParams: (executable: CuGraphExec, node: CuGraphNode, copy: *const c_void, context: CuContext);
    cuGraphExecMemsetNodeSetParams: (executable: CuGraphExec, node: CuGraphNode, fill: *const c_void, context: CuContext);
    cuGraphExecNodeSetParams: (executable: CuGraphExec, node: CuGraphNode, parameters: *mut c_void);
    cuGraphExecUpdate: (executable: CuGraphExec, graph: CuGraph, node: *mut CuGraphNode, result: *mut u32);
    cuGraphExecUpdate_v2: (executable: CuGraphExec, graph: CuGraph, result: *mut c_void);
    cuGraphCreate: (graph: *mut CuGraph, flags: u32);
}
