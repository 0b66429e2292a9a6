//! The real driver: typed functions, looked up in the library behind the alias.
//!
//! The library in front has the name of the driver, so the driver is loaded under another name, the
//! *alias*. No function here is looked up in the process's own scope: the look-up would find the
//! library in front. [`Real`] holds the functions called by `cachalot-cuda` ([`Table`]) and those
//! for the library in front only. [`Real::driver`] starts a [`Driver`] over them, so no call of an
//! allocator comes back to the library in front.

#![allow(clippy::wildcard_imports, reason = "the types of every signature")]

use cachalot_cuda::driver::table::Table;
use cachalot_cuda::driver::types::*;
use cachalot_cuda::{CuResult, Driver, LoadError};
use core::ffi::{CStr, c_int, c_void};
use core::ops::Deref;
use core::ptr::NonNull;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

/// The file name under which the real driver is loaded together with the library in front.
pub const ALIAS: &CStr = c"libcachalot-driver.so.1";

cachalot_cuda_abi::table! {
    /// The functions of a driver: those that `cachalot-cuda` calls, and those for the library in
    /// front only. A driver may be without any of the latter.
    pub struct Functions over Table {
        /// Allocates rows of device memory, each aligned for the device.
        optional mem_alloc_pitch = cuMemAllocPitch_v2;
        /// Allocates memory shared by host and devices.
        optional mem_alloc_managed = cuMemAllocManaged;
        /// Allocates pinned memory of the host.
        optional mem_host_alloc = cuMemHostAlloc;
        /// Allocates pinned memory of the host, without flags.
        optional mem_alloc_host = cuMemAllocHost_v2;
        /// Frees pinned memory of the host.
        optional mem_free_host = cuMemFreeHost;
        /// Allocates in a stream's order, from a pool.
        optional mem_alloc_from_pool_async = cuMemAllocFromPoolAsync;
        /// Opens a pool's memory to devices, or closes the memory.
        optional mem_pool_set_access = cuMemPoolSetAccess;
        /// Makes a handle of a pool for another process.
        optional mem_pool_export_to_shareable_handle = cuMemPoolExportToShareableHandle;
        /// Makes a description of a pool's memory for another process.
        optional mem_pool_export_pointer = cuMemPoolExportPointer;
        /// Changes an attribute of a pool.
        optional mem_pool_set_attribute = cuMemPoolSetAttribute;
        /// Destroys a pool.
        optional mem_pool_destroy = cuMemPoolDestroy;
        /// Gives free memory of a pool back to the device.
        optional mem_pool_trim_to = cuMemPoolTrimTo;
        /// Makes a handle of the physical memory at an address.
        optional mem_retain_allocation_handle = cuMemRetainAllocationHandle;
        /// Makes a handle of physical memory from another process's, or one's own, exported handle.
        optional mem_import = cuMemImportFromShareableHandle;
        /// Reports the properties of physical memory.
        optional mem_get_allocation_properties_from_handle = cuMemGetAllocationPropertiesFromHandle;
        /// Makes a handle of a range of addresses for another device.
        optional mem_get_handle_for_address_range = cuMemGetHandleForAddressRange;
        /// Binds physical memory to a multicast object.
        optional multicast_bind_mem = cuMulticastBindMem;
        /// Binds the memory of a range of addresses to a multicast object.
        optional multicast_bind_addr = cuMulticastBindAddr;
        /// Reports the current pool of a device.
        optional device_get_mem_pool = cuDeviceGetMemPool;
        /// Chooses the current pool of a device.
        optional device_set_mem_pool = cuDeviceSetMemPool;
        /// Reports an attribute of an address.
        optional pointer_get_attribute = cuPointerGetAttribute;
        /// Reports several attributes of an address.
        optional pointer_get_attributes = cuPointerGetAttributes;
        /// Changes an attribute of an address.
        optional pointer_set_attribute = cuPointerSetAttribute;
        /// Makes a handle of an allocation for another process.
        optional ipc_get_mem_handle = cuIpcGetMemHandle;
        /// Opens the memory of a handle made by another process.
        optional ipc_open_mem_handle = cuIpcOpenMemHandle_v2;
        /// Closes memory of another process.
        optional ipc_close_mem_handle = cuIpcCloseMemHandle;
        /// Destroys the contents of a primary context.
        optional device_primary_ctx_reset = cuDevicePrimaryCtxReset_v2;
        /// Reports whether a device's primary context exists.
        optional device_primary_ctx_get_state = cuDevicePrimaryCtxGetState;
        /// Creates a context for some multiprocessors of a device.
        optional ctx_create_v3 = cuCtxCreate_v3;
        /// Creates a context with parameters.
        optional ctx_create_v4 = cuCtxCreate_v4;
        /// Adds a use of the current context.
        optional ctx_attach = cuCtxAttach;
        /// Ends a use of a context, and the context with the last.
        optional ctx_detach = cuCtxDetach;
        /// Creates a green context over the primary context of a device.
        optional green_ctx_create = cuGreenCtxCreate;
        /// Destroys a green context, and releases the primary context.
        optional green_ctx_destroy = cuGreenCtxDestroy;
        /// Reports a green context as a context.
        optional ctx_from_green_ctx = cuCtxFromGreenCtx;
        /// Reports an attribute of the memory that a device holds for the memory nodes of graphs
        /// (`CUgraphMem_attribute`).
        optional device_get_graph_mem_attribute = cuDeviceGetGraphMemAttribute;
        /// Destroys an array.
        optional array_destroy = cuArrayDestroy;
        /// Destroys an array with levels.
        optional mipmapped_array_destroy = cuMipmappedArrayDestroy;
        /// Starts to capture a stream into a graph.
        optional stream_begin_capture_to_graph = cuStreamBeginCaptureToGraph;
    }
}

/// The functions of the real driver. Dereferences to [`Functions`].
///
/// All threads share the value, which lives as long as the process.
#[derive(Debug)]
pub struct Real {
    /// The functions of the library.
    functions: Functions,
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
        // SAFETY: the handle is valid for the caller.
        let lookup = |symbol: &'static CStr| NonNull::new(unsafe { crate::loader::symbol(handle.as_ptr(), symbol) });
        // SAFETY: a function that a driver exports under a versioned name has the signature of the
        // versioned name. The library stays loaded.
        let functions = unsafe { Functions::fill(lookup) };
        Self { functions, handle, driver: OnceLock::new() }
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
        // SAFETY: the handle is that of a library which stays loaded.
        NonNull::new(unsafe { crate::loader::symbol(self.handle.as_ptr(), symbol) })
    }

    /// Returns the functions known to `cachalot-cuda`.
    pub fn table(&self) -> &Table {
        &self.functions
    }

    /// Returns a driver over the functions. The first call starts the driver (`cuInit`).
    ///
    /// # Errors
    /// The reason why the driver cannot be used: for example, the version is too old. Later calls
    /// return the first answer again.
    pub fn driver(&self) -> Result<&'static Driver, &LoadError> {
        // SAFETY: the functions are the driver's own.
        self.driver.get_or_init(|| unsafe { Driver::from_table(self.table()) }).as_ref().copied()
    }
}

impl Deref for Real {
    type Target = Functions;

    fn deref(&self) -> &Functions {
        &self.functions
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
