//! The driver's library, loaded at run time.

use super::error::LoadError;
use super::table::Table;
use core::error::Error;
use core::ffi::{CStr, c_void};
use core::ptr::NonNull;
use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};
use std::path::Path;

/// A symbol that only the emulated driver exports.
const EMULATED_MARK: &CStr = c"cachalot_emulated_driver";

/// Loads the first of `candidates` that can be loaded. Returns the table of entry points, the path,
/// and whether the library is the emulated driver.
pub(super) fn table(candidates: &[&Path]) -> Result<(Table, String, bool), LoadError> {
    let mut reason = String::new();
    for path in candidates {
        // SAFETY: loading runs the library's initialisers. The candidates are the CUDA driver's
        // names, or a path that the program's owner names and vouches for.
        match unsafe { Library::open(Some(*path), RTLD_LAZY | RTLD_LOCAL) } {
            Ok(library) => {
                // Never unloaded, because the driver has its own threads, and no code may call the
                // driver at exit.
                let library: &'static Library = Box::leak(Box::new(library));
                // SAFETY: a function that a driver exports under a versioned name has the signature
                // of the versioned name. The library stays loaded.
                let table = unsafe { Table::fill(|symbol| address(library, symbol)) };
                let emulated = address(library, EMULATED_MARK).is_some();
                return Ok((table, path.display().to_string(), emulated));
            }
            Err(error) => reason = reason_of(&error, path),
        }
    }
    Err(LoadError::NotFound { tried: candidates.iter().map(|path| path.to_path_buf()).collect(), reason })
}

/// Loads the library at `path`, and returns the three values of [`table`]. `by_variable` is true if
/// the environment names the library.
pub(super) fn table_of(path: &Path, by_variable: bool) -> Result<(Table, String, bool), LoadError> {
    table(&[path]).map_err(|error| match error {
        LoadError::NotFound { reason, .. } => LoadError::NotLoaded { path: path.to_owned(), reason, by_variable },
        other => other,
    })
}

/// Returns the loader's reason for not loading the library at `path`, without the path, because the
/// message names it already.
fn reason_of(error: &libloading::Error, path: &Path) -> String {
    // The outer error names the failed call, and its source has the reason.
    let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
    let prefix = format!("{}: ", path.display());
    reason.strip_prefix(&prefix).map_or(reason.clone(), ToOwned::to_owned)
}

/// Returns the address of a symbol, or `None` if the library does not have it.
fn address(library: &Library, symbol: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: the symbol is only used as an address here; `Table::fill` gives the address a type.
    let found = unsafe { library.get::<*mut c_void>(symbol) };
    found.ok().and_then(|symbol| NonNull::new(symbol.into_raw()))
}
