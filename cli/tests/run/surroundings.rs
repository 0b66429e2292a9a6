//! Programs in odd surroundings: closed pipes, limits of files, missing threads and folders, small stacks, other auditors of memory.
//! The library says a line or nothing, and the program goes on.

use super::{compile, driver, run};
use crate::common::folder;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// A place for a test: a driver, the program `hold.c`, and a folder of shared files.
struct Place {
    folder: PathBuf,
    driver: PathBuf,
    program: PathBuf,
}

impl Place {
    #[track_caller]
    fn new(folder: PathBuf) -> Self {
        fs::create_dir(folder.join("shared")).expect("a new folder");
        fs::set_permissions(folder.join("shared"), fs::Permissions::from_mode(0o700)).expect("the test's own");
        Self { driver: driver(&folder, &[]), program: compile("hold.c", &folder, &["-pthread"]), folder }
    }

    /// Returns `cachalot run` with options, without the program.
    fn run(&self, options: &[&str]) -> Command {
        let mut command = run(&self.folder, &self.driver);
        command.env("CACHALOT_RUN_FOLDER", self.shared()).args(options).arg("--");
        command
    }

    fn shared(&self) -> PathBuf {
        self.folder.join("shared")
    }
}

/// Runs a command with lines for its standard input.
fn with_lines(command: &mut Command, lines: &str) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the command runs");
    let (mut stdin, lines) = (child.stdin.take().expect("a pipe"), lines.to_owned());
    // Beside the reading of the answers, which may fill a pipe. A program that has ended reads nothing.
    let writer = std::thread::spawn(move || drop(stdin.write_all(lines.as_bytes())));
    let output = child.wait_with_output().expect("an end");
    writer.join().expect("no panic");
    output
}

/// Returns the output of a program that ended by itself, and without a fault.
#[track_caller]
fn answers(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    String::from_utf8_lossy(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_line_for_a_reader_who_has_gone_ends_no_program() {
    let place = Place::new(folder("gone"));
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = place.run(&["--limit", "10MiB"]);
    let output = with_lines(command.arg(&place.program).stderr(writer), "a 20\na 4\nq\n");
    assert_eq!(answers(&output), "2 0");
}

#[test]
fn files_beyond_the_limit_of_the_process_end_no_program() {
    let place = Place::new(folder("file_limit"));
    let record = place.folder.join("record.csv").display().to_string();
    let book = place.folder.join("book.json").display().to_string();
    // The published book is longer than a file may be, the ledger of the end is, and the record becomes too long.
    let mut command = place.run(&["--ledger-file", &book, "--ledger-stacks", "--record", &record]);
    command.arg(&place.program).stderr(Stdio::piped()).env("CACHALOT_EMU_POISON", "off");
    let output = with_lines(&mut command, &format!("l 20\n{}", "a 1\nf\n".repeat(4000)));
    assert_eq!(answers(&output), "0 ".repeat(8001).trim_end());
    let errors = String::from_utf8_lossy(&output.stderr);
    for line in ["the book cannot be published: File too large", "the record ends here: File too large"] {
        assert!(errors.contains(line), "{line}: {errors}");
    }
}

#[test]
fn a_process_without_its_first_thread_has_a_group_a_book_and_a_socket() {
    let place = Place::new(folder("first_thread"));
    let mut command = place.run(&["--group", "one", "--limit", "100MiB", "--parkable"]);
    let output = with_lines(command.arg(&place.program).arg("thread").stderr(Stdio::piped()), "a 20\na 90\nm\nq\n");
    assert_eq!(answers(&output), "0 2 80 100");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("more do not fit: group `one` holds"), "{errors}");
}
