//! The driver functions as Rust methods that return the plain code, for tests and the probe. Works
//! with any `libcuda`, emulated or real.

use libloading::{Library, Symbol};
use std::ffi::{OsStr, c_char, c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Code of a method without a symbol in the library: `CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER`.
pub const MISSING: u32 = 36;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
pub const POSIX_FD: i32 = 1;

/// `CUmemAllocationProp` for plain memory of a device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Properties {
    /// `CUmemAllocationType`; 1 is pinned.
    pub kind: i32,
    /// `CUmemAllocationHandleType`.
    pub handle_types: i32,
    /// `CUmemLocationType`; 1 is a device.
    pub location_kind: i32,
    /// The device.
    pub location: i32,
    /// Null.
    pub metadata: u64,
    /// Zero.
    pub flags: [u8; 8],
}

impl Properties {
    /// Returns the properties of plain memory of a device.
    pub fn of_device(device: i32) -> Self {
        Self { kind: 1, handle_types: 0, location_kind: 1, location: device, metadata: 0, flags: [0; 8] }
    }
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// `CUmemLocationType`; 1 is a device.
    pub location_kind: i32,
    /// The device.
    pub location: i32,
    /// 0 none, 1 read, 3 read and write.
    pub flags: i32,
}

impl Access {
    /// Returns full access for a device.
    pub fn full(device: i32) -> Self {
        Self { location_kind: 1, location: device, flags: 3 }
    }
}

/// `CUmemPoolProps` for plain memory of a device.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct PoolProperties {
    /// `CUmemAllocationType`; 1 is pinned.
    pub kind: i32,
    /// `CUmemAllocationHandleType`.
    pub handle_types: i32,
    /// `CUmemLocationType`; 1 is a device.
    pub location_kind: i32,
    /// The device.
    pub location: i32,
    /// Null.
    pub security: u64,
    /// Most bytes of the pool. 0 for no limit.
    pub max_bytes: usize,
    /// Zero.
    pub reserved: [u8; 56],
}

impl PoolProperties {
    /// Returns the properties of a pool of plain memory of a device.
    pub fn of_device(device: i32) -> Self {
        let (kind, location_kind) = (1, 1);
        Self { kind, handle_types: 0, location_kind, location: device, security: 0, max_bytes: 0, reserved: [0; 56] }
    }
}

/// A loaded `libcuda`.
#[derive(Debug)]
pub struct Api {
    library: Library,
}

/// Declares a method for each function. The arguments are the arguments of the C function.
macro_rules! api {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {
        #[allow(non_snake_case, missing_docs, reason = "the driver's own names; its documentation holds")]
        #[allow(clippy::too_many_arguments, reason = "the driver's own signatures")]
        impl Api {
            $(
                pub fn $name(&self, $($arg: $type),*) -> u32 {
                    let name = concat!(stringify!($name), "\0");
                    // SAFETY: the type comes from the driver's header.
                    let found = unsafe { self.library.get(name) };
                    let found: Symbol<'_, unsafe extern "C" fn($($type),*) -> u32> = match found {
                        Ok(found) => found,
                        Err(_) => return MISSING,
                    };
                    // SAFETY: pointers come from references, or are null where the driver allows
                    // null.
                    unsafe { found($($arg),*) }
                }
            )*
        }
    };
}

