//! The CUDA driver, loaded at run time, started once, and never unloaded.
//!
//! Building needs no toolkit, no header and no driver. Entry points are resolved by exactly
//! versioned names (`cuMemAlloc_v2`), so that a newer driver cannot return a function with another
//! signature. If a driver does not have an optional entry point, only the feature that needs it is
//! missing.

pub mod result;
pub mod table;

mod dynamic;
mod error;
#[cfg(feature = "linked")]
mod linked;

pub use cachalot_cuda_abi::types;
pub use error::{LoadError, OLDEST_VERSION};

use core::ffi::{CStr, c_char, c_int};
use core::ops::Deref;
use result::CuResult;
use std::path::Path;
use std::sync::OnceLock;
use table::Table;
use types::{CuDevice, CuDeviceAttribute, CuUuid};

/// The environment variable that names the driver's library, in place of `libcuda.so.1`.
pub const LIBRARY_VARIABLE: &str = "CACHALOT_LIBCUDA";

/// A started driver. Dereferences to the [`Table`] of entry points.
///
/// A driver lives as long as the process, because driver code may run on the driver's own threads,
/// and no code may call the driver at process exit. All threads and all devices share it.
#[derive(Debug)]
pub struct Driver {
    /// The entry points.
    table: Table,
    /// The version reported by `cuDriverGetVersion`.
    version: u32,
    /// The origin of the entry points, for messages.
    origin: String,
    /// Whether the library is the emulated driver of the tests.
    emulated: bool,
}

