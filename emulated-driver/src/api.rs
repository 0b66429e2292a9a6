//! The driver functions as Rust methods that return the plain code, for tests and the probe. Works
//! with any `libcuda`, emulated or real.

#![allow(clippy::wildcard_imports, reason = "the types of every signature")]

use crate::values::table::types::*;
use crate::values::table::{functions, signature};
use libloading::{Library, Symbol};
use std::ffi::{OsStr, c_char, c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

pub use crate::values::structs::{
    Access, ArrayShape, Copy2D, Copy3D, EXPORT_TABLE, End2D, End3D, InstantiateParams, IpcMemory, LaunchConfig,
    Location, POSIX_FD, PoolProperties, Properties, SolidShape,
};

/// Code of a method without a symbol in the library: `CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER`.
pub const MISSING: u32 = 36;

/// A loaded `libcuda`.
#[derive(Debug)]
pub struct Api {
    library: Library,
}

/// A function of the host: no test passes null.
type CuHostFn = unsafe extern "C" fn(*mut c_void);

/// Declares a method for a symbol. The arguments are the arguments of the C function.
macro_rules! method {
    ({ $symbol:ident } ($($argument:ident: $type:ty),*)) => {
        pub fn $symbol(&self, $($argument: $type),*) -> u32 {
            let name = concat!(stringify!($symbol), "\0");
            // SAFETY: the type comes from the driver's header.
            let found = unsafe { self.library.get(name) };
            let found: Symbol<'_, unsafe extern "C" fn($($type),*) -> u32> = match found {
                Ok(found) => found,
                Err(_) => return MISSING,
            };
            // SAFETY: pointers come from references, or are null where the driver allows null.
            unsafe { found($($argument),*) }
        }
    };
}

/// Declares the methods of the rows.
macro_rules! methods {
    ($($kind:ident {
        $($($symbol:ident),+: $version:literal, $requires:ident, $capture:ident;)*
    })*) => {
        #[allow(non_snake_case, missing_docs, reason = "the driver's own names; its documentation holds")]
        #[allow(clippy::too_many_arguments, clippy::not_unsafe_ptr_arg_deref, reason = "the driver's own signatures")]
        impl Api { $($($(signature! { $symbol => method { $symbol } })+)*)* }
    };
}
functions!(methods);

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

    /// Returns the address of a symbol of the library.
    pub fn address(&self, name: &str) -> Option<*mut c_void> {
        // SAFETY: the symbol is not used.
        unsafe { self.library.get::<*mut c_void>(name) }.ok().map(|symbol| *symbol)
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
        given(|out: &mut u64| self.cuMemPoolGetAttribute(pool, attribute, (&raw mut *out).cast()))
    }

    /// Sets an attribute of a pool.
    pub fn set_pool_attribute(&self, pool: u64, attribute: i32, mut value: u64) -> u32 {
        self.cuMemPoolSetAttribute(pool, attribute, (&raw mut value).cast())
    }

    /// Returns free and total memory.
    pub fn info(&self) -> Given<(usize, usize)> {
        let mut free = 0;
        given(|total| self.cuMemGetInfo_v2(&raw mut free, total)).map(|total| (free, total))
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
        let properties = Properties::of_device(0);
        given(|out| self.cuMemCreate(out, bytes, &raw const properties, 0))
    }

    /// Makes physical memory of device 0 that can be exported.
    pub fn create_shared(&self, bytes: usize) -> Given<u64> {
        let properties = Properties { handle_types: POSIX_FD, ..Properties::of_device(0) };
        given(|out| self.cuMemCreate(out, bytes, &raw const properties, 0))
    }

    /// Makes a descriptor of physical memory, which the caller closes.
    pub fn export(&self, handle: u64) -> Given<OwnedFd> {
        let descriptor =
            given(|out: &mut RawFd| self.cuMemExportToShareableHandle((&raw mut *out).cast(), handle, POSIX_FD, 0))?;
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
