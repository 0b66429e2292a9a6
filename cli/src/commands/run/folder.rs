//! The private folder: the library in front under the driver's names, the real driver under an
//! alias, and on request an NVML that says the limit, with the real one under an alias.
//!
//! The name of a folder follows from the contents, so programs with the same contents share a
//! folder, and no folder changes while in use.

use super::names::{ALIAS, FRONT, LINKS, NVML, PREFIX, REAL_NVML, UNVERSIONED, is_private};
use super::{driver, needing};
use cachalot_run::options::LIMITED;
use rustix::fs::{CWD, RenameFlags};
use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// The file of the library in front, built by cargo or installed.
const BUILT: &str = "libcachalot_front.so";

/// Finds the library in front: next to the command or where cargo built the library, and in
/// `../lib/cachalot`.
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
    // Cargo puts the library of a test into `deps`, and leaves an older one next to the command.
    let found = files(&[".", "deps"]).or_else(|| files(&["../lib/cachalot"]));
    found.and_then(|(_, path)| fs::canonicalize(path).ok()).ok_or_else(|| {
        let folder = beside.display();
        format!(
            "no {BUILT} in {folder} or {folder}/../lib/cachalot: `cargo build -p cachalot-front` builds the library"
        )
    })
}

/// Prepares the private folder for a library and a driver, and returns the path of the folder.
/// `nvml`: the real NVML, for programs in which it says the limit. `is_limited`: for programs with
/// a limit, which the name of the folder tells.
///
/// # Errors
/// A line about an unreadable file or an unwritable folder.
pub(super) fn prepare(front: &Path, driver: &Path, nvml: Option<&Path>, is_limited: bool) -> Result<PathBuf, String> {
    let own = PrivateFiles { front, driver, nvml, missing: missing_functions(front, driver)? };
    let base = base()?;
    let mark = if is_limited { LIMITED } else { "" };
    let folder = base.join(format!("{PREFIX}{:016x}{mark}", own.key(&base)?));
    let files =
        [&[FRONT, UNVERSIONED, ALIAS][..], &LINKS, if nvml.is_some() { &[NVML, REAL_NVML] } else { &[] }].concat();
    if !is_complete(&folder, &files) {
        let failed = |error: io::Error| format!("{}: {error}", folder.display());
        // A random name: containers with one home have processes with the same numbers.
        let new = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}new-"))
            .permissions(fs::Permissions::from_mode(mode()))
            .tempdir_in(&base)
            .map_err(failed)?;
        own.fill(new.path())?;
        put(new.path(), &folder, &files).map_err(failed)?;
    }
    Ok(folder)
}

/// Returns whether a folder has its files. A crash of the system may leave a folder without its
/// contents.
fn is_complete(folder: &Path, files: &[&str]) -> bool {
    files.iter().all(|name| folder.join(name).symlink_metadata().is_ok_and(|file| file.len() > 0))
}

/// Gives a filled folder its name. A folder of the name without its files goes in the same step, so
/// programs that start meanwhile find one or the other. What is left at the path of the new folder
/// is the caller's to remove.
fn put(new: &Path, folder: &Path, files: &[&str]) -> io::Result<()> {
    match fs::rename(new, folder) {
        Ok(()) => Ok(()),
        // Another command was faster with the same contents.
        Err(_) if is_complete(folder, files) => Ok(()),
        Err(_) => {
            let exchanged = rustix::fs::renameat_with(CWD, new, CWD, folder, RenameFlags::EXCHANGE);
            if exchanged.is_err() {
                // A file system without the exchange has a moment without the folder.
                let aside = new.with_extension("broken");
                fs::rename(folder, &aside)?;
                let _ = fs::remove_dir_all(aside);
                fs::rename(new, folder)?;
            }
            Ok(())
        }
    }
}

