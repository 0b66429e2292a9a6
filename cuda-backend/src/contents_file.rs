//! A file without a name for the contents of parked memory. Its room is taken when it is made.
//!
//! No other process can open the file by a name, and the system removes the file with its last
//! handle, also after a kill. Reads and writes bypass the system's cache if the file system allows
//! direct I/O, because the cache would take memory that the host does not have.

use crate::own_files::{OwnFile, quietly};
use rustix::fs::{Advice, FallocateFlags, OFlags, fadvise, fallocate, fcntl_getfl, fcntl_setfl, fstatvfs};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Resource, getrlimit};
use std::fs::{File, Permissions};
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The alignment of offsets, lengths and addresses for direct I/O, in bytes.
pub(crate) const IO_ALIGNMENT: u64 = 4096;

/// The folder of files for contents.
#[derive(Default, Debug)]
pub(crate) struct ContentsFolder {
    path: PathBuf,
    #[cfg(test)]
    pub(crate) faults: Faults,
}

/// A file for contents, open for this process only.
#[derive(Debug)]
pub(crate) struct ContentsFile {
    file: OwnFile,
    folder: Arc<ContentsFolder>,
    /// The length in bytes.
    pub(crate) bytes: u64,
    /// Whether reads and writes bypass the system's cache.
    direct: AtomicBool,
}

/// A step in the life of a file, which may fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileStep {
    Create,
    Reserve,
    Write,
    Read,
}

impl FileStep {
    /// Returns the step as a part of a message.
    const fn what(self) -> &'static str {
        match self {
            Self::Create => "no file for parked memory can be created",
            Self::Reserve => "there is no room for parked memory",
            Self::Write => "parked memory cannot be written",
            Self::Read => "parked memory cannot be read",
        }
    }
}

impl ContentsFolder {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self {
            path,
            #[cfg(test)]
            faults: Faults::default(),
        }
    }

    /// Performs a step. An error keeps its kind, and names the folder and the step.
    fn step<T>(&self, step: FileStep, act: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        #[cfg(test)]
        let act = || self.faults.pass(step).and_then(|()| act());
        act()
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {}: {error}", self.path.display(), step.what())))
    }
}

impl ContentsFile {
    /// Creates a file with the mode 0600 and room for `bytes` bytes.
    ///
    /// # Errors
    /// Those of the system. [`is_no_room`] says whether the folder does not have the room.
    pub(crate) fn new(folder: &Arc<ContentsFolder>, bytes: u64) -> io::Result<Self> {
        let file = folder.step(FileStep::Create, || {
            // `OwnFile` gets a high number, because a program may close the numbers 0, 1 and 2, and
            // open its own files there.
            let file = OwnFile::new(tempfile::tempfile_in(&folder.path)?)?;
            file.get()?.set_permissions(Permissions::from_mode(0o600))?;
            Ok(file)
        })?;
        // A full disk is found here, before anything is moved.
        let room = bytes.next_multiple_of(IO_ALIGNMENT);
        folder.step(FileStep::Reserve, || quietly(|| reserve(file.get()?, room)))?;
        let pass_by = |file: &File| fcntl_setfl(file, fcntl_getfl(file)? | OFlags::DIRECT);
        let direct = file.get().is_ok_and(|file| pass_by(file).is_ok());
        Ok(Self { file, folder: Arc::clone(folder), bytes, direct: AtomicBool::new(direct) })
    }

    /// Writes bytes at an offset. Offset, length and address are multiples of [`IO_ALIGNMENT`].
    ///
    /// # Errors
    /// Those of the system. After an error the contents of the range are undefined.
    pub(crate) fn write(&self, from: &[u8], offset: u64) -> io::Result<()> {
        self.folder.step(FileStep::Write, || self.transfer(|file| file.write_all_at(from, offset)))?;
        self.leave_cache(offset, from.len());
        Ok(())
    }

    /// Reads bytes at an offset, with the rules of [`write`](Self::write).
    ///
    /// # Errors
    /// Those of the system. After an error the contents of `to` are undefined.
    pub(crate) fn read(&self, to: &mut [u8], offset: u64) -> io::Result<()> {
        self.folder.step(FileStep::Read, || self.transfer(|file| file.read_exact_at(to, offset)))?;
        self.leave_cache(offset, to.len());
        Ok(())
    }