impl Driver {
    /// Returns the driver of the process. Loads the library that [`LIBRARY_VARIABLE`] names, or if
    /// it is not set, `libcuda.so.1` or else `libcuda.so`. With the feature `linked`, uses the
    /// driver that the program links and ignores the variable.
    ///
    /// The first successful call loads and starts the driver. Later calls return the same driver
    /// and make no driver call.
    ///
    /// # Errors
    /// [`LoadError`]. The next call tries again.
    pub fn load() -> Result<&'static Self, LoadError> {
        static DRIVER: OnceLock<&'static Driver> = OnceLock::new();
        if let Some(driver) = DRIVER.get() {
            return Ok(driver);
        }
        #[cfg(feature = "linked")]
        let (table, origin, emulated) = linked::table();
        #[cfg(not(feature = "linked"))]
        let (table, origin, emulated) = {
            match std::env::var_os(LIBRARY_VARIABLE) {
                Some(path) => dynamic::table_of(Path::new(&path), true)?,
                None => dynamic::table(&[Path::new("libcuda.so.1"), Path::new("libcuda.so")])?,
            }
        };
        let driver = Self::start(&table, origin, emulated)?;
        Ok(DRIVER.get_or_init(|| driver))
    }

    /// Loads the driver from the library at `path`. Each call loads the library anew, and it is
    /// never unloaded.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn load_from(path: &Path) -> Result<&'static Self, LoadError> {
        let (table, origin, emulated) = dynamic::table_of(path, false)?;
        Self::start(&table, origin, emulated)
    }

    /// Creates a driver from the caller's own entry points.
    ///
    /// # Errors
    /// [`LoadError`].
    ///
    /// # Safety
    /// Each function must access the same memory as the driver's function of the same name, and
    /// give the same guarantees. The functions may be called from any thread for the life of the
    /// process.
    pub unsafe fn from_table(table: &Table) -> Result<&'static Self, LoadError> {
        Self::start(table, "the caller's table".to_owned(), false)
    }

    /// Checks the required entry points and the version, starts the driver, and leaks it on
    /// purpose.
    fn start(table: &Table, origin: String, emulated: bool) -> Result<&'static Self, LoadError> {
        if crate::fork::in_child() {
            return Err(LoadError::Forked);
        }
        if let Some(entry) = table.missing().find(|entry| entry.required) {
            return Err(LoadError::MissingSymbol(entry.symbol));
        }
        // SAFETY: `cuInit` takes no pointers and may be called at any time, by any thread, more
        // than once.
        let started = unsafe { table.init(0) };
        if !started.is_success() {
            return Err(LoadError::Start(started));
        }
        let mut version: c_int = 0;
        // SAFETY: `version` outlives the call, which writes one integer to it.
        let answered = unsafe { table.driver_get_version(&raw mut version) };
        if !answered.is_success() {
            return Err(LoadError::Start(answered));
        }
        let version = u32::try_from(version).unwrap_or(0);
        if version < OLDEST_VERSION {
            return Err(LoadError::TooOld { version });
        }
        // After `cuInit`, where a driver registers its own end.
        crate::exit::stop_work_at_exit();
        let driver = Self { table: *table, version, origin, emulated };
        Ok(Box::leak(Box::new(driver)))
    }

    /// Returns the newest interface version that the driver supports: 1000 × major + 10 × minor.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Returns the origin of the entry points: the name of the library as it was requested.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Returns whether the driver is the emulated driver of the tests, in which kernels are host
    /// functions.
    pub fn is_emulated(&self) -> bool {
        self.emulated
    }

    /// Returns the number of devices visible to the process.
    ///
    /// # Errors
    /// The driver's code.
    pub fn device_count(&self) -> Result<u32, CuResult> {
        let mut count: c_int = 0;
        // SAFETY: `count` outlives the call, which writes one integer to it.
        let code = unsafe { self.table.device_get_count(&raw mut count) };
        if code.is_success() { Ok(u32::try_from(count).unwrap_or(0)) } else { Err(code) }
    }

    /// Returns the total memory of a device in bytes. Creates no context, which a query of the free
    /// memory would need.
    ///
    /// # Errors
    /// The driver's code: 101 if the device does not exist.
    pub fn total_memory(&self, ordinal: u32) -> Result<u64, CuResult> {
        let (mut device, mut bytes) = (CuDevice::default(), 0);
        let number = c_int::try_from(ordinal).map_err(|_| CuResult::INVALID_DEVICE)?;
        // SAFETY: `device` outlives the call, which writes one integer to it.
        let mut code = unsafe { self.table.device_get(&raw mut device, number) };
        if code.is_success() {
            // SAFETY: `bytes` outlives the call, which writes one integer to it.
            code = unsafe { self.table.device_total_mem(&raw mut bytes, device) };
        }
        if code.is_success() { Ok(bytes as u64) } else { Err(code) }
    }

    /// Returns whether a device has virtual memory, as far as the driver can tell without a
    /// context.
    pub fn has_virtual_memory(&self, ordinal: u32) -> bool {
        let mut device = CuDevice::default();
        let Ok(number) = c_int::try_from(ordinal) else { return false };
        // SAFETY: `device` outlives the call, which writes one integer to it.
        let found = unsafe { self.table.device_get(&raw mut device, number) };
        let mut value: c_int = 0;
        let supported = CuDeviceAttribute::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
        found.is_success()
            && self.mem_create.is_some()
            // SAFETY: `value` outlives the call, which writes one integer to it.
            && unsafe { self.table.device_get_attribute(&raw mut value, supported, device) }.is_success()
            && value == 1
    }

    /// Returns the UUID of a device, or of the MIG instance that the device is. Returns `None` if
    /// the driver does not report it.
    pub(crate) fn uuid(&self, device: CuDevice) -> Option<[u8; 16]> {
        let mut uuid = CuUuid::default();
        // SAFETY: `uuid` outlives the call, which writes 16 bytes to it.
        let code = unsafe { self.table.device_get_uuid(&raw mut uuid, device) };
        code.is_success().then(|| uuid.bytes.map(|byte| byte as u8))
    }

    /// Describes a code by the driver's name and text, or only by its number if the driver does not
    /// know the code. Calls the driver.
    pub fn describe(&self, code: CuResult) -> String {
        let text = |write: &dyn Fn(*mut *const c_char) -> CuResult| -> Option<String> {
            let mut text: *const c_char = core::ptr::null();
            if !write(&raw mut text).is_success() || text.is_null() {
                return None;
            }
            // SAFETY: after success the driver's answer is a NUL-terminated text that lives as long
            // as the library, which is never unloaded.
            Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        let name = text(&|out| {
            // SAFETY: `out` points to a live variable of the caller.
            unsafe { self.table.get_error_name(code, out) }
        });
        let meaning = text(&|out| {
            // SAFETY: `out` points to a live variable of the caller.
            unsafe { self.table.get_error_string(code, out) }
        });
        match (name, meaning) {
            (Some(name), Some(meaning)) => format!("{name} ({}): {meaning}", code.0),
            (Some(name), None) => format!("{name} ({})", code.0),
            _ => code.to_string(),
        }
    }
}

impl Deref for Driver {
    type Target = Table;

    fn deref(&self) -> &Table {
        &self.table
    }
}
