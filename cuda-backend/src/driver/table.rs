//! Entry points of the driver: a table of optional function pointers, filled by exactly versioned
//! names.
//!
//! The list in this file is the only place with the signatures. `tests/header.rs` compares each
//! signature with `cuda.h`.

use super::result::CuResult;
use super::types::{
    CuCaptureMode, CuCaptureStatus, CuContext, CuDevice, CuDeviceAttribute, CuDevicePtr, CuEvent, CuEventFlags,
    CuFunction, CuGranularity, CuGraph, CuGraphEdgeData, CuGraphExec, CuGraphNode, CuHostFn, CuMemAccessDesc,
    CuMemAllocationProp, CuMemHandle, CuMemHandleType, CuMemHostRegisterFlags, CuMemPoolAttribute, CuMemoryPool,
    CuModule, CuStream, CuStreamFlags, CuUuid,
};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::NonNull;

/// One entry of the table, for messages and for the header test.
#[derive(Clone, Copy, Debug)]
pub struct EntryPoint {
    /// The symbol in the driver's library.
    pub symbol: &'static CStr,
    /// Whether the crate needs the entry point. The documentation of each optional entry names the
    /// feature that is lost without the entry point.
    pub required: bool,
    /// The parameters as declared in this file, in Rust.
    pub parameters: &'static str,
}

