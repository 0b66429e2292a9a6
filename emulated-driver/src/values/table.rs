//! The driver functions, each said once: a row gives the signature, the first driver version with the
//! function, and the conditions.
//!
//! ```text
//! kind {                                     the file of `calls` with the functions
//!     name(argument: Type): 11020, Init, Safe, name_ptsz;
//!          └ the variant for programs whose stream 0 is the thread's own, where there is one
//! }
//! ```
//!
//! From the rows come the exported symbols (`exports`), the numbers and names (`functions`), and the
//! methods for Rust tests (`api`). Each of them gives the types of the arguments a meaning: `Out<T>` is a
//! result, `Maybe<T>` a result that a test may leave out, `In<T>` a value to read, `List<T>` a list to read that may be
//! null, `Text` a C string, `Host` an address of the host, `ConstHost` one that is only read, `Bytes` a size,
//! `HostCall` a function of the host.
//!
//! Functions of one name are in the order of their versions.

/// Hands the rows to a macro.
macro_rules! functions {
    ($to:ident) => { $to! {
        by_hand {
            cuGetErrorName(code: u32, name: Out<*const c_char>): 6000, Nothing, Safe;
            cuGetErrorString(code: u32, text: Out<*const c_char>): 6000, Nothing, Safe;
        }
        start {
            cuInit(flags: u32): 2000, Nothing, Safe;
            cuGetExportTable(table: Out<*const c_void>, uuid: Maybe<[u8; 16]>): 3000, Nothing, Safe;
            cuEmulatedUnknownFunction(number: u64, doubled: Out<u64>): 2000, Nothing, Safe;
            cuDriverGetVersion(version: Out<c_int>): 2020, Nothing, Safe;
            cuGetProcAddress(symbol: Text, address: Out<*mut c_void>, version: c_int, flags: u64): 11030, Nothing, Safe;
            cuGetProcAddress_v2(symbol: Text, address: Out<*mut c_void>, version: c_int, flags: u64, status: Maybe<c_int>): 12000, Nothing, Safe;
        }
        device {
            cuDeviceGet(device: Out<c_int>, ordinal: c_int): 2000, Init, Safe;
            cuDeviceGetCount(count: Out<c_int>): 2000, Init, Safe;
            cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, device: c_int): 2000, Init, Safe;
            cuDeviceGetName(name: Maybe<c_char>, bytes: c_int, device: c_int): 2000, Init, Safe;
            cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int): 3020, Init, Safe;
            cuDeviceGetPCIBusId(name: Maybe<c_char>, bytes: c_int, device: c_int): 4010, Init, Safe;
            cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: c_int): 11040, Init, Safe;
            cuDeviceCanAccessPeer(can: Out<c_int>, device: c_int, peer: c_int): 4000, Init, Safe;
        }
        pool {
            cuDeviceGetDefaultMemPool(pool: Out<u64>, device: c_int): 11020, Init, Safe;
            cuDeviceGetMemPool(pool: Out<u64>, device: c_int): 11020, Init, Safe;
            cuDeviceSetMemPool(device: c_int, pool: u64): 11020, Init, Safe;
            cuMemPoolCreate(pool: Out<u64>, properties: In<PoolProperties>): 11020, Init, Unsafe;
            cuMemPoolDestroy(pool: u64): 11020, Init, Unsafe;
            cuMemPoolGetAttribute(pool: u64, attribute: c_int, value: Out<u64>): 11020, Init, Unsafe;
            cuMemPoolSetAttribute(pool: u64, attribute: c_int, value: Out<u64>): 11020, Init, Unsafe;
            cuMemPoolSetAccess(pool: u64, descriptors: List<Access>, count: usize): 11020, Init, Unsafe;
            cuMemPoolTrimTo(pool: u64, kept_bytes: Bytes): 11020, Init, Unsafe;
            cuMemAllocAsync(address: Out<u64>, bytes: Bytes, stream: u64): 11020, Init, Safe, cuMemAllocAsync_ptsz;
            cuMemAllocFromPoolAsync(address: Out<u64>, bytes: Bytes, pool: u64, stream: u64): 11020, Init, Safe, cuMemAllocFromPoolAsync_ptsz;
            cuMemFreeAsync(address: u64, stream: u64): 11020, Init, Safe, cuMemFreeAsync_ptsz;
        }
        context {
            cuCtxEnablePeerAccess(peer: u64, flags: u32): 4000, Context, Unsafe;
            cuCtxDisablePeerAccess(peer: u64): 4000, Context, Unsafe;
            cuDevicePrimaryCtxRetain(context: Out<u64>, device: c_int): 7000, Init, Safe;
            cuDevicePrimaryCtxRelease_v2(device: c_int): 11000, Init, Safe;
            cuDevicePrimaryCtxReset_v2(device: c_int): 11000, Init, Unsafe;
            cuDevicePrimaryCtxGetState(device: c_int, flags: Out<u32>, active: Out<c_int>): 7000, Init, Safe;
            cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: u32): 11000, Init, Safe;
            cuCtxGetCurrent(context: Out<u64>): 4000, Init, Safe;
            cuCtxSetCurrent(context: u64): 4000, Init, Safe;
            cuCtxPushCurrent_v2(context: u64): 4000, Init, Safe;
            cuCtxPopCurrent_v2(context: Out<u64>): 4000, Init, Safe;
            cuCtxGetDevice(device: Out<c_int>): 2000, Init, Safe;
            cuCtxGetId(context: u64, id: Out<u64>): 12000, Init, Safe;
            cuCtxGetDevice_v2(device: Out<c_int>, context: u64): 13000, Init, Safe;
            cuCtxSynchronize(): 2000, Context, Safe;
            cuCtxSynchronize_v2(context: u64): 13000, Init, Safe;
            cuCtxRecordEvent(context: u64, event: u64): 12050, Init, Safe;
            cuCtxWaitEvent(context: u64, event: u64): 12050, Init, Safe;
            cuCtxCreate_v2(context: Out<u64>, flags: u32, device: c_int): 3020, Init, Unsafe;
            cuCtxCreate_v3(context: Out<u64>, affinities: ConstHost, count: c_int, flags: u32, device: c_int): 11040, Init, Unsafe;
            cuCtxCreate_v4(context: Out<u64>, parameters: ConstHost, flags: u32, device: c_int): 12050, Init, Unsafe;
            cuCtxDestroy_v2(context: u64): 4000, Init, Unsafe;
            cuCtxAttach(context: Out<u64>, flags: u32): 2000, Context, Safe;
            cuCtxDetach(context: u64): 2000, Init, Unsafe;
        }
        green {
            cuGreenCtxCreate(green: Out<u64>, descriptor: u64, device: c_int, flags: u32): 12040, Init, Unsafe;
            cuGreenCtxDestroy(green: u64): 12040, Init, Unsafe;
            cuCtxFromGreenCtx(context: Out<u64>, green: u64): 12040, Init, Safe;
        }
        memory {
            cuMemAlloc_v2(address: Out<u64>, bytes: Bytes): 3020, Context, Unsafe;
            cuMemAllocPitch_v2(address: Out<u64>, pitch: Out<usize>, width: Bytes, height: Bytes, element: u32): 3020, Context, Unsafe;
            cuMemAllocManaged(address: Out<u64>, bytes: Bytes, flags: u32): 6000, Context, Unsafe;
            cuMemFree_v2(address: u64): 3020, Init, Unsafe;
            cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>): 3020, Context, Safe;
            cuMemGetAddressRange_v2(base: Out<u64>, bytes: Out<usize>, address: u64): 3020, Context, Safe;
        }
        array {
            cuArrayCreate_v2(array: Out<u64>, shape: In<ArrayShape>): 3020, Context, Unsafe;
            cuArray3DCreate_v2(array: Out<u64>, shape: In<SolidShape>): 3020, Context, Unsafe;
            cuArrayDestroy(array: u64): 2000, Init, Unsafe;
            cuMipmappedArrayCreate(array: Out<u64>, shape: In<SolidShape>, levels: u32): 5000, Context, Unsafe;
            cuMipmappedArrayDestroy(array: u64): 5000, Init, Unsafe;
        }
        pointer {
            cuPointerGetAttribute(value: Maybe<u8>, attribute: c_int, address: u64): 4000, Init, Safe;
            cuPointerGetAttributes(count: u32, attributes: List<c_int>, values: List<*mut u8>, address: u64): 7000, Init, Safe;
            cuPointerSetAttribute(value: List<u32>, attribute: c_int, address: u64): 6000, Init, Unsafe;
        }
        ipc {
            cuIpcGetMemHandle(handle: Out<IpcMemory>, address: u64): 4010, Context, Safe;
            cuIpcOpenMemHandle_v2(address: Out<u64>, handle: IpcMemory, flags: u32): 11000, Context, Unsafe;
            cuIpcCloseMemHandle(address: u64): 4010, Context, Unsafe;
        }
        host {
            cuMemAllocHost_v2(memory: Out<*mut c_void>, bytes: Bytes): 3020, Context, Unsafe;
            cuMemHostAlloc(memory: Out<*mut c_void>, bytes: Bytes, flags: u32): 2020, Context, Unsafe;
            cuMemFreeHost(memory: Host): 2000, Init, Unsafe;
            cuMemHostRegister_v2(memory: Host, bytes: Bytes, flags: u32): 6050, Context, Unsafe;
            cuMemHostUnregister(memory: Host): 4000, Init, Unsafe;
            cuMemHostGetDevicePointer_v2(address: Out<u64>, memory: Host, flags: u32): 3020, Context, Safe;
        }
        transfer {
            cuMemcpy(to: u64, from: u64, bytes: Bytes): 4000, Context, Safe, cuMemcpy_ptds;
            cuMemcpyHtoD_v2(to: u64, from: ConstHost, bytes: Bytes): 3020, Context, Safe, cuMemcpyHtoD_v2_ptds;
            cuMemcpyDtoH_v2(to: Host, from: u64, bytes: Bytes): 3020, Context, Safe, cuMemcpyDtoH_v2_ptds;
            cuMemcpyDtoD_v2(to: u64, from: u64, bytes: Bytes): 3020, Context, Safe, cuMemcpyDtoD_v2_ptds;
            cuMemcpyPeer(to: u64, to_context: u64, from: u64, from_context: u64, bytes: Bytes): 4000, Context, Safe, cuMemcpyPeer_ptds;
            cuMemcpyAsync(to: u64, from: u64, bytes: Bytes, stream: u64): 4000, Init, Safe, cuMemcpyAsync_ptsz;
            cuMemcpyHtoDAsync_v2(to: u64, from: ConstHost, bytes: Bytes, stream: u64): 3020, Init, Safe, cuMemcpyHtoDAsync_v2_ptsz;
            cuMemcpyDtoHAsync_v2(to: Host, from: u64, bytes: Bytes, stream: u64): 3020, Init, Safe, cuMemcpyDtoHAsync_v2_ptsz;
            cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: Bytes, stream: u64): 3020, Init, Safe, cuMemcpyDtoDAsync_v2_ptsz;
            cuMemcpyPeerAsync(to: u64, to_context: u64, from: u64, from_context: u64, bytes: Bytes, stream: u64): 4000, Init, Safe, cuMemcpyPeerAsync_ptsz;
            cuMemPrefetchAsync(address: u64, bytes: Bytes, device: c_int, stream: u64): 8000, Init, Safe, cuMemPrefetchAsync_ptsz;
            cuMemPrefetchAsync_v2(address: u64, bytes: Bytes, location: Location, flags: u32, stream: u64): 12020, Init, Safe, cuMemPrefetchAsync_v2_ptsz;
        }
        rows {
            cuMemcpy2D_v2(copy: In<Copy2D>): 3020, Context, Safe, cuMemcpy2D_v2_ptds;
            cuMemcpy2DUnaligned_v2(copy: In<Copy2D>): 3020, Context, Safe, cuMemcpy2DUnaligned_v2_ptds;
            cuMemcpy3D_v2(copy: In<Copy3D>): 3020, Context, Safe, cuMemcpy3D_v2_ptds;
            cuMemcpy3DPeer(copy: In<Copy3D>): 4000, Context, Safe, cuMemcpy3DPeer_ptds;
            cuMemcpy2DAsync_v2(copy: In<Copy2D>, stream: u64): 3020, Init, Safe, cuMemcpy2DAsync_v2_ptsz;
            cuMemcpy3DAsync_v2(copy: In<Copy3D>, stream: u64): 3020, Init, Safe, cuMemcpy3DAsync_v2_ptsz;
            cuMemcpy3DPeerAsync(copy: In<Copy3D>, stream: u64): 4000, Init, Safe, cuMemcpy3DPeerAsync_ptsz;
        }
        fill {
            cuMemsetD8_v2(to: u64, value: u8, count: Bytes): 3020, Context, Safe, cuMemsetD8_v2_ptds;
            cuMemsetD2D8_v2(to: u64, pitch: Bytes, value: u8, width: Bytes, height: Bytes): 3020, Context, Safe, cuMemsetD2D8_v2_ptds;
            cuMemsetD8Async(to: u64, value: u8, count: Bytes, stream: u64): 3020, Init, Safe, cuMemsetD8Async_ptsz;
            cuMemsetD2D8Async(to: u64, pitch: Bytes, value: u8, width: Bytes, height: Bytes, stream: u64): 3020, Init, Safe, cuMemsetD2D8Async_ptsz;
            cuMemsetD16_v2(to: u64, value: u16, count: Bytes): 3020, Context, Safe, cuMemsetD16_v2_ptds;
            cuMemsetD2D16_v2(to: u64, pitch: Bytes, value: u16, width: Bytes, height: Bytes): 3020, Context, Safe, cuMemsetD2D16_v2_ptds;
            cuMemsetD16Async(to: u64, value: u16, count: Bytes, stream: u64): 3020, Init, Safe, cuMemsetD16Async_ptsz;
            cuMemsetD2D16Async(to: u64, pitch: Bytes, value: u16, width: Bytes, height: Bytes, stream: u64): 3020, Init, Safe, cuMemsetD2D16Async_ptsz;
            cuMemsetD32_v2(to: u64, value: u32, count: Bytes): 3020, Context, Safe, cuMemsetD32_v2_ptds;
            cuMemsetD2D32_v2(to: u64, pitch: Bytes, value: u32, width: Bytes, height: Bytes): 3020, Context, Safe, cuMemsetD2D32_v2_ptds;
            cuMemsetD32Async(to: u64, value: u32, count: Bytes, stream: u64): 3020, Init, Safe, cuMemsetD32Async_ptsz;
            cuMemsetD2D32Async(to: u64, pitch: Bytes, value: u32, width: Bytes, height: Bytes, stream: u64): 3020, Init, Safe, cuMemsetD2D32Async_ptsz;
        }
        value {
            cuStreamWaitValue32(stream: u64, address: u64, value: u32, flags: u32): 8000, Init, Safe, cuStreamWaitValue32_ptsz;
            cuStreamWaitValue32_v2(stream: u64, address: u64, value: u32, flags: u32): 11070, Init, Safe, cuStreamWaitValue32_v2_ptsz;
            cuStreamWaitValue64(stream: u64, address: u64, value: u64, flags: u32): 9000, Init, Safe, cuStreamWaitValue64_ptsz;
            cuStreamWaitValue64_v2(stream: u64, address: u64, value: u64, flags: u32): 11070, Init, Safe, cuStreamWaitValue64_v2_ptsz;
            cuStreamWriteValue32(stream: u64, address: u64, value: u32, flags: u32): 8000, Init, Safe, cuStreamWriteValue32_ptsz;
            cuStreamWriteValue32_v2(stream: u64, address: u64, value: u32, flags: u32): 11070, Init, Safe, cuStreamWriteValue32_v2_ptsz;
            cuStreamWriteValue64(stream: u64, address: u64, value: u64, flags: u32): 9000, Init, Safe, cuStreamWriteValue64_ptsz;
            cuStreamWriteValue64_v2(stream: u64, address: u64, value: u64, flags: u32): 11070, Init, Safe, cuStreamWriteValue64_v2_ptsz;
            cuStreamBatchMemOp(stream: u64, count: u32, operations: List<[u64; 6]>, flags: u32): 8000, Init, Safe, cuStreamBatchMemOp_ptsz;
            cuStreamBatchMemOp_v2(stream: u64, count: u32, operations: List<[u64; 6]>, flags: u32): 11070, Init, Safe, cuStreamBatchMemOp_v2_ptsz;
        }
        virtual_memory {
            cuMemGetAllocationGranularity(bytes: Out<usize>, properties: In<Properties>, option: c_int): 10020, Init, Safe;
            cuMemAddressReserve(address: Out<u64>, bytes: Bytes, alignment: Bytes, hint: u64, flags: u64): 10020, Init, Safe;
            cuMemAddressFree(address: u64, bytes: Bytes): 10020, Init, Safe;
            cuMemCreate(handle: Out<u64>, bytes: Bytes, properties: In<Properties>, flags: u64): 10020, Init, Safe;
            cuMemRelease(handle: u64): 10020, Init, Safe;
            cuMemMap(address: u64, bytes: Bytes, offset: Bytes, handle: u64, flags: u64): 10020, Init, Safe;
            cuMemUnmap(address: u64, bytes: Bytes): 10020, Init, Safe;
            cuMemSetAccess(address: u64, bytes: Bytes, descriptors: List<Access>, count: usize): 10020, Init, Safe;
            cuMemExportToShareableHandle(descriptor: Out<c_int>, handle: u64, kind: c_int, flags: u64): 10020, Init, Safe;
            cuMemImportFromShareableHandle(handle: Out<u64>, descriptor: Host, kind: c_int): 10020, Init, Safe;
        }
        event {
            cuEventCreate(event: Out<u64>, flags: u32): 2000, Context, Safe;
            cuEventRecord(event: u64, stream: u64): 2000, Init, Safe, cuEventRecord_ptsz;
            cuEventQuery(event: u64): 2000, Init, Safe;
            cuEventSynchronize(event: u64): 2000, Init, Safe;
            cuEventElapsedTime(milliseconds: Out<f32>, from: u64, to: u64): 2000, Init, Safe;
            cuEventElapsedTime_v2(milliseconds: Out<f32>, from: u64, to: u64): 12080, Init, Safe;
            cuEventDestroy_v2(event: u64): 4000, Init, Safe;
            cuStreamWaitEvent(stream: u64, event: u64, flags: u32): 3020, Init, Safe, cuStreamWaitEvent_ptsz;
        }
        stream {
            cuStreamCreate(stream: Out<u64>, flags: u32): 2000, Context, Safe;
            cuStreamCreateWithPriority(stream: Out<u64>, flags: u32, priority: c_int): 5050, Context, Safe;
            cuStreamGetPriority(stream: u64, priority: Out<c_int>): 5050, Init, Safe, cuStreamGetPriority_ptsz;
            cuStreamGetFlags(stream: u64, flags: Out<u32>): 5050, Init, Safe, cuStreamGetFlags_ptsz;
            cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>): 5050, Context, Safe;
            cuStreamDestroy_v2(stream: u64): 4000, Init, Safe;
            cuStreamSynchronize(stream: u64): 2000, Init, Safe, cuStreamSynchronize_ptsz;
            cuStreamQuery(stream: u64): 2000, Init, Safe, cuStreamQuery_ptsz;
            cuStreamGetId(stream: u64, id: Out<u64>): 12000, Init, Safe, cuStreamGetId_ptsz;
            cuStreamGetCtx(stream: u64, context: Out<u64>): 9020, Init, Safe, cuStreamGetCtx_ptsz;
            cuStreamGetCtx_v2(stream: u64, context: Out<u64>, green: Maybe<u64>): 12050, Init, Safe, cuStreamGetCtx_v2_ptsz;
            cuLaunchHostFunc(stream: u64, function: HostCall, argument: Host): 10000, Init, Safe, cuLaunchHostFunc_ptsz;
        }
        capture {
            cuStreamIsCapturing(stream: u64, status: Out<c_int>): 10000, Init, Safe, cuStreamIsCapturing_ptsz;
            cuStreamGetCaptureInfo_v2(stream: u64, status: Out<c_int>, id: Out<u64>, graph: Maybe<u64>, nodes: Maybe<*const u64>, count: Maybe<usize>): 11030, Init, Safe, cuStreamGetCaptureInfo_v2_ptsz;
            cuStreamGetCaptureInfo_v3(stream: u64, status: Out<c_int>, id: Out<u64>, graph: Maybe<u64>, nodes: Maybe<*const u64>, edges: Maybe<*const [u8; 8]>, count: Maybe<usize>): 12030, Init, Safe, cuStreamGetCaptureInfo_v3_ptsz;
            cuThreadExchangeStreamCaptureMode(mode: Out<c_int>): 10010, Init, Safe;
            cuStreamBeginCapture_v2(stream: u64, mode: c_int): 10010, Init, Safe, cuStreamBeginCapture_v2_ptsz;
            cuStreamEndCapture(stream: u64, graph: Out<u64>): 10000, Init, Safe, cuStreamEndCapture_ptsz;
            cuGraphNodeGetDependencies(node: u64, nodes: Maybe<u64>, count: Out<usize>): 10000, Init, Safe;
            cuGraphNodeGetDependencies_v2(node: u64, nodes: Maybe<u64>, properties: Maybe<[u8; 8]>, count: Out<usize>): 12030, Init, Safe;
        }
        module {
            cuModuleLoadData(module: Out<u64>, image: Text): 2000, Context, Unsafe;
            cuLibraryLoadData(library: Out<u64>, code: Text, jit_options: List<c_int>, jit_values: List<*const c_void>, jit_count: u32, options: List<c_int>, values: List<*const c_void>, count: u32): 12000, Init, Safe;
            cuLibraryUnload(library: u64): 12000, Init, Safe;
            cuLibraryGetModule(module: Out<u64>, library: u64): 12000, Context, Safe;
            cuLibraryGetKernel(kernel: Out<u64>, library: u64, name: Text): 12000, Init, Safe;
            cuKernelGetFunction(function: Out<u64>, kernel: u64): 12000, Context, Safe;
            cuModuleUnload(module: u64): 2000, Context, Unsafe;
            cuModuleGetFunction(function: Out<u64>, module: u64, name: Text): 2000, Context, Safe;
            cuLaunchKernel(function: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared_bytes: u32, stream: u64, params: List<*const u64>, extra: ConstHost): 4000, Context, Safe, cuLaunchKernel_ptsz;
            cuLaunchCooperativeKernel(function: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared_bytes: u32, stream: u64, params: List<*const u64>): 9000, Context, Safe, cuLaunchCooperativeKernel_ptsz;
            cuLaunchKernelEx(config: In<LaunchConfig>, function: u64, params: List<*const u64>, extra: ConstHost): 11060, Context, Safe, cuLaunchKernelEx_ptsz;
        }
        graph {
            cuGraphCreate(graph: Out<u64>, flags: u32): 10000, Init, Safe;
            cuGraphInstantiate_v2(executable: Out<u64>, graph: u64, error_node: Maybe<u64>, log: Maybe<c_char>, log_bytes: usize): 11000, Init, Safe;
            cuGraphInstantiateWithParams(executable: Out<u64>, graph: u64, parameters: Out<InstantiateParams>): 12000, Init, Safe, cuGraphInstantiateWithParams_ptsz;
            cuGraphInstantiateWithFlags(executable: Out<u64>, graph: u64, flags: u64): 11040, Init, Safe;
            cuGraphUpload(executable: u64, stream: u64): 11010, Init, Safe, cuGraphUpload_ptsz;
            cuGraphLaunch(executable: u64, stream: u64): 10000, Init, Safe, cuGraphLaunch_ptsz;
            cuGraphExecDestroy(executable: u64): 10000, Init, Safe;
            cuGraphDestroy(graph: u64): 10000, Init, Safe;
        }
    } };
}
pub(crate) use functions;
