//! A C program linked with `-lcuda` runs on the installed library, also under valgrind if
//! installed, without a complaint.

use crate::common::text;
use cachalot_emulated_driver::install::install;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The program, built in a separate folder beside `libcuda.so.1`.
struct Host(PathBuf);

impl Host {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("cachalot-emu-{name}-{}", std::process::id()));
        install(&folder, &[]).expect("installed");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/host.c");
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let mut command = Command::new(compiler);
        command.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-g", "-o"]).arg(folder.join("host")).arg(source);
        let output = command.arg("-L").arg(&folder).args(["-lcuda", "-lpthread"]).output().expect("a C compiler");
        assert!(output.status.success(), "{}", text(&output));
        Self(folder)
    }

    /// Runs the program, as the argument of another program if given.
    fn run(&self, under: &[&str]) -> std::process::Output {
        let host = self.0.join("host");
        let mut command = if let Some((tool, options)) = under.split_first() {
            let mut command = Command::new(tool);
            command.args(options).arg(host);
            command
        } else {
            Command::new(host)
        };
        command.env("LD_LIBRARY_PATH", &self.0).env("CACHALOT_EMU_LEAKS", self.0.join("leaks"));
        command.output().expect("the program")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // A folder left behind does no harm.
        let _removed = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_linked_program_runs_and_leaves_nothing() {
    let host = Host::new("linked");
    let output = host.run(&[]);
    assert!(output.status.success() && text(&output).contains("well"), "{}", text(&output));
    let leaks = std::fs::read_to_string(host.0.join("leaks")).expect("a report");
    let leaks: serde_json::Value = serde_json::from_str(&leaks).expect("JSON");
    for kind in ["allocations", "streams", "events", "contexts"] {
        assert_eq!(leaks[kind], 0, "{leaks}");
    }
}

/// Runs the program under a tool of valgrind, if installed.
fn under_valgrind(name: &str, options: &[&str]) {
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("valgrind is not installed: nothing was checked");
        return;
    }
    let host = Host::new(name);
    let output = host.run(&[&["valgrind", "--error-exitcode=9"], options].concat());
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn memcheck_finds_nothing() {
    // The driver writes the leak report under a temporary name: see the reason in the
    // suppressions.
    let suppressions = concat!("--suppressions=", env!("CARGO_MANIFEST_DIR"), "/../tests/c_abi/valgrind.supp");
    under_valgrind("memcheck", &["--leak-check=full", suppressions]);
}

#[test]
fn helgrind_finds_nothing() {
    under_valgrind("helgrind", &["--tool=helgrind"]);
}