/// Declares the table, its filling by name, and one method for each entry.
macro_rules! entry_points {
    ($($(#[$doc:meta])* $need:ident $name:ident = $symbol:literal($($argument:ident: $type:ty),*);)*) => {
        /// The driver's entry points. A caller may fill a table with other functions, for tests or
        /// for interception.
        #[derive(Clone, Copy, Default, Debug)]
        #[non_exhaustive]
        pub struct Table {
            $(
                $(#[$doc])*
                pub $name: Option<unsafe extern "C" fn($($argument: $type),*) -> CuResult>,
            )*
        }

        /// Every entry of [`Table`], in the table's order.
        pub const ENTRY_POINTS: &[EntryPoint] = &[$(
            EntryPoint {
                symbol: $symbol,
                required: is_required(stringify!($need)),
                parameters: stringify!($($argument: $type),*),
            },
        )*];

        impl Table {
            /// Fills a table with the address that `lookup` returns for each symbol.
            ///
            /// # Safety
            /// An address that `lookup` returns for a symbol is the address of the driver's
            /// function with the symbol's name, or of a function with equal signature and
            /// behaviour. The function is callable as long as the table is used.
            pub unsafe fn fill(mut lookup: impl FnMut(&'static CStr) -> Option<NonNull<c_void>>) -> Self {
                Self {
                    $($name: lookup($symbol).map(|address| {
                        // SAFETY: the caller vouches that the address belongs to a function with
                        // this signature. Both types have the size of one non-null address.
                        unsafe {
                            core::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn($($type),*) -> CuResult>(
                                address,
                            )
                        }
                    }),)*
                }
            }

            /// Lists the entries without a function.
            pub fn missing(&self) -> impl Iterator<Item = &'static EntryPoint> + use<> {
                let present = [$(self.$name.is_some(),)*];
                ENTRY_POINTS.iter().zip(present).filter(|(_, present)| !present).map(|(entry, _)| entry)
            }

            $(
                $(#[$doc])*
                ///
                /// # Safety
                /// Pointers are valid for the driver's reads and writes, handles are live and of
                /// the named kind, and the calling thread is in the state that the driver's
                /// documentation requires.
                #[allow(clippy::too_many_arguments, reason = "as many as the driver's function has")]
                #[inline]
                pub unsafe fn $name(&self, $($argument: $type),*) -> CuResult {
                    match self.$name {
                        // SAFETY: the table's entries have the driver's signatures; the caller
                        // vouches for the arguments.
                        Some(function) => unsafe { function($($argument),*) },
                        None => CuResult::CALL_REQUIRES_NEWER_DRIVER,
                    }
                }
            )*
        }
    };
}

/// Returns whether the keyword before an entry marks the entry as required.
const fn is_required(need: &str) -> bool {
    matches!(need.as_bytes(), b"required")
}

entry_points! {
    /// Starts the driver. Flags must be 0.
    required init = c"cuInit"(flags: u32);
    /// Reports the newest interface version that the driver supports: 1000 × major + 10 × minor.
    required driver_get_version = c"cuDriverGetVersion"(version: *mut c_int);
    /// Reports a code's name. If missing, messages carry the number alone.
    optional get_error_name = c"cuGetErrorName"(error: CuResult, name: *mut *const c_char);
    /// Reports a code's meaning. If missing, messages carry the number alone.
    optional get_error_string = c"cuGetErrorString"(error: CuResult, text: *mut *const c_char);

    /// Reports the device with an ordinal.
    required device_get = c"cuDeviceGet"(device: *mut CuDevice, ordinal: c_int);
    /// Reports the number of devices.
    required device_get_count = c"cuDeviceGetCount"(count: *mut c_int);
    /// Reports the value of a device attribute.
    required device_get_attribute =
        c"cuDeviceGetAttribute"(value: *mut c_int, attribute: CuDeviceAttribute, device: CuDevice);
    /// Reports the device's name. If missing, the name is empty.
    optional device_get_name = c"cuDeviceGetName"(name: *mut c_char, length: c_int, device: CuDevice);
    /// Reports the device's total memory in bytes.
    optional device_total_mem = c"cuDeviceTotalMem_v2"(bytes: *mut usize, device: CuDevice);
    /// Reports the device's PCI bus id. If missing, reports lack the memory use of the whole
    /// process.
    optional device_get_pci_bus_id = c"cuDeviceGetPCIBusId"(id: *mut c_char, length: c_int, device: CuDevice);
    /// Reports the device's UUID (11.4).
    optional device_get_uuid = c"cuDeviceGetUuid_v2"(uuid: *mut CuUuid, device: CuDevice);
    /// Reports whether a device can access another device's memory. If missing, peer access is
    /// unsupported.
    optional device_can_access_peer =
        c"cuDeviceCanAccessPeer"(can_access: *mut c_int, device: CuDevice, peer: CuDevice);
    /// Lets the current context access memory of the context `peer`. If missing, peer access is
    /// unsupported.
    optional ctx_enable_peer_access = c"cuCtxEnablePeerAccess"(peer: CuContext, flags: u32);
    /// Undoes [`ctx_enable_peer_access`](Self::ctx_enable_peer_access).
    optional ctx_disable_peer_access = c"cuCtxDisablePeerAccess"(peer: CuContext);
    /// Reports the default pool of the driver's own allocator. If missing, reports omit the default
    /// pool.
    optional device_get_default_mem_pool =
        c"cuDeviceGetDefaultMemPool"(pool: *mut CuMemoryPool, device: CuDevice);
    /// Reports an attribute of a pool. If missing, reports omit the default pool.
    optional mem_pool_get_attribute =
        c"cuMemPoolGetAttribute"(pool: CuMemoryPool, attribute: CuMemPoolAttribute, value: *mut c_void);

    /// Retains the device's primary context, and creates the context if necessary.
    required device_primary_ctx_retain = c"cuDevicePrimaryCtxRetain"(context: *mut CuContext, device: CuDevice);
    /// Releases the primary context once.
    required device_primary_ctx_release = c"cuDevicePrimaryCtxRelease_v2"(device: CuDevice);
    /// Reports the calling thread's context.
    required ctx_get_current = c"cuCtxGetCurrent"(context: *mut CuContext);
    /// Pushes a context on the calling thread's stack of contexts.
    required ctx_push_current = c"cuCtxPushCurrent_v2"(context: CuContext);
    /// Pops the topmost context from the calling thread's stack of contexts.
    required ctx_pop_current = c"cuCtxPopCurrent_v2"(context: *mut CuContext);
    /// Reports the id of a context, which no other context of the process ever has (12.0). If missing, a context that the program
    /// has reset and made anew is taken for the former one.
    optional ctx_get_id = c"cuCtxGetId"(context: CuContext, id: *mut u64);
    /// Reports the device of the current context. If missing, a context given by the caller is not
    /// checked.
    optional ctx_get_device = c"cuCtxGetDevice"(device: *mut CuDevice);
    /// Waits for all work of the current context, and breaks captures. If missing, a full device cannot be waited for
    /// without [`ctx_record_event`](Self::ctx_record_event).
    optional ctx_synchronize = c"cuCtxSynchronize"();
    /// Records an event behind all work of a context (12.5). If missing, a wait for the context frees memory, which
    /// holds other threads' calls up.
    optional ctx_record_event = c"cuCtxRecordEvent"(context: CuContext, event: CuEvent);
    /// Replaces the topmost context of the calling thread's stack.
    optional ctx_set_current = c"cuCtxSetCurrent"(context: CuContext);
    /// Creates a context, and pushes the context.
    optional ctx_create = c"cuCtxCreate_v2"(context: *mut CuContext, flags: u32, device: CuDevice);
    /// Destroys a context.
    optional ctx_destroy = c"cuCtxDestroy_v2"(context: CuContext);

    /// Allocates device memory.
    required mem_alloc = c"cuMemAlloc_v2"(address: *mut CuDevicePtr, bytes: usize);
    /// Frees device memory. Waits for the device.
    required mem_free = c"cuMemFree_v2"(address: CuDevicePtr);
    /// Allocates device memory in a stream's order (11.2). If missing, `policy:direct` allocates in no order.
    optional mem_alloc_async = c"cuMemAllocAsync"(address: *mut CuDevicePtr, bytes: usize, stream: CuStream);
    /// Frees device memory in a stream's order (11.2). If missing, `policy:direct` allocates in no order.
    optional mem_free_async = c"cuMemFreeAsync"(address: CuDevicePtr, stream: CuStream);
    /// Reports the current device's free and total memory in bytes.
    required mem_get_info = c"cuMemGetInfo_v2"(free: *mut usize, total: *mut usize);
    /// Reports the allocation that contains an address. If missing, foreign pointers are not
    /// described.
    optional mem_get_address_range =
        c"cuMemGetAddressRange_v2"(base: *mut CuDevicePtr, bytes: *mut usize, address: CuDevicePtr);
    /// Pins memory of the host that the program has mapped (6.5). If missing, there are no devices of host
    /// memory.
    optional mem_host_register =
        c"cuMemHostRegister_v2"(address: *mut c_void, bytes: usize, flags: CuMemHostRegisterFlags);
    /// Undoes [`mem_host_register`](Self::mem_host_register).
    optional mem_host_unregister = c"cuMemHostUnregister"(address: *mut c_void);
    /// Fills memory with one byte value in a stream's order. If missing, memory is neither filled
    /// nor cleared.
    optional memset_d8_async =
        c"cuMemsetD8Async"(address: CuDevicePtr, value: u8, bytes: usize, stream: CuStream);
    /// Copies from the host, and waits.
    optional memcpy_htod = c"cuMemcpyHtoD_v2"(to: CuDevicePtr, from: *const c_void, bytes: usize);
    /// Copies to the host, and waits.
    optional memcpy_dtoh = c"cuMemcpyDtoH_v2"(to: *mut c_void, from: CuDevicePtr, bytes: usize);
    /// Copies from the host in a stream's order.
    optional memcpy_htod_async =
        c"cuMemcpyHtoDAsync_v2"(to: CuDevicePtr, from: *const c_void, bytes: usize, stream: CuStream);
    /// Copies to the host in a stream's order.
    optional memcpy_dtoh_async =
        c"cuMemcpyDtoHAsync_v2"(to: *mut c_void, from: CuDevicePtr, bytes: usize, stream: CuStream);
    /// Copies on the device in a stream's order.
    optional memcpy_dtod_async =
        c"cuMemcpyDtoDAsync_v2"(to: CuDevicePtr, from: CuDevicePtr, bytes: usize, stream: CuStream);

    /// Reports the granularity of physical memory. Virtual memory needs this entry and the
    /// following seven.
    optional mem_get_allocation_granularity = c"cuMemGetAllocationGranularity"(
        granularity: *mut usize, properties: *const CuMemAllocationProp, option: CuGranularity);
    /// Reserves a range of addresses.
    optional mem_address_reserve = c"cuMemAddressReserve"(
        address: *mut CuDevicePtr, bytes: usize, alignment: usize, hint: CuDevicePtr, flags: u64);
    /// Frees a reserved range of addresses.
    optional mem_address_free = c"cuMemAddressFree"(address: CuDevicePtr, bytes: usize);
    /// Creates physical memory.
    optional mem_create = c"cuMemCreate"(
        handle: *mut CuMemHandle, bytes: usize, properties: *const CuMemAllocationProp, flags: u64);
    /// Releases physical memory. The memory is freed once no mapping is left.
    optional mem_release = c"cuMemRelease"(handle: CuMemHandle);
    /// Maps physical memory at reserved addresses.
    optional mem_map = c"cuMemMap"(
        address: CuDevicePtr, bytes: usize, offset: usize, handle: CuMemHandle, flags: u64);
    /// Unmaps a range.
    optional mem_unmap = c"cuMemUnmap"(address: CuDevicePtr, bytes: usize);
    /// Sets the devices that may access a mapped range.
    optional mem_set_access = c"cuMemSetAccess"(
        address: CuDevicePtr, bytes: usize, descriptors: *const CuMemAccessDesc, count: usize);
    /// Makes a handle of physical memory for another process: writes an `int` for a file descriptor. If
    /// missing, memory cannot be exported.
    optional mem_export = c"cuMemExportToShareableHandle"(
        shareable: *mut c_void, handle: CuMemHandle, kind: CuMemHandleType, flags: u64);

    /// Creates an event.
    required event_create = c"cuEventCreate"(event: *mut CuEvent, flags: CuEventFlags);
    /// Records an event behind all work queued on a stream.
    required event_record = c"cuEventRecord"(event: CuEvent, stream: CuStream);
    /// Reports whether the work before the event is complete.
    required event_query = c"cuEventQuery"(event: CuEvent);
    /// Waits until the work before the event is complete.
    required event_synchronize = c"cuEventSynchronize"(event: CuEvent);
    /// Destroys an event, at once or upon completion.
    required event_destroy = c"cuEventDestroy_v2"(event: CuEvent);
    /// Waits until a stream is empty.
    required stream_synchronize = c"cuStreamSynchronize"(stream: CuStream);
    /// Reports whether a stream is empty.
    optional stream_query = c"cuStreamQuery"(stream: CuStream);
    /// Reports whether a stream is capturing. If missing, every stream counts as not capturing.
    optional stream_is_capturing = c"cuStreamIsCapturing"(stream: CuStream, status: *mut CuCaptureStatus);
    /// Reports the capture that a stream takes part in (11.3). If missing, captures have no ids.
    optional stream_get_capture_info = c"cuStreamGetCaptureInfo_v2"(
        stream: CuStream, status: *mut CuCaptureStatus, id: *mut u64, graph: *mut CuGraph,
        dependencies: *mut *const CuGraphNode, dependency_count: *mut usize);
    /// Swaps the calling thread's capture mode. If missing, a call made during a capture may
    /// invalidate the capture.
    optional thread_exchange_stream_capture_mode =
        c"cuThreadExchangeStreamCaptureMode"(mode: *mut CuCaptureMode);
    /// Reports a stream's id, never used twice in a process (12.0). If missing, the reuse of a
    /// handle is not detected.
    optional stream_get_id = c"cuStreamGetId"(stream: CuStream, id: *mut u64);
    /// Reports a stream's context. Streams of another device need this entry and the following two.
    optional stream_get_ctx = c"cuStreamGetCtx"(stream: CuStream, context: *mut CuContext);
    /// Makes a stream wait for an event.
    optional stream_wait_event = c"cuStreamWaitEvent"(stream: CuStream, event: CuEvent, flags: u32);
    /// Creates a stream.
    optional stream_create = c"cuStreamCreate"(stream: *mut CuStream, flags: CuStreamFlags);
    /// Destroys a stream, at once or when the stream is empty.
    optional stream_destroy = c"cuStreamDestroy_v2"(stream: CuStream);
    /// Runs a host function in a stream's order.
    optional launch_host_func = c"cuLaunchHostFunc"(stream: CuStream, function: CuHostFn, user_data: *mut c_void);

    /// Loads a module from memory.
    optional module_load_data = c"cuModuleLoadData"(module: *mut CuModule, image: *const c_void);
    /// Unloads a module.
    optional module_unload = c"cuModuleUnload"(module: CuModule);
    /// Finds a kernel of a module.
    optional module_get_function =
        c"cuModuleGetFunction"(function: *mut CuFunction, module: CuModule, name: *const c_char);
    /// Launches a kernel in a stream's order.
    optional launch_kernel = c"cuLaunchKernel"(
        function: CuFunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared_bytes: u32, stream: CuStream, parameters: *mut *mut c_void, extra: *mut *mut c_void);

    /// Begins to capture a stream.
    optional stream_begin_capture = c"cuStreamBeginCapture_v2"(stream: CuStream, mode: CuCaptureMode);
    /// Ends a capture.
    optional stream_end_capture = c"cuStreamEndCapture"(stream: CuStream, graph: *mut CuGraph);
    /// Instantiates a graph (11.4).
    optional graph_instantiate =
        c"cuGraphInstantiateWithFlags"(executable: *mut CuGraphExec, graph: CuGraph, flags: u64);
    /// Runs a graph in a stream's order.
    optional graph_launch = c"cuGraphLaunch"(executable: CuGraphExec, stream: CuStream);
    /// Destroys an instantiated graph.
    optional graph_exec_destroy = c"cuGraphExecDestroy"(executable: CuGraphExec);
    /// Destroys a graph.
    optional graph_destroy = c"cuGraphDestroy"(graph: CuGraph);
    /// Reports the nodes right before a node of a graph (10.0). If missing, as the next entry is, the order within a
    /// captured graph is not known.
    optional graph_node_get_dependencies = c"cuGraphNodeGetDependencies"(
        node: CuGraphNode, dependencies: *mut CuGraphNode, count: *mut usize);
    /// Reports the nodes right before a node of a graph, also where dependencies have properties (12.3).
    optional graph_node_get_dependencies_v2 = c"cuGraphNodeGetDependencies_v2"(
        node: CuGraphNode, dependencies: *mut CuGraphNode, properties: *mut CuGraphEdgeData, count: *mut usize);
}