/// What a private folder has: the library in front, the driver, the real NVML if programs are to
/// find one that says the limit, and the functions that the driver lacks.
struct PrivateFiles<'a> {
    front: &'a Path,
    driver: &'a Path,
    nvml: Option<&'a Path>,
    missing: BTreeSet<String>,
}

impl PrivateFiles<'_> {
    /// Writes the contents of a new folder.
    fn fill(&self, new: &Path) -> Result<(), String> {
        let Self { front, driver, nvml, missing } = self;
        let failed = |error: io::Error| format!("{}: {error}", new.display());
        // A program that root starts may go on as another user, who has to find the library.
        let is_found = !rustix::process::geteuid().is_root() || is_open_to_all(front);
        if missing.is_empty() && is_found {
            symlink(front, new.join(FRONT)).map_err(failed)?;
        } else {
            let mut image = fs::read(front).map_err(|error| format!("{}: {error}", front.display()))?;
            hide(&mut image, missing);
            write(&new.join(FRONT), &image).map_err(failed)?;
        }
        symlink(FRONT, new.join(UNVERSIONED)).map_err(failed)?;
        symlink(driver, new.join(ALIAS)).map_err(failed)?;
        if let Some(nvml) = nvml {
            // The library in front comes first, so that a look-up finds its functions.
            write(&new.join(NVML), &needing::image(NVML, [FRONT, REAL_NVML])).map_err(failed)?;
            symlink(nvml, new.join(REAL_NVML)).map_err(failed)?;
        }
        for link in LINKS {
            symlink(".", new.join(link)).map_err(failed)?;
        }
        fs::File::open(new).and_then(|folder| folder.sync_all()).map_err(failed)
    }

    /// Returns a number for the contents of a folder.
    fn key(&self, base: &Path) -> Result<u64, String> {
        let Self { front, driver, nvml, missing } = self;
        let real = fs::canonicalize(driver).map_err(|error| format!("{}: {error}", driver.display()))?;
        let mut hasher = DefaultHasher::new();
        for file in [*front, &real] {
            let metadata = file.metadata().map_err(|error| format!("{}: {error}", file.display()))?;
            (file, metadata.ino(), metadata.size(), metadata.mtime(), metadata.mtime_nsec()).hash(&mut hasher);
        }
        // Containers with one home may find it at several paths.
        (base, driver, nvml, missing, LINKS).hash(&mut hasher);
        Ok(hasher.finish())
    }
}

/// Writes a file that is on the disk before its folder gets its name.
fn write(file: &Path, image: &[u8]) -> io::Result<()> {
    let mut file = fs::File::create_new(file)?;
    // Everyone who may look into the folder may read the file.
    file.set_permissions(fs::Permissions::from_mode(mode() & 0o644))?;
    file.write_all(image)?;
    file.sync_all()
}

/// Returns the functions of the library without a counterpart in the driver. A program must not
/// find ours by the loader.
fn missing_functions(front: &Path, driver: &Path) -> Result<BTreeSet<String>, String> {
    let functions = driver::exported(driver)?;
    if driver.parent().is_some_and(is_private) || fs::canonicalize(driver).is_ok_and(|file| file == front) {
        return Err(format!("{}: the library in front cannot be the driver", driver.display()));
    }
    if !functions.contains("cuInit") {
        return Err(format!("{}: the file is not a CUDA driver: it has no function cuInit", driver.display()));
    }
    Ok(driver::exported(front)?
        .into_iter()
        .filter(|name| name.starts_with("cu") && !functions.contains(name))
        .collect())
}

/// Changes the first letter of symbols wherever the image has a whole name. The loader then fails
/// to find the symbols.
fn hide(image: &mut [u8], names: &BTreeSet<String>) {
    for text in image.split_mut(|byte| *byte == 0) {
        if text.starts_with(b"cu") && names.iter().any(|name| name.as_bytes() == text) {
            text[0] = b'x';
        }
    }
}

