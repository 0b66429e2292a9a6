//! Finds the built library, and installs a `libcudart.so.13`.

use std::io::{Error, ErrorKind, Result, Write};
use std::path::{Path, PathBuf};

/// File name of the library in the build folder.
const BUILT_NAME: &str = "libcachalot_emulated_runtime.so";
/// File name for the loader.
pub const INSTALLED_NAME: &str = "libcudart.so.13";
/// File name for the linker (`-lcudart`).
const LINKED_NAME: &str = "libcudart.so";

/// Returns the folder of `cachalot_host_kernels.h` in the sources.
pub fn include_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

/// Finds the built library: beside the running program or in a folder above.
///
/// # Errors
/// `NotFound` if no library is there.
pub fn built_library() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let folders = program.ancestors().skip(1).take(3);
    let found = folders.flat_map(|folder| [folder.join(BUILT_NAME), folder.join("deps").join(BUILT_NAME)]);
    let missing = || Error::new(ErrorKind::NotFound, format!("{BUILT_NAME} beside {}", program.display()));
    found.into_iter().find(|path| path.is_file()).ok_or_else(missing)
}

/// Copies the built library to `folder` as `libcudart.so.13`, with a link `libcudart.so`, and
/// returns the path of `libcudart.so.13`. Creates the folder if necessary.
///
/// # Errors
/// The errors of the file system.
pub fn install(folder: &Path) -> Result<PathBuf> {
    let image = std::fs::read(built_library()?)?;
    std::fs::create_dir_all(folder)?;
    let path = folder.join(INSTALLED_NAME);
    // Replaces the file instead of overwriting, because a process may have the old file mapped.
    cachalot_atomic_file::write(&path, |to| to.write_all(&image))?;
    let linked = folder.join(LINKED_NAME);
    if linked.symlink_metadata().is_ok() {
        std::fs::remove_file(&linked)?;
    }
    std::os::unix::fs::symlink(INSTALLED_NAME, linked)?;
    Ok(path)
}
