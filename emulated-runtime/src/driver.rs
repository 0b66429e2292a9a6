//! Driver functions of `libcuda.so.1` called by the runtime.

use crate::code::{Answer, INSUFFICIENT_DRIVER};
use libloading::Library;
use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

/// A host function for a stream.
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

/// Variable with the path of the driver, for a loader that finds no driver or a wrong driver.
const PATH_VARIABLE: &str = "CACHALOT_LIBCUDA";

/// Declares each function once, as a field with the address and a method for calls.
macro_rules! functions {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {
        /// The functions, found when the runtime is first called.
        #[allow(non_snake_case, reason = "the driver's own names")]
        pub(crate) struct Driver {
            $($name: unsafe extern "C" fn($($type),*) -> u32,)*
            /// Keeps the functions in memory.
            _library: Library,
        }

        #[allow(non_snake_case, reason = "the driver's own names")]
        #[allow(clippy::too_many_arguments, reason = "the driver's own signatures")]
        impl Driver {
            /// Finds every function in a library.
            fn find(library: Library) -> Result<Self, libloading::Error> {
                $(
                    // SAFETY: the type comes from the driver's header.
                    let $name = *unsafe { library.get(concat!(stringify!($name), "\0")) }?;
                )*
                Ok(Self { $($name,)* _library: library })
            }

            $(
                pub(crate) fn $name(&self, $($arg: $type),*) -> Answer<()> {
                    // SAFETY: results go to references. The runtime's caller guarantees host
                    // addresses.
                    match unsafe { (self.$name)($($arg),*) } {
                        0 => Ok(()),
                        code => Err(code),
                    }
                }
            )*
        }
    };
}

functions! {
    cuInit(flags: u32);
    cuDriverGetVersion(version: &mut c_int);
    cuGetErrorString(code: u32, text: &mut *const c_char);
    cuGetProcAddress_v2(symbol: *const c_char, address: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_int);
    cuDeviceGetCount(count: &mut c_int);
    cuDeviceGetAttribute(value: &mut c_int, attribute: c_int, device: c_int);
    cuDeviceCanAccessPeer(can: &mut c_int, device: c_int, peer: c_int);
    cuDevicePrimaryCtxRetain(context: &mut u64, device: c_int);
    cuCtxGetCurrent(context: &mut u64);
    cuCtxSetCurrent(context: u64);
    cuCtxGetDevice(device: &mut c_int);
    cuCtxGetStreamPriorityRange(least: &mut c_int, greatest: &mut c_int);
    cuCtxSynchronize();
    cuCtxEnablePeerAccess(peer: u64, flags: u32);
    cuCtxDisablePeerAccess(peer: u64);
    cuMemGetInfo_v2(free: &mut usize, total: &mut usize);
    cuMemAlloc_v2(address: &mut u64, bytes: usize);
    cuMemFree_v2(address: u64);
    cuMemsetD8Async(address: u64, value: u8, bytes: usize, stream: u64);
    cuMemcpyHtoD_v2(to: u64, from: u64, bytes: usize);
    cuMemcpyDtoH_v2(to: u64, from: u64, bytes: usize);
    cuMemcpyHtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64);
    cuMemcpyDtoHAsync_v2(to: u64, from: u64, bytes: usize, stream: u64);
    cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64);
    cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: u64);
    cuDeviceGetDefaultMemPool(pool: &mut u64, device: c_int);
    cuDeviceGetMemPool(pool: &mut u64, device: c_int);
    cuDeviceSetMemPool(device: c_int, pool: u64);
    cuMemPoolCreate(pool: &mut u64, properties: *const c_void);
    cuMemPoolDestroy(pool: u64);
    cuMemPoolGetAttribute(pool: u64, attribute: c_int, value: *mut c_void);
    cuMemPoolSetAttribute(pool: u64, attribute: c_int, value: *mut c_void);
    cuMemPoolTrimTo(pool: u64, kept_bytes: usize);
    cuMemAllocAsync(address: &mut u64, bytes: usize, stream: u64);
    cuMemAllocFromPoolAsync(address: &mut u64, bytes: usize, pool: u64, stream: u64);
    cuMemFreeAsync(address: u64, stream: u64);
    cuStreamCreateWithPriority(stream: &mut u64, flags: u32, priority: c_int);
    cuStreamDestroy_v2(stream: u64);
    cuStreamSynchronize(stream: u64);
    cuStreamQuery(stream: u64);
    cuStreamWaitEvent(stream: u64, event: u64, flags: u32);
    cuStreamGetPriority(stream: u64, priority: &mut c_int);
    cuStreamGetFlags(stream: u64, flags: &mut u32);
    cuStreamGetId(stream: u64, id: &mut u64);
    cuStreamIsCapturing(stream: u64, status: &mut c_int);
    cuLaunchHostFunc(stream: u64, function: Option<HostFunction>, argument: *mut c_void);
    cuEventCreate(event: &mut u64, flags: u32);
    cuEventDestroy_v2(event: u64);
    cuEventRecord(event: u64, stream: u64);
    cuEventQuery(event: u64);
    cuEventSynchronize(event: u64);
    cuEventElapsedTime(milliseconds: &mut f32, from: u64, to: u64);
    cuThreadExchangeStreamCaptureMode(mode: &mut c_int);
    cuStreamBeginCapture_v2(stream: u64, mode: c_int);
    cuStreamEndCapture(stream: u64, graph: &mut u64);
    cuGraphInstantiateWithFlags(executable: &mut u64, graph: u64, flags: u64);
    cuGraphLaunch(executable: u64, stream: u64);
    cuGraphExecDestroy(executable: u64);
    cuGraphDestroy(graph: u64);
    cuModuleLoadData(module: &mut u64, image: *const c_char);
    cuModuleGetFunction(function: &mut u64, module: u64, name: *const c_char);
    cuLaunchKernel(function: u64, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared_bytes: u32, stream: u64, params: *mut *mut c_void, extra: *mut *mut c_void);
}

/// Returns the initialized driver, without a context.
///
/// # Errors
/// `cudaErrorInsufficientDriver` and a line on stderr without an emulated driver, otherwise the
/// answer of `cuInit`.
pub(crate) fn driver() -> Answer<&'static Driver> {
    static FOUND: OnceLock<Answer<Driver>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let path = std::env::var(PATH_VARIABLE).unwrap_or_else(|_| "libcuda.so.1".to_owned());
        let driver = load(&path).map_err(|why| {
            eprintln!("emulated runtime: {path} is no emulated driver: {why}");
            INSUFFICIENT_DRIVER
        })?;
        driver.cuInit(0).map(|()| driver)
    });
    found.as_ref().map_err(|&code| code)
}

/// Loads an emulated driver and refuses any other driver, which could not read the kernels.
fn load(path: &str) -> Result<Driver, libloading::Error> {
    // SAFETY: a libcuda's initialisers may run at any time.
    let library = unsafe { Library::new(path) }?;
    // SAFETY: the symbol is not used.
    unsafe { library.get::<*const c_void>(b"cachalot_emulated_driver\0") }?;
    Driver::find(library)
}
