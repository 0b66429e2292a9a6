//! The private folder: the library in front under the driver's names, the real driver under an alias, and the auditor.
//!
//! The name of a folder follows from the contents, so programs with equal contents share a folder, and no folder changes
//! while in use.

use super::driver;
use super::names::{ALIAS, AUDITOR, FRONT, PREFIX, UNVERSIONED, is_private};
use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// The file of the library in front, built by cargo or installed.
const BUILT: &str = "libcachalot_front.so";

/// Finds the library in front: beside the command or where cargo built the library, and in `../lib/cachalot`.
///
/// # Errors
/// A line with the searched folders.
pub(super) fn front_library() -> Result<PathBuf, String> {
    let command = std::env::current_exe().and_then(fs::canonicalize).map_err(|error| error.to_string())?;
    let beside = command.parent().unwrap_or(Path::new("/"));
    let files = |folders: &[&str]| {
        let files = folders.iter().map(|folder| beside.join(folder).join(BUILT));
        files.filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path))).max()
    };
    // Cargo puts the library of a test into `deps`, and leaves an older one beside the command.
    let found = files(&[".", "deps"]).or_else(|| files(&["../lib/cachalot"]));
    found.and_then(|(_, path)| fs::canonicalize(path).ok()).ok_or_else(|| {
        let folder = beside.display();
        format!(
            "no {BUILT} in {folder} or {folder}/../lib/cachalot: `cargo build -p cachalot-front` builds the library"
        )
    })
}

/// Prepares the private folder for a library and a driver, and returns the path of the folder.
///
/// # Errors
/// A line about an unreadable file or an unwritable folder.
pub(super) fn prepare(front: &Path, driver: &Path) -> Result<PathBuf, String> {
    let missing = missing_functions(front, driver)?;
    let real = fs::canonicalize(driver).map_err(|error| format!("{}: {error}", driver.display()))?;
    let base = base()?;
    let folder = base.join(format!("{PREFIX}{:016x}", key(front, driver, &real, &missing)?));
    if !folder.is_dir() {
        let failed = |error: io::Error| format!("{}: {error}", folder.display());
        let new = base.join(format!("{PREFIX}new-{}", std::process::id()));
        // A folder of an ended process with this number.
        let _ = fs::remove_dir_all(&new);
        fs::DirBuilder::new().mode(0o700).create(&new).map_err(failed)?;
        fill(&new, &folder, front, driver, &real, &missing)?;
        // Another command may have been faster with equal contents.
        if let Err(error) = fs::rename(&new, &folder) {
            let _ = fs::remove_dir_all(&new);
            if !folder.is_dir() {
                return Err(failed(error));
            }
        }
    }
    Ok(folder)
}

/// Writes the contents of a folder, which will be moved to `folder`.
fn fill(
    new: &Path,
    folder: &Path,
    front: &Path,
    driver: &Path,
    real: &Path,
    missing: &BTreeSet<String>,
) -> Result<(), String> {
    let failed = |error: io::Error| format!("{}: {error}", new.display());
    if missing.is_empty() {
        symlink(front, new.join(FRONT)).map_err(failed)?;
    } else {
        let mut image = fs::read(front).map_err(|error| format!("{}: {error}", front.display()))?;
        hide(&mut image, missing);
        fs::write(new.join(FRONT), image).map_err(failed)?;
    }
    symlink(FRONT, new.join(UNVERSIONED)).map_err(failed)?;
    symlink(driver, new.join(ALIAS)).map_err(failed)?;
    let text = |path: &Path| path.to_str().map(str::to_owned).ok_or_else(|| format!("{}: not UTF-8", path.display()));
    let (front, alias) = (text(&folder.join(FRONT))?, text(&folder.join(ALIAS))?);
    let name = text(Path::new(real.file_name().unwrap_or_default()))?;
    let texts = cachalot_auditor::Texts { front: &front, alias: &alias, driver_name: &name };
    let image = cachalot_auditor::image(texts).map_err(|error| error.to_string())?;
    fs::write(new.join(AUDITOR), image).map_err(failed)
}

