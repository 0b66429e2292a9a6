//! Finds the built library, and installs a `libcuda.so.1`, complete or as an older driver. Installs
//! the emulated runtime, too.
//!
//! `dlsym` cannot hide a symbol, so the first letter of a hidden symbol is changed in the name
//! table of the installed copy. The loader then fails to find the symbol, as in a driver without
//! the symbol.

use crate::values::functions::{FUNCTIONS, Function};
use std::io::{Error, ErrorKind, Result, Write};
use std::path::{Path, PathBuf};

/// File name of the library in the build folder.
const BUILT_NAME: &str = "libcachalot_emulated_driver.so";
/// File name of the runtime in the build folder.
const BUILT_RUNTIME: &str = "libcachalot_emulated_runtime.so";
/// File name of NVML in the build folder.
const BUILT_NVML: &str = "libcachalot_emulated_nvml.so";
/// File name for the loader.
pub const INSTALLED_NAME: &str = "libcuda.so.1";

/// Finds the built library, the newest next to the running program and in the folders above. Cargo
/// puts the library there for every program that depends on the package, for tests into `deps`.
///
/// # Errors
/// `NotFound` if no library is there.
pub fn built_library() -> Result<PathBuf> {
    built(BUILT_NAME)
}

/// Finds the built runtime, as [`built_library`] finds the driver.
///
/// # Errors
/// `NotFound` if no library is there.
pub fn built_runtime() -> Result<PathBuf> {
    built(BUILT_RUNTIME)
}

/// Finds a built library.
fn built(name: &str) -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let folders = program.ancestors().skip(1).take(3);
    let found = folders.flat_map(|folder| [folder.join(name), folder.join("deps").join(name)]);
    let missing = || Error::new(ErrorKind::NotFound, format!("{name} beside {}", program.display()));
    let dated = found.filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path)));
    dated.max().map(|(_, path)| path).ok_or_else(missing)
}

/// Copies the built library to `folder` as `libcuda.so.1` and `libcuda.so`, without the symbols in
/// `hidden`, and returns the path of `libcuda.so.1`. Creates the folder if necessary.
///
/// # Errors
/// The errors of the file system. `InvalidInput` for an unknown symbol.
pub fn install(folder: &Path, hidden: &[&str]) -> Result<PathBuf> {
    let mut image = std::fs::read(built_library()?)?;
    if let Some(name) = hidden.iter().find(|name| Function::named(name).is_none()) {
        return Err(Error::new(ErrorKind::InvalidInput, format!("no symbol {name}")));
    }
    if !hidden.is_empty() {
        hide(&mut image, hidden);
    }
    put(&image, folder, INSTALLED_NAME, "libcuda.so")
}

/// Copies the built runtime to `folder` as `libcudart.so.13` and `libcudart.so`, and returns the
/// path of `libcudart.so.13`. Creates the folder if necessary.
///
/// # Errors
/// The errors of the file system.
pub fn install_runtime(folder: &Path) -> Result<PathBuf> {
    put(&std::fs::read(built_runtime()?)?, folder, "libcudart.so.13", "libcudart.so")
}

/// Copies the built NVML to `folder` as `libnvidia-ml.so.1` and `libnvidia-ml.so`, and returns the
/// path of `libnvidia-ml.so.1`. Creates the folder if necessary.
///
/// # Errors
/// The errors of the file system, and `NotFound` if no library is there.
pub fn install_nvml(folder: &Path) -> Result<PathBuf> {
    put(&std::fs::read(built(BUILT_NVML)?)?, folder, "libnvidia-ml.so.1", "libnvidia-ml.so")
}

/// Writes a library to `folder`, under the name for the loader and with a link for the linker.
fn put(image: &[u8], folder: &Path, name: &str, linked: &str) -> Result<PathBuf> {
    std::fs::create_dir_all(folder)?;
    let path = folder.join(name);
    // Replaces the file instead of overwriting, because a process may have the old file mapped.
    cachalot_atomic_file::write(&path, |to| to.write_all(image))?;
    let linked = folder.join(linked);
    if linked.symlink_metadata().is_ok() {
        std::fs::remove_file(&linked)?;
    }
    // A link, because two files would be two drivers in a process.
    std::os::unix::fs::symlink(name, linked)?;
    Ok(path)
}

/// Returns the symbols absent from a driver of the given version (1000 × major + 10 × minor).
pub fn newer_than(version: i32) -> Vec<&'static str> {
    FUNCTIONS.iter().filter(|function| function.since() > version).map(|function| function.name()).collect()
}

/// Returns all driver symbols of the library.
pub fn symbols() -> Vec<&'static str> {
    FUNCTIONS.iter().map(|function| function.name()).collect()
}

/// Returns every driver symbol with the name for `cuGetProcAddress`, the first version of the
/// driver with the symbol, and whether stream 0 is the calling thread's own.
pub fn versions() -> Vec<(&'static str, &'static str, i32, bool)> {
    let row = |function: &Function| (function.name(), function.base_name(), function.since(), function.is_per_thread());
    FUNCTIONS.iter().map(row).collect()
}

/// Renames symbols wherever the image has a whole name.
fn hide(image: &mut [u8], names: &[&str]) {
    for text in image.split_mut(|byte| *byte == 0) {
        if text.starts_with(b"cu") && names.iter().any(|name| name.as_bytes() == text) {
            text[0] = b'x';
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{hide, newer_than};

    #[test]
    fn only_whole_names_are_renamed() {
        let mut image = b"\0cuMemMap\0cuMemMapArray\0mycuMemMap\0".to_vec();
        hide(&mut image, &["cuMemMap"]);
        assert_eq!(image, b"\0xuMemMap\0cuMemMapArray\0mycuMemMap\0");
    }

    #[test]
    fn an_older_driver_lacks_what_came_later() {
        let missing = newer_than(11_040);
        for later in ["cuGetProcAddress_v2", "cuStreamGetId", "cuStreamGetId_ptsz", "cuLibraryLoadData"] {
            assert!(missing.contains(&later), "{later}");
        }
        assert!(!missing.contains(&"cuCtxCreate_v3") && !missing.contains(&"cuMemAlloc_v2"));
    }
}