api! {
    cuInit(flags: u32);
    cuDriverGetVersion(version: &mut c_int);
    cuGetErrorName(code: u32, name: &mut *const c_char);
    cuGetErrorString(code: u32, text: &mut *const c_char);
    cuGetProcAddress_v2(symbol: *const c_char, address: &mut *mut c_void, version: c_int, flags: u64, status: &mut c_int);
    cuDeviceGet(device: &mut c_int, ordinal: c_int);
    cuDeviceGetCount(count: &mut c_int);
    cuDeviceGetAttribute(value: &mut c_int, attribute: c_int, device: c_int);
    cuDeviceGetName(name: *mut c_char, bytes: c_int, device: c_int);
    cuDeviceTotalMem_v2(bytes: &mut usize, device: c_int);
    cuDeviceGetPCIBusId(name: *mut c_char, bytes: c_int, device: c_int);
    cuDeviceGetUuid_v2(uuid: &mut [u8; 16], device: c_int);
    cuDeviceCanAccessPeer(can: &mut c_int, device: c_int, peer: c_int);
    cuDeviceGetDefaultMemPool(pool: &mut u64, device: c_int);
    cuDeviceGetMemPool(pool: &mut u64, device: c_int);
    cuDeviceSetMemPool(device: c_int, pool: u64);
    cuMemPoolCreate(pool: &mut u64, properties: &PoolProperties);
    cuMemPoolDestroy(pool: u64);
    cuMemPoolGetAttribute(pool: u64, attribute: c_int, value: &mut u64);
    cuMemPoolSetAttribute(pool: u64, attribute: c_int, value: &mut u64);
    cuMemPoolTrimTo(pool: u64, kept_bytes: usize);
    cuMemAllocAsync(address: &mut u64, bytes: usize, stream: u64);
    cuMemAllocFromPoolAsync(address: &mut u64, bytes: usize, pool: u64, stream: u64);
    cuMemFreeAsync(address: u64, stream: u64);
    cuCtxEnablePeerAccess(peer: u64, flags: u32);
    cuCtxDisablePeerAccess(peer: u64);
    cuDevicePrimaryCtxRetain(context: &mut u64, device: c_int);
    cuDevicePrimaryCtxRelease_v2(device: c_int);
    cuCtxGetCurrent(context: &mut u64);
    cuCtxSetCurrent(context: u64);
    cuCtxPushCurrent_v2(context: u64);
    cuCtxPopCurrent_v2(context: &mut u64);
    cuCtxGetDevice(device: &mut c_int);
    cuCtxSynchronize();
    cuCtxCreate_v2(context: &mut u64, flags: u32, device: c_int);
    cuCtxDestroy_v2(context: u64);
    cuMemAlloc_v2(address: &mut u64, bytes: usize);
    cuMemFree_v2(address: u64);
    cuMemGetInfo_v2(free: &mut usize, total: &mut usize);
    cuMemGetAddressRange_v2(base: &mut u64, bytes: &mut usize, address: u64);
    cuMemHostAlloc(memory: &mut *mut c_void, bytes: usize, flags: u32);
    cuMemFreeHost(memory: *mut c_void);
    cuMemHostRegister_v2(memory: *mut c_void, bytes: usize, flags: u32);
    cuMemHostUnregister(memory: *mut c_void);
    cuMemHostGetDevicePointer_v2(address: &mut u64, memory: *mut c_void, flags: u32);
    cuMemsetD8Async(address: u64, value: u8, bytes: usize, stream: u64);
    cuMemcpyHtoD_v2(to: u64, from: *const c_void, bytes: usize);
    cuMemcpyDtoH_v2(to: *mut c_void, from: u64, bytes: usize);
    cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: u64);
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: u64);
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64);
    cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: u64);
    cuMemGetAllocationGranularity(bytes: &mut usize, properties: &Properties, option: c_int);
    cuMemAddressReserve(address: &mut u64, bytes: usize, alignment: usize, hint: u64, flags: u64);
    cuMemAddressFree(address: u64, bytes: usize);
    cuMemCreate(handle: &mut u64, bytes: usize, properties: &Properties, flags: u64);
    cuMemRelease(handle: u64);
    cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64);
    cuMemUnmap(address: u64, bytes: usize);
    cuMemSetAccess(address: u64, bytes: usize, descriptors: *const Access, count: usize);
    cuMemExportToShareableHandle(descriptor: &mut c_int, handle: u64, kind: c_int, flags: u64);
    cuMemImportFromShareableHandle(handle: &mut u64, descriptor: *mut c_void, kind: c_int);
    cuEventCreate(event: &mut u64, flags: u32);
    cuEventRecord(event: u64, stream: u64);
    cuEventQuery(event: u64);
    cuEventSynchronize(event: u64);
    cuEventElapsedTime(milliseconds: &mut f32, from: u64, to: u64);
    cuEventDestroy_v2(event: u64);
    cuStreamCreate(stream: &mut u64, flags: u32);
    cuStreamCreateWithPriority(stream: &mut u64, flags: u32, priority: c_int);
    cuStreamGetPriority(stream: u64, priority: &mut c_int);
    cuStreamGetFlags(stream: u64, flags: &mut u32);
    cuCtxGetStreamPriorityRange(least: &mut c_int, greatest: &mut c_int);
    cuStreamDestroy_v2(stream: u64);
    cuStreamSynchronize(stream: u64);
    cuStreamQuery(stream: u64);
    cuStreamWaitEvent(stream: u64, event: u64, flags: u32);
    cuStreamGetId(stream: u64, id: &mut u64);
    cuStreamGetCtx(stream: u64, context: &mut u64);
    cuStreamIsCapturing(stream: u64, status: &mut c_int);
    cuStreamGetCaptureInfo_v2(stream: u64, status: &mut c_int, id: &mut u64, graph: *mut u64, nodes: *mut *const u64, count: *mut usize);
    cuThreadExchangeStreamCaptureMode(mode: &mut c_int);
    cuLaunchHostFunc(stream: u64, function: unsafe extern "C" fn(*mut c_void), argument: *mut c_void);
    cuModuleLoadData(module: &mut u64, image: *const c_char);
    cuModuleUnload(module: u64);
    cuModuleGetFunction(function: &mut u64, module: u64, name: *const c_char);
    cuLaunchKernel(function: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared_bytes: u32, stream: u64, params: *const *const u64, extra: *const c_void);
    cuStreamBeginCapture_v2(stream: u64, mode: c_int);
    cuStreamEndCapture(stream: u64, graph: &mut u64);
    cuGraphInstantiateWithFlags(executable: &mut u64, graph: u64, flags: u64);
    cuGraphLaunch(executable: u64, stream: u64);
    cuGraphExecDestroy(executable: u64);
    cuGraphDestroy(graph: u64);
    cuGraphNodeGetDependencies(node: u64, nodes: *mut u64, count: &mut usize);
    cuGraphNodeGetDependencies_v2(node: u64, nodes: *mut u64, properties: *mut [u8; 8], count: &mut usize);
}