    /// Performs a read or a write. If the file system refuses direct I/O, performs the call again
    /// through the cache.
    fn transfer(&self, mut act: impl FnMut(&File) -> io::Result<()>) -> io::Result<()> {
        let file = self.file.get()?;
        let done = act(file);
        let is_refused = |error: &io::Error| error.raw_os_error() == Some(Errno::INVAL.raw_os_error());
        if !self.direct.load(Ordering::Relaxed) || !done.as_ref().is_err_and(is_refused) {
            return done;
        }
        fcntl_getfl(file).and_then(|flags| fcntl_setfl(file, flags - OFlags::DIRECT))?;
        self.direct.store(false, Ordering::Relaxed);
        act(file)
    }

    /// Lets the system's cache give up a range, if the cache has it.
    fn leave_cache(&self, offset: u64, bytes: usize) {
        if !self.direct.load(Ordering::Relaxed)
            && let Ok(file) = self.file.get()
        {
            // The advice also starts to write the range to the disk. Without it, the cache would
            // keep the range longer.
            let _ = fadvise(file, offset, NonZeroU64::new(bytes as u64), Advice::DontNeed);
        }
    }
}

/// Takes the room of a file.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    // The system would end a program by a signal if it passes its limit.
    if let Some(most) = getrlimit(Resource::Fsize).current.filter(|&most| bytes > most) {
        let text = format!("{bytes} bytes are more than a file of this process may have (ulimit -f): {most}");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
    }
    match retry_on_intr(|| fallocate(file, FallocateFlags::empty(), 0, bytes)) {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => lengthen(file, bytes),
        Err(error) => Err(error.into()),
    }
}

/// Makes a file longer if there is room at the moment. This file system takes room only for written
/// bytes, so a later write may find a full disk.
fn lengthen(file: &File, bytes: u64) -> io::Result<()> {
    let system = fstatvfs(file)?;
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    if free < bytes {
        let text = format!("{bytes} bytes are needed, and {free} are free");
        return Err(io::Error::new(io::ErrorKind::StorageFull, text));
    }
    file.set_len(bytes)
}

/// Returns whether an error of
/// [`CudaDevice::take_contents_error`](crate::CudaDevice::take_contents_error) reports a folder
/// without enough room.
pub fn is_no_room(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), FileTooLarge | QuotaExceeded | StorageFull)
}

/// A planned failure of a later step, for tests.
#[cfg(test)]
#[derive(Default, Debug)]
pub(crate) struct Faults(std::sync::Mutex<Option<(FileStep, u32, io::ErrorKind)>>);

#[cfg(test)]
impl Faults {
    /// Lets the step fail after it has succeeded `skip` times.
    pub(crate) fn fail(&self, step: FileStep, skip: u32, kind: io::ErrorKind) {
        *self.0.lock().expect("no panic") = Some((step, skip, kind));
    }

    /// Ends the failures. Returns whether the planned failure is still to come.
    pub(crate) fn end(&self) -> bool {
        self.0.lock().expect("no panic").take().is_some()
    }

