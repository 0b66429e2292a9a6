//! Messages for the program's user, on the standard error or where `CACHALOT_LOG` says.
//!
//! The variable has the form `LEVEL` or `LEVEL:FILE`, as for programs that link the library: `off`, `error` (requests that fail for lack of
//! memory), `warning` and `info` (all messages). With the variable, each line begins with the time in UTC and the process.

use cachalot_cuda::own_files::{out_of_the_way, quietly};
use core::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::OnceLock;
use std::time::SystemTime;

/// The variable of the environment.
const VARIABLE: &str = "CACHALOT_LOG";

/// How much a message matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Level {
    /// The program lacks memory.
    Error,
    /// The library does other than asked.
    Warning,
}

/// Where messages go.
#[derive(Debug)]
struct Log {
    most: Option<Level>,
    /// `None`: the standard error.
    file: Option<File>,
    /// Whether the variable is set.
    is_set: bool,
}

impl Log {
    const DEFAULT: Self = Self { most: Some(Level::Warning), file: None, is_set: false };

    /// Reads the variable.
    ///
    /// # Errors
    /// A sentence that names the mistake.
    fn parse(text: &str) -> Result<Self, String> {
        let (level, path) = text.split_once(':').map_or((text, None), |(level, path)| (level, Some(path)));
        let most = match level {
            "off" => None,
            "error" => Some(Level::Error),
            "warning" | "info" => Some(Level::Warning),
            _ => {
                return Err(format!(
                    "{VARIABLE}: {level} is no level: off, error, warning or info, and :FILE after it"
                ));
            }
        };
        let open = |path: &str| {
            let file = OpenOptions::new().create(true).append(true).open(path);
            file.map(out_of_the_way).map_err(|error| format!("{VARIABLE}: {path}: {error}"))
        };
        Ok(Self { most, file: path.map(open).transpose()?, is_set: true })
    }

    /// Writes a message at once, so that the messages of several threads and processes stay whole. A message that cannot be written is
    /// left out: the request that it is about goes on, and the macros of the standard library would panic.
    fn write(&self, level: Level, message: fmt::Arguments<'_>) {
        if self.most.is_none_or(|most| level > most) {
            return;
        }
        let line = if self.is_set {
            let now = humantime::format_rfc3339_millis(SystemTime::now());
            let name = if level == Level::Error { "error" } else { "warning" };
            format!("{now} cachalot[{}] {name}: {}\n", std::process::id(), message.to_string().replace('\n', " "))
        } else {
            format!("cachalot: {message}\n")
        };
        let _ = quietly(|| match self.file.as_ref() {
            // A reference to a file is a writer.
            Some(mut file) => file.write_all(line.as_bytes()),
            None => std::io::stderr().write_all(line.as_bytes()),
        });
    }
}

/// Returns the log of the process.
fn log() -> &'static Log {
    static LOG: OnceLock<Log> = OnceLock::new();
    LOG.get_or_init(|| {
        let Some(text) = std::env::var_os(VARIABLE) else { return Log::DEFAULT };
        Log::parse(&text.to_string_lossy()).unwrap_or_else(|mistake| {
            Log::DEFAULT.write(Level::Warning, format_args!("{mistake}"));
            Log::DEFAULT
        })
    })
}

/// Tells what the library does other than asked.
pub(crate) fn tell(message: fmt::Arguments<'_>) {
    log().write(Level::Warning, message);
}

/// Tells of a request that fails for lack of memory.
pub(crate) fn tell_lack(message: fmt::Arguments<'_>) {
    log().write(Level::Error, message);
}

#[cfg(test)]
mod tests {
    use super::{Level, Log};

    #[test]
    fn a_level_and_a_file_are_taken_from_the_variable() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("log");
        let log = Log::parse(&format!("error:{}", path.display())).unwrap();
        log.write(Level::Warning, format_args!("left out"));
        log.write(Level::Error, format_args!("two\nlines"));
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.ends_with(&format!("Z cachalot[{}] error: two lines\n", std::process::id())), "{text}");
        assert_eq!((text.lines().count(), Log::parse("off").unwrap().most), (1, None));
        assert!(Log::parse("loud").unwrap_err().contains("loud is no level"));
        assert!(Log::parse("info:/none/log").unwrap_err().contains("/none/log: No such file"));
    }
}
