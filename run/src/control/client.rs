//! Finds the processes of the calling user that can be parked, and asks them.

use super::protocol::{Action, Answer, ControlRefusal, MOST_ANSWER, Request, read_answer};
use super::socket::{SocketName, Sockets};
use super::status::{Status, plain};
use crate::shared::folder;
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// How long a process may take beyond the time of the request: the move of the memory itself.
const GRACE: Duration = Duration::from_secs(300);

/// How long a process may take to tell its state.
const STATUS_TIME: Duration = Duration::from_secs(2);

/// How often a waiting client looks whether the process lives.
const LOOK: Duration = Duration::from_millis(250);

/// Most processes that are asked at the same time.
const AT_ONCE: usize = 32;

/// A process that can be asked.
#[derive(Clone, Debug)]
pub struct Sleeper {
    sockets: Arc<Sockets>,
    name: SocketName,
}

/// Why there is no answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum AskError {
    /// The process refused.
    Refused(ControlRefusal),
    /// The process did not answer: the process has ended, is stopped, or is of another version.
    Silent(String),
}

/// Why a text names no process.
#[derive(Debug)]
#[non_exhaustive]
pub enum FindError {
    /// No process has the id or the name. With the processes that can be asked.
    Missing {
        /// The id or the name.
        sought: String,
        /// The processes that can be asked, as `name (PID)`.
        known: Vec<String>,
    },
    /// Several processes have the name.
    Several {
        /// The name.
        sought: String,
        /// The processes of the name, as `name (PID)`.
        found: Vec<String>,
    },
    /// The user's folder cannot be used.
    Folder(io::Error),
}

/// Returns the processes of the calling user that can be asked, in the order of process ids.
///
/// # Errors
/// The user's folder cannot be used.
pub fn sleepers() -> io::Result<Vec<Sleeper>> {
    sleepers_in(&folder::of_user()?)
}

/// Returns the processes with a socket in a folder. See [`sleepers`].
///
/// # Errors
/// The folder cannot be used.
pub fn sleepers_in(folder: &Path) -> io::Result<Vec<Sleeper>> {
    let Some(sockets) = Sockets::find(folder)?.map(Arc::new) else { return Ok(Vec::new()) };
    let names = sockets.living()?.into_iter();
    Ok(names.map(|name| Sleeper { sockets: Arc::clone(&sockets), name }).collect())
}

/// Asks processes for their states, many at the same time. The answers are in the order of the
/// processes. A process that does not answer takes two seconds.
pub fn statuses(sleepers: &[Sleeper]) -> Vec<Result<Status, AskError>> {
    of_each(sleepers, Sleeper::status)
}

/// Sends a request to several processes, many at the same time. The answers are in the order of the
/// processes. Each process has the time of the request, as for [`Sleeper::ask`].
pub fn ask_all(sleepers: &[Sleeper], request: &Request) -> Vec<Result<Status, AskError>> {
    of_each(sleepers, |sleeper| sleeper.ask(request))
}

/// Asks processes with `question`, many at the same time.
fn of_each(
    sleepers: &[Sleeper],
    question: impl Fn(&Sleeper) -> Result<Status, AskError> + Sync,
) -> Vec<Result<Status, AskError>> {
    let ask = |some: &[Sleeper]| {
        thread::scope(|scope| {
            let asked: Vec<_> = some.iter().map(|sleeper| scope.spawn(|| question(sleeper))).collect();
            let panicked = || Err(AskError::Silent("the question panicked".to_owned()));
            asked.into_iter().map(|asked| asked.join().unwrap_or_else(|_| panicked())).collect::<Vec<_>>()
        })
    };
    sleepers.chunks(AT_ONCE).flat_map(ask).collect()
}

/// Finds the process with an id or a name: the name of `cachalot run --name`, the program's name,
/// or the name of the program's file. An id goes before a name.
///
/// # Errors
/// No process or several processes have the name, or the user's folder cannot be used.
pub fn find(sought: &str) -> Result<Sleeper, FindError> {
    find_in(&folder::of_user().map_err(FindError::Folder)?, sought)
}

/// Finds a process with a socket in a folder. See [`find`].
///
/// # Errors
/// As for [`find`].
pub fn find_in(folder: &Path, sought: &str) -> Result<Sleeper, FindError> {
    let sleepers = sleepers_in(folder).map_err(FindError::Folder)?;
    if let Some(pid) = sought.parse::<u32>().ok().filter(|_| sought.bytes().all(|byte| byte.is_ascii_digit()))
        && let Some(sleeper) = sleepers.iter().find(|sleeper| sleeper.pid() == pid)
    {
        return Ok(sleeper.clone());
    }
    let names: Vec<[String; 3]> = sleepers.iter().zip(statuses(&sleepers)).map(|(one, told)| one.names(told)).collect();
    let shown = |(sleeper, names): (&Sleeper, &[String; 3])| format!("{} ({})", names[0], sleeper.pid());
    let both = || sleepers.iter().zip(&names);
    // A name that the user gave goes before a program of the name.
    for kind in [0..1, 1..3] {
        let found: Vec<_> = both().filter(|(_, names)| names[kind.clone()].iter().any(|name| name == sought)).collect();
        match found[..] {
            [] => {}
            [(sleeper, _)] => return Ok(sleeper.clone()),
            _ => {
                let found = found.into_iter().map(shown).collect();
                return Err(FindError::Several { sought: sought.to_owned(), found });
            }
        }
    }
    Err(FindError::Missing { sought: sought.to_owned(), known: both().map(shown).collect() })
}

