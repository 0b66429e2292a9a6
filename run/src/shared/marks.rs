//! Marks of living processes on a file: locks on single bytes, which the system takes away with the
//! last copy of the open file.
//!
//! A mark shows that a process lives where process ids do not: in another container, in a process
//! that has started another program, and of a number that another process has by now. A program may
//! close the file, so a missing mark alone is no death, unless the file is mapped: the mapping
//! keeps the file open until the process ends or starts another program. A forked child keeps the
//! marks of its parent.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Marks a byte for this opening of the file, until the file is closed.
///
/// # Errors
/// Another opening has marked the byte ([`io::ErrorKind::WouldBlock`]), or the file system has no
/// locks.
pub(crate) fn hold(file: &File, at: usize) -> io::Result<()> {
    lock(file, libc::F_OFD_SETLK, &mut range(at, 1)).map(drop)
}

/// Takes the mark of a byte away from this opening of the file.
pub(crate) fn release(file: &File, at: usize) {
    let mut unlocked = libc::flock { l_type: libc::F_UNLCK as libc::c_short, ..range(at, 1) };
    // A file whose byte was marked has locks.
    let _ = lock(file, libc::F_OFD_SETLK, &mut unlocked);
}

/// Marks all bytes at once. Returns whether no other opening has a mark.
pub(crate) fn hold_all(file: &File) -> bool {
    lock(file, libc::F_OFD_SETLK, &mut range(0, 0)).is_ok()
}

/// Returns whether another opening of the file has marked a byte. `None`: the file system has no
/// locks.
pub(crate) fn is_held(file: &File, at: usize) -> Option<bool> {
    let mut asked = range(at, 1);
    lock(file, libc::F_OFD_GETLK, &mut asked).ok()?;
    Some(asked.l_type != libc::F_UNLCK as libc::c_short)
}

/// Returns a range of bytes for writing. A length of 0 has no end.
fn range(at: usize, bytes: usize) -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: at as libc::off_t,
        l_len: bytes as libc::off_t,
        l_pid: 0,
    }
}

fn lock(file: &File, command: libc::c_int, range: &mut libc::flock) -> io::Result<()> {
    // SAFETY: the structure outlives the call, which may write to it.
    let code = unsafe { libc::fcntl(file.as_raw_fd(), command, core::ptr::from_mut(range)) };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::{hold, hold_all, is_held, release};
    use std::fs::OpenOptions;

    #[test]
    fn a_mark_lasts_as_long_as_its_file_is_open() {
        let place = tempfile::tempdir().unwrap();
        let open =
            || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(place.path().join("f"));
        let (one, two) = (open().unwrap(), open().unwrap());
        hold(&one, 3).unwrap();
        assert_eq!([is_held(&two, 3), is_held(&two, 4), is_held(&one, 3)], [Some(true), Some(false), Some(false)]);
        assert!(hold(&two, 3).is_err() && hold(&two, 4).is_ok() && !hold_all(&one));
        release(&two, 4);
        assert_eq!(is_held(&one, 4), Some(false));
        hold(&two, 5).unwrap();
        drop(two);
        assert!(hold_all(&one));
        drop(one);
        let three = open().unwrap();
        assert_eq!(is_held(&three, 3), Some(false));
    }

    #[test]
    fn a_mark_lasts_as_long_as_its_file_is_mapped_and_is_seen_by_readers() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (marked, reader) = (file.reopen().unwrap(), std::fs::File::open(file.path()).unwrap());
        marked.set_len(4096).unwrap();
        hold(&marked, 3).unwrap();
        let map = memmap2::MmapRaw::map_raw(&marked).unwrap();
        drop(marked);
        assert_eq!(is_held(&reader, 3), Some(true));
        drop(map);
        assert_eq!(is_held(&reader, 3), Some(false));
    }
}
