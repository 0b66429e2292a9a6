//! The real driver: typed functions, looked up in the library behind the alias.
//!
//! The library in front has the name of the driver, so the driver is loaded under another name,
//! the *alias*. No function here is looked up in the process's own scope: the look-up would find the
//! library in front. [`Real`] holds the functions called by `cachalot-cuda` ([`Table`]) and the
//! functions for the library in front only. [`Real::driver`] starts a [`Driver`] over both, so no call of an allocator comes back to the library in front.

use crate::types::{CuGreenContext, CuIpcMemHandle};
use cachalot_cuda::driver::table::Table;
use cachalot_cuda::driver::types::{
    CuCaptureMode, CuContext, CuDevice, CuDevicePtr, CuGraph, CuGraphEdgeData, CuGraphNode, CuMemAccessDesc,
    CuMemAllocationProp, CuMemHandle, CuMemHandleType, CuMemoryPool, CuStream,
};
use cachalot_cuda::{CuResult, Driver, LoadError};
use core::ffi::{CStr, c_int, c_void};
use core::ops::Deref;
use core::ptr::NonNull;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

/// The file name under which the real driver is loaded beside the library in front.
pub const ALIAS: &CStr = c"libcachalot-driver.so.1";

/// An attribute of an address (`CUpointer_attribute`). Unknown values are passed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct CuPointerAttribute(pub c_int);

impl CuPointerAttribute {
    /// Whether synchronous operations on the memory wait for completion (`unsigned int`).
    pub const SYNC_MEMOPS: Self = Self(6);
    /// The number of the allocation, unique in the process (`unsigned long long`).
    pub const BUFFER_ID: Self = Self(7);
    /// Whether a legacy IPC handle of the memory can be made (`int`).
    pub const IS_LEGACY_CUDA_IPC_CAPABLE: Self = Self(10);
    /// The first address of the allocation (`CUdeviceptr`).
    pub const RANGE_START_ADDR: Self = Self(11);
    /// The bytes of the allocation (`size_t`).
    pub const RANGE_SIZE: Self = Self(12);
    /// The pool of the allocation, null outside of pools (`CUmemoryPool`).
    pub const MEMPOOL_HANDLE: Self = Self(17);
    /// The bytes of the mapping (`size_t`).
    pub const MAPPING_SIZE: Self = Self(18);
    /// The first address of the mapping (`CUdeviceptr`).
    pub const MAPPING_BASE_ADDR: Self = Self(19);
    /// The number of the physical memory (`unsigned long long`).
    pub const MEMORY_BLOCK_ID: Self = Self(20);
}

