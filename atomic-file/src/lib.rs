//! Files that are written whole or not at all.
//!
//! [`write()`] is the only way in which this workspace writes a file of the user's.
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

/// The most symbolic links that are followed from one path: as many as Linux follows.
const MOST_LINKS: u32 = 40;

/// Begins the names of temporary files. The rest of a name is random, and does not depend on the
/// target's name, which may be as long as a name can be.
const PREFIX: &str = ".cachalot-";

/// Writes a file with what `content` writes, replacing the content it had.
///
/// A regular file appears, or changes its content, in one step: the content goes to a temporary
/// file in the same folder, reaches the disk, and is renamed over the target. A new file gets the
/// permissions that the process's umask leaves of `rw-rw-rw-`. A replaced one keeps its
/// permissions, and its owner where the process may set it; other hard links keep the old content.
/// A file that the process may not write is not replaced.
///
/// A symbolic link stays, and its target is written. Whatever is not a regular file (a device, a
/// FIFO, a descriptor such as `/dev/stdout`) is opened and written, and never replaced.
///
/// `content` gets the file without a buffer.
///
/// # Errors
/// Those of the file system and of `content`. A regular file is then as it was before, and no
/// temporary file is left.
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

/// The path behind a chain of symbolic links, where there need not be a file.
///
/// The chain ends at a link in `/proc` also: its text is no path for what it leads to.
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

/// Whether a path is that of a link in `/proc`, which leads to an open file and not to a path.
fn is_descriptor(path: &Path) -> bool {
    path.is_symlink() && fs::canonicalize(folder_of(path)).is_ok_and(|folder| folder.starts_with("/proc"))
}

/// Opens what a descriptor leads to, in such a way that nothing written there before is lost.
fn open_descriptor(path: &Path) -> io::Result<File> {
    let is_own = fs::canonicalize(folder_of(path))? == fs::canonicalize("/proc/self/fd")?;
    // A second handle of a standard stream shares its position, so that the output of the process
    // stays in order where the stream leads to a regular file.
    match path.file_name().and_then(|name| name.to_str()) {
        Some("1") if is_own => {
            io::stdout().flush()?;
            Ok(io::stdout().as_fd().try_clone_to_owned()?.into())
        }
        Some("2") if is_own => Ok(io::stderr().as_fd().try_clone_to_owned()?.into()),
        _ => File::options().append(true).open(path),
    }
}

/// The folder that a file lies in.
fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

/// Puts a complete new file in the place of a regular one, or where there is none.
fn replace(target: &Path, old: Option<&Metadata>, content: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    // Opened here and not by `tempfile`, whose own files are the user's alone.
    let create = |path: &Path| File::options().write(true).create_new(true).open(path);
    let mut temporary = Builder::new().prefix(PREFIX).make_in(folder_of(target), create)?;
    if let Some(old) = old {
        inherit(&temporary, old)?;
    }
    // From here on dropping `temporary` removes it.
    content(temporary.as_file_mut())?;
    temporary.as_file().sync_all()?;
    temporary.persist(target).map(drop).map_err(|error| error.error)
}

/// Gives a file the owner and the permissions of another.
fn inherit(temporary: &NamedTempFile, old: &Metadata) -> io::Result<()> {
    let own = temporary.as_file().metadata()?;
    if (own.uid(), own.gid()) != (old.uid(), old.gid()) {
        // Only some processes may give files away. The file is the writer's otherwise.
        let _ = fchown(temporary.as_file(), Some(old.uid()), Some(old.gid()));
    }
    // After the owner, whose change takes the set-user-ID bit away.
    temporary.as_file().set_permissions(old.permissions())
}