/// Returns the mode of the folders. A child that root's program starts as another user must find
/// the library, or it would run without a limit: entry points of containers start as root, and go
/// on by `su`, `setpriv` or `gosu`. Only root may write there.
fn mode() -> u32 {
    if rustix::process::geteuid().is_root() { 0o755 } else { 0o700 }
}

/// Returns whether every user may come to a file and read it.
fn is_open_to_all(path: &Path) -> bool {
    let mode = |path: &Path| path.metadata().map_or(0, |found| found.mode());
    mode(path) & 0o004 != 0 && path.ancestors().skip(1).all(|folder| mode(folder) & 0o001 != 0)
}

/// Returns the folder of private folders, in the first of the [`places`] that can hold private
/// folders.
///
/// # Errors
/// A line if none can.
pub(in crate::commands) fn base() -> Result<PathBuf, String> {
    let mut reasons = Vec::new();
    let user = rustix::process::geteuid();
    for folder in places(|name| std::env::var_os(name).map(PathBuf::from), user.as_raw()) {
        match usable(&folder) {
            Ok(path) => return Ok(path),
            Err(reason) => reasons.push(reason),
        }
    }
    Err(format!("no private folder: {}", reasons.join("; ")))
}

/// The variables that name places for private folders.
const VARIABLES: [&str; 5] = ["RUNTIME_DIRECTORY", "CACHE_DIRECTORY", "XDG_CACHE_HOME", "HOME", "XDG_RUNTIME_DIR"];

/// Returns the places for the folder of private folders, the best first: those of a service, which
/// systemd sets and which live as long as the service, then the user's cache. Root's home is closed
/// to the users that root's programs become, so the system's places come before it. The session's
/// folder goes at the logout of the user, and programs that start children later would lose the
/// library, so it comes last.
fn places(variable: impl Fn(&str) -> Option<PathBuf>, user: u32) -> Vec<PathBuf> {
    let [of_service, cache_of_service, cache, home, session] = VARIABLES.map(|name| {
        // Services may have a list of folders.
        let first = variable(name).and_then(|value| std::env::split_paths(&value).next());
        first.filter(|path| path.is_absolute()).map(|path| path.join("cachalot"))
    });
    let home = home.and_then(|path| Some(path.parent()?.join(".cache/cachalot")));
    let of_root = ["/run/cachalot", "/var/cache/cachalot"].map(|path| (user == 0).then(|| path.into()));
    let temporary = TEMPORARY.map(|folder| Some(Path::new(folder).join(format!("cachalot-{user}"))));
    let own = [of_service, cache_of_service, cache];
    own.into_iter().chain(of_root).chain([home]).chain(temporary).chain([session]).flatten().collect()
}

/// Folders in which every user may make files. A container with a root that is read-only has the
/// second alone.
const TEMPORARY: [&str; 2] = ["/var/tmp", "/tmp"];

/// Makes a folder in which the user alone may write, and from which the loader loads libraries.
fn usable(folder: &Path) -> Result<PathBuf, String> {
    let refuse = |reason: &dyn std::fmt::Display| format!("{}: {reason}", folder.display());
    fs::DirBuilder::new().mode(mode()).recursive(true).create(folder).map_err(|error| refuse(&error))?;
    // Others may have made a link there, to any folder of the user.
    if TEMPORARY.iter().any(|others| folder.starts_with(others))
        && folder.symlink_metadata().is_ok_and(|found| found.is_symlink())
    {
        return Err(refuse(&"is a link"));
    }
    let folder = fs::canonicalize(folder).map_err(|error| refuse(&error))?;
    let metadata = folder.metadata().map_err(|error| refuse(&error))?;
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(refuse(&"another user owns the folder"));
    }
    fs::set_permissions(&folder, fs::Permissions::from_mode(mode())).map_err(|error| refuse(&error))?;
    let mount = rustix::fs::statvfs(&folder).map_err(|error| refuse(&error))?;
    if mount.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC) {
        return Err(refuse(&"the file system is mounted noexec, so the loader loads nothing from it"));
    }
    // The variables of the loader are lists.
    match folder.to_str() {
        Some(text) if !text.contains([':', ';', ' ', '$']) => Ok(folder),
        _ => Err(refuse(&"the path has a colon, a semicolon, a space or a dollar sign, or is not UTF-8")),
    }
}