/// The result of a driver call, or the code of the failure.
pub type Given<T> = Result<T, u32>;

/// Runs a call with one result. Returns the result if the call succeeded.
fn given<T: Default>(call: impl FnOnce(&mut T) -> u32) -> Given<T> {
    let mut value = T::default();
    match call(&mut value) {
        0 => Ok(value),
        code => Err(code),
    }
}

/// Frequent calls, with results instead of pointers.
///
/// Each method returns the driver's code as the error.
#[allow(clippy::missing_errors_doc, reason = "said once, above")]
impl Api {
    /// Loads a library.
    ///
    /// # Errors
    /// The error of the loader.
    pub fn load(path: impl AsRef<OsStr>) -> Result<Self, libloading::Error> {
        // SAFETY: a libcuda's initialisers may run at any time.
        unsafe { Library::new(path.as_ref()) }.map(|library| Self { library })
    }

    /// Returns whether the library exports a symbol.
    pub fn has(&self, name: &str) -> bool {
        // SAFETY: the symbol is not used.
        unsafe { self.library.get::<*const c_void>(name) }.is_ok()
    }

    /// Retains a device's primary context and makes the context current.
    pub fn enter(&self, device: i32) -> Given<u64> {
        let context = given(|out| self.cuDevicePrimaryCtxRetain(out, device))?;
        match self.cuCtxSetCurrent(context) {
            0 => Ok(context),
            code => Err(code),
        }
    }

    /// Allocates memory.
    pub fn alloc(&self, bytes: usize) -> Given<u64> {
        given(|out| self.cuMemAlloc_v2(out, bytes))
    }

