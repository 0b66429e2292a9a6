//! Finding the built library, and installing it as a `libcudart.so.13`.

use std::io::{Error, ErrorKind, Result, Write};
use std::path::{Path, PathBuf};

/// What the build calls the library.
const BUILT_NAME: &str = "libcachalot_emulated_runtime.so";
/// What programs ask the loader for.
pub const INSTALLED_NAME: &str = "libcudart.so.13";
/// What a linker asks for (`-lcudart`).
const LINKED_NAME: &str = "libcudart.so";

/// The folder of `cachalot_host_kernels.h`, in the sources.
pub fn include_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

/// Finds the built library: beside the running program or in a folder above it.
///
/// # Errors
/// `NotFound` if there is none.
pub fn built_library() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    let folders = program.ancestors().skip(1).take(3);
    let found = folders.flat_map(|folder| [folder.join(BUILT_NAME), folder.join("deps").join(BUILT_NAME)]);
    let missing = || Error::new(ErrorKind::NotFound, format!("{BUILT_NAME} beside {}", program.display()));
    found.into_iter().find(|path| path.is_file()).ok_or_else(missing)
}

/// Copies the built library to `folder` as `libcudart.so.13`, with a link `libcudart.so`, and
/// returns the path of the first. The folder is made if need be.
///
/// # Errors
/// Those of the file system.
pub fn install(folder: &Path) -> Result<PathBuf> {
    let image = std::fs::read(built_library()?)?;
    std::fs::create_dir_all(folder)?;
    let path = folder.join(INSTALLED_NAME);
    // Not in place: a process may have the old one mapped.
    cachalot_atomic_file::write(&path, |to| to.write_all(&image))?;
    let linked = folder.join(LINKED_NAME);
    if linked.symlink_metadata().is_ok() {
        std::fs::remove_file(&linked)?;
    }
    std::os::unix::fs::symlink(INSTALLED_NAME, linked)?;
    Ok(path)
}