#[cfg(test)]
mod tests {
    use super::{ALIAS, FRONT, LINKS, UNVERSIONED, hide, is_complete, places, put};
    use std::fs;
    use std::path::{Path, PathBuf};

    #[test]
    fn only_whole_names_are_hidden() {
        let mut image = b"\0cuMemFree\0cuMemFreeAsync\0cuMemFreeAsync_ptsz\0".to_vec();
        hide(&mut image, &["cuMemFreeAsync".to_owned()].into());
        assert_eq!(image, b"\0cuMemFree\0xuMemFreeAsync\0cuMemFreeAsync_ptsz\0");
    }

    #[test]
    fn a_service_has_a_place_without_a_home_and_a_session_is_the_last_choice() {
        let of = |set: &[(&str, &str)], user| {
            let found = |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, path)| PathBuf::from(path));
            places(found, user).iter().map(|place| place.display().to_string()).collect::<Vec<_>>()
        };
        let root = ["/var/tmp/cachalot-0", "/tmp/cachalot-0"];
        let seven = ["/var/tmp/cachalot-7", "/tmp/cachalot-7"];
        let of_root = ["/run/cachalot", "/var/cache/cachalot"];
        assert_eq!(of(&[], 0), [of_root, root].concat());
        assert_eq!(of(&[("HOME", "/root")], 0), [&of_root[..], &["/root/.cache/cachalot"], &root].concat());
        assert_eq!(of(&[("HOME", ""), ("XDG_CACHE_HOME", "relative")], 7), seven);
        let session = [("HOME", "/home/a"), ("XDG_RUNTIME_DIR", "/run/user/7")];
        assert_eq!(of(&session, 7), [&["/home/a/.cache/cachalot"], &seven[..], &["/run/user/7/cachalot"]].concat());
        let service = [("HOME", "/"), ("RUNTIME_DIRECTORY", "/run/a:/run/b"), ("CACHE_DIRECTORY", "/var/cache/a")];
        let first = ["/run/a/cachalot", "/var/cache/a/cachalot", "/.cache/cachalot"];
        assert_eq!(of(&service, 7), [&first[..], &seven].concat());
    }

    /// Makes a folder with the given files.
    fn filled(folder: &Path, names: &[&str]) {
        fs::create_dir(folder).expect("a new folder");
        names.iter().for_each(|name| fs::write(folder.join(name), "contents").expect("a file"));
    }

    #[test]
    fn a_folder_that_lost_a_file_is_made_again_and_a_whole_one_stays() {
        let place = tempfile::tempdir().expect("a folder");
        let (new, folder) = (place.path().join("new"), place.path().join("folder"));
        let all = [&[FRONT, UNVERSIONED, ALIAS][..], &LINKS].concat();
        for left in [&all[..0], &all[1..], &all[..5]] {
            filled(&folder, left);
            assert!(!is_complete(&folder, &all), "{left:?}");
            filled(&new, &all);
            put(&new, &folder, &all).expect("a name");
            assert!(is_complete(&folder, &all), "{left:?}");
            let _ = fs::remove_dir_all(&new);
            fs::remove_dir_all(&folder).expect("it is there");
        }
        filled(&folder, &all);
        fs::write(folder.join("mark"), "first").expect("a file");
        filled(&new, &all);
        put(&new, &folder, &all).expect("the first stays");
        assert!(folder.join("mark").is_file());
        fs::write(folder.join(ALIAS), "").expect("a file that a crash has left empty");
        assert!(!is_complete(&folder, &all));
    }
}
