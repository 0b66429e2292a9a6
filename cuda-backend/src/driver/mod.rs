//! The CUDA driver: found at run time, started once, never unloaded.
//!
//! Building needs no toolkit, no header and no driver. The entry points are resolved by exactly versioned names
//! (`cuMemAlloc_v2`), so that a newer driver cannot hand over a function of another shape. A driver that lacks an
//! optional one works without the feature that needs it.

pub mod result;
pub mod table;
pub mod types;

mod dynamic;
mod error;
#[cfg(feature = "linked")]
mod linked;

pub use error::{LoadError, OLDEST_VERSION};

use core::ffi::{CStr, c_char, c_int};
use core::ops::Deref;
use result::CuResult;
use std::path::Path;
use std::sync::OnceLock;
use table::Table;
use types::CuDevice;

/// The environment variable that names the driver's library in place of `libcuda.so.1`.
pub const LIBRARY_VARIABLE: &str = "CACHALOT_LIBCUDA";

/// A started driver. Dereferences to its [`Table`] of entry points.
///
/// It lives as long as the process: code of it may run on the driver's own threads, and at process exit nothing
/// may be called. Shared by every thread and every device.
#[derive(Debug)]
pub struct Driver {
    /// The entry points.
    table: Table,
    /// What `cuDriverGetVersion` answered.
    version: u32,
    /// Where the entry points come from, for messages.
    origin: String,
    /// Whether the library says that it is the emulated driver of the tests.
    emulated: bool,
}

impl Driver {
    /// The process's driver: the library named by [`LIBRARY_VARIABLE`], else `libcuda.so.1`, else `libcuda.so`;
    /// with the feature `linked`, the one that the program links, whatever the variable says.
    ///
    /// Loaded and started at the first call that succeeds; later calls answer the same driver and call nothing.
    ///
    /// # Errors
    /// [`LoadError`], and the next call tries again.
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

    /// The driver in this library. Each call loads it anew; it is never unloaded.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn load_from(path: &Path) -> Result<&'static Self, LoadError> {
        let (table, origin, emulated) = dynamic::table_of(path, false)?;
        Self::start(&table, origin, emulated)
    }

    /// A driver made of the caller's own entry points.
    ///
    /// # Errors
    /// [`LoadError`].
    ///
    /// # Safety
    /// The functions do what the driver's of those names do, as far as memory safety depends on it, from any thread
    /// and for as long as the process lives.
    pub unsafe fn from_table(table: &Table) -> Result<&'static Self, LoadError> {
        Self::start(table, "the caller's table".to_owned(), false)
    }

    /// Checks what is required, starts the driver, and keeps it for good.
    fn start(table: &Table, origin: String, emulated: bool) -> Result<&'static Self, LoadError> {
        if crate::fork::in_child() {
            return Err(LoadError::Forked);
        }
        if let Some(entry) = table.missing().find(|entry| entry.required) {
            return Err(LoadError::MissingSymbol(entry.symbol));
        }
        // SAFETY: `cuInit` takes no pointers and may be called at any time, by any thread, more than once.
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
        let driver = Self { table: *table, version, origin, emulated };
        Ok(Box::leak(Box::new(driver)))
    }

    /// The newest version of the interface that the driver speaks: 1000 × major + 10 × minor.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Where the entry points come from: the library's name as it was asked for.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Whether this is the emulated driver of the tests, whose kernels are host functions.
    pub fn is_emulated(&self) -> bool {
        self.emulated
    }

    /// The number of devices that this process sees.
    ///
    /// # Errors
    /// The driver's code.
    pub fn device_count(&self) -> Result<u32, CuResult> {
        let mut count: c_int = 0;
        // SAFETY: `count` outlives the call, which writes one integer to it.
        let code = unsafe { self.table.device_get_count(&raw mut count) };
        if code.is_success() { Ok(u32::try_from(count).unwrap_or(0)) } else { Err(code) }
    }

    /// How much memory a device has in all, in bytes. Makes no context, which to ask for what is free would need.
    ///
    /// # Errors
    /// The driver's code: 101 if it has no such device.
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

    /// What the driver says of a code: its name and meaning, as far as it knows it. Calls the driver.
    pub fn describe(&self, code: CuResult) -> String {
        let text = |write: &dyn Fn(*mut *const c_char) -> CuResult| -> Option<String> {
            let mut text: *const c_char = core::ptr::null();
            if !write(&raw mut text).is_success() || text.is_null() {
                return None;
            }
            // SAFETY: after success the driver's answer is a NUL-terminated text that lives as long as the library,
            // which is never unloaded.
            Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        let name = text(&|out| {
            // SAFETY: `out` points to a live variable of the caller.
            unsafe { self.table.get_error_name(code, out) }
        });
        let meaning = text(&|out| {
            // SAFETY: as above.
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
