//! The log: a line for each event that an operator may look for later, on the standard error or in
//! a file.
//!
//! `CACHALOT_LOG` has the form `LEVEL` or `LEVEL:FILE`. A level includes the levels before it:
//!
//! ```text
//! off       nothing
//! error     requests that fail for lack of memory
//! warning   settings without effect, fallbacks, failed operations without a status, overwritten canaries
//! info      allocators, parked memory, plans, settings found by `tune:auto`
//! ```
//!
//! Without the variable, warnings go to the standard error, after the name of the library, because
//! no status reports them. So do refusals to programs that know nothing about the library. With the
//! variable, each line starts with the time in UTC and the process. A line is written by a single
//! call, so the lines of several processes in one file are never mixed. The variable is read once.

use crate::own_files::{OwnFile, quietly};
use core::fmt::{Arguments, Display};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

/// The variable of the environment.
pub const VARIABLE: &str = "CACHALOT_LOG";

/// The importance of an event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// A request has failed because there is no memory.
    Error,
    /// The library does something else than it was asked for.
    Warning,
    /// The library has changed what it holds or how it decides.
    Info,
}

/// The levels by name; `None` means no log.
const LEVELS: [(&str, Option<Level>); 4] =
    [("off", None), ("error", Some(Level::Error)), ("warning", Some(Level::Warning)), ("info", Some(Level::Info))];

/// The log of the process.
#[derive(Debug)]
struct Log {
    /// The highest level that is written.
    most: Option<Level>,
    /// The file for the lines. If there is none, they go to the standard error.
    file: Option<LogFile>,
    /// Whether the variable is set. Lines then start with the time and the process.
    is_set: bool,
}

/// The file of a log.
#[derive(Debug)]
struct LogFile {
    path: PathBuf,
    /// The open file. It is opened again if the program has closed it, as programs do when they
    /// become daemons.
    open: Mutex<OwnFile>,
}

impl LogFile {
    fn new(path: &str) -> io::Result<Self> {
        // The path is made absolute, because the program may change its folder.
        let path = std::path::absolute(path)?;
        let open = Mutex::new(Self::open(&path)?);
        Ok(Self { path, open })
    }

    fn open(path: &Path) -> io::Result<OwnFile> {
        OpenOptions::new().create(true).append(true).open(path).and_then(OwnFile::new)
    }

    fn write(&self, line: &str) -> io::Result<()> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.get().is_err() {
            *open = Self::open(&self.path)?;
        }
        // Writing needs only a shared reference to the file.
        open.get().and_then(|mut file| file.write_all(line.as_bytes()))
    }
}

impl Log {
    /// The log of a process for which the variable is not set.
    const DEFAULT: Self = Self { most: Some(Level::Warning), file: None, is_set: false };

    /// Returns the log that the variable describes.
    ///
    /// # Errors
    /// A sentence that names the mistake.
    fn parse(text: &str) -> Result<Self, String> {
        let (most, path) = Self::split(text)?;
        let file = path
            .map(LogFile::new)
            .transpose()
            .map_err(|error| format!("{VARIABLE}: {}: {error}", path.unwrap_or("")))?;
        Ok(Self { most, file, is_set: true })
    }

    /// Returns the highest level and the file in the variable's text.
    fn split(text: &str) -> Result<(Option<Level>, Option<&str>), String> {
        let (level, path) = text.split_once(':').map_or((text, None), |(level, path)| (level, Some(path)));
        let named = LEVELS.iter().find(|(name, _)| *name == level);
        let most = named.map(|(_, most)| *most);
        let mistake = || format!("{VARIABLE}: {level} is no level: off, error, warning or info, and :FILE after it");
        Ok((most.ok_or_else(mistake)?, path))
    }

    /// Returns the log of the environment. A mistake in the variable is reported in the default
    /// log.
    fn of_environment() -> Self {
        let Some(text) = std::env::var_os(VARIABLE) else { return Self::DEFAULT };
        Self::parse(&text.to_string_lossy()).unwrap_or_else(|mistake| {
            Self::DEFAULT.write(Level::Warning, format_args!("{mistake}"));
            Self::DEFAULT
        })
    }

    /// Returns whether lines of the level are written.
    fn has(&self, level: Level) -> bool {
        self.most.is_some_and(|most| level <= most)
    }

    /// Returns whether lines of the level are written for events that a status reports to the
    /// program, too. Without the variable, nobody wants a log of such errors.
    fn has_beside_status(&self, level: Level) -> bool {
        self.has(level) && (self.is_set || level == Level::Warning)
    }

    /// Returns a line.
    fn line(&self, level: Level, text: Arguments<'_>) -> String {
        if !self.is_set {
            return format!("cachalot: {text}\n");
        }
        let name = LEVELS.iter().find(|(_, named)| *named == Some(level)).map_or("", |(name, _)| name);
        let now = humantime::format_rfc3339_millis(SystemTime::now());
        // Each event is one line, so a report of several lines becomes one.
        let text = text.to_string().trim_end().replace('\n', " ");
        format!("{now} cachalot[{}] {name}: {text}\n", std::process::id())
    }

    /// Writes a line, if the log has the level. A line that cannot be written is left out, because
    /// the request that it is about goes on. The macros of the standard library would panic.
    fn write(&self, level: Level, text: Arguments<'_>) {
        if !self.has(level) {
            return;
        }
        let line = self.line(level, text);
        let _ = quietly(|| match self.file.as_ref() {
            Some(file) => file.write(&line),
            None => std::io::stderr().write_all(line.as_bytes()),
        });
    }
}

