//! The functions in place of the driver's, a row for each.
//!
//! A row has the symbol and the parameters of `cuda.h`. The group of the row decides the way of a call:
//!
//! ```text
//! served      answered by the named method of the process's state
//! measured    answered by the driver, and the taken memory is booked under the named kind
//! ending      answered by the driver, which frees memory of the named kind, and measured
//! created     an array, answered by the driver and measured; beyond the limit, the named function destroys the array
//! launched    a launch, measured under the named kind at the first of the function or graph, and touching
//! touching    answered by the driver, which reads or writes memory of devices
//! ```
//!
//! Handles and structures are untyped pointers where the library only passes them on. `tests/header.rs` compares
//! the rows with `cuda.h`. A program finds a function by the driver's address, and the first row with the address is the
//! program's function. So the newest version of a name comes first, whose addresses are the widest.

use crate::call::{Way, call, launched, measured, per_thread, touching, visit, way, way_of_launch};
use cachalot_cuda::CuResult;
use cachalot_cuda::driver::types::{
    CuContext, CuDevice, CuDevicePtr, CuFunction, CuGraph, CuGraphEdgeData, CuGraphExec, CuGraphNode, CuMemAccessDesc,
    CuMemAllocationProp, CuMemHandle, CuMemLocation, CuMemoryPool, CuModule, CuStream,
};
use cachalot_run::ledger::Kind;
use cachalot_run::serve::tells_first_launches;
use cachalot_run::types::{CuGreenContext, CuIpcMemHandle};
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr::NonNull;

/// The address of a function, for a table in use by all threads.
pub(crate) struct Address(pub(crate) *mut c_void);

// SAFETY: the address of code is a number, and code is never written.
unsafe impl Sync for Address {}

/// Sends a call the way of the row's group. `$at` is the place of the row's name, and `$real` returns
/// the call of the driver's function, made where it is needed: a value made before would write the arguments to memory.
macro_rules! answer {
    (served, $at:ident, $real:ident, $method:ident($($given:expr),*)) => {
        call(
            $at,
            |process| {
                // SAFETY: the arguments are the caller's, who calls the driver's function of this name.
                unsafe { process.$method($($given),*) }
            },
            $real(),
        )
    };
    (measured, $at:ident, $real:ident, $kind:ident) => { measured($at, Kind::$kind, false, $real(), |_| false) };
    (ending, $at:ident, $real:ident, $kind:ident) => { measured($at, Kind::$kind, true, $real(), |_| false) };
    (created, $at:ident, $real:ident, $destroy:ident($array:expr)) => {
        measured($at, Kind::Array, false, $real(), |process| {
            // SAFETY: the call has succeeded, so the driver has written the array, which the caller does not know yet.
            unsafe { process.real().$destroy($array.read()) }.is_success()
        })
    };
    (launched, $at:ident, $real:ident, $kind:ident($launched:expr)) => {
        if tells_first_launches() {
            launched($at, Kind::$kind, $launched.0, $real())
        } else {
            touching($at, $real())
        }
    };
    (touching, $at:ident, $real:ident) => { touching($at, $real()) };
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
        $($name:ident($($argument:ident: $type:ty),*) $(=> $answer:ident $(($($given:expr),*))?)?;)*
    })*) => {
        /// The exported symbols: the functions of the table and the two resolvers.
        pub(crate) const NAMES: &[&CStr] = &[
            $($(name(concat!(stringify!($name), "\0")),)*)*
            c"cuGetProcAddress",
            c"cuGetProcAddress_v2",
        ];

        /// Our functions, in the order of [`NAMES`].
        pub(crate) static OURS: [Address; NAMES.len()] = [
            $($(Address($name as *mut c_void),)*)*
            Address(crate::resolver::cuGetProcAddress as *mut c_void),
            Address(crate::resolver::cuGetProcAddress_v2 as *mut c_void),
        ];

        $($(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $type),*) -> CuResult {
                type Function = unsafe extern "C" fn($($type),*) -> CuResult;
                unsafe extern "C" fn answer($($argument: $type),*) -> CuResult {
                    let at = const { index(stringify!($name)) };
                    let real = || move |address: NonNull<c_void>| {
                        // SAFETY: the address is the driver's function of this name, with this signature.
                        let real = unsafe { core::mem::transmute::<NonNull<c_void>, Function>(address) };
                        // SAFETY: the arguments are the caller's, who calls the driver's function of this name.
                        unsafe { real($($argument),*) }
                    };
                    answer!($group, at, real $(, $answer $(($($given),*))?)?)
                }
                // Never inlined: the exported function would write the arguments for this further call before every jump, too.
                #[inline(never)]
                unsafe extern "C" fn inside($($argument: $type),*) -> CuResult {
                    let Some((real, visit)) = visit(const { index(stringify!($name)) }) else {
                        // SAFETY: the arguments are the caller's, who calls the driver's function of this name.
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
                // One jump for all, with the arguments where they are. Of several the compiler makes calls.
                // SAFETY: the arguments are the caller's, who calls the driver's function of this name.
                unsafe { to($($argument),*) }
            }
        )*)*
    };
}