/// Returns the functions of the library without a counterpart in the driver. A program must not find ours by the loader.
fn missing_functions(front: &Path, driver: &Path) -> Result<BTreeSet<String>, String> {
    let functions = driver::exported(driver)?;
    if driver.parent().is_some_and(is_private) || fs::canonicalize(driver).is_ok_and(|file| file == front) {
        return Err(format!("{}: the library in front cannot be the driver", driver.display()));
    }
    if !functions.contains("cuInit") {
        return Err(format!("{}: the file is no CUDA driver, as it has no cuInit", driver.display()));
    }
    Ok(driver::exported(front)?
        .into_iter()
        .filter(|name| name.starts_with("cu") && !functions.contains(name))
        .collect())
}

/// Changes the first letter of symbols wherever the image has a whole name. The loader then fails to find the symbols.
fn hide(image: &mut [u8], names: &BTreeSet<String>) {
    for text in image.split_mut(|byte| *byte == 0) {
        if text.starts_with(b"cu") && names.iter().any(|name| name.as_bytes() == text) {
            text[0] = b'x';
        }
    }
}

/// Returns a number for the contents of a folder.
fn key(front: &Path, driver: &Path, real: &Path, missing: &BTreeSet<String>) -> Result<u64, String> {
    let mut hasher = DefaultHasher::new();
    for file in [front, real] {
        let metadata = file.metadata().map_err(|error| format!("{}: {error}", file.display()))?;
        (file, metadata.ino(), metadata.size(), metadata.mtime(), metadata.mtime_nsec()).hash(&mut hasher);
    }
    let texts = cachalot_auditor::Texts { front: "", alias: "", driver_name: "" };
    let auditor = cachalot_auditor::image(texts).map_err(|error| error.to_string())?;
    (driver, missing, auditor).hash(&mut hasher);
    Ok(hasher.finish())
}

/// Returns the folder of private folders: in `$XDG_RUNTIME_DIR`, else in the user's cache.
///
/// # Errors
/// A line if neither can hold private folders.
fn base() -> Result<PathBuf, String> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    let mut reasons = Vec::new();
    for folder in [variable("XDG_RUNTIME_DIR"), cache].into_iter().flatten() {
        match usable(&folder.join("cachalot")) {
            Ok(path) => return Ok(path),
            Err(reason) => reasons.push(reason),
        }
    }
    let reasons = if reasons.is_empty() { "neither is set".to_owned() } else { reasons.join("; ") };
    Err(format!("no private folder in XDG_RUNTIME_DIR, XDG_CACHE_HOME or HOME: {reasons}"))
}

/// Makes a folder for the user alone, from which the loader loads libraries.
fn usable(folder: &Path) -> Result<PathBuf, String> {
    let refuse = |reason: &dyn std::fmt::Display| format!("{}: {reason}", folder.display());
    fs::DirBuilder::new().mode(0o700).recursive(true).create(folder).map_err(|error| refuse(&error))?;
    let folder = fs::canonicalize(folder).map_err(|error| refuse(&error))?;
    let metadata = folder.metadata().map_err(|error| refuse(&error))?;
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(refuse(&"another user owns the folder"));
    }
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).map_err(|error| refuse(&error))?;
    let mount = rustix::fs::statvfs(&folder).map_err(|error| refuse(&error))?;
    if mount.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC) {
        return Err(refuse(&"the loader loads nothing from a noexec file system"));
    }
    // The variables of the loader are lists.
    match folder.to_str() {
        Some(text) if !text.contains([':', ';', ' ', '$']) => Ok(folder),
        _ => Err(refuse(&"the path has a colon, a semicolon, a space or a dollar sign, or is not UTF-8")),
    }
}

#[cfg(test)]
mod tests {
    use super::hide;

    #[test]
    fn only_whole_names_are_hidden() {
        let mut image = b"\0cuMemFree\0cuMemFreeAsync\0cuMemFreeAsync_ptsz\0".to_vec();
        hide(&mut image, &["cuMemFreeAsync".to_owned()].into());
        assert_eq!(image, b"\0cuMemFree\0xuMemFreeAsync\0cuMemFreeAsync_ptsz\0");
    }
}
