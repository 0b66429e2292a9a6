//! The flight recorder: the latest events of an allocator, kept in memory from the start, and
//! written to a file when a request fails because there is no memory.
//!
//! The events are a trace of the core with [numbered times](cachalot_core::EventTimes::Numbered).
//! This module has the options, and the files: each is new, and a process writes a few at most.

use crate::file::Format;
use crate::stack::Stack;
use crate::take::Taken;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, TryLockError};

/// How many events of a device are kept, unless the options say otherwise.
const EVENTS: usize = 1 << 17;

/// The most events that can be kept: 160 GiB of memory.
const MOST_EVENTS: usize = 1 << 32;

/// How many files a process writes at most, unless the options say otherwise. A program may fail
/// many requests on purpose, to find its largest batch.
const FILES: u32 = 3;

/// The most files that the options can ask for.
const MOST_FILES: u32 = 1000;

/// How many names are tried for a file. Names are taken by processes of other containers with the
/// same folder.
const MOST_NAMES: u32 = 10_000;

/// The options of a recorder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// How many events of each device are kept. 0: nothing is recorded.
    pub events: usize,
    /// The folder of the files. `None`: the system's folder for temporary files.
    pub folder: Option<PathBuf>,
    /// How many files a process writes at most.
    pub files: u32,
    /// Whether events have the program's Python stacks, where the host can walk them.
    pub stacks: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { events: EVENTS, folder: None, files: FILES, stacks: false }
    }
}

/// A mistake in the options.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OptionsError(String);

impl fmt::Display for OptionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is no option of the recorder: expected 0 (off), a number of events up to {MOST_EVENTS}, or a list of \
             events:N, folder:PATH, files:N (up to {MOST_FILES}) and stacks:True or stacks:False",
            self.0
        )
    }
}

impl std::error::Error for OptionsError {}

/// Name of the variable of the environment with the options, where the recorder is on without it.
const VARIABLE: &str = "CACHALOT_RECORDER";

impl Options {
    /// Reads the options of the environment. The program runs without a recorder as well, so a
    /// mistake goes to `warn`, and the defaults apply.
    pub fn of_environment(warn: impl FnOnce(String)) -> Self {
        let text = std::env::var_os(VARIABLE).unwrap_or_default();
        Self::parse(&text.to_string_lossy()).unwrap_or_else(|error| {
            warn(format!("{VARIABLE}: {error}; the defaults apply"));
            Self::default()
        })
    }

    /// Returns options under which nothing is recorded.
    pub fn off() -> Self {
        Self { events: 0, ..Self::default() }
    }

    /// Reads options such as `0`, `65536` or `events:65536,folder:/var/tmp,files:1,stacks:True`. An
    /// empty text has the defaults.
    ///
    /// # Errors
    /// The first entry with a mistake.
    pub fn parse(text: &str) -> Result<Self, OptionsError> {
        let mut options = Self::default();
        for entry in text.split(',').map(str::trim) {
            let wrong = || OptionsError(format!("`{entry}`"));
            let (key, value) = entry.split_once(':').unwrap_or(("events", entry));
            match key.trim() {
                "events" if entry.is_empty() => {}
                "events" => options.events = number(value, MOST_EVENTS as u64).ok_or_else(wrong)? as usize,
                "folder" if !value.is_empty() => options.folder = Some(value.into()),
                "files" => options.files = number(value, MOST_FILES.into()).ok_or_else(wrong)? as u32,
                "stacks" => options.stacks = truth(value).ok_or_else(wrong)?,
                _ => return Err(wrong()),
            }
        }
        Ok(options)
    }
}

/// Reads a number of at most `most`.
fn number(text: &str, most: u64) -> Option<u64> {
    text.trim().parse().ok().filter(|&number| number <= most)
}

/// Reads a truth value, as Python spells it.
fn truth(text: &str) -> Option<bool> {
    match text.trim() {
        "True" | "true" | "1" => Some(true),
        "False" | "false" | "0" => Some(false),
        _ => None,
    }
}

/// A file that was written, or not.
#[derive(Debug)]
pub struct Attempt {
    /// The file.
    pub path: PathBuf,
    /// Why the file could not be written. No part of it is left.
    pub failure: Option<io::Error>,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.failure {
            None => write!(f, "the latest events are in {path} (cachalot inspect {path})"),
            Some(error) => write!(f, "the latest events could not be written: {path}: {error}"),
        }
    }
}