/// Finds every process with a name, as [`find`] knows names, and every member of a group of this
/// name.
///
/// # Errors
/// No process has the name, or the user's folder cannot be used.
pub fn find_all(sought: &str) -> Result<Vec<Sleeper>, FindError> {
    find_all_in(&folder::of_user().map_err(FindError::Folder)?, sought)
}

/// Finds processes with a socket in a folder. See [`find_all`].
///
/// # Errors
/// As for [`find_all`].
pub fn find_all_in(folder: &Path, sought: &str) -> Result<Vec<Sleeper>, FindError> {
    let sleepers = sleepers_in(folder).map_err(FindError::Folder)?;
    let told = statuses(&sleepers);
    let (mut found, mut known) = (Vec::new(), Vec::new());
    for (sleeper, told) in sleepers.iter().zip(told) {
        let is_member = told.as_ref().is_ok_and(|status| status.group.as_deref() == Some(sought));
        let names = sleeper.names(told);
        known.push(format!("{} ({})", names[0], sleeper.pid()));
        if is_member || names.iter().any(|name| name == sought) {
            found.push(sleeper.clone());
        }
    }
    if found.is_empty() { Err(FindError::Missing { sought: sought.to_owned(), known }) } else { Ok(found) }
}

impl Sleeper {
    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.name.owner.pid
    }

    /// Asks for the state. Waits two seconds at most.
    ///
    /// # Errors
    /// The process does not answer.
    pub fn status(&self) -> Result<Status, AskError> {
        self.ask_within(&Request::new(Action::Status, Duration::ZERO), STATUS_TIME)
    }

    /// Sends a request, and waits for the answer: for the time of the request and five minutes, as
    /// long as the process lives.
    ///
    /// # Errors
    /// The process refuses, or does not answer.
    pub fn ask(&self, request: &Request) -> Result<Status, AskError> {
        let time = if request.action == Action::Status { STATUS_TIME } else { request.timeout() + GRACE };
        self.ask_within(request, time)
    }

    fn ask_within(&self, request: &Request, time: Duration) -> Result<Status, AskError> {
        let until = Instant::now() + time;
        let answer = self.exchange(request, until).map_err(|error| {
            let reason = match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => "has ended".to_owned(),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    format!("does not answer within {} s: is the process stopped?", time.as_secs())
                }
                _ => format!("does not answer: {error}"),
            };
            AskError::Silent(format!("process {} {reason}", self.pid()))
        })?;
        answer.map_err(AskError::Refused)
    }

    /// Sends the request and reads the answer.
    fn exchange(&self, request: &Request, until: Instant) -> io::Result<Answer> {
        let left = || until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let stream = self.sockets.connect(&self.name, left().min(STATUS_TIME))?;
        let line = request.to_line();
        let mut rest = &line[..];
        while !rest.is_empty() {
            match rustix::net::send(&stream, rest, SendFlags::NOSIGNAL) {
                Ok(count) => rest = &rest[count..],
                Err(Errno::INTR) => {}
                // The process may have refused the caller already, and the reason is in the answer.
                Err(Errno::PIPE | Errno::CONNRESET) => break,
                Err(error) => return Err(error.into()),
            }
        }
        let mut received = Vec::new();
        loop {
            stream.set_read_timeout(Some(left().min(LOOK)))?;
            match self.read_line(&stream, &mut received) {
                Ok(()) => return read_answer(&received),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                    // The connection of a killed process stays open if the process has forked.
                    if !self.name.owner.is_alive() {
                        return Err(io::ErrorKind::ConnectionRefused.into());
                    }
                    if Instant::now() >= until {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads up to the line break, or as much as there is.
    fn read_line(&self, mut stream: &UnixStream, received: &mut Vec<u8>) -> io::Result<()> {
        let mut part = [0; 4096];
        loop {
            let count = stream.read(&mut part)?;
            if count == 0 {
                let is_alive = self.name.owner.is_alive();
                let kind = if is_alive { io::ErrorKind::UnexpectedEof } else { io::ErrorKind::ConnectionRefused };
                return Err(kind.into());
            }
            received.extend_from_slice(&part[..count]);
            if let Some(end) = received.iter().position(|&byte| byte == b'\n') {
                received.truncate(end);
                return Ok(());
            }
            if received.len() > MOST_ANSWER {
                let text = format!("the answer has more than {MOST_ANSWER} bytes");
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
        }
    }

    /// Returns the names by which the process is found, the first for people. A process that does
    /// not answer has the names that the system knows.
    fn names(&self, told: Result<Status, AskError>) -> [String; 3] {
        let file = fs::read_link(format!("/proc/{}/exe", self.pid())).unwrap_or_default();
        let file = file.file_name().unwrap_or_default().to_string_lossy();
        // The system marks the file of a program that was replaced meanwhile.
        let file = plain(file.strip_suffix(" (deleted)").unwrap_or(&file), usize::MAX);
        match told {
            Ok(status) => [status.name, status.program, file],
            Err(_) => [crate::shared::process::program(self.pid()), String::new(), file],
        }
    }
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Silent(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for AskError {}

impl fmt::Display for FindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { sought, known } if known.is_empty() => {
                write!(f, "there is no process `{sought}` under `cachalot run`, nor any other of this user")
            }
            Self::Missing { sought, known } => {
                write!(f, "there is no process `{sought}` under `cachalot run`; there are {}", known.join(", "))
            }
            Self::Several { sought, found } => {
                write!(f, "`{sought}` is the name of several processes: {}; name one by its id", found.join(", "))
            }
            Self::Folder(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for FindError {}