    fn pass(&self, step: FileStep) -> io::Result<()> {
        let mut planned = self.0.lock().expect("no panic");
        match &mut *planned {
            Some((at, 0, kind)) if *at == step => {
                let kind = *kind;
                *planned = None;
                Err(kind.into())
            }
            Some((at, skip, _)) if *at == step => {
                *skip -= 1;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    /// Bytes at an aligned address.
    #[repr(align(4096))]
    struct Aligned([u8; 8192]);

    fn folder() -> (tempfile::TempDir, Arc<ContentsFolder>) {
        let made = tempfile::tempdir().expect("a folder");
        let folder = Arc::new(ContentsFolder::new(made.path().to_owned()));
        (made, folder)
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no unnamed files")]
    fn a_file_has_its_room_no_name_and_no_other_reader() {
        let (made, folder) = folder();
        let file = ContentsFile::new(&folder, 8192).expect("room");
        let about = file.file.get().expect("open").metadata().expect("open");
        assert_eq!((about.len(), about.nlink(), about.mode() & 0o777), (8192, 0, 0o600));
        assert!(about.blocks() * 512 >= 8192, "the room is taken: {}", about.blocks());
        assert_eq!(made.path().read_dir().expect("a folder").count(), 0);
        assert!(
            file.file.get().expect("open").as_raw_fd() >= 100,
            "a program may choose the number {}",
            file.file.get().expect("open").as_raw_fd()
        );
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no unnamed files")]
    fn bytes_come_back_directly_and_through_the_cache() {
        for place in [std::env::temp_dir(), "/dev/shm".into()] {
            let Ok(made) = tempfile::tempdir_in(place) else { continue };
            let folder = Arc::new(ContentsFolder::new(made.path().to_owned()));
            let file = ContentsFile::new(&folder, 16 << 10).expect("room");
            for direct in [true, false] {
                let mut bytes = Box::new(Aligned([7; 8192]));
                let before = file.direct.load(Ordering::Relaxed);
                file.write(&bytes.0, 4096).expect("written");
                bytes.0.fill(0);
                file.read(&mut bytes.0, 4096).expect("read");
                assert!(bytes.0.iter().all(|&byte| byte == 7), "{direct}");
                assert_eq!(file.direct.load(Ordering::Relaxed), before);
                // An unaligned length is refused once, and then goes through the cache.
                file.write(&bytes.0[..100], 4096).expect("written");
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no unnamed files")]
    fn a_refused_call_is_made_again_once_and_through_the_cache() {
        let (_made, folder) = folder();
        let file = ContentsFile::new(&folder, 4096).expect("room");
        let transfer = |direct, first: io::Result<()>| {
            file.direct.store(direct, Ordering::Relaxed);
            let (mut first, mut count) = (Some(first), 0);
            let done = file.transfer(|_| {
                count += 1;
                first.take().unwrap_or(Ok(()))
            });
            (done.map_err(|error| error.raw_os_error()), count, file.direct.load(Ordering::Relaxed))
        };
        let error = |errno: Errno| Err(io::Error::from(errno));
        assert_eq!(transfer(true, Ok(())), (Ok(()), 1, true));
        assert_eq!(transfer(true, error(Errno::INVAL)), (Ok(()), 2, false));
        assert_eq!(transfer(true, error(Errno::NOSPC)), (Err(Some(Errno::NOSPC.raw_os_error())), 1, true));
        assert_eq!(transfer(false, error(Errno::INVAL)), (Err(Some(Errno::INVAL.raw_os_error())), 1, false));
        assert_eq!(transfer(false, Ok(())), (Ok(()), 1, false));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no unnamed files")]
    fn errors_name_the_folder_the_step_and_the_reason() {
        let (made, folder) = folder();
        let missing = Arc::new(ContentsFolder::new(made.path().join("missing")));
        let error = ContentsFile::new(&missing, 4096).expect_err("no folder").to_string();
        assert!(error.contains("/missing: no file for parked memory can be created: "), "{error}");
        let error = ContentsFile::new(&folder, 1 << 62).expect_err("too much");
        assert!(is_no_room(&error), "{error:?}");
        assert!(error.to_string().contains(": there is no room for parked memory: "), "{error}");
        folder.faults.fail(FileStep::Reserve, 0, io::ErrorKind::StorageFull);
        assert!(is_no_room(&ContentsFile::new(&folder, 4096).expect_err("planned")));
        assert!(ContentsFile::new(&folder, 4096).is_ok());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no unnamed files")]
    fn a_file_that_takes_no_room_is_as_long_as_the_room_allows() {
        let (_made, folder) = folder();
        let made = ContentsFile::new(&folder, 4096).expect("room");
        let file = made.file.get().expect("open");
        lengthen(file, 1 << 20).expect("room");
        assert_eq!(file.metadata().expect("open").len(), 1 << 20);
        let error = lengthen(file, 1 << 60).expect_err("too much");
        assert!(is_no_room(&error) && error.to_string().contains("1152921504606846976 bytes are needed"), "{error:?}");
        assert_eq!(file.metadata().expect("open").len(), 1 << 20);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri cannot fork")]
    fn a_file_is_not_longer_than_a_file_of_the_process_may_be() {
        let (_made, folder) = folder();
        let in_child = || {
            let limit = libc::rlimit { rlim_cur: 8192, rlim_max: 8192 };
            // SAFETY: the structure outlives the call, and the limit is for the child alone.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
            let made = |bytes| ContentsFile::new(&folder, bytes).map(|file| file.bytes);
            let refused = made(8193).map_err(|error| (error.kind(), error.to_string().contains("(ulimit -f): 8192")));
            let right = refused == Err((io::ErrorKind::FileTooLarge, true))
                && made(4096).is_ok_and(|bytes| bytes == 4096)
                && made(8192).is_ok_and(|bytes| bytes == 8192);
            i32::from(!right)
        };
        assert_eq!(crate::fork::tests::in_forked_child(in_child), 0);
    }
}
