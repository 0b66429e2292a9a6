//! The mapped file of a group: made, opened and removed, its lock, and which owners are dead.
//!
//! A process that uses the file has marked a byte of it, the byte of its number. So whether it runs
//! is seen from every container that shares the folder. Where process ids are seen, they tell more:
//! memory counts until the process has really ended, because the driver frees it only then, and a
//! forked child, which keeps the mark of its parent, does not count for it.

use super::Uuid;
use super::layout::{FORM, MAGIC, OWNERS, State};
use super::lock::{Held, LockFault};
use crate::shared::map::Shared;
use crate::shared::process::{self, Identity};
use crate::shared::{form, marks};
use cachalot_core::shares::NONE;
use cachalot_cuda::own_files::OwnFile;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the file.
pub(super) const BYTES: u64 = Shared::<State>::BYTES;

/// A mapped file.
pub(super) struct MappedTable {
    pub(super) state: Shared<State>,
    /// Carries the marks of the process, as the mapping does: a program may close the file.
    open: OwnFile,
    path: PathBuf,
    /// The namespace of the caller's process id, or 0 where `/proc` has other ids.
    pub(super) namespace: u64,
}

impl MappedTable {
    fn new(path: &Path, file: File) -> io::Result<Self> {
        Self::of(path, Shared::new(&file)?, file)
    }

    /// Opens the file of a group of a user for reading. See [`form::open_of`].
    pub(super) fn to_read(path: &Path, user: u32) -> io::Result<Self> {
        let file = form::open_of(path, BYTES, user)?;
        Self::of(path, Shared::to_read(&file)?, file)
    }

    fn of(path: &Path, state: Shared<State>, file: File) -> io::Result<Self> {
        let namespace = if process::sees_own_ids() { process::namespace()? } else { 0 };
        Ok(Self { state, open: OwnFile::new(file)?, path: path.to_owned(), namespace })
    }

    /// Opens the file of a group, or creates the file if `may_create`. `None`: another process
    /// removed or created the file meanwhile, or the file is missing.
    pub(super) fn open(path: &Path, device: Uuid, may_create: bool) -> io::Result<Option<Self>> {
        match form::open(path, BYTES, true) {
            Ok(file) => {
                let table = Self::new(path, file)?;
                match check(&table.state, device) {
                    Ok(()) => Ok(Some(table)),
                    Err(error) => table.remove_abandoned(error),
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound && may_create => create(path, device),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => {
                // A file of another length is of another version.
                let file = form::open_of_user(path, true)?;
                let mut magic = [0; size_of_val(&MAGIC)];
                let is_group = file.read_exact_at(&mut magic, 0).is_ok() && u64::from_ne_bytes(magic) == MAGIC;
                if !is_group || file.metadata()?.len() == BYTES || !marks::hold_all(&file) {
                    return Err(error);
                }
                fs::remove_file(path)?;
                Ok(None)
            }
        }
    }

    pub(super) fn is_removed(&self) -> bool {
        self.open.is_removed()
    }

    /// Makes a call with the open file, which is opened again if the program has closed it.
    fn with_file<T>(&self, call: impl FnOnce(&File) -> T) -> io::Result<T> {
        if let Ok(file) = self.open.get() {
            return Ok(call(file));
        }
        let again = form::open(&self.path, BYTES, false)?;
        let found = again.metadata()?;
        if (found.dev(), found.ino()) != self.open.inode() {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(call(&again))
    }

    /// See [`marks::is_held`].
    fn is_marked(&self, at: usize) -> Option<bool> {
        self.with_file(|file| marks::is_held(file, at)).ok()?
    }

    /// See [`marks::hold_all`].
    fn mark_all(&self) -> bool {
        self.open.get().is_ok_and(marks::hold_all)
    }

    /// Returns the owner of an entry, if its process id is seen here.
    fn seen(&self, at: usize) -> Option<Identity> {
        let entry = &self.state.entries[at];
        let is_here = self.namespace != 0 && entry.namespace.load(Ordering::Relaxed) == self.namespace;
        entry.owner().filter(|_| is_here)
    }

    /// Returns whether the bytes of an entry count: its owner has not ended. The entry is none of
    /// this opening of the file.
    pub(super) fn counts(&self, at: usize) -> bool {
        match self.seen(at) {
            Some(owner) => owner.is_alive(),
            None => self.state.entries[at].owner().is_some() && self.is_marked(at) != Some(false),
        }
    }

    /// Returns whether a process may be running under a number, other than this opening's.
    fn runs(&self, at: usize) -> bool {
        at < OWNERS && self.is_marked(at) != Some(false) && self.seen(at).is_none_or(|owner| owner.is_alive())
    }

    /// Takes a number with a free entry for the caller, until the file is closed. `None`: no number
    /// is free, or another process has marked all bytes and is about to remove the file.
    pub(super) fn number(&self, caller: Identity) -> io::Result<Option<usize>> {
        for at in 0..OWNERS {
            match marks::hold(self.open.get()?, at) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(io::Error::other(format!("the file system has no locks ({error})"))),
            }
            if self.counts(at) && !self.is_before(at, caller) {
                // Its process is ending.
                marks::release(self.open.get()?, at);
                continue;
            }
            // From here on nobody else takes the entry, so the lock under this number is the
            // caller's, and not its predecessor's.
            self.state.entries[at].clear();
            return Ok(Some(at));
        }
        Ok(None)
    }

    /// Returns whether an entry is of the calling process before an `exec`: the system closed its
    /// file and took the mark. Where addresses are not random, nothing else tells the two programs
    /// apart. An entry of a second join has its mark.
    pub(super) fn is_before(&self, at: usize, caller: Identity) -> bool {
        self.seen(at).is_some_and(|owner| owner.pid == caller.pid) && self.is_marked(at) == Some(false)
    }

    /// Takes the lock under the number of this opening.
    pub(super) fn lock(&self, number: usize) -> Result<Held<'_>, LockFault> {
        // Another thread of this process has the same number.
        self.state.lock.take(number, |at| at != number && !self.runs(at))
    }

    /// Takes the lock under a number that the caller has just got: another holder with the number
    /// is its predecessor.
    pub(super) fn lock_first(&self, number: usize) -> Result<Held<'_>, LockFault> {
        self.state.lock.take(number, |at| at == number || !self.runs(at))
    }

