//! The processes that hold memory of the devices, told from one process to another.
//!
//! Each process with the emulated driver has a file in a folder that the processes share, with its
//! number and the bytes that it holds of each device. It keeps the file locked while it lives, so a
//! reader knows the files of dead processes by their locks, also those of killed ones and those in
//! other containers.

use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The setting that names the folder.
pub const FOLDER: &str = "PROCESSES";

/// The first bytes of a file, with the version of the format.
const MAGIC: u64 = u64::from_le_bytes(*b"cachemu1");

/// Most devices in a file, a bound for readers.
const MOST_DEVICES: usize = 1024;

/// The file of this process. Its bytes are the magic, the number of the process, and a number for
/// each device.
#[derive(Debug)]
pub struct Holdings {
    file: File,
    path: PathBuf,
}

/// A process that lives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// The number of the process.
    pub pid: u32,
    /// The bytes that the process holds of each device.
    pub bytes: Vec<u64>,
}

impl Holdings {
    /// Makes the file of this process in `folder`, which is made if necessary.
    ///
    /// # Errors
    /// The errors of the file system.
    pub fn open(folder: &Path, devices: usize) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let pid = std::process::id();
        // A file without its lock would look like that of a dead process, so it gets its name last.
        let new = tempfile::Builder::new().prefix(".new-").tempfile_in(folder)?;
        flock(new.as_file(), FlockOperation::LockExclusive)?;
        let words = [MAGIC, pid.into()].into_iter().chain(std::iter::repeat_n(0, devices));
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        new.as_file().write_all_at(&bytes, 0)?;
        let path = folder.join(pid.to_string());
        let file = new.persist(&path).map_err(|refused| refused.error)?;
        Ok(Self { file, path })
    }

    /// Removes the file, at the end of the process. The file of a process that was killed stays,
    /// and is that of a dead process for every reader.
    pub fn end(&self) {
        let _ = fs::remove_file(&self.path);
    }

    /// Notes the bytes that the process holds of a device.
    ///
    /// # Errors
    /// The errors of the file system.
    pub fn set(&self, device: usize, bytes: u64) -> Result<()> {
        self.file.write_all_at(&bytes.to_le_bytes(), (device as u64 + 2) * size_of::<u64>() as u64)
    }
}

/// Returns the processes with a file in `folder`, in the order of their numbers. A folder that is
/// not there has none. The file of a killed process stays, because another process may get its
/// number, and a file of its name, at any moment.
pub fn living(folder: &Path) -> Vec<Process> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_str().is_some_and(|name| name.parse::<u32>().is_ok()));
    let mut found: Vec<_> = named.filter_map(|entry| read(&entry.path()).ok()).collect();
    found.sort_by_key(|process| process.pid);
    found
}

/// Reads the file of a living process.
fn read(path: &Path) -> Result<Process> {
    let file = File::open(path)?;
    if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        return Err(Error::from(ErrorKind::NotFound));
    }
    let mut bytes = vec![0; (file.metadata()?.len() as usize).min((MOST_DEVICES + 2) * size_of::<u64>())];
    file.read_exact_at(&mut bytes, 0)?;
    let (words, _) = bytes.as_chunks::<{ size_of::<u64>() }>();
    let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    match words.as_slice() {
        [MAGIC, pid, held @ ..] => Ok(Process { pid: *pid as u32, bytes: held.to_vec() }),
        _ => Err(Error::from(ErrorKind::InvalidData)),
    }
}

#[cfg(test)]
mod tests {
    use super::{Holdings, Process, living};
    use std::fs;

    #[test]
    fn a_process_is_listed_with_its_bytes_while_it_lives() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(living(&folder.path().join("missing")), []);
        let holdings = Holdings::open(folder.path(), 2).expect("a file");
        holdings.set(1, 4711).expect("a write");
        let own = Process { pid: std::process::id(), bytes: vec![0, 4711] };
        assert_eq!(living(folder.path()), [own]);
        holdings.end();
        assert_eq!(living(folder.path()), []);
    }

    #[test]
    fn files_of_dead_processes_and_other_files_are_no_processes() {
        let folder = tempfile::tempdir().expect("a folder");
        let other = folder.path().join("other");
        fs::write(other, "text").expect("a file");
        let dead = [super::MAGIC, 17, 4711].map(u64::to_le_bytes).concat();
        fs::write(folder.path().join("17"), dead).expect("a file");
        assert_eq!(living(folder.path()), []);
    }
}
