//! The form of a mapped file: the writer, the length and the kind.
//!
//! A mapped file is foreign data: every reader checks the owner, the mode and the length before the
//! file is mapped, and the range of every number before the number is an index. All words are
//! atomic, so a writer against the rules changes figures, and nothing else.

use super::process::open_file;
use cachalot_cuda::own_files::quietly;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::{Errno, retry_on_intr};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Opens a file of exactly `bytes` bytes, written by the calling user alone.
///
/// # Errors
/// The file is missing, is a link or no file, belongs to another user, is open to more users, or
/// has another length.
pub(crate) fn open(path: &Path, bytes: u64, may_write: bool) -> io::Result<File> {
    of_length(open_of_user(path, may_write)?, bytes)
}

/// Opens a file of exactly `bytes` bytes, written by a user alone, for reading.
///
/// # Errors
/// As for [`open`].
pub(crate) fn open_of(path: &Path, bytes: u64, user: u32) -> io::Result<File> {
    of_length(open_private(path, false, user)?, bytes)
}

/// Checks the length of a file.
fn of_length(file: File, bytes: u64) -> io::Result<File> {
    let length = file.metadata()?.len();
    if length == bytes {
        return Ok(file);
    }
    let fault = format!("has {length} bytes instead of {bytes}: another version of cachalot wrote it");
    Err(io::Error::new(io::ErrorKind::InvalidData, fault))
}

/// Opens a file of any length, written by the calling user alone.
///
/// # Errors
/// The file is missing, is a link or no file, belongs to another user, or is open to more users.
pub(crate) fn open_of_user(path: &Path, may_write: bool) -> io::Result<File> {
    open_private(path, may_write, super::folder::user())
}

/// Opens a file of any length, written by a user alone.
fn open_private(path: &Path, may_write: bool, user: u32) -> io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
    let file = OpenOptions::new().read(true).write(may_write).custom_flags(flags).open(path)?;
    let found = file.metadata()?;
    let fault = if !found.is_file() {
        "is no file".to_owned()
    } else if found.uid() != user {
        format!("belongs to user {}", found.uid())
    } else if found.mode() & 0o077 != 0 {
        "is open to other users (its mode must be 0600)".to_owned()
    } else {
        return Ok(file);
    };
    Err(io::Error::new(io::ErrorKind::InvalidData, fault))
}

/// Creates a file without a name in a folder, of `bytes` zero bytes, for the calling user alone.
///
/// # Errors
/// The system refuses, for instance where there is no room.
pub(crate) fn create(folder: &Path, bytes: u64) -> io::Result<File> {
    let flags = libc::O_TMPFILE | libc::O_CLOEXEC;
    let file = OpenOptions::new().read(true).write(true).mode(0o600).custom_flags(flags).open(folder)?;
    quietly(|| take_room(&file, bytes))?;
    Ok(file)
}

/// Takes the room of a file, so that a full file system is found here. In a file that is only made
/// longer, the first store to a page would find it, and the system would end the program by
/// `SIGBUS`.
fn take_room(file: &File, bytes: u64) -> io::Result<()> {
    match retry_on_intr(|| fallocate(file, FallocateFlags::empty(), 0, bytes)) {
        Ok(()) => Ok(()),
        // A file system without the call has room for what is written.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.write_all_at(&vec![0; bytes as usize], 0),
        Err(error) => Err(error.into()),
    }
}

/// Gives a complete file a name, so no reader meets half a file. Returns whether the name was
/// free.
///
/// # Errors
/// The system refuses for another reason.
pub(crate) fn give_name(file: &File, path: &Path) -> io::Result<bool> {
    let from = CString::new(open_file(file.as_fd())).expect("no NUL");
    let to = CString::new(path.as_os_str().as_bytes())?;
    let (here, follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    // SAFETY: both texts outlive the call.
    if unsafe { libc::linkat(here, from.as_ptr(), here, to.as_ptr(), follow) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::AlreadyExists { Ok(false) } else { Err(error) }
}

/// Packs the start of a text into words. The rest is cut off between characters.
pub(crate) fn pack<const WORDS: usize>(text: &str) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    let mut end = text.len().min(WORDS * 8);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    for (word, part) in words.iter_mut().zip(text.as_bytes()[..end].chunks(8)) {
        let mut bytes = [0; 8];
        bytes[..part.len()].copy_from_slice(part);
        *word = u64::from_le_bytes(bytes);
    }
    words
}

/// Returns the text in words of a mapped file. A terminal prints any text returned as written:
/// control characters and invalid bytes are replaced.
pub(crate) fn unpack(words: impl Iterator<Item = u64>) -> String {
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).take_while(|&byte| byte != 0).collect();
    let text = String::from_utf8_lossy(&bytes);
    text.chars().map(|letter| if letter.is_control() { '\u{fffd}' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::{create, open, pack, unpack};
    use std::fs;
    use std::io::ErrorKind;
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};

    #[test]
    fn only_private_files_of_the_right_length_are_opened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).unwrap();
        file.set_len(64).unwrap();
        assert!(open(&path, 64, true).is_ok());
        assert!(open(&path, 128, true).unwrap_err().to_string().contains("another version"));
        let link = dir.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(open(&link, 64, false).is_err());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(open(&path, 64, false).unwrap_err().to_string().contains("0600"));
        assert!(open(dir.path(), 64, false).unwrap_err().to_string().contains("no file"));
    }

    #[test]
    fn a_new_file_has_its_room_so_that_no_store_can_fail() {
        for dir in [std::env::temp_dir(), "/dev/shm".into()] {
            let Ok(folder) = tempfile::tempdir_in(dir) else { continue };
            let about = create(folder.path(), 100_000).unwrap().metadata().unwrap();
            assert_eq!((about.len(), about.mode() & 0o777), (100_000, 0o600));
            assert!(about.blocks() * 512 >= 100_000, "{} blocks", about.blocks());
            let error = create(folder.path(), 1 << 60).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::FileTooLarge), "{error:?}");
        }
    }

    #[test]
    fn texts_survive_words_and_lose_what_a_terminal_would_obey() {
        let round = |text: &str| unpack(pack::<2>(text).into_iter());
        assert_eq!(round("python3"), "python3");
        assert_eq!(round("größer als alles"), "größer als all");
        assert_eq!(round("123456789012345ö"), "123456789012345");
        assert_eq!(round("a\u{1b}[2J"), "a\u{fffd}[2J");
        assert_eq!(unpack([u64::MAX].into_iter()).chars().next(), Some('\u{fffd}'));
    }
}
