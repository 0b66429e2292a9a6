//! Shared by the tests: a separate driver for each test, and child processes for events that end a
//! process.

use cachalot_emulated_driver::api::Api;
use cachalot_emulated_driver::client::Client;
use cachalot_emulated_driver::install::install;
use std::ops::Deref;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// The variable that marks a test program as the child of the named test.
const CHILD: &str = "CACHALOT_EMU_TEST_CHILD";
/// 2 MiB: the granularity of the emulated devices.
pub(crate) const PAGE: usize = 2 << 20;

/// A separate driver: every copy of the library has separate state.
pub(crate) struct Emulated {
    api: Api,
    pub(crate) control: Client,
}

impl Deref for Emulated {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}

impl Emulated {
    /// Loads a fresh driver before `cuInit`, without the symbols in `hidden`.
    pub(crate) fn without(hidden: &[&str]) -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("cachalot-emu-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        let path = install(&folder, hidden).expect("installed");
        let emulated = Self { api: Api::load(&path).expect("loaded"), control: Client::load(&path).expect("emulated") };
        // The loaded library no longer needs the file.
        std::fs::remove_dir_all(folder).expect("removed");
        // Each copy of the library has separate addresses, and a test program loads many copies.
        emulated.control.set_address_space(64 << 30).expect("before cuInit");
        // The answers to stale handles are under test here, where a strict driver aborts.
        emulated.control.set_strict(false);
        emulated
    }

    /// Loads and initializes a fresh driver, with device 0's primary context current.
    pub(crate) fn new() -> Self {
        let emulated = Self::without(&[]);
        assert_eq!(emulated.cuInit(0), 0);
        emulated.enter(0).expect("a context");
        emulated
    }

    /// Returns a number of the report.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.control.report()[name].as_u64().expect("a count of the report")
    }

    /// Returns the functions in the log with their answers.
    pub(crate) fn log(&self) -> Vec<(String, u64)> {
        let entries = self.control.log();
        let line = |entry: &serde_json::Value| {
            (entry["fn"].as_str().unwrap_or_default().to_owned(), entry["result"].as_u64().unwrap_or_default())
        };
        entries.iter().map(line).collect()
    }
}

/// Returns whether the process is the child of the named test. If so, the test performs the event
/// under test.
pub(crate) fn is_child(test: &str) -> bool {
    std::env::var(CHILD).is_ok_and(|name| name == test)
}

/// Runs the named test of the caller's file again in a child process, with the given variables.
#[track_caller]
pub(crate) fn in_child(test: &str, variables: &[(&str, &str)]) -> Output {
    let module = Path::new(Location::caller().file()).file_stem().expect("a file has a name").display();
    let program: PathBuf = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(["--exact", &format!("{module}::{test}"), "--nocapture", "--test-threads=1"]).env(CHILD, test);
    command.envs(variables.iter().copied());
    let output = command.output().expect("a child process");
    // A name that fits no test would be a child that succeeds.
    assert!(text(&output).contains("running 1 test\n"), "{module}::{test}: {}", text(&output));
    output
}

/// Returns the child's output as text.
pub(crate) fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
