//! The entry points of the driver: a table of optional function pointers, which is filled by
//! exactly versioned names.
//!
//! The signatures are those of `cachalot-cuda-abi`.

#![allow(clippy::wildcard_imports, reason = "the types of every signature")]

use super::result::CuResult;
use super::types::*;
use core::ffi::{c_char, c_int, c_void};

pub use cachalot_cuda_abi::EntryPoint;

cachalot_cuda_abi::table! {
    /// The driver's entry points. A caller may fill a table with other functions, for tests or
    /// for interception.
    pub struct Table {
        /// Starts the driver. Flags must be 0.
        required init = cuInit;
        /// Reports the newest interface version that the driver supports: 1000 × major + 10 ×
        /// minor.
        required driver_get_version = cuDriverGetVersion;
        /// Reports a code's name. If missing, messages have only the number.
        optional get_error_name = cuGetErrorName;
        /// Reports a code's meaning. If missing, messages have only the name or the number.
        optional get_error_string = cuGetErrorString;

        /// Reports the device with an ordinal.
        required device_get = cuDeviceGet;
        /// Reports the number of devices.
        required device_get_count = cuDeviceGetCount;
        /// Reports the value of a device attribute.
        required device_get_attribute = cuDeviceGetAttribute;
        /// Reports the device's name. If missing, the name is empty.
        optional device_get_name = cuDeviceGetName;
        /// Reports the device's total memory in bytes.
        optional device_total_mem = cuDeviceTotalMem_v2;
        /// Reports the device's PCI bus id. If missing, reports do not have the memory use of the
        /// whole process.
        optional device_get_pci_bus_id = cuDeviceGetPCIBusId;
        /// Reports the device's UUID (11.4).
        optional device_get_uuid = cuDeviceGetUuid_v2;
        /// Reports whether a device can access another device's memory. If missing, peer access is
        /// unsupported.
        optional device_can_access_peer = cuDeviceCanAccessPeer;
        /// Lets the current context access memory of the context `peer`. If missing, peer access is
        /// unsupported.
        optional ctx_enable_peer_access = cuCtxEnablePeerAccess;
        /// Undoes [`ctx_enable_peer_access`](Self::ctx_enable_peer_access).
        optional ctx_disable_peer_access = cuCtxDisablePeerAccess;
        /// Reports the default pool of the driver's own allocator. If missing, reports omit the
        /// default pool.
        optional device_get_default_mem_pool = cuDeviceGetDefaultMemPool;
        /// Reports an attribute of a pool. If missing, reports omit the default pool.
        optional mem_pool_get_attribute = cuMemPoolGetAttribute;

        /// Retains the device's primary context, and creates it if necessary.
        required device_primary_ctx_retain = cuDevicePrimaryCtxRetain;
        /// Releases the primary context once.
        required device_primary_ctx_release = cuDevicePrimaryCtxRelease_v2;
        /// Reports the calling thread's context.
        required ctx_get_current = cuCtxGetCurrent;
        /// Pushes a context on the calling thread's stack of contexts.
        required ctx_push_current = cuCtxPushCurrent_v2;
        /// Pops the topmost context from the calling thread's stack of contexts.
        required ctx_pop_current = cuCtxPopCurrent_v2;
        /// Reports the id of a context, which no other context of the process ever has (12.0). If
        /// missing, a context that the program has reset and made anew is mistaken for the former
        /// one.
        optional ctx_get_id = cuCtxGetId;
        /// Reports the device of the current context. If missing, a context that the caller gives
        /// is not checked.
        optional ctx_get_device = cuCtxGetDevice;
        /// Waits for all work of the current context, and breaks captures. If missing, there is no
        /// wait for a full device without [`ctx_record_event`](Self::ctx_record_event).
        optional ctx_synchronize = cuCtxSynchronize;
        /// Records an event after all work of a context (12.5). If missing, a wait for the context
        /// frees memory, which blocks the calls of other threads.
        optional ctx_record_event = cuCtxRecordEvent;
        /// Replaces the topmost context of the calling thread's stack.
        optional ctx_set_current = cuCtxSetCurrent;
        /// Creates a context, and pushes it.
        optional ctx_create = cuCtxCreate_v2;
        /// Destroys a context.
        optional ctx_destroy = cuCtxDestroy_v2;

        /// Allocates device memory.
        required mem_alloc = cuMemAlloc_v2;
        /// Frees device memory. Waits for the device.
        required mem_free = cuMemFree_v2;
        /// Allocates device memory in a stream's order (11.2). If missing, `policy:direct`
        /// allocates in no order.
        optional mem_alloc_async = cuMemAllocAsync;
        /// Frees device memory in a stream's order (11.2). If missing, `policy:direct` allocates in
        /// no order.
        optional mem_free_async = cuMemFreeAsync;
        /// Reports the current device's free and total memory in bytes.
        required mem_get_info = cuMemGetInfo_v2;
        /// Reports the allocation that contains an address. If missing, foreign pointers are not
        /// described.
        optional mem_get_address_range = cuMemGetAddressRange_v2;
        /// Pins memory of the host that the program has mapped (6.5). If missing, there are no
        /// devices of host memory.
        optional mem_host_register = cuMemHostRegister_v2;
        /// Undoes [`mem_host_register`](Self::mem_host_register).
        optional mem_host_unregister = cuMemHostUnregister;
        /// Fills memory with one byte value in a stream's order. If missing, memory is neither
        /// filled nor cleared.
        optional memset_d8_async = cuMemsetD8Async;
        /// Copies from the host, and waits.
        optional memcpy_htod = cuMemcpyHtoD_v2;
        /// Copies to the host, and waits.
        optional memcpy_dtoh = cuMemcpyDtoH_v2;
        /// Copies from the host in a stream's order.
        optional memcpy_htod_async = cuMemcpyHtoDAsync_v2;
        /// Copies to the host in a stream's order.
        optional memcpy_dtoh_async = cuMemcpyDtoHAsync_v2;
        /// Copies on the device in a stream's order.
        optional memcpy_dtod_async = cuMemcpyDtoDAsync_v2;

        /// Reports the granularity of physical memory. Virtual memory needs this entry and the
        /// following seven.
        optional mem_get_allocation_granularity = cuMemGetAllocationGranularity;
        /// Reserves a range of addresses.
        optional mem_address_reserve = cuMemAddressReserve;
        /// Frees a reserved range of addresses.
        optional mem_address_free = cuMemAddressFree;
        /// Creates physical memory.
        optional mem_create = cuMemCreate;
        /// Releases physical memory. It is freed when no mapping is left.
        optional mem_release = cuMemRelease;
        /// Maps physical memory at reserved addresses.
        optional mem_map = cuMemMap;
        /// Unmaps a range.
        optional mem_unmap = cuMemUnmap;
        /// Sets the devices that may access a mapped range.
        optional mem_set_access = cuMemSetAccess;
        /// Makes a handle of physical memory for another process: writes an `int` for a file
        /// descriptor. If missing, memory cannot be exported.
        optional mem_export = cuMemExportToShareableHandle;

        /// Creates an event.
        required event_create = cuEventCreate;
        /// Records an event after all work queued on a stream.
        required event_record = cuEventRecord;
        /// Reports whether the work before the event is complete.
        required event_query = cuEventQuery;
        /// Waits until the work before the event is complete.
        required event_synchronize = cuEventSynchronize;
        /// Destroys an event, at once or when it is complete.
        required event_destroy = cuEventDestroy_v2;
        /// Waits until a stream is empty.
        required stream_synchronize = cuStreamSynchronize;
        /// Reports whether a stream is empty.
        optional stream_query = cuStreamQuery;
        /// Reports whether a stream is capturing. If missing, every stream counts as not capturing.
        optional stream_is_capturing = cuStreamIsCapturing;
        /// Reports the capture that a stream takes part in (11.3). If missing, captures have no
        /// ids.
        optional stream_get_capture_info = cuStreamGetCaptureInfo_v2;
        /// Swaps the calling thread's capture mode. If missing, a call made during a capture may
        /// invalidate the capture.
        optional thread_exchange_stream_capture_mode = cuThreadExchangeStreamCaptureMode;
        /// Reports a stream's id, which is never used twice in a process (12.0). If missing, the
        /// reuse of a handle is not detected.
        optional stream_get_id = cuStreamGetId;
        /// Reports a stream's context. Streams of another device need this entry and the following
        /// two.
        optional stream_get_ctx = cuStreamGetCtx;
        /// Makes a stream wait for an event.
        optional stream_wait_event = cuStreamWaitEvent;
        /// Creates a stream.
        optional stream_create = cuStreamCreate;
        /// Destroys a stream, at once or when it is empty.
        optional stream_destroy = cuStreamDestroy_v2;
        /// Runs a host function in a stream's order.
        optional launch_host_func = cuLaunchHostFunc;

        /// Loads a module from memory.
        optional module_load_data = cuModuleLoadData;
        /// Unloads a module.
        optional module_unload = cuModuleUnload;
        /// Finds a kernel of a module.
        optional module_get_function = cuModuleGetFunction;
        /// Launches a kernel in a stream's order.
        optional launch_kernel = cuLaunchKernel;

        /// Starts to capture a stream.
        optional stream_begin_capture = cuStreamBeginCapture_v2;
        /// Ends a capture.
        optional stream_end_capture = cuStreamEndCapture;
        /// Instantiates a graph (11.4).
        optional graph_instantiate = cuGraphInstantiateWithFlags;
        /// Runs a graph in a stream's order.
        optional graph_launch = cuGraphLaunch;
        /// Destroys an instantiated graph.
        optional graph_exec_destroy = cuGraphExecDestroy;
        /// Destroys a graph.
        optional graph_destroy = cuGraphDestroy;
        /// Reports the nodes right before a node of a graph (10.0). If this and the next entry are
        /// missing, the order within a captured graph is not known.
        optional graph_node_get_dependencies = cuGraphNodeGetDependencies;
        /// Reports the nodes right before a node of a graph, even if dependencies have properties
        /// (12.3).
        optional graph_node_get_dependencies_v2 = cuGraphNodeGetDependencies_v2;
    }
}