    /// Frees the entries of dead owners, except the one of a number.
    pub(super) fn sweep(&self, except: usize, _: &Held<'_>) {
        for at in self.state.owned().filter(|&at| at != except) {
            if !self.counts(at) {
                self.state.entries[at].clear();
                #[cfg(test)]
                super::faults::reach(super::faults::Point::Swept);
            }
        }
    }

    /// Removes the name of the file, unless another file has the name by now. Only the holder of
    /// the file's lock, or of all its marks, removes the name, so the name cannot pass to another
    /// file in between.
    pub(super) fn unlink(&self) {
        let is_same = |found: fs::Metadata| (found.dev(), found.ino()) == self.open.inode();
        if fs::symlink_metadata(&self.path).is_ok_and(is_same) {
            // A file that stays says that it is gone, and the next process removes it.
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Removes the file of a group that this process cannot join, if no member lives: the file of
    /// another version.
    fn remove_abandoned(&self, error: io::Error) -> io::Result<Option<Self>> {
        if self.state.magic.load(Ordering::Acquire) != MAGIC || !self.mark_all() {
            return Err(error);
        }
        self.unlink();
        Ok(None)
    }
}

/// Removes the file of a group in which no member lives: members that were killed, or ended without
/// their handlers, leave it.
pub(super) fn remove_without_members(path: &Path) {
    let open = form::open(path, BYTES, true).and_then(|file| MappedTable::new(path, file));
    let Ok(table) = open else { return };
    let is_group = table.state.magic.load(Ordering::Acquire) == MAGIC;
    // The marks of all members keep out whoever joins meanwhile.
    if is_group && table.mark_all() && !table.state.owned().any(|at| table.counts(at)) {
        table.unlink();
    }
}

/// Checks the constant words of a file.
fn check(state: &State, device: Uuid) -> io::Result<()> {
    let read = |word: &AtomicU64| word.load(Ordering::Acquire);
    let fault = if read(&state.magic) != MAGIC || read(&state.length) != BYTES {
        "is no file of a group"
    } else if read(&state.form) != FORM {
        "was made by another version of cachalot"
    } else if Uuid::of_words([read(&state.uuid[0]), read(&state.uuid[1])]) != device {
        "is of another device"
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::InvalidData, fault))
}

/// Creates the file of a group. A complete file gets the name. `None`: another process
/// was first.
fn create(path: &Path, device: Uuid) -> io::Result<Option<MappedTable>> {
    let folder = path.parent().expect("the path has a folder");
    let table = MappedTable::new(path, form::create(folder, BYTES)?)?;
    let state = &table.state;
    let [low, high] = device.to_words();
    let words = [
        (&state.form, FORM),
        (&state.length, BYTES),
        (&state.uuid[0], low),
        (&state.uuid[1], high),
        (&state.limit, NONE),
        (&state.named, NONE),
    ];
    words.iter().for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
    state.magic.store(MAGIC, Ordering::Release);
    Ok(form::give_name(table.open.get()?, path)?.then_some(table))
}
