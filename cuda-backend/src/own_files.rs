//! Files of the library inside another program: a failed write never ends the program, and no file
//! has a number that the program expects to choose.
//!
//! A write to a pipe without a reader raises `SIGPIPE`, and a file beyond the limit of the process
//! raises `SIGXFSZ`. Either signal ends a program that does not handle it, although the program
//! itself has written nothing. So each of the library's own writes goes through [`quietly`], and
//! fails with a code instead.
//!
//! A program that becomes a daemon closes every number, and opens its own files under some of them.
//! A file that the library keeps open is an [`OwnFile`], which is neither used nor closed if
//! another file has its number.

use core::mem::{ManuallyDrop, MaybeUninit};
use rustix::io::fcntl_dupfd_cloexec;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;

/// The signals of failed writes. The system sends both to the thread that writes.
const SIGNALS: [libc::c_int; 2] = [libc::SIGPIPE, libc::SIGXFSZ];

/// The least numbers for the library's files, the best first. Programs that become daemons close 0,
/// 1 and 2 and open them again, and shells let scripts choose numbers up to 9. A process may be
/// allowed fewer than a hundred files.
const LEAST_NUMBERS: [i32; 2] = [100, 3];

/// Makes a call that writes to files of the library, and takes back the signals of its failures.
/// Signals that were pending before remain pending, and the thread's mask is restored.
pub fn quietly<T>(write: impl FnOnce() -> T) -> T {
    if cfg!(miri) {
        // Miri has no signals.
        return write();
    }
    let signals = set_of(&SIGNALS);
    let mut before = MaybeUninit::uninit();
    // SAFETY: `signals` is filled in, and the function writes the thread's set to `before`.
    if unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, before.as_mut_ptr()) } != 0 {
        return write();
    }
    let earlier = SIGNALS.map(is_pending);
    let answer = write();
    for (signal, was_pending) in SIGNALS.into_iter().zip(earlier) {
        if !was_pending && is_pending(signal) {
            take_back(signal);
        }
    }
    // SAFETY: the first call has filled in `before`.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), core::ptr::null_mut()) };
    answer
}

fn set_of(signals: &[libc::c_int]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the function fills in the set.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    for &signal in signals {
        // SAFETY: the set is filled in.
        unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
    }
    // SAFETY: the first function has filled in the set.
    unsafe { set.assume_init() }
}

/// Returns whether a signal waits for this thread or for the process.
fn is_pending(signal: libc::c_int) -> bool {
    let mut pending = set_of(&[]);
    // SAFETY: the set outlives the call, which fills it in.
    unsafe { libc::sigpending(&raw mut pending) };
    // SAFETY: the set is filled in.
    unsafe { libc::sigismember(&raw const pending, signal) == 1 }
}

/// Takes a waiting signal away.
fn take_back(signal: libc::c_int) {
    let set = set_of(&[signal]);
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: both structures outlive the call, and nobody asks for details of the signal.
    unsafe { libc::sigtimedwait(&raw const set, core::ptr::null_mut(), &raw const at_once) };
}

/// Returns a file under a number that no program chooses for its own files. The file keeps its
/// number if the process has no other one to give.
pub fn out_of_the_way<F: From<OwnedFd> + Into<OwnedFd>>(file: F) -> F {
    let file = file.into();
    let moved = LEAST_NUMBERS.iter().find_map(|&least| fcntl_dupfd_cloexec(&file, least).ok());
    moved.unwrap_or(file).into()
}

/// A file that the library keeps open inside another program.
#[derive(Debug)]
pub struct OwnFile {
    file: ManuallyDrop<File>,
    /// The numbers of the file system and of the file.
    inode: (u64, u64),
}

impl OwnFile {
    /// Keeps a file open, under a number that the program does not choose.
    ///
    /// # Errors
    /// The system does not report the file's numbers.
    pub fn new(file: File) -> io::Result<Self> {
        let file = out_of_the_way(file);
        let inode = numbers(&file.metadata()?);
        Ok(Self { file: ManuallyDrop::new(file), inode })
    }

    /// Returns the numbers of the file system and of the file.
    pub fn inode(&self) -> (u64, u64) {
        self.inode
    }