/// Declares the functions beyond those of `cachalot-cuda`, and a method for each.
macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal($($argument:ident: $type:ty),*);)*) => {
        /// Functions of the driver beside [`Table`]. A driver may lack any of the functions.
        #[derive(Clone, Copy, Default, Debug)]
        struct More {
            $($name: Option<unsafe extern "C" fn($($argument: $type),*) -> CuResult>,)*
        }

        impl More {
            /// Fills the functions with the address returned by `lookup` for each symbol.
            ///
            /// # Safety
            /// As for [`Table::fill`].
            unsafe fn fill(lookup: impl Fn(&'static CStr) -> Option<NonNull<c_void>>) -> Self {
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
        }

        impl Real {
            $(
                $(#[$doc])*
                ///
                /// Answers 36 (`CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER`) if the driver lacks the function.
                ///
                /// # Safety
                /// As for the functions of [`Table`].
                #[inline]
                pub unsafe fn $name(&self, $($argument: $type),*) -> CuResult {
                    match self.more.$name {
                        // SAFETY: the entries have the driver's signatures; the caller vouches for
                        // the arguments.
                        Some(function) => unsafe { function($($argument),*) },
                        None => CuResult::CALL_REQUIRES_NEWER_DRIVER,
                    }
                }
            )*
        }
    };
}

functions! {
    /// Allocates rows of device memory, each aligned for the device.
    mem_alloc_pitch = c"cuMemAllocPitch_v2"(
        address: *mut CuDevicePtr, pitch: *mut usize, width: usize, height: usize, element: u32);
    /// Allocates memory shared by host and devices.
    mem_alloc_managed = c"cuMemAllocManaged"(address: *mut CuDevicePtr, bytes: usize, flags: u32);
    /// Allocates pinned memory of the host.
    mem_host_alloc = c"cuMemHostAlloc"(address: *mut *mut c_void, bytes: usize, flags: u32);
    /// Allocates pinned memory of the host, without flags.
    mem_alloc_host = c"cuMemAllocHost_v2"(address: *mut *mut c_void, bytes: usize);
    /// Frees pinned memory of the host.
    mem_free_host = c"cuMemFreeHost"(address: *mut c_void);
    /// Allocates in a stream's order, from the current pool of the stream's device.
    mem_alloc_async = c"cuMemAllocAsync"(address: *mut CuDevicePtr, bytes: usize, stream: CuStream);
    /// Allocates in a stream's order, from a pool.
    mem_alloc_from_pool_async = c"cuMemAllocFromPoolAsync"(
        address: *mut CuDevicePtr, bytes: usize, pool: CuMemoryPool, stream: CuStream);
    /// Frees in a stream's order.
    mem_free_async = c"cuMemFreeAsync"(address: CuDevicePtr, stream: CuStream);
    /// Opens a pool's memory to devices, or closes the memory.
    mem_pool_set_access = c"cuMemPoolSetAccess"(
        pool: CuMemoryPool, descriptors: *const CuMemAccessDesc, count: usize);
    /// Makes a handle of a pool for another process.
    mem_pool_export_to_shareable_handle = c"cuMemPoolExportToShareableHandle"(
        handle: *mut c_void, pool: CuMemoryPool, kind: CuMemHandleType, flags: u64);
    /// Makes a description of a pool's memory for another process.
    mem_pool_export_pointer = c"cuMemPoolExportPointer"(data: *mut c_void, address: CuDevicePtr);
    /// Changes an attribute of a pool.
    mem_pool_set_attribute = c"cuMemPoolSetAttribute"(pool: CuMemoryPool, attribute: c_int, value: *mut c_void);
    /// Destroys a pool.
    mem_pool_destroy = c"cuMemPoolDestroy"(pool: CuMemoryPool);
    /// Gives free memory of a pool back to the device.
    mem_pool_trim_to = c"cuMemPoolTrimTo"(pool: CuMemoryPool, keep: usize);
    /// Makes a handle of the physical memory at an address.
    mem_retain_allocation_handle = c"cuMemRetainAllocationHandle"(handle: *mut CuMemHandle, address: *mut c_void);
    /// Makes a handle of physical memory from another process's, or one's own, exported handle.
    mem_import = c"cuMemImportFromShareableHandle"(handle: *mut CuMemHandle, shareable: *mut c_void, kind: c_int);
    /// Reports the properties of physical memory.
    mem_get_allocation_properties_from_handle = c"cuMemGetAllocationPropertiesFromHandle"(
        properties: *mut CuMemAllocationProp, handle: CuMemHandle);
    /// Makes a handle of a range of addresses for another device.
    mem_get_handle_for_address_range = c"cuMemGetHandleForAddressRange"(
        handle: *mut c_void, address: CuDevicePtr, bytes: usize, kind: c_int, flags: u64);
    /// Binds physical memory to a multicast object.
    multicast_bind_mem = c"cuMulticastBindMem"(
        multicast: CuMemHandle, at: usize, memory: CuMemHandle, offset: usize, bytes: usize, flags: u64);
    /// Binds the memory of a range of addresses to a multicast object.
    multicast_bind_addr = c"cuMulticastBindAddr"(
        multicast: CuMemHandle, at: usize, address: CuDevicePtr, bytes: usize, flags: u64);
    /// Reports the current pool of a device.
    device_get_mem_pool = c"cuDeviceGetMemPool"(pool: *mut CuMemoryPool, device: CuDevice);
    /// Chooses the current pool of a device.
    device_set_mem_pool = c"cuDeviceSetMemPool"(device: CuDevice, pool: CuMemoryPool);
    /// Reports an attribute of an address.
    pointer_get_attribute = c"cuPointerGetAttribute"(
        data: *mut c_void, attribute: CuPointerAttribute, address: CuDevicePtr);
    /// Reports several attributes of an address.
    pointer_get_attributes = c"cuPointerGetAttributes"(
        count: u32, attributes: *mut CuPointerAttribute, data: *mut *mut c_void, address: CuDevicePtr);
    /// Changes an attribute of an address.
    pointer_set_attribute = c"cuPointerSetAttribute"(
        value: *const c_void, attribute: CuPointerAttribute, address: CuDevicePtr);
    /// Makes a handle of an allocation for another process.
    ipc_get_mem_handle = c"cuIpcGetMemHandle"(handle: *mut CuIpcMemHandle, address: CuDevicePtr);
    /// Opens the memory of a handle made by another process.
    ipc_open_mem_handle = c"cuIpcOpenMemHandle_v2"(address: *mut CuDevicePtr, handle: CuIpcMemHandle, flags: u32);
    /// Closes memory of another process.
    ipc_close_mem_handle = c"cuIpcCloseMemHandle"(address: CuDevicePtr);
    /// Destroys the contents of a primary context.
    device_primary_ctx_reset = c"cuDevicePrimaryCtxReset_v2"(device: CuDevice);
    /// Reports whether a device's primary context exists.
    device_primary_ctx_get_state = c"cuDevicePrimaryCtxGetState"(device: CuDevice, flags: *mut u32, active: *mut c_int);
    /// Creates a context, and pushes the context (`cuCtxCreate_v2`).
    ctx_create_v2 = c"cuCtxCreate_v2"(context: *mut CuContext, flags: u32, device: CuDevice);
    /// Creates a context for some multiprocessors of a device.
    ctx_create_v3 = c"cuCtxCreate_v3"(
        context: *mut CuContext, affinity: *mut c_void, count: c_int, flags: u32, device: CuDevice);
    /// Creates a context with parameters.
    ctx_create_v4 = c"cuCtxCreate_v4"(context: *mut CuContext, parameters: *mut c_void, flags: u32, device: CuDevice);
    /// Adds a use of the current context.
    ctx_attach = c"cuCtxAttach"(context: *mut CuContext, flags: u32);
    /// Ends a use of a context, and the context with the last.
    ctx_detach = c"cuCtxDetach"(context: CuContext);
    /// Creates a green context over the primary context of a device.
    green_ctx_create = c"cuGreenCtxCreate"(
        green: *mut CuGreenContext, resources: *mut c_void, device: CuDevice, flags: u32);
    /// Destroys a green context, and releases the primary context.
    green_ctx_destroy = c"cuGreenCtxDestroy"(green: CuGreenContext);
    /// Reports a green context as a context.
    ctx_from_green_ctx = c"cuCtxFromGreenCtx"(context: *mut CuContext, green: CuGreenContext);
    /// Reports an attribute of the memory that a device holds for the memory nodes of graphs (`CUgraphMem_attribute`).
    device_get_graph_mem_attribute = c"cuDeviceGetGraphMemAttribute"(
        device: CuDevice, attribute: u32, value: *mut c_void);
    /// Destroys an array.
    array_destroy = c"cuArrayDestroy"(array: *mut c_void);
    /// Destroys an array with levels.
    mipmapped_array_destroy = c"cuMipmappedArrayDestroy"(array: *mut c_void);
    /// Begins to capture a stream into a graph.
    stream_begin_capture_to_graph = c"cuStreamBeginCaptureToGraph"(
        stream: CuStream, graph: CuGraph, dependencies: *const CuGraphNode, edges: *const CuGraphEdgeData, count: usize,
        mode: CuCaptureMode);
}

/// The functions of the real driver. Dereferences to the [`Table`] of `cachalot-cuda`.
///
/// All threads share the value, which lives as long as the process.
#[derive(Debug)]
pub struct Real {
    /// The functions known to `cachalot-cuda`.
    table: Table,
    /// The further functions.
    more: More,
    /// The library's handle for `dlsym`.
    handle: NonNull<c_void>,
    /// The driver over the functions, once started.
    driver: OnceLock<Result<&'static Driver, LoadError>>,
}

// SAFETY: the handle is a name of a library that is never unloaded, and `dlsym` may be called with
// it from any thread.
unsafe impl Send for Real {}
// SAFETY: as above.
unsafe impl Sync for Real {}

impl Real {
    /// Fills the functions from a library, never to be unloaded.
    ///
    /// # Safety
    /// `handle` is the answer of `dlopen` for a CUDA driver, which stays loaded.
    pub unsafe fn of_library(handle: NonNull<c_void>) -> Self {
        // SAFETY: the handle is valid for the caller, and the name is a text for C.
        let lookup = |symbol: &'static CStr| NonNull::new(unsafe { libc::dlsym(handle.as_ptr(), symbol.as_ptr()) });
        // SAFETY: a function that a driver exports under a versioned name has the signature of the
        // versioned name. The library stays loaded.
        let table = unsafe { Table::fill(lookup) };
        // SAFETY: as above.
        let more = unsafe { More::fill(lookup) };
        Self { table, more, handle, driver: OnceLock::new() }
    }

    /// Loads the driver at `path`, for tests and programs without a library in front. Never unloads
    /// the driver.
    ///
    /// # Errors
    /// The loader's text.
    pub fn load(path: &Path) -> Result<&'static Self, String> {
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| error.to_string())?;
        open(&name, libc::RTLD_LAZY | libc::RTLD_LOCAL)
            .map(|real| &*Box::leak(Box::new(real)))
            .ok_or_else(|| format!("{}: {}", path.display(), loader_message()))
    }

    /// Returns the address of the driver's function with the given symbol, or `None`. Calls the
    /// loader, and no driver.
    pub fn symbol(&self, symbol: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is that of a library which stays loaded, and the name is a text for C.
        NonNull::new(unsafe { libc::dlsym(self.handle.as_ptr(), symbol.as_ptr()) })
    }

    /// Returns the functions known to `cachalot-cuda`.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Returns a driver over the functions. The first call starts the driver (`cuInit`).
    ///
    /// # Errors
    /// The reason why the driver cannot be used: for example, the version is too old. Later calls
    /// return the first answer again.
    pub fn driver(&self) -> Result<&'static Driver, &LoadError> {
        // SAFETY: the functions are the driver's own.
        self.driver.get_or_init(|| unsafe { Driver::from_table(&self.table) }).as_ref().copied()
    }
}