/// Returns a name for the loader.
const fn name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name without a zero inside"),
    }
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
        cuMemAlloc_v2(address: *mut CuDevicePtr, bytes: usize) => mem_alloc(address, bytes);
        cuMemFree_v2(address: CuDevicePtr) => mem_free(address);
        cuMemAllocPitch_v2(address: *mut CuDevicePtr, pitch: *mut usize, width: usize, height: usize, element: c_uint) => mem_alloc_pitch(address, pitch, width, height, element);
        cuMemAllocAsync(address: *mut CuDevicePtr, bytes: usize, stream: CuStream) => mem_alloc_async(address, bytes, stream);
        cuMemAllocAsync_ptsz(address: *mut CuDevicePtr, bytes: usize, stream: CuStream) => mem_alloc_async(address, bytes, per_thread(stream));
        cuMemFreeAsync(address: CuDevicePtr, stream: CuStream) => mem_free_async(address, stream);
        cuMemFreeAsync_ptsz(address: CuDevicePtr, stream: CuStream) => mem_free_async(address, per_thread(stream));
        cuMemAllocFromPoolAsync(address: *mut CuDevicePtr, bytes: usize, pool: CuMemoryPool, stream: CuStream) => mem_alloc_from_pool_async(address, bytes, pool, stream);
        cuMemAllocFromPoolAsync_ptsz(address: *mut CuDevicePtr, bytes: usize, pool: CuMemoryPool, stream: CuStream) => mem_alloc_from_pool_async(address, bytes, pool, per_thread(stream));
        cuDeviceSetMemPool(device: CuDevice, pool: CuMemoryPool) => device_set_mem_pool(device, pool);
        // Memory that is counted.
        cuMemAllocManaged(address: *mut CuDevicePtr, bytes: usize, flags: c_uint) => mem_alloc_managed(address, bytes, flags);
        cuMemHostAlloc(address: *mut *mut c_void, bytes: usize, flags: c_uint) => mem_host_alloc(address, bytes, flags);
        cuMemAllocHost_v2(address: *mut *mut c_void, bytes: usize) => mem_alloc_host(address, bytes);
        cuMemFreeHost(address: *mut c_void) => mem_free_host(address);
        cuMemCreate(handle: *mut CuMemHandle, bytes: usize, properties: *const CuMemAllocationProp, flags: u64) => mem_create(handle, bytes, properties, flags);
        cuMemRelease(handle: CuMemHandle) => mem_release(handle);
        cuMemGetInfo_v2(free: *mut usize, total: *mut usize) => mem_get_info(free, total);
        // Memory that the program maps by itself.
        cuMemMap(address: CuDevicePtr, bytes: usize, offset: usize, handle: CuMemHandle, flags: u64) => mem_map(address, bytes, offset, handle, flags);
        cuMemUnmap(address: CuDevicePtr, bytes: usize) => mem_unmap(address, bytes);
        cuMemAddressFree(address: CuDevicePtr, bytes: usize) => mem_address_free(address, bytes);
        cuMemSetAccess(address: CuDevicePtr, bytes: usize, access: *const CuMemAccessDesc, count: usize) => mem_set_access(address, bytes, access, count);
        cuMemRetainAllocationHandle(handle: *mut CuMemHandle, address: *mut c_void) => mem_retain_allocation_handle(handle, address);
        cuMemGetAllocationPropertiesFromHandle(properties: *mut CuMemAllocationProp, handle: CuMemHandle) => mem_get_allocation_properties_from_handle(properties, handle);
        cuMemExportToShareableHandle(shareable: *mut c_void, handle: CuMemHandle, kind: c_int, flags: u64) => mem_export_to_shareable_handle(shareable, handle, kind, flags);
        cuMemImportFromShareableHandle(handle: *mut CuMemHandle, shareable: *mut c_void, kind: c_int) => mem_import_from_shareable_handle(handle, shareable, kind);
        cuMemGetHandleForAddressRange(handle: *mut c_void, address: CuDevicePtr, bytes: usize, kind: c_int, flags: u64) => mem_get_handle_for_address_range(handle, address, bytes, kind, flags);
        cuMulticastBindMem(multicast: CuMemHandle, at: usize, memory: CuMemHandle, offset: usize, bytes: usize, flags: u64) => multicast_bind_mem(multicast, at, memory, offset, bytes, flags);
        cuMulticastBindAddr(multicast: CuMemHandle, at: usize, address: CuDevicePtr, bytes: usize, flags: u64) => multicast_bind_addr(multicast, at, address, bytes, flags);
        // What a program asks about an address.
        cuMemGetAddressRange_v2(base: *mut CuDevicePtr, bytes: *mut usize, address: CuDevicePtr) => mem_get_address_range(base, bytes, address);
        cuPointerGetAttribute(value: *mut c_void, attribute: c_int, address: CuDevicePtr) => pointer_get_attribute(value, attribute, address);
        cuPointerGetAttributes(count: c_uint, attributes: *mut c_int, values: *mut *mut c_void, address: CuDevicePtr) => pointer_get_attributes(count, attributes, values, address);
        cuPointerSetAttribute(value: *const c_void, attribute: c_int, address: CuDevicePtr) => pointer_set_attribute(value, attribute, address);
        // Memory of another process, of a peer, and of a pool.
        cuIpcGetMemHandle(handle: *mut CuIpcMemHandle, address: CuDevicePtr) => ipc_get_mem_handle(handle, address);
        cuIpcOpenMemHandle_v2(address: *mut CuDevicePtr, handle: CuIpcMemHandle, flags: c_uint) => ipc_open_mem_handle(address, handle, flags);
        cuIpcCloseMemHandle(address: CuDevicePtr) => ipc_close_mem_handle(address);
        cuMemPoolSetAccess(pool: CuMemoryPool, access: *const CuMemAccessDesc, count: usize) => mem_pool_set_access(pool, access, count);
        cuMemPoolGetAttribute(pool: CuMemoryPool, attribute: c_int, value: *mut c_void) => mem_pool_get_attribute(pool, attribute, value);
        cuMemPoolSetAttribute(pool: CuMemoryPool, attribute: c_int, value: *mut c_void) => mem_pool_set_attribute(pool, attribute, value);
        cuMemPoolTrimTo(pool: CuMemoryPool, keep: usize) => mem_pool_trim_to(pool, keep);
        cuMemPoolDestroy(pool: CuMemoryPool) => mem_pool_destroy(pool);
        cuMemPoolExportToShareableHandle(handle: *mut c_void, pool: CuMemoryPool, kind: c_int, flags: u64) => mem_pool_export_to_shareable_handle(handle, pool, kind, flags);
        cuMemPoolExportPointer(data: *mut c_void, address: CuDevicePtr) => mem_pool_export_pointer(data, address);
        cuCtxEnablePeerAccess(peer: CuContext, flags: c_uint) => ctx_enable_peer_access(peer, flags);
        // Contexts, streams and captures.
        cuCtxCreate_v2(context: *mut CuContext, flags: c_uint, device: CuDevice) => ctx_create_v2(context, flags, device);
        cuCtxCreate_v3(context: *mut CuContext, affinity: *mut c_void, count: c_int, flags: c_uint, device: CuDevice) => ctx_create_v3(context, affinity, count, flags, device);
        cuCtxCreate_v4(context: *mut CuContext, parameters: *mut c_void, flags: c_uint, device: CuDevice) => ctx_create_v4(context, parameters, flags, device);
        cuCtxDestroy_v2(context: CuContext) => ctx_destroy(context);
        cuDevicePrimaryCtxRetain(context: *mut CuContext, device: CuDevice) => device_primary_ctx_retain(context, device);
        cuDevicePrimaryCtxRelease_v2(device: CuDevice) => device_primary_ctx_release(device);
        cuDevicePrimaryCtxReset_v2(device: CuDevice) => device_primary_ctx_reset(device);
        cuGreenCtxCreate(green: *mut CuGreenContext, resources: *mut c_void, device: CuDevice, flags: c_uint) => green_ctx_create(green, resources, device, flags);
        cuGreenCtxDestroy(green: CuGreenContext) => green_ctx_destroy(green);
        cuStreamDestroy_v2(stream: CuStream) => stream_destroy(stream);
        cuStreamBeginCapture_v2(stream: CuStream, mode: c_int) => stream_begin_capture(stream, mode);
        cuStreamBeginCapture_v2_ptsz(stream: CuStream, mode: c_int) => stream_begin_capture(per_thread(stream), mode);
        cuStreamBeginCaptureToGraph(stream: CuStream, graph: CuGraph, nodes: *const CuGraphNode, edges: *const CuGraphEdgeData, count: usize, mode: c_int) => stream_begin_capture_to_graph(stream, graph, nodes, edges, count, mode);
        cuStreamBeginCaptureToGraph_ptsz(stream: CuStream, graph: CuGraph, nodes: *const CuGraphNode, edges: *const CuGraphEdgeData, count: usize, mode: c_int) => stream_begin_capture_to_graph(per_thread(stream), graph, nodes, edges, count, mode);
        // The functions of CUDA 10 and before: older names, and captures of the global mode.
        cuCtxCreate(context: *mut CuContext, flags: c_uint, device: CuDevice) => ctx_create_v2(context, flags, device);
        cuCtxDestroy(context: CuContext) => ctx_destroy(context);
        cuCtxAttach(context: *mut CuContext, flags: c_uint) => ctx_attach(context, flags);
        cuCtxDetach(context: CuContext) => ctx_detach(context);
        cuDevicePrimaryCtxRelease(device: CuDevice) => device_primary_ctx_release(device);
        cuDevicePrimaryCtxReset(device: CuDevice) => device_primary_ctx_reset(device);
        cuStreamDestroy(stream: CuStream) => stream_destroy(stream);
        cuStreamBeginCapture(stream: CuStream) => stream_begin_capture(stream, 0);
        cuStreamBeginCapture_ptsz(stream: CuStream) => stream_begin_capture(per_thread(stream), 0);
        cuStreamEndCapture(stream: CuStream, graph: *mut CuGraph) => stream_end_capture(stream, graph);
        cuStreamEndCapture_ptsz(stream: CuStream, graph: *mut CuGraph) => stream_end_capture(per_thread(stream), graph);
    }
    measured {
        // Code and graphs, whose memory the driver takes on its own.
        cuModuleLoad(module: *mut CuModule, path: *const c_char) => Module;
        cuModuleLoadData(module: *mut CuModule, image: *const c_void) => Module;
        cuModuleLoadDataEx(module: *mut CuModule, image: *const c_void, count: c_uint, options: *mut c_int, values: *mut *mut c_void) => Module;
        cuModuleLoadFatBinary(module: *mut CuModule, image: *const c_void) => Module;
        cuLibraryLoadData(library: *mut *mut c_void, code: *const c_void, options: *mut c_int, values: *mut *mut c_void, count: c_uint, library_options: *mut c_int, library_values: *mut *mut c_void, library_count: c_uint) => Module;
        cuLibraryLoadFromFile(library: *mut *mut c_void, path: *const c_char, options: *mut c_int, values: *mut *mut c_void, count: c_uint, library_options: *mut c_int, library_values: *mut *mut c_void, library_count: c_uint) => Module;
        cuGraphInstantiate_v2(executable: *mut CuGraphExec, graph: CuGraph, node: *mut CuGraphNode, text: *mut c_char, bytes: usize) => Graph;
        cuGraphInstantiateWithFlags(executable: *mut CuGraphExec, graph: CuGraph, flags: u64) => Graph;
        cuGraphInstantiateWithParams(executable: *mut CuGraphExec, graph: CuGraph, parameters: *mut c_void) => Graph;
        cuGraphInstantiateWithParams_ptsz(executable: *mut CuGraphExec, graph: CuGraph, parameters: *mut c_void) => Graph;
    }
    ending {
        // The ends of code, graphs and arrays.
        cuModuleUnload(module: CuModule) => Module;
        cuLibraryUnload(library: *mut c_void) => Module;
        cuGraphExecDestroy(executable: CuGraphExec) => Graph;
        cuArrayDestroy(array: *mut c_void) => Array;
        cuMipmappedArrayDestroy(array: *mut c_void) => Array;
    }
    created {
        // Arrays, whose layout is the driver's own.
        cuArrayCreate_v2(array: *mut *mut c_void, shape: *const c_void) => array_destroy(array);
        cuArrayCreate(array: *mut *mut c_void, shape: *const c_void) => array_destroy(array);
        cuArray3DCreate_v2(array: *mut *mut c_void, shape: *const c_void) => array_destroy(array);
        cuArray3DCreate(array: *mut *mut c_void, shape: *const c_void) => array_destroy(array);
        cuMipmappedArrayCreate(array: *mut *mut c_void, shape: *const c_void, levels: c_uint) => mipmapped_array_destroy(array);
    }
    launched {
        // Launches. At the first, the driver loads the code of a function, and takes what a graph needs on the device.
        cuLaunchKernel(function: CuFunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: CuStream, parameters: *mut *mut c_void, extra: *mut *mut c_void) => Module(function);
        cuLaunchKernelEx(config: *const c_void, function: CuFunction, parameters: *mut *mut c_void, extra: *mut *mut c_void) => Module(function);
        cuLaunchCooperativeKernel(function: CuFunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: CuStream, parameters: *mut *mut c_void) => Module(function);
        cuLaunchKernel_ptsz(function: CuFunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: CuStream, parameters: *mut *mut c_void, extra: *mut *mut c_void) => Module(function);
        cuLaunchKernelEx_ptsz(config: *const c_void, function: CuFunction, parameters: *mut *mut c_void, extra: *mut *mut c_void) => Module(function);
        cuLaunchCooperativeKernel_ptsz(function: CuFunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: CuStream, parameters: *mut *mut c_void) => Module(function);
        cuGraphUpload(executable: CuGraphExec, stream: CuStream) => Graph(executable);
        cuGraphUpload_ptsz(executable: CuGraphExec, stream: CuStream) => Graph(executable);
        cuGraphLaunch(executable: CuGraphExec, stream: CuStream) => Graph(executable);
        cuGraphLaunch_ptsz(executable: CuGraphExec, stream: CuStream) => Graph(executable);
    }
    touching {
        // Copies.
        cuMemcpy(to: CuDevicePtr, from: CuDevicePtr, bytes: usize);
        cuMemcpy_ptds(to: CuDevicePtr, from: CuDevicePtr, bytes: usize);
        cuMemcpyPeer(to: CuDevicePtr, to_context: CuContext, from: CuDevicePtr, from_context: CuContext, bytes: usize);
        cuMemcpyPeer_ptds(to: CuDevicePtr, to_context: CuContext, from: CuDevicePtr, from_context: CuContext, bytes: usize);
        cuMemcpyHtoD_v2(to: CuDevicePtr, from: *const c_void, bytes: usize);
        cuMemcpyHtoD_v2_ptds(to: CuDevicePtr, from: *const c_void, bytes: usize);
        cuMemcpyHtoD(to: u32, from: *const c_void, bytes: c_uint);
        cuMemcpyDtoH_v2(to: *mut c_void, from: CuDevicePtr, bytes: usize);
        cuMemcpyDtoH_v2_ptds(to: *mut c_void, from: CuDevicePtr, bytes: usize);
        cuMemcpyDtoH(to: *mut c_void, from: u32, bytes: c_uint);
        cuMemcpyDtoD_v2(to: CuDevicePtr, from: CuDevicePtr, bytes: usize);
        cuMemcpyDtoD_v2_ptds(to: CuDevicePtr, from: CuDevicePtr, bytes: usize);
        cuMemcpyDtoD(to: u32, from: u32, bytes: c_uint);
        cuMemcpyDtoA_v2(to: *mut c_void, to_offset: usize, from: CuDevicePtr, bytes: usize);
        cuMemcpyDtoA_v2_ptds(to: *mut c_void, to_offset: usize, from: CuDevicePtr, bytes: usize);
        cuMemcpyDtoA(to: *mut c_void, to_offset: c_uint, from: u32, bytes: c_uint);
        cuMemcpyAtoD_v2(to: CuDevicePtr, from: *mut c_void, from_offset: usize, bytes: usize);
        cuMemcpyAtoD_v2_ptds(to: CuDevicePtr, from: *mut c_void, from_offset: usize, bytes: usize);
        cuMemcpyAtoD(to: u32, from: *mut c_void, from_offset: c_uint, bytes: c_uint);
        cuMemcpyHtoA_v2(to: *mut c_void, to_offset: usize, from: *const c_void, bytes: usize);
        cuMemcpyHtoA_v2_ptds(to: *mut c_void, to_offset: usize, from: *const c_void, bytes: usize);
        cuMemcpyHtoA(to: *mut c_void, to_offset: c_uint, from: *const c_void, bytes: c_uint);
        cuMemcpyAtoH_v2(to: *mut c_void, from: *mut c_void, from_offset: usize, bytes: usize);
        cuMemcpyAtoH_v2_ptds(to: *mut c_void, from: *mut c_void, from_offset: usize, bytes: usize);
        cuMemcpyAtoH(to: *mut c_void, from: *mut c_void, from_offset: c_uint, bytes: c_uint);
        cuMemcpyAtoA_v2(to: *mut c_void, to_offset: usize, from: *mut c_void, from_offset: usize, bytes: usize);
        cuMemcpyAtoA_v2_ptds(to: *mut c_void, to_offset: usize, from: *mut c_void, from_offset: usize, bytes: usize);
        cuMemcpyAtoA(to: *mut c_void, to_offset: c_uint, from: *mut c_void, from_offset: c_uint, bytes: c_uint);
        cuMemcpy2D_v2(copy: *const c_void);
        cuMemcpy2D_v2_ptds(copy: *const c_void);
        cuMemcpy2D(copy: *const c_void);
        cuMemcpy2DUnaligned_v2(copy: *const c_void);
        cuMemcpy2DUnaligned_v2_ptds(copy: *const c_void);
        cuMemcpy2DUnaligned(copy: *const c_void);
        cuMemcpy3D_v2(copy: *const c_void);
        cuMemcpy3D_v2_ptds(copy: *const c_void);
        cuMemcpy3D(copy: *const c_void);
        cuMemcpy3DPeer(copy: *const c_void);
        cuMemcpy3DPeer_ptds(copy: *const c_void);
        cuMemcpyAsync(to: CuDevicePtr, from: CuDevicePtr, bytes: usize, stream: CuStream);
        cuMemcpyAsync_ptsz(to: CuDevicePtr, from: CuDevicePtr, bytes: usize, stream: CuStream);
        cuMemcpyPeerAsync(to: CuDevicePtr, to_context: CuContext, from: CuDevicePtr, from_context: CuContext, bytes: usize, stream: CuStream);
        cuMemcpyPeerAsync_ptsz(to: CuDevicePtr, to_context: CuContext, from: CuDevicePtr, from_context: CuContext, bytes: usize, stream: CuStream);
        cuMemcpyHtoDAsync_v2(to: CuDevicePtr, from: *const c_void, bytes: usize, stream: CuStream);
        cuMemcpyHtoDAsync_v2_ptsz(to: CuDevicePtr, from: *const c_void, bytes: usize, stream: CuStream);
        cuMemcpyHtoDAsync(to: u32, from: *const c_void, bytes: c_uint, stream: CuStream);
        cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CuDevicePtr, bytes: usize, stream: CuStream);
        cuMemcpyDtoHAsync_v2_ptsz(to: *mut c_void, from: CuDevicePtr, bytes: usize, stream: CuStream);
        cuMemcpyDtoHAsync(to: *mut c_void, from: u32, bytes: c_uint, stream: CuStream);
        cuMemcpyDtoDAsync_v2(to: CuDevicePtr, from: CuDevicePtr, bytes: usize, stream: CuStream);
        cuMemcpyDtoDAsync_v2_ptsz(to: CuDevicePtr, from: CuDevicePtr, bytes: usize, stream: CuStream);
        cuMemcpyDtoDAsync(to: u32, from: u32, bytes: c_uint, stream: CuStream);
        cuMemcpyHtoAAsync_v2(to: *mut c_void, to_offset: usize, from: *const c_void, bytes: usize, stream: CuStream);
        cuMemcpyHtoAAsync_v2_ptsz(to: *mut c_void, to_offset: usize, from: *const c_void, bytes: usize, stream: CuStream);
        cuMemcpyHtoAAsync(to: *mut c_void, to_offset: c_uint, from: *const c_void, bytes: c_uint, stream: CuStream);
        cuMemcpyAtoHAsync_v2(to: *mut c_void, from: *mut c_void, from_offset: usize, bytes: usize, stream: CuStream);
        cuMemcpyAtoHAsync_v2_ptsz(to: *mut c_void, from: *mut c_void, from_offset: usize, bytes: usize, stream: CuStream);
        cuMemcpyAtoHAsync(to: *mut c_void, from: *mut c_void, from_offset: c_uint, bytes: c_uint, stream: CuStream);
        cuMemcpy2DAsync_v2(copy: *const c_void, stream: CuStream);
        cuMemcpy2DAsync_v2_ptsz(copy: *const c_void, stream: CuStream);
        cuMemcpy2DAsync(copy: *const c_void, stream: CuStream);
        cuMemcpy3DAsync_v2(copy: *const c_void, stream: CuStream);
        cuMemcpy3DAsync_v2_ptsz(copy: *const c_void, stream: CuStream);
        cuMemcpy3DAsync(copy: *const c_void, stream: CuStream);
        cuMemcpy3DPeerAsync(copy: *const c_void, stream: CuStream);
        cuMemcpy3DPeerAsync_ptsz(copy: *const c_void, stream: CuStream);
        cuMemcpyBatchAsync_v2(to: *mut CuDevicePtr, from: *mut CuDevicePtr, sizes: *mut usize, count: usize, attributes: *mut c_void, places: *mut usize, kinds: usize, stream: CuStream);
        cuMemcpyBatchAsync_v2_ptsz(to: *mut CuDevicePtr, from: *mut CuDevicePtr, sizes: *mut usize, count: usize, attributes: *mut c_void, places: *mut usize, kinds: usize, stream: CuStream);
        cuMemcpyBatchAsync(to: *mut CuDevicePtr, from: *mut CuDevicePtr, sizes: *mut usize, count: usize, attributes: *mut c_void, places: *mut usize, kinds: usize, failed: *mut usize, stream: CuStream);
        cuMemcpyBatchAsync_ptsz(to: *mut CuDevicePtr, from: *mut CuDevicePtr, sizes: *mut usize, count: usize, attributes: *mut c_void, places: *mut usize, kinds: usize, failed: *mut usize, stream: CuStream);
        cuMemcpy3DBatchAsync_v2(count: usize, copies: *mut c_void, flags: u64, stream: CuStream);
        cuMemcpy3DBatchAsync_v2_ptsz(count: usize, copies: *mut c_void, flags: u64, stream: CuStream);
        cuMemcpy3DBatchAsync(count: usize, copies: *mut c_void, failed: *mut usize, flags: u64, stream: CuStream);
        cuMemcpy3DBatchAsync_ptsz(count: usize, copies: *mut c_void, failed: *mut usize, flags: u64, stream: CuStream);
        // Memory filled.
        cuMemsetD8_v2(to: CuDevicePtr, value: u8, count: usize);
        cuMemsetD8_v2_ptds(to: CuDevicePtr, value: u8, count: usize);
        cuMemsetD8(to: u32, value: u8, count: c_uint);
        cuMemsetD16_v2(to: CuDevicePtr, value: u16, count: usize);
        cuMemsetD16_v2_ptds(to: CuDevicePtr, value: u16, count: usize);
        cuMemsetD16(to: u32, value: u16, count: c_uint);
        cuMemsetD32_v2(to: CuDevicePtr, value: c_uint, count: usize);
        cuMemsetD32_v2_ptds(to: CuDevicePtr, value: c_uint, count: usize);
        cuMemsetD32(to: u32, value: c_uint, count: c_uint);
        cuMemsetD2D8_v2(to: CuDevicePtr, pitch: usize, value: u8, width: usize, height: usize);
        cuMemsetD2D8_v2_ptds(to: CuDevicePtr, pitch: usize, value: u8, width: usize, height: usize);
        cuMemsetD2D8(to: u32, pitch: c_uint, value: u8, width: c_uint, height: c_uint);
        cuMemsetD2D16_v2(to: CuDevicePtr, pitch: usize, value: u16, width: usize, height: usize);
        cuMemsetD2D16_v2_ptds(to: CuDevicePtr, pitch: usize, value: u16, width: usize, height: usize);
        cuMemsetD2D16(to: u32, pitch: c_uint, value: u16, width: c_uint, height: c_uint);
        cuMemsetD2D32_v2(to: CuDevicePtr, pitch: usize, value: c_uint, width: usize, height: usize);
        cuMemsetD2D32_v2_ptds(to: CuDevicePtr, pitch: usize, value: c_uint, width: usize, height: usize);
        cuMemsetD2D32(to: u32, pitch: c_uint, value: c_uint, width: c_uint, height: c_uint);
        cuMemsetD8Async(to: CuDevicePtr, value: u8, count: usize, stream: CuStream);
        cuMemsetD8Async_ptsz(to: CuDevicePtr, value: u8, count: usize, stream: CuStream);
        cuMemsetD16Async(to: CuDevicePtr, value: u16, count: usize, stream: CuStream);
        cuMemsetD16Async_ptsz(to: CuDevicePtr, value: u16, count: usize, stream: CuStream);
        cuMemsetD32Async(to: CuDevicePtr, value: c_uint, count: usize, stream: CuStream);
        cuMemsetD32Async_ptsz(to: CuDevicePtr, value: c_uint, count: usize, stream: CuStream);
        cuMemsetD2D8Async(to: CuDevicePtr, pitch: usize, value: u8, width: usize, height: usize, stream: CuStream);
        cuMemsetD2D8Async_ptsz(to: CuDevicePtr, pitch: usize, value: u8, width: usize, height: usize, stream: CuStream);
        cuMemsetD2D16Async(to: CuDevicePtr, pitch: usize, value: u16, width: usize, height: usize, stream: CuStream);
        cuMemsetD2D16Async_ptsz(to: CuDevicePtr, pitch: usize, value: u16, width: usize, height: usize, stream: CuStream);
        cuMemsetD2D32Async(to: CuDevicePtr, pitch: usize, value: c_uint, width: usize, height: usize, stream: CuStream);
        cuMemsetD2D32Async_ptsz(to: CuDevicePtr, pitch: usize, value: c_uint, width: usize, height: usize, stream: CuStream);
        // Memory that streams write, wait for, or unpack.
        cuMemBatchDecompressAsync(parameters: *mut c_void, count: usize, flags: c_uint, failed: *mut usize, stream: CuStream);
        cuMemBatchDecompressAsync_ptsz(parameters: *mut c_void, count: usize, flags: c_uint, failed: *mut usize, stream: CuStream);
        cuStreamWaitValue32_v2(stream: CuStream, address: CuDevicePtr, value: u32, flags: c_uint);
        cuStreamWaitValue32_v2_ptsz(stream: CuStream, address: CuDevicePtr, value: u32, flags: c_uint);
        cuStreamWaitValue32(stream: CuStream, address: CuDevicePtr, value: u32, flags: c_uint);
        cuStreamWaitValue32_ptsz(stream: CuStream, address: CuDevicePtr, value: u32, flags: c_uint);
        cuStreamWaitValue64_v2(stream: CuStream, address: CuDevicePtr, value: u64, flags: c_uint);
        cuStreamWaitValue64_v2_ptsz(stream: CuStream, address: CuDevicePtr, value: u64, flags: c_uint);
        cuStreamWaitValue64(stream: CuStream, address: CuDevicePtr, value: u64, flags: c_uint);
        cuStreamWaitValue64_ptsz(stream: CuStream, address: CuDevicePtr, value: u64, flags: c_uint);
        cuStreamWriteValue32_v2(stream: CuStream, address: CuDevicePtr, value: u32, flags: c_uint);
        cuStreamWriteValue32_v2_ptsz(stream: CuStream, address: CuDevicePtr, value: u32, flags: c_uint);
        cuStreamWriteValue32(stream: CuStream, address: CuDevicePtr, value: u32, flags: c_uint);
        cuStreamWriteValue32_ptsz(stream: CuStream, address: CuDevicePtr, value: u32, flags: c_uint);
        cuStreamWriteValue64_v2(stream: CuStream, address: CuDevicePtr, value: u64, flags: c_uint);
        cuStreamWriteValue64_v2_ptsz(stream: CuStream, address: CuDevicePtr, value: u64, flags: c_uint);
        cuStreamWriteValue64(stream: CuStream, address: CuDevicePtr, value: u64, flags: c_uint);
        cuStreamWriteValue64_ptsz(stream: CuStream, address: CuDevicePtr, value: u64, flags: c_uint);
        cuStreamBatchMemOp_v2(stream: CuStream, count: c_uint, operations: *mut c_void, flags: c_uint);
        cuStreamBatchMemOp_v2_ptsz(stream: CuStream, count: c_uint, operations: *mut c_void, flags: c_uint);
        cuStreamBatchMemOp(stream: CuStream, count: c_uint, operations: *mut c_void, flags: c_uint);
        cuStreamBatchMemOp_ptsz(stream: CuStream, count: c_uint, operations: *mut c_void, flags: c_uint);
        // Managed memory moved between the host and devices, and pages whose contents are given up.
        cuMemPrefetchAsync_v2(address: CuDevicePtr, count: usize, location: CuMemLocation, flags: c_uint, stream: CuStream);
        cuMemPrefetchAsync_v2_ptsz(address: CuDevicePtr, count: usize, location: CuMemLocation, flags: c_uint, stream: CuStream);
        cuMemPrefetchAsync(address: CuDevicePtr, count: usize, device: CuDevice, stream: CuStream);
        cuMemPrefetchAsync_ptsz(address: CuDevicePtr, count: usize, device: CuDevice, stream: CuStream);
        cuMemPrefetchBatchAsync(addresses: *mut CuDevicePtr, sizes: *mut usize, count: usize, locations: *mut c_void, places: *mut usize, kinds: usize, flags: u64, stream: CuStream);
        cuMemPrefetchBatchAsync_ptsz(addresses: *mut CuDevicePtr, sizes: *mut usize, count: usize, locations: *mut c_void, places: *mut usize, kinds: usize, flags: u64, stream: CuStream);
        cuMemDiscardBatchAsync(addresses: *mut CuDevicePtr, sizes: *mut usize, count: usize, flags: u64, stream: CuStream);
        cuMemDiscardBatchAsync_ptsz(addresses: *mut CuDevicePtr, sizes: *mut usize, count: usize, flags: u64, stream: CuStream);
        cuMemDiscardAndPrefetchBatchAsync(addresses: *mut CuDevicePtr, sizes: *mut usize, count: usize, locations: *mut c_void, places: *mut usize, kinds: usize, flags: u64, stream: CuStream);
        cuMemDiscardAndPrefetchBatchAsync_ptsz(addresses: *mut CuDevicePtr, sizes: *mut usize, count: usize, locations: *mut c_void, places: *mut usize, kinds: usize, flags: u64, stream: CuStream);
        cuStreamAttachMemAsync(stream: CuStream, address: CuDevicePtr, bytes: usize, flags: c_uint);
        cuStreamAttachMemAsync_ptsz(stream: CuStream, address: CuDevicePtr, bytes: usize, flags: c_uint);
        // Graphs, and the launches of CUDA 3 and before.
        cuLaunchCooperativeKernelMultiDevice(launches: *mut c_void, count: c_uint, flags: c_uint);
        cuLaunch(function: CuFunction);
        cuLaunchGrid(function: CuFunction, width: c_int, height: c_int);
        cuLaunchGridAsync(function: CuFunction, width: c_int, height: c_int, stream: CuStream);
        // Calls that name an address. The driver refuses an address whose memory is parked.
        cuGraphAddMemcpyNode(node: *mut CuGraphNode, graph: CuGraph, dependencies: *const CuGraphNode, count: usize, copy: *const c_void, context: CuContext);
        cuGraphAddMemsetNode(node: *mut CuGraphNode, graph: CuGraph, dependencies: *const CuGraphNode, count: usize, fill: *const c_void, context: CuContext);
        cuGraphAddNode(node: *mut CuGraphNode, graph: CuGraph, dependencies: *const CuGraphNode, count: usize, parameters: *mut c_void);
        cuGraphAddNode_v2(node: *mut CuGraphNode, graph: CuGraph, dependencies: *const CuGraphNode, edges: *const CuGraphEdgeData, count: usize, parameters: *mut c_void);
        cuGraphMemcpyNodeSetParams(node: CuGraphNode, copy: *const c_void);
        cuGraphMemsetNodeSetParams(node: CuGraphNode, fill: *const c_void);
        cuGraphNodeSetParams(node: CuGraphNode, parameters: *mut c_void);
        cuGraphExecMemcpyNodeSetParams(executable: CuGraphExec, node: CuGraphNode, copy: *const c_void, context: CuContext);
        cuGraphExecMemsetNodeSetParams(executable: CuGraphExec, node: CuGraphNode, fill: *const c_void, context: CuContext);
        cuGraphExecNodeSetParams(executable: CuGraphExec, node: CuGraphNode, parameters: *mut c_void);
        cuGraphExecUpdate(executable: CuGraphExec, graph: CuGraph, node: *mut CuGraphNode, result: *mut c_int);
        cuGraphExecUpdate_v2(executable: CuGraphExec, graph: CuGraph, result: *mut c_void);
        cuTexObjectCreate(texture: *mut u64, resource: *const c_void, description: *const c_void, view: *const c_void);
        cuTexRefSetAddress_v2(offset: *mut usize, texture: *mut c_void, address: CuDevicePtr, bytes: usize);
        cuTexRefSetAddress2D_v3(texture: *mut c_void, description: *const c_void, address: CuDevicePtr, pitch: usize);
        cuMemGetAccess(flags: *mut u64, location: *const c_void, address: CuDevicePtr);
    }
}