    /// Returns the file, for a use at once.
    ///
    /// # Errors
    /// The program has closed the file.
    pub fn get(&self) -> io::Result<&File> {
        self.found().map(|_| &*self.file)
    }

    /// Returns whether the file has no name any more. Returns false if the program has closed the
    /// file, because then nobody knows.
    pub fn is_removed(&self) -> bool {
        self.found().is_ok_and(|found| found.nlink() == 0)
    }

    /// Returns what the system knows about the file.
    fn found(&self) -> io::Result<Metadata> {
        let closed = || io::Error::other("the program has closed the library's file");
        self.file.metadata().ok().filter(|found| numbers(found) == self.inode).ok_or_else(closed)
    }
}

impl Drop for OwnFile {
    fn drop(&mut self) {
        if self.found().is_ok() {
            // SAFETY: the file is dropped once, and nobody uses it any more.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}

fn numbers(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::{OwnFile, is_pending, out_of_the_way, quietly};
    use std::io::{Read, Seek, Write};
    use std::os::fd::{AsRawFd, FromRawFd};

    #[test]
    fn a_number_that_the_program_has_taken_is_left_to_the_program() {
        let own = OwnFile::new(tempfile::tempfile().expect("a file")).expect("a number");
        let number = own.get().expect("it is open").as_raw_fd();
        let other = tempfile::tempfile().expect("a file");
        // SAFETY: the number is closed, and the program's file has it then.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
        assert!(own.get().is_err() && !own.is_removed());
        drop(own);
        // SAFETY: the number is the test's own.
        let mut taken = unsafe { std::fs::File::from_raw_fd(number) };
        taken.write_all(b"whole").expect("the number is open");
        taken.rewind().expect("a file");
        let mut text = String::new();
        taken.read_to_string(&mut text).expect("a file");
        assert_eq!(text, "whole");
    }

    /// Writes to a pipe without a reader, and returns whether the write failed with a code.
    fn write_in_vain() -> bool {
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        quietly(|| writer.write_all(b"line\n")).is_err_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
    }

    #[test]
    fn a_write_to_a_pipe_without_a_reader_ends_no_program() {
        let in_child = || {
            // SAFETY: the default action ends the child, if the signal comes.
            unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
            i32::from(!write_in_vain() || is_pending(libc::SIGPIPE))
        };
        assert_eq!(crate::fork::tests::in_forked_child(in_child), 0);
    }

    #[test]
    fn a_file_beyond_the_limit_of_the_process_ends_no_program() {
        let in_child = || {
            let limit = libc::rlimit { rlim_cur: 4096, rlim_max: 4096 };
            // SAFETY: the structure outlives the call, and the limit is for the child alone.
            unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) };
            let Ok(file) = tempfile::tempfile() else { return 1 };
            let refused = quietly(|| file.set_len(4097)).is_err();
            i32::from(!refused || is_pending(libc::SIGXFSZ) || quietly(|| file.set_len(4096)).is_err())
        };
        assert_eq!(crate::fork::tests::in_forked_child(in_child), 0);
    }

    #[test]
    fn a_signal_of_the_program_that_waits_is_left_to_the_program() {
        let in_child = || {
            let mut set = super::set_of(&[libc::SIGPIPE]);
            // SAFETY: the set outlives the call.
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut set) };
            // SAFETY: the signal is blocked.
            unsafe { libc::raise(libc::SIGPIPE) };
            i32::from(!write_in_vain() || !is_pending(libc::SIGPIPE))
        };
        assert_eq!(crate::fork::tests::in_forked_child(in_child), 0);
    }

    #[test]
    fn a_file_leaves_the_numbers_that_programs_choose() {
        let file = out_of_the_way(tempfile::tempfile().expect("a file"));
        assert!(file.as_raw_fd() >= 100, "{}", file.as_raw_fd());
        let in_child = || {
            let limit = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
            // SAFETY: the structure outlives the call, and the limit is for the child alone.
            unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
            let Ok(file) = tempfile::tempfile() else { return 0 };
            i32::from(out_of_the_way(file).as_raw_fd() < 3)
        };
        assert_eq!(crate::fork::tests::in_forked_child(in_child), 0);
    }
}