impl Deref for Real {
    type Target = Table;

    fn deref(&self) -> &Table {
        &self.table
    }
}

/// Returns the real driver of the process: the library loaded as [`ALIAS`]. `None` without such a
/// library: nothing stands in front of a driver.
///
/// Never calls the driver. The first successful look-up is kept for the life of the process.
pub fn real() -> Option<&'static Real> {
    static REAL: OnceLock<&'static Real> = OnceLock::new();
    if let Some(real) = REAL.get() {
        return Some(real);
    }
    let found = open(ALIAS, libc::RTLD_NOLOAD | libc::RTLD_LAZY)?;
    Some(REAL.get_or_init(|| Box::leak(Box::new(found))))
}

/// Opens a driver by name or path.
fn open(name: &CStr, flags: c_int) -> Option<Real> {
    // SAFETY: loading runs the library's initialisers. The name is the alias that the library in
    // front depends on, or a path that the caller vouches for.
    let handle = NonNull::new(unsafe { libc::dlopen(name.as_ptr(), flags) })?;
    // SAFETY: the handle is the loader's answer, and nothing closes it.
    Some(unsafe { Real::of_library(handle) })
}

/// Returns the loader's last message on the calling thread.
fn loader_message() -> String {
    // SAFETY: takes nothing.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return "cannot be loaded".to_owned();
    }
    // SAFETY: a non-null answer is a text that lives until the thread's next call of the loader.
    unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
}