/// Returns the log of the process.
fn log() -> &'static Log {
    static LOG: OnceLock<Log> = OnceLock::new();
    LOG.get_or_init(Log::of_environment)
}

/// Looks for a mistake in the variable, for a program that starts another one with it. Opens no
/// file, because it may belong to another user.
///
/// # Errors
/// A sentence that names the mistake.
pub fn check() -> Result<(), String> {
    std::env::var_os(VARIABLE).map_or(Ok(()), |text| check_text(&text.to_string_lossy()))
}

fn check_text(text: &str) -> Result<(), String> {
    let (_, path) = Log::split(text)?;
    let folder = path.map(Path::new).and_then(Path::parent).filter(|folder| !folder.as_os_str().is_empty());
    match folder.filter(|folder| !folder.is_dir()) {
        Some(folder) => Err(format!("{VARIABLE}: {} is no folder", folder.display())),
        None => Ok(()),
    }
}

/// Returns whether lines of the level are written, for callers that would have to make a costly
/// text.
pub fn has(level: Level) -> bool {
    log().has_beside_status(level)
}

/// Logs a request that failed because there is no memory, if a status reports it to the program,
/// too.
pub fn error(text: impl Display) {
    if has(Level::Error) {
        log().write(Level::Error, format_args!("{text}"));
    }
}

/// Logs a request that was refused to a program that knows nothing about the library. A code of the
/// driver does not give the reason.
pub fn refusal(text: impl Display) {
    log().write(Level::Error, format_args!("{text}"));
}

/// Logs that the library does something else than it was asked for.
pub fn warning(text: impl Display) {
    log().write(Level::Warning, format_args!("{text}"));
}

/// Logs a change in what the library holds or how it decides.
pub fn info(text: impl Display) {
    if has(Level::Info) {
        log().write(Level::Info, format_args!("{text}"));
    }
}

#[cfg(test)]
mod tests {
    use super::{Level, Log};

    #[test]
    fn a_level_includes_the_more_urgent_ones() {
        let log = Log::parse("warning").unwrap();
        assert_eq!([Level::Error, Level::Warning, Level::Info].map(|level| log.has(level)), [true, true, false]);
        assert!(!Log::parse("off").unwrap().has(Level::Error) && Log::parse("info").unwrap().has(Level::Info));
    }

    #[test]
    fn without_the_variable_a_status_is_enough_but_a_refusal_of_the_driver_is_not() {
        let levels = [Level::Error, Level::Warning, Level::Info];
        assert_eq!(levels.map(|level| Log::DEFAULT.has_beside_status(level)), [false, true, false]);
        assert_eq!(levels.map(|level| Log::DEFAULT.has(level)), [true, true, false]);
        let set = Log::parse("error").unwrap();
        assert_eq!(levels.map(|level| set.has_beside_status(level)), [true, false, false]);
    }

    #[test]
    fn a_mistake_is_named() {
        let mistake = |text| Log::parse(text).unwrap_err();
        assert_eq!(super::check_text("loud"), Err(mistake("loud")));
        assert_eq!(super::check_text("info:/nowhere/log"), Err("CACHALOT_LOG: /nowhere is no folder".to_owned()));
        assert_eq!(super::check_text("error:log"), Ok(()));
        assert_eq!(mistake("loud"), "CACHALOT_LOG: loud is no level: off, error, warning or info, and :FILE after it");
        assert!(mistake("info:/nowhere/at/all").starts_with("CACHALOT_LOG: /nowhere/at/all: No such file"));
    }

    #[test]
    #[cfg(not(miri))]
    fn a_log_that_the_program_has_closed_goes_on_in_its_file() {
        use std::os::fd::AsRawFd;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let log = Log::parse(&format!("error:{}", path.display())).unwrap();
        log.write(Level::Error, format_args!("one"));
        let other = tempfile::tempfile().unwrap();
        let number = log.file.as_ref().unwrap().open.lock().unwrap().get().unwrap().as_raw_fd();
        // SAFETY: the number is the log's, as of a program that closes it and opens another file.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
        log.write(Level::Error, format_args!("two"));
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 2);
        assert_eq!(other.metadata().unwrap().len(), 0);
        // SAFETY: as above, and nobody uses the number any more.
        unsafe { libc::close(number) };
    }

    #[test]
    fn lines_are_added_to_the_file_with_time_process_and_level() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a:b.log");
        for number in 0..2 {
            let log = Log::parse(&format!("error:{}", path.display())).unwrap();
            log.write(Level::Warning, format_args!("left out"));
            log.write(Level::Error, format_args!("two\nlines {number}\n"));
        }
        let written = std::fs::read_to_string(&path).unwrap();
        let after = format!(" cachalot[{}] error: two lines ", std::process::id());
        let lines: Vec<_> = written.lines().map(|line| line.split_once(&after).expect("a whole line")).collect();
        assert_eq!(lines.iter().map(|line| line.1).collect::<Vec<_>>(), ["0", "1"]);
        assert!(lines.iter().all(|(time, _)| time.len() == "2026-01-01T00:00:00.000Z".len() && time.ends_with('Z')));
    }
}