/// Writes the files of a process.
#[derive(Debug)]
pub struct Files {
    folder: PathBuf,
    /// How many files may still be written. Locked while a file is written.
    left: Mutex<u32>,
}

impl Files {
    /// Returns the files that the options ask for.
    pub fn new(options: &Options) -> Self {
        // Absolute, because the program may change its folder.
        let folder = options.folder.clone().unwrap_or_else(std::env::temp_dir);
        Self { folder: std::path::absolute(&folder).unwrap_or(folder), left: Mutex::new(options.files) }
    }

    /// Writes a snapshot to a new file after a failed request. `None` if the process has written
    /// its files, or another thread is writing one. A failure counts as a file, so a full disk
    /// costs time and a message only a few times.
    pub fn write<F: Fn(u32) -> Stack>(&self, take: impl FnOnce() -> Taken<F>) -> Option<Attempt> {
        let mut left = match self.left.try_lock() {
            Ok(left) => left,
            Err(TryLockError::Poisoned(left)) => left.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        *left = left.checked_sub(1)?;
        Some(write_new(&self.folder, &take()))
    }
}

/// Writes a snapshot to the first new name of this process.
fn write_new<F: Fn(u32) -> Stack>(folder: &Path, taken: &Taken<F>) -> Attempt {
    let mut number = 1;
    loop {
        let path = folder.join(format!("cachalot-oom-{}-{number}.pickle", std::process::id()));
        let written = cachalot_atomic_file::write_new(&path, |file| taken.write(file, Format::Pickle));
        match written {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < MOST_NAMES => number += 1,
            written => return Attempt { path, failure: written.err() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{EVENTS, FILES, Files, Options};
    use crate::stack::Stack;
    use crate::take::Taken;
    use cachalot_core::Config;

    fn taken() -> Taken<impl Fn(u32) -> Stack> {
        Taken::new(Vec::new(), vec![Vec::new()], &Config::new(), |_| Stack::default())
    }

    fn files(text: &str) -> Files {
        Files::new(&Options::parse(text).expect("options"))
    }

    #[test]
    fn options_are_a_number_or_a_list() {
        let parse = |text| Options::parse(text);
        assert_eq!(parse(""), Ok(Options::default()));
        assert_eq!((EVENTS, FILES), (131_072, 3));
        assert_eq!(parse("0"), Ok(Options::off()));
        assert_eq!(parse(" 5 ").map(|options| options.events), Ok(5));
        let all = Options { events: 7, folder: Some("/a b:c".into()), files: 0, stacks: true };
        assert_eq!(parse("events:7, folder:/a b:c,files:0,stacks:True"), Ok(all));
        for wrong in ["-1", "x", "events:", "files:1001", "folder:", "stacks:maybe", "size:3", "4294967297", "1,,x"] {
            let text = parse(wrong).unwrap_err().to_string();
            assert!(text.contains("expected 0 (off)"), "{wrong}: {text}");
        }
    }

    #[test]
    fn a_process_writes_a_few_new_files_and_never_over_another() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = files(&format!("folder:{},files:2", folder.path().display()));
        let name = |number| folder.path().join(format!("cachalot-oom-{}-{number}.pickle", std::process::id()));
        std::fs::write(name(1), "another process").expect("a file");
        std::os::unix::fs::symlink("nowhere", name(2)).expect("a link");
        let written: Vec<_> = (0..3).map(|_| files.write(taken)).collect();
        let path = |at: usize| written[at].as_ref().filter(|one| one.failure.is_none()).map(|one| one.path.clone());
        assert_eq!([0, 1, 2].map(path), [Some(name(3)), Some(name(4)), None]);
        assert_eq!(std::fs::read_to_string(name(1)).expect("a file"), "another process");
        assert!(crate::read(&std::fs::read(name(3)).expect("a file")).is_ok());
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 4);
    }

    #[test]
    fn a_failure_is_told_with_the_name_and_counts() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = files(&format!("folder:{}/missing,files:1", folder.path().display()));
        let attempt = files.write(taken).expect("an attempt");
        let told = attempt.to_string();
        assert_eq!(attempt.failure.map(|error| error.kind()), Some(std::io::ErrorKind::NotFound));
        assert!(told.starts_with("the latest events could not be written: ") && told.contains("missing"), "{told}");
        assert!(files.write(taken).is_none());
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }

    #[test]
    fn a_failure_while_a_file_is_written_writes_none() {
        let files = files("files:2");
        let held = files.left.lock().expect("no panic");
        assert!(files.write(taken).is_none());
        drop(held);
    }
}
