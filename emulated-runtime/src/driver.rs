//! Driver functions of `libcuda.so.1` called by the runtime.

#![allow(clippy::wildcard_imports, reason = "the types of every signature")]

use crate::code::{Answer, INSUFFICIENT_DRIVER};
use cachalot_cuda_abi::{function, pointer, symbol};
use libloading::Library;
use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;
use types::*;

/// A host function for a stream.
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

/// Variable with the path of the driver, for a loader that finds no driver or a wrong driver.
const PATH_VARIABLE: &str = "CACHALOT_LIBCUDA";

/// What the types of the signatures are here: handles are numbers of 64 bits, as in the runtime's
/// own functions.
mod types {
    use super::{HostFunction, c_int, c_void};

    /// Declares names of types.
    macro_rules! names {
        ($($name:ident)* = $type:ty) => { $(pub(crate) type $name = $type;)* };
    }
    names! {
        CuContext CuDevicePtr CuEvent CuFunction CuGraph CuGraphExec CuGraphNode CuMemoryPool CuModule CuStream = u64
    }
    names! {
        CuCaptureMode CuCaptureStatus CuDevice CuDeviceAttribute CuDriverProcAddressQueryResult CuMemPoolAttribute = c_int
    }
    names! { CuEventFlags CuResult CuStreamFlags = u32 }
    names! { CuMemPoolProps = c_void }
    names! { CudaMemcpy2D = super::Copy2D }
    names! { CuMemHostRegisterFlags = u32 }
    names! { CuPointerAttribute = c_int }
    names! { CuUuid = [u8; 16] }
    names! { CuHostFn = Option<HostFunction> }
}

/// One end of a [`Copy2D`].
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct End2D {
    /// Bytes and lines before the first.
    pub(crate) x: usize,
    pub(crate) y: usize,
    /// `CUmemorytype`, which says which of the addresses is meant.
    pub(crate) kind: u32,
    pub(crate) host: u64,
    pub(crate) device: u64,
    pub(crate) array: u64,
    /// Bytes of a line.
    pub(crate) pitch: usize,
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
pub(crate) struct Copy2D {
    pub(crate) from: End2D,
    pub(crate) to: End2D,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// Declares each function once, as a field with the address and a method for calls.
macro_rules! functions {
    ($($name:ident)*) => {
        /// The functions, found when the runtime is first called.
        #[allow(non_snake_case, reason = "the driver's own names")]
        pub(crate) struct Driver {
            $($name: function!($name => pointer {}),)*
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
                    let $name = *unsafe { library.get(symbol!($name)) }?;
                )*
                Ok(Self { $($name,)* _library: library })
            }

            $(function! { $name => method { $name } })*
        }
    };
}

/// Declares the method of a function.
macro_rules! method {
    ({ $name:ident } ($($argument:ident: $type:ty),*)) => {
        pub(crate) fn $name(&self, $($argument: $type),*) -> Answer<()> {
            // SAFETY: results go to variables of the runtime. The runtime's caller guarantees host
            // addresses.
            match unsafe { (self.$name)($($argument),*) } {
                0 => Ok(()),
                code => Err(code),
            }
        }
    };
}

functions! {
    cuInit cuDriverGetVersion cuGetErrorString cuGetProcAddress_v2 cuDeviceGetCount cuDeviceGetAttribute
    cuDeviceCanAccessPeer cuDevicePrimaryCtxRetain cuCtxGetCurrent cuCtxSetCurrent cuCtxGetDevice
    cuCtxGetStreamPriorityRange cuCtxSynchronize cuCtxEnablePeerAccess cuCtxDisablePeerAccess cuMemGetInfo_v2
    cuMemAlloc_v2 cuMemFree_v2 cuMemsetD8Async cuMemcpyHtoD_v2 cuMemcpyDtoH_v2 cuMemcpyHtoDAsync_v2
    cuMemcpyDtoHAsync_v2 cuMemcpyDtoDAsync_v2 cuMemcpyAsync cuDeviceGetDefaultMemPool cuDeviceGetMemPool
    cuDeviceSetMemPool cuMemPoolCreate cuMemPoolDestroy cuMemPoolGetAttribute cuMemPoolSetAttribute cuMemPoolTrimTo
    cuMemAllocAsync cuMemAllocFromPoolAsync cuMemFreeAsync cuStreamCreateWithPriority cuStreamDestroy_v2
    cuStreamSynchronize cuStreamQuery cuStreamWaitEvent cuStreamGetPriority cuStreamGetFlags cuStreamGetId
    cuStreamIsCapturing cuLaunchHostFunc cuEventCreate cuEventDestroy_v2 cuEventRecord cuEventQuery
    cuEventSynchronize cuEventElapsedTime cuThreadExchangeStreamCaptureMode cuStreamBeginCapture_v2
    cuStreamEndCapture cuGraphInstantiateWithFlags cuGraphLaunch cuGraphExecDestroy cuGraphDestroy cuModuleLoadData
    cuModuleGetFunction cuFuncGetAttribute cuFuncSetAttribute cuFuncSetCacheConfig cuLaunchKernel cuDeviceGetName cuDeviceGetUuid_v2 cuDeviceTotalMem_v2 cuDeviceGetPCIBusId
    cuDevicePrimaryCtxReset_v2 cuPointerGetAttribute cuMemAllocPitch_v2 cuMemAllocManaged cuMemHostRegister_v2
    cuStreamGetCaptureInfo_v2 cuMemHostUnregister cuMemHostGetDevicePointer_v2 cuMemsetD2D8Async cuMemcpy2DUnaligned_v2 cuMemcpy2DAsync_v2
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
