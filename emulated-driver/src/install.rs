//! Finding the built library, and installing it as a `libcuda.so.1`, whole or as an older driver.
//!
//! `dlsym` cannot be told to hide a symbol, so a hidden symbol is renamed in the installed copy's own table of names:
//! its first letter is changed. The loader then does not find it, as in a driver that never had it.

use crate::functions::{FUNCTIONS, Function};
use std::io::{Error, ErrorKind, Result, Write};
use std::path::{Path, PathBuf};

/// What the build calls the library.
const BUILT_NAME: &str = "libcachalot_emulated_driver.so";
/// What programs ask the loader for.
pub const INSTALLED_NAME: &str = "libcuda.so.1";
/// What a linker asks for (`-lcuda`).
const LINKED_NAME: &str = "libcuda.so";

/// The built library: beside the running program or in a folder above it, which is where a build puts it for every
/// program that depends on this package.
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

/// Copies the built library to `folder` as `libcuda.so.1` and `libcuda.so`, without the symbols in `hidden`, and
/// returns the path of the first. The folder is made if need be.
///
/// # Errors
/// Those of the file system; `InvalidInput` for a name that is not one of the driver's symbols.
pub fn install(folder: &Path, hidden: &[&str]) -> Result<PathBuf> {
    let mut image = std::fs::read(built_library()?)?;
    for name in hidden {
        if Function::named(name).is_none() {
            return Err(Error::new(ErrorKind::InvalidInput, format!("no symbol {name}")));
        }
        hide(&mut image, name);
    }
    std::fs::create_dir_all(folder)?;
    let path = folder.join(INSTALLED_NAME);
    // Not in place: a process may have the old one mapped.
    cachalot_atomic_file::write(&path, |to| to.write_all(&image))?;
    let linked = folder.join(LINKED_NAME);
    if linked.symlink_metadata().is_ok() {
        std::fs::remove_file(&linked)?;
    }
    // A link and not a copy: two files would be two drivers in one process.
    std::os::unix::fs::symlink(INSTALLED_NAME, linked)?;
    Ok(path)
}

/// The symbols that a driver of this version (1000 × major + 10 × minor) does not have.
pub fn newer_than(version: i32) -> Vec<&'static str> {
    FUNCTIONS.iter().filter(|function| function.since() > version).map(|function| function.name()).collect()
}

/// Every driver symbol that the library exports.
pub fn symbols() -> Vec<&'static str> {
    FUNCTIONS.iter().map(|function| function.name()).collect()
}

/// Renames a symbol wherever the image names it whole.
fn hide(image: &mut [u8], name: &str) {
    let wanted = [b"\0", name.as_bytes(), b"\0"].concat();
    let found: Vec<usize> =
        image.windows(wanted.len()).enumerate().filter(|(_, part)| *part == wanted).map(|(at, _)| at).collect();
    for at in found {
        image[at + 1] = b'x';
    }
}

#[cfg(test)]
mod tests {
    use super::{hide, newer_than};

    #[test]
    fn only_whole_names_are_renamed() {
        let mut image = b"\0cuMemMap\0cuMemMapArray\0mycuMemMap\0".to_vec();
        hide(&mut image, "cuMemMap");
        assert_eq!(image, b"\0xuMemMap\0cuMemMapArray\0mycuMemMap\0");
    }

    #[test]
    fn an_older_driver_lacks_what_came_later() {
        let missing = newer_than(11_040);
        assert_eq!(missing, ["cuGetProcAddress_v2", "cuStreamGetId"]);
    }
}
