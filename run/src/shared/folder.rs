//! The folder of the files shared by processes of a user.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The environment variable with the name of another folder, for instance a folder shared by
/// containers.
pub const VARIABLE: &str = "CACHALOT_RUN_FOLDER";

/// Returns the folder of the calling user, and creates a missing folder.
///
/// The folder is `/dev/shm/cachalot-UID`, or `$XDG_RUNTIME_DIR/cachalot` on systems without
/// `/dev/shm`, or the value of [`VARIABLE`]. Only the user may look into the folder.
///
/// # Errors
/// The folder cannot be created, belongs to another user, or is open to more users.
pub fn of_user() -> io::Result<PathBuf> {
    if let Some(folder) = std::env::var_os(VARIABLE).filter(|folder| !folder.is_empty()) {
        return private(PathBuf::from(folder));
    }
    // `/dev/shm` first: the variable of the session is missing in some processes of a user, which
    // would then not meet the others.
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        return private(memory.join(format!("cachalot-{}", user())));
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(session) => private(PathBuf::from(session).join("cachalot")),
        None => Err(io::Error::new(io::ErrorKind::NotFound, "there is neither /dev/shm nor $XDG_RUNTIME_DIR")),
    }
}

/// Returns the effective user of the calling process.
pub(crate) fn user() -> u32 {
    // SAFETY: the function has no preconditions.
    unsafe { libc::geteuid() }
}

/// Creates a missing folder, and checks the rights: only the user may look into the folder.
pub(crate) fn private(folder: PathBuf) -> io::Result<PathBuf> {
    match DirBuilder::new().mode(0o700).create(&folder) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(in_folder(&folder, &error.to_string())),
    }
    // Without following a link, which another user may have made.
    let found = fs::symlink_metadata(&folder)?;
    if !found.is_dir() {
        return Err(in_folder(&folder, "is no folder"));
    }
    if found.uid() != user() {
        return Err(in_folder(&folder, &format!("belongs to user {} ({VARIABLE} names another)", found.uid())));
    }
    if found.mode() & 0o077 != 0 {
        return Err(in_folder(&folder, "is open to other users (its mode must be 0700)"));
    }
    Ok(folder)
}

fn in_folder(folder: &Path, text: &str) -> io::Error {
    io::Error::other(format!("the folder {}: {text}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::private;
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    #[test]
    fn a_folder_is_made_for_its_user_alone_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("own");
        assert_eq!(private(folder.clone()).unwrap(), folder);
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        assert_eq!(private(folder.clone()).unwrap(), folder);
    }

    #[test]
    fn an_open_folder_a_link_and_a_file_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let [open, link, file] = ["open", "link", "file"].map(|name| dir.path().join(name));
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o750)).unwrap();
        assert!(private(open).unwrap_err().to_string().contains("0700"));
        symlink(dir.path(), &link).unwrap();
        assert!(private(link).unwrap_err().to_string().contains("no folder"));
        fs::write(&file, "").unwrap();
        assert!(private(file).unwrap_err().to_string().contains("no folder"));
    }
}
