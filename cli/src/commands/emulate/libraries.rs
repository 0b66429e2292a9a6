//! The emulated libraries: installed, or built by cargo.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The runtime's name for the loader.
pub(super) const RUNTIME: &str = "libcudart.so.13";

/// The driver's name for the loader.
const DRIVER: &str = "libcuda.so.1";

/// The libraries: the file that cargo builds, the name for the loader, and the name without a
/// version, by which some programs open the library.
const LIBRARIES: [(&str, &str, &str); 3] = [
    ("libcachalot_emulated_driver.so", DRIVER, "libcuda.so"),
    ("libcachalot_emulated_runtime.so", RUNTIME, "libcudart.so"),
    ("libcachalot_emulated_nvml.so", "libnvidia-ml.so.1", "libnvidia-ml.so"),
];

/// The folder of the libraries, in `../lib/cachalot` of an installed command, and next to a command
/// that cargo has built.
const FOLDER: &str = "emulated";

/// Finds the folder with the libraries under their names for the loader. The libraries that cargo
/// has built get links there.
///
/// # Errors
/// A line about missing libraries, or about a folder that the loader could not name.
pub(super) fn folder() -> Result<PathBuf, String> {
    let command = std::env::current_exe().and_then(fs::canonicalize).map_err(|error| error.to_string())?;
    let beside = command.parent().unwrap_or(Path::new("/"));
    let installed = fs::canonicalize(beside.join("../lib/cachalot").join(FOLDER));
    let folder = match (LIBRARIES.map(|(name, ..)| built(beside, name)), installed) {
        ([Some(driver), Some(runtime), Some(nvml)], _) => linked(beside, [driver, runtime, nvml])?,
        (_, Ok(folder)) if LIBRARIES.iter().all(|(_, name, _)| folder.join(name).is_file()) => folder,
        _ => {
            let place = beside.display();
            return Err(format!(
                "no emulated libraries in {place} or {place}/../lib/cachalot/{FOLDER}: `cargo build -p \
                 cachalot-emulated-driver -p cachalot-emulated-runtime -p cachalot-emulated-nvml` builds them"
            ));
        }
    };
    // The variables of the loader are lists, and a dollar sign begins a word of the loader.
    match folder.to_str() {
        Some(text) if !text.contains([':', ';', ' ', '$']) => Ok(folder),
        _ => Err(format!(
            "{}: the path has a colon, a semicolon, a space or a dollar sign, or is not UTF-8, so the loader cannot \
             name the folder",
            folder.display()
        )),
    }
}

/// Finds a library that cargo has built, the newest: cargo puts that of a test into `deps`, and
/// leaves an older one next to the command.
fn built(beside: &Path, name: &str) -> Option<PathBuf> {
    let files = [".", "deps"].map(|folder| beside.join(folder).join(name));
    let dated = files.into_iter().filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path)));
    dated.max().and_then(|(_, path)| fs::canonicalize(path).ok())
}

/// Makes the folder of links to built libraries.
fn linked(beside: &Path, libraries: [PathBuf; 3]) -> Result<PathBuf, String> {
    let folder = beside.join(FOLDER);
    let failed = |error: io::Error| format!("{}: {error}", folder.display());
    fs::create_dir_all(&folder).map_err(failed)?;
    for ((_, name, plain), library) in LIBRARIES.iter().zip(libraries) {
        link(&library, &folder.join(name)).map_err(failed)?;
        link(Path::new(name), &folder.join(plain)).map_err(failed)?;
    }
    Ok(folder)
}

/// Makes a link, in the place of an older one in one step: other commands may start meanwhile.
fn link(target: &Path, path: &Path) -> io::Result<()> {
    if fs::read_link(path).is_ok_and(|found| found == target) {
        return Ok(());
    }
    let folder = tempfile::tempdir_in(path.parent().unwrap_or(Path::new(".")))?;
    let new = folder.path().join("link");
    symlink(target, &new)?;
    fs::rename(new, path)
}
