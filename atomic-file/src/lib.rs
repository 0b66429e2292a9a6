//! Atomic file writes: a file is written whole or not at all.
//!
//! This workspace writes users' files with [`write()`] only.
//!
//! ```
//! use cachalot_atomic_file::write;
//! use std::io::Write;
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("report.txt");
//! write(&path, |file| file.write_all(b"peak: 12 MiB\n"))?;
//! assert_eq!(std::fs::read(&path)?, b"peak: 12 MiB\n");
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! ```text
//! path ──▶ symbolic links are followed ──▶ open for writing, without truncation
//!            │ a descriptor (/dev/stdout)     │ a device, FIFO, …   │ a regular file, or none yet
//!            ▼                                ▼                     ▼
//!          written through                  written through       temporary file beside it ──▶ rename
//! ```

#![forbid(unsafe_code)]

use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};
use tempfile::{Builder, NamedTempFile};

/// Upper bound for the number of symbolic links followed from one path, equal to the bound of
/// Linux.
const MOST_LINKS: u32 = 40;

/// Prefix of the names of temporary files. The rest of a name is random and independent of the
/// target's name, which may have the maximum length already.
const PREFIX: &str = ".cachalot-";

/// Replaces the content of a file, or creates the file, with the bytes that `content` writes.
///
/// A regular file is created or replaced in one step. The content goes to a temporary file in the
/// same folder, reaches the disk, and is renamed over the target. A new file gets the permissions
/// that the process's umask leaves of `rw-rw-rw-`. A replaced file keeps its permissions, and its
/// owner if the process may set the owner. Further hard links keep the old content. A file without
/// write permission for the process is not replaced.
///
/// A symbolic link stays, and the link's target is written. A device, a FIFO or a descriptor such
/// as `/dev/stdout` is opened and written directly, and never replaced.
///
/// `content` receives the file without a buffer.
///
/// # Errors
/// The errors of the file system and of `content`. After an error a regular file is unchanged, and
/// no temporary file is left.
pub fn write(path: &Path, content: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let target = follow_links(path)?;
    if is_descriptor(&target) {
        return content(&mut open_descriptor(&target)?);
    }
    match File::options().write(true).open(&target) {
        Ok(mut file) => {
            let old = file.metadata()?;
            if old.is_file() { replace(&target, Some(&old), content) } else { content(&mut file) }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => replace(&target, None, content),
        Err(error) => Err(error),
    }
}

/// Creates a file with the bytes that `content` writes, in one step like [`write()`], and never in
/// the place of another file. Does not wait until the disk has the bytes.
///
/// # Errors
/// [`AlreadyExists`](io::ErrorKind::AlreadyExists) if there is anything of the name, also a
/// symbolic link that leads nowhere; the errors of the file system and of `content`. After an error
/// no file is left.
pub fn write_new(path: &Path, content: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    if path.symlink_metadata().is_ok() {
        // Found before the content is made. The last step finds files that appear meanwhile.
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let temporary = complete(path, None, content)?;
    temporary.persist_noclobber(path).map(drop).map_err(|error| error.error)
}

/// Follows a chain of symbolic links, and returns the last path. No file need exist at the last
/// path.
///
/// The chain also ends at a link in `/proc`: the text of a link in `/proc` is no path.
fn follow_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        match fs::read_link(&path) {
            Ok(link) if !is_descriptor(&path) => path = folder_of(&path).join(link),
            _ => return Ok(path),
        }
    }
    Err(io::Error::other(format!("more than {MOST_LINKS} symbolic links lead on from it")))
}

/// Returns whether a path is a link in `/proc`, which leads to an open file and not to a path.
fn is_descriptor(path: &Path) -> bool {
    path.is_symlink() && fs::canonicalize(folder_of(path)).is_ok_and(|folder| folder.starts_with("/proc"))
}

/// Opens the file of a descriptor such that bytes written earlier are preserved.
fn open_descriptor(path: &Path) -> io::Result<File> {
    let is_own = fs::canonicalize(folder_of(path))? == fs::canonicalize("/proc/self/fd")?;
    // A duplicate of a standard stream shares the stream's position, so the output of the process
    // stays in order even if the stream leads to a regular file.
    match path.file_name().and_then(|name| name.to_str()) {
        Some("1") if is_own => {
            io::stdout().flush()?;
            Ok(io::stdout().as_fd().try_clone_to_owned()?.into())
        }
        Some("2") if is_own => Ok(io::stderr().as_fd().try_clone_to_owned()?.into()),
        _ => File::options().append(true).open(path),
    }
}

/// Returns the folder of a file.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// Puts a complete new file in the place of a regular file, or creates the file.
fn replace(target: &Path, old: Option<&Metadata>, content: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let temporary = complete(target, old, content)?;
    temporary.as_file().sync_all()?;
    temporary.persist(target).map(drop).map_err(|error| error.error)
}

/// Writes a temporary file next to `target`.
fn complete(
    target: &Path,
    old: Option<&Metadata>,
    content: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<NamedTempFile> {
    // Opened here and not by `tempfile`, which would open the file for the user alone.
    let create = |path: &Path| File::options().write(true).create_new(true).open(path);
    let mut temporary = Builder::new().prefix(PREFIX).make_in(folder_of(target), create)?;
    if let Some(old) = old {
        inherit(&temporary, old)?;
    }
    // From here on dropping `temporary` removes the file.
    content(temporary.as_file_mut())?;
    Ok(temporary)
}

/// Copies the owner and the permissions of the old file to the temporary file.
fn inherit(temporary: &NamedTempFile, old: &Metadata) -> io::Result<()> {
    let own = temporary.as_file().metadata()?;
    if (own.uid(), own.gid()) != (old.uid(), old.gid()) {
        // Ignore a failure: most processes may not change the owner. The file then belongs to the
        // writer.
        let _ = fchown(temporary.as_file(), Some(old.uid()), Some(old.gid()));
    }
    // Set the permissions last, since a change of the owner clears the set-user-ID bit.
    temporary.as_file().set_permissions(old.permissions())
}
