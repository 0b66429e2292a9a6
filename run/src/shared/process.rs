//! The identity of a process, which outlives the reuse of the process id.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A process, told apart from later processes with the same id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// The process id.
    pub pid: u32,
    /// When the process started, in clock ticks since the system's start.
    pub start: u64,
    /// Where the stack of the program starts. The system chooses another place at each `exec`. 0 if
    /// unknown.
    pub image: u64,
}

/// The system's figures of a process (`/proc/PID/stat`).
struct Stat {
    identity: Identity,
    /// Whether the process has ended, and only the exit status is left.
    is_zombie: bool,
}

impl Identity {
    /// Returns the identity of the calling process.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn of_caller() -> io::Result<Self> {
        // Where `/proc` is of another container, another process has the caller's id there.
        Ok(read(std::process::id(), "self")?.identity)
    }

    /// Returns whether the process runs, and still runs the program of the identity: an `exec`
    /// ends a program's use of the driver, too. A process hidden from the caller counts as alive.
    pub fn is_alive(&self) -> bool {
        match stat(self.pid) {
            Ok(Stat { identity, is_zombie }) => {
                let same_image = self.image == 0 || identity.image == 0 || self.image == identity.image;
                !is_zombie && identity.start == self.start && same_image
            }
            // The second answer: the process ended between the opening of the file and its reading.
            Err(error) => error.kind() != io::ErrorKind::NotFound && error.raw_os_error() != Some(libc::ESRCH),
        }
    }
}

/// Reads the system's figures of a process.
fn stat(pid: u32) -> io::Result<Stat> {
    read(pid, &pid.to_string())
}

/// Reads the system's figures of a process, which has a name in `/proc`.
fn read(pid: u32, name: &str) -> io::Result<Stat> {
    let text = fs::read(format!("/proc/{name}/stat"))?;
    parse(pid, &text).ok_or_else(|| io::Error::other(format!("/proc/{name}/stat has another form")))
}

/// Reads the fields after the program's name. The name may have spaces and parentheses.
fn parse(pid: u32, text: &[u8]) -> Option<Stat> {
    let end = text.iter().rposition(|&byte| byte == b')')?;
    let text = std::str::from_utf8(&text[end + 1..]).ok()?;
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    // Numbers of proc_pid_stat(5), which counts from 1: field 3 is the first here.
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let is_ended = ["Z", "X"].contains(fields.first()?);
    // The first thread of a process may end before the others: then the process is no zombie.
    let is_zombie = is_ended && number(20)? <= 1;
    // 0 where the process may not be looked into.
    let image = number(28).unwrap_or(0);
    Some(Stat { identity: Identity { pid, start: number(22)?, image }, is_zombie })
}

/// Returns the number of the caller's namespace of process ids.
///
/// # Errors
/// `/proc` cannot be read.
pub(crate) fn namespace() -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    Ok(fs::metadata("/proc/thread-self/ns/pid")?.ino())
}

/// Returns whether `/proc` shows the process ids of the caller's namespace. It does not in a
/// container that has its own ids, and the `/proc` of the system around it.
pub(crate) fn sees_own_ids() -> bool {
    // The ids of the caller in each namespace, from that of `/proc` to its own.
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    // Systems before Linux 4.1 do not tell.
    ids.is_none_or(|ids| ids.split_ascii_whitespace().count() == 1)
}

/// Returns a path to an open file of the process. The thread is asked and not the process: the
/// process has no files in `/proc/self` once its first thread has ended.
pub(crate) fn open_file(file: BorrowedFd<'_>) -> String {
    format!("/proc/thread-self/fd/{}", file.as_raw_fd())
}

/// Returns the program's name of a process, or an empty text.
pub(crate) fn program(pid: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(&name).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::{Identity, parse, program};
    use std::process::Command;

    #[test]
    fn the_caller_is_alive_and_an_earlier_owner_of_its_id_is_not() {
        let caller = Identity::of_caller().unwrap();
        assert!(caller.is_alive() && super::sees_own_ids());
        assert!(!Identity { start: caller.start - 1, ..caller }.is_alive());
        assert!(!Identity { image: caller.image ^ 4096, ..caller }.is_alive());
        assert!(Identity { image: 0, ..caller }.is_alive());
        assert!(!Identity { pid: u32::MAX >> 1, ..caller }.is_alive());
        assert!(!program(caller.pid).is_empty());
    }

    #[test]
    fn a_killed_child_is_dead_before_its_parent_has_asked() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let start = super::stat(child.id()).unwrap().identity;
        assert!(start.is_alive());
        child.kill().unwrap();
        while start.is_alive() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!start.is_alive());
    }

    #[test]
    fn an_exec_ends_a_program() {
        // The shell waits for a line, and then becomes another program in the same process.
        let mut child = Command::new("sh")
            .args(["-c", "read line; exec sleep 60"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        while program(child.id()) != "sh" {
            std::thread::yield_now();
        }
        let shell = super::stat(child.id()).unwrap().identity;
        assert!(shell.is_alive());
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"\n").unwrap();
        while program(child.id()) != "sleep" {
            std::thread::yield_now();
        }
        assert!(!shell.is_alive() && super::stat(child.id()).unwrap().identity.start == shell.start);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn names_with_parentheses_and_processes_without_a_first_thread_are_read() {
        let line = |state: &str, threads: u32| {
            format!(
                "7 (a) b (c) {state} 1 7 7 0 -1 4194304 9 0 0 0 0 0 0 0 20 0 {threads} 0 2405526 3133440 407 1 2 3 140735\n"
            )
        };
        let read = parse(7, line("S", 1).as_bytes()).unwrap();
        assert_eq!((read.identity.start, read.identity.image, read.is_zombie), (2_405_526, 140_735, false));
        assert!(parse(7, line("Z", 1).as_bytes()).unwrap().is_zombie);
        assert!(!parse(7, line("Z", 3).as_bytes()).unwrap().is_zombie);
        assert!(parse(7, b"7 (a) S 1").is_none());
        assert!(parse(7, b"").is_none());
    }
}