    /// Allocates memory of the stream's device's current pool, in the order of the stream.
    pub fn alloc_async(&self, bytes: usize, stream: u64) -> Given<u64> {
        given(|out| self.cuMemAllocAsync(out, bytes, stream))
    }

    /// Returns a device's default pool.
    pub fn default_pool(&self, device: i32) -> Given<u64> {
        given(|out| self.cuDeviceGetDefaultMemPool(out, device))
    }

    /// Returns an attribute of a pool. A switch is in the low 4 bytes.
    pub fn pool_attribute(&self, pool: u64, attribute: i32) -> Given<u64> {
        given(|out| self.cuMemPoolGetAttribute(pool, attribute, out))
    }

    /// Returns free and total memory.
    pub fn info(&self) -> Given<(usize, usize)> {
        let mut free = 0;
        given(|total| self.cuMemGetInfo_v2(&mut free, total)).map(|total| (free, total))
    }

    /// Makes a stream; flags 0 or 1 (not blocking).
    pub fn stream(&self, flags: u32) -> Given<u64> {
        given(|out| self.cuStreamCreate(out, flags))
    }

    /// Returns the stream's identity.
    pub fn stream_id(&self, stream: u64) -> Given<u64> {
        given(|out| self.cuStreamGetId(stream, out))
    }

    /// Makes an event without timing.
    pub fn event(&self) -> Given<u64> {
        given(|out| self.cuEventCreate(out, 2))
    }

    /// Returns the stream's capture status.
    pub fn capturing(&self, stream: u64) -> Given<i32> {
        given(|out| self.cuStreamIsCapturing(stream, out))
    }

    /// Ends a capture.
    pub fn end_capture(&self, stream: u64) -> Given<u64> {
        given(|out| self.cuStreamEndCapture(stream, out))
    }

    /// Reserves addresses.
    pub fn reserve(&self, bytes: usize) -> Given<u64> {
        given(|out| self.cuMemAddressReserve(out, bytes, 0, 0, 0))
    }

    /// Makes physical memory of device 0.
    pub fn create(&self, bytes: usize) -> Given<u64> {
        given(|out| self.cuMemCreate(out, bytes, &Properties::of_device(0), 0))
    }

    /// Makes physical memory of device 0 that can be exported.
    pub fn create_shared(&self, bytes: usize) -> Given<u64> {
        let properties = Properties { handle_types: POSIX_FD, ..Properties::of_device(0) };
        given(|out| self.cuMemCreate(out, bytes, &properties, 0))
    }

    /// Makes a descriptor of physical memory, which the caller closes.
    pub fn export(&self, handle: u64) -> Given<OwnedFd> {
        let descriptor = given(|out| self.cuMemExportToShareableHandle(out, handle, POSIX_FD, 0))?;
        // SAFETY: the driver has created the descriptor, and no other owner exists.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }

    /// Imports physical memory.
    pub fn import(&self, descriptor: RawFd) -> Given<u64> {
        let shareable = std::ptr::without_provenance_mut(descriptor as usize);
        given(|out| self.cuMemImportFromShareableHandle(out, shareable, POSIX_FD))
    }

    /// Gives device 0 access to mapped memory.
    pub fn allow(&self, address: u64, bytes: usize) -> u32 {
        self.cuMemSetAccess(address, bytes, &raw const ACCESS_0, 1)
    }

    /// Copies device memory to the host, on the legacy stream.
    pub fn read(&self, address: u64, bytes: usize) -> Given<Vec<u8>> {
        let mut buffer = vec![0_u8; bytes];
        match self.cuMemcpyDtoH_v2(buffer.as_mut_ptr().cast(), address, bytes) {
            0 => Ok(buffer),
            code => Err(code),
        }
    }

    /// Copies host memory to the device, on the legacy stream.
    pub fn write(&self, address: u64, bytes: &[u8]) -> u32 {
        self.cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len())
    }
}

/// Full access for device 0.
static ACCESS_0: Access = Access { location_kind: 1, location: 0, flags: 3 };
