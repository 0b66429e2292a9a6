//! Programs with a limit, alone and in a group, and the books that they publish and write.

use super::{compile, driver, output_of, run};
use crate::common::{Finished, finish, folder};
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// A place for a test: a driver, a program, and a folder of shared files.
pub(super) struct Place {
    pub(super) folder: PathBuf,
    driver: PathBuf,
    program: PathBuf,
}

impl Place {
    pub(super) fn new(folder: PathBuf) -> Self {
        let shared = folder.join("shared");
        fs::create_dir(&shared).expect("a new folder");
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o700)).expect("the test's own");
        Self { driver: driver(&folder, &[]), program: compile("hold.c", &folder, &["-pthread"]), folder }
    }

    pub(super) fn shared(&self) -> PathBuf {
        self.folder.join("shared")
    }

    /// Returns the number of files in the shared folder. The folder of the sockets may stay.
    fn files_left(&self) -> usize {
        let entries = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        entries(self.shared()).map(|path| if path.is_dir() { entries(path).count() } else { 1 }).sum()
    }

    /// Starts the program with options of `cachalot run`.
    pub(super) fn start(&self, options: &[&str]) -> Holder {
        self.start_with(options, &[])
    }

    /// Starts the command with options of `cachalot run`. The program itself starts at
    /// [`Holder::go`].
    pub(super) fn start_late(&self, options: &[&str]) -> Holder {
        let mut command = run(&self.folder, &self.driver);
        command.args(options).args(["--", "sh", "-c", "read -r go; exec \"$0\""]).arg(&self.program);
        let holder = Holder::of(command.env("CACHALOT_RUN_FOLDER", self.shared()));
        // The command looks at the group before it becomes the shell.
        let is_shell = || fs::read(format!("/proc/{}/comm", holder.child.id())).is_ok_and(|name| name == b"sh\n");
        let end = Instant::now() + Duration::from_secs(60);
        while !is_shell() {
            assert!(Instant::now() < end, "the shell does not start");
            std::thread::sleep(Duration::from_millis(5));
        }
        holder
    }

    /// Starts the program with options of `cachalot run`, and variables.
    pub(super) fn start_with(&self, options: &[&str], variables: &[(&str, &OsStr)]) -> Holder {
        let mut command = run(&self.folder, &self.driver);
        command.args(options).arg("--").arg(&self.program).env("CACHALOT_RUN_FOLDER", self.shared());
        Holder::of(command.envs(variables.iter().copied()))
    }

    /// Starts the program as the last argument of another one.
    pub(super) fn start_in(&self, options: &[&str], other: &[&str]) -> Holder {
        let mut command = run(&self.folder, &self.driver);
        command.args(options).arg("--").args(other).arg(&self.program);
        Holder::of(command.env("CACHALOT_RUN_FOLDER", self.shared()))
    }

    /// Waits until the only program is parked.
    pub(super) fn wait_until_parked(&self) {
        self.wait_until_top_has("\"parked\"");
    }

    /// Waits until a text is in the object of `cachalot top`.
    pub(super) fn wait_until_top_has(&self, text: &str) {
        let end = Instant::now() + Duration::from_secs(60);
        while !self.top().to_string().contains(text) {
            assert!(Instant::now() < end, "no {text}: {:#}", self.top());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Removes the files of the user, as the system does at the user's last logout.
    fn log_out(&self) {
        fs::remove_dir_all(self.shared()).expect("the test's own");
        fs::create_dir(self.shared()).expect("a new folder");
        fs::set_permissions(self.shared(), fs::Permissions::from_mode(0o700)).expect("the test's own");
    }

    /// Runs `cachalot top` and returns its object.
    fn top(&self) -> serde_json::Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cachalot"));
        // Without the system's programs, and so without nvidia-smi.
        let finished =
            finish(command.args(["top", "--json"]).env("CACHALOT_RUN_FOLDER", self.shared()).env("PATH", ""));
        finished.json().remove(0)
    }
}

/// A running program.
pub(super) struct Holder {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Holder {
    /// Starts a command.
    fn of(command: &mut Command) -> Self {
        let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = pipes.spawn().expect("the command runs");
        let output = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self { input: child.stdin.take().expect("a pipe"), output, child }
    }

    /// Starts the program of [`Place::start_late`].
    pub(super) fn go(&mut self) {
        writeln!(self.input, "go").expect("the shell reads");
    }

    /// Returns the id of the process that was started.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a line, and returns the answer.
    pub(super) fn ask(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").expect("the program reads");
        self.output.next().expect("the program answers").expect("a pipe")
    }

    /// Ends the program, and returns what it wrote on the standard error.
    pub(super) fn end(mut self) -> String {
        writeln!(self.input, "q").expect("the program reads");
        let output = self.child.wait_with_output().expect("the program ends");
        assert!(output.status.success());
        String::from_utf8(output.stderr).expect("text")
    }
}

const GROUP: [&str; 4] = ["--group", "team", "--limit", "100MiB"];

#[test]
fn a_group_shares_its_limit_and_the_killed_give_theirs_back() {
    let place = Place::new(folder("shares"));
    let mut one = place.start(&GROUP);
    // Without a limit, the group's holds.
    let mut two = place.start(&GROUP[..2]);
    assert_eq!((one.ask("a 60"), two.ask("a 60")), ("0".into(), "2".into()));
    assert_eq!(two.ask("m").split(' ').next_back(), Some("100"));
    let top = place.top();
    let group = &top["groups"][0];
    assert_eq!((&group["name"], &group["limit"]), (&"team".into(), &(100_u64 << 20).into()));
    let members = group["members"].as_array().expect("a list");
    assert_eq!(members.len(), 2);
    assert!(members.iter().any(|member| member["want"] != 0), "{group}");
    one.child.kill().expect("the program runs");
    one.child.wait().expect("the program is dead");
    assert_eq!(two.ask("a 60"), "0");
    assert_eq!(place.top()["groups"][0]["members"].as_array().expect("a list").len(), 1);
    let errors = two.end();
    assert!(errors.contains("group `team` holds") && errors.contains("(hold)"), "{errors}");
    assert_eq!(place.top()["groups"].as_array().expect("a list").len(), 0);
}

#[test]
fn the_limit_of_a_group_changes_while_its_programs_run() {
    let place = Place::new(folder("changes"));
    let set = |limit: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cachalot"));
        finish(command.args(["group", "set", "team", "--limit", limit]).env("CACHALOT_RUN_FOLDER", place.shared()))
    };
    let missing = set("30MiB");
    assert_eq!((missing.status, missing.errors.as_str()), (2, "no process is in group `team`\n"));
    let (mut one, mut two) = (place.start(&GROUP), place.start(&["--group", "team", "--low", "10MiB"]));
    assert_eq!((one.ask("a 60"), two.ask("a 60")), ("0".into(), "2".into()));
    let raised = set("150MiB");
    assert!(raised.output.starts_with("Group team on GPU-") && raised.output.contains(": a limit of 150.00 MiB, "));
    assert_eq!((raised.status, two.ask("a 60")), (0, "0".into()));
    assert_eq!(two.ask("m").split(' ').next_back(), Some("150"));
    assert_eq!((set("80MiB").status, one.ask("a 1")), (0, "2".into()));
    let low = set("5MiB");
    assert!(low.status == 1 && low.errors.contains("keeps 10 MiB for its members"), "{}", low.errors);
    // The command line of a service still has the earlier limit.
    let mut three = place.start(&GROUP);
    assert_eq!((three.ask("a 1"), set("none").status, three.ask("a 100")), ("2".into(), 0, "0".into()));
    for program in [one, two, three] {
        program.end();
    }
}

#[test]
fn a_program_gives_its_cache_back_on_request() {
    let place = Place::new(folder("trims"));
    let trim = |name: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cachalot"));
        let object = finish(command.args(["trim", "--json"]).args(name).env("CACHALOT_RUN_FOLDER", place.shared()));
        let told = object.json().remove(0)["processes"].take();
        told.as_array().expect("a list").iter().map(|told| told["given_bytes"].as_u64()).collect::<Vec<_>>()
    };
    let options = [&GROUP[..], &["--name", "one"]].concat();
    let mut one = place.start_with(&options, &[("CACHALOT_RECORDER", "events:10,files:0".as_ref())]);
    assert_eq!(["a 60", "a 30", "f"].map(|line| one.ask(line)), ["0"; 3]);
    assert_eq!(trim(&["one", "--keep", "90MiB"]), [Some(0)]);
    assert_eq!(trim(&["one"]), [Some(30 << 20)]);
    assert_eq!([one.ask("f"), one.ask("m")], ["0", "100 100"]);
    assert_eq!([trim(&["--all", "team"]), trim(&["--all", "team"])], [[Some(60 << 20)], [Some(0)]]);
    assert_eq!(one.ask("a 100"), "0");
    one.end();
}

#[test]
fn another_limit_than_the_groups_is_told() {
    let place = Place::new(folder("other"));
    // Both have started, and the group starts afterwards.
    let mut two = place.start_late(&["--group", "team", "--limit", "50MiB"]);
    let mut one = place.start(&GROUP);
    assert_eq!(one.ask("a 10"), "0");
    two.go();
    assert_eq!(two.ask("a 10"), "2");
    let errors = two.end();
    assert!(errors.contains("a limit of 100 MiB") && errors.contains("names 50 MiB"), "{errors}");
    one.end();
}

/// Returns the entries of an object and a kind in a book.
fn entry<'a>(book: &'a serde_json::Value, object: &str, kind: &str) -> Option<&'a serde_json::Value> {
    let mut objects = book["objects"].as_array()?.iter();
    let object = objects.find(|named| named["name"].as_str().is_some_and(|name| name.ends_with(object)))?;
    object["kinds"].as_array()?.iter().find(|named| named["kind"] == kind)
}

#[test]
fn memory_is_booked_to_the_program_and_shown_live() {
    let place = Place::new(folder("live"));
    let mut one = place.start(&["--ledger"]);
    assert_eq!((one.ask("a 30"), one.ask("a 7"), one.ask("f")), ("0".into(), "0".into(), "0".into()));
    let top = place.top();
    let book = &top["devices"][0]["processes"][0]["book"];
    assert_eq!(book["pid"], one.child.id());
    let held = entry(book, "/hold", "segment").expect("a segment of the program");
    assert!(held["bytes"].as_u64().is_some_and(|bytes| bytes >= 30 << 20), "{top:#}");
    assert!(entry(book, "/hold", "served").is_some(), "{top:#}");
    one.end();
    assert_eq!(place.files_left(), 0);
}

#[test]
fn tools_find_a_process_again_whose_files_a_logout_has_removed() {
    let place = Place::new(folder("logout"));
    let mut one = place.start(&["--parkable", "--name", "alpha"]);
    assert_eq!(one.ask("a 30"), "0");
    place.wait_until_top_has("\"awake\"");
    place.log_out();
    assert!(!place.top().to_string().contains("alpha"));
    // The process looks once a second.
    place.wait_until_top_has("\"awake\"");
    let top = place.top();
    let held = &top["devices"][0]["processes"][0]["book"]["booked"];
    assert!(held.as_u64().is_some_and(|bytes| bytes >= 30 << 20), "{top:#}");
    let mut park = Command::new(env!("CARGO_BIN_EXE_cachalot"));
    output_of(park.args(["park", "alpha"]).env("CACHALOT_RUN_FOLDER", place.shared()));
    assert_eq!(one.ask("a 1"), "0");
    one.end();
    let names: Vec<_> =
        fs::read_dir(place.shared()).expect("the folder").flatten().map(|file| file.file_name()).collect();
    assert_eq!(names, ["control"]);
}

#[test]
fn a_book_that_a_logout_has_removed_is_back_with_the_next_request() {
    let place = Place::new(folder("logout_of_one"));
    let mut one = place.start(&[]);
    assert_eq!(one.ask("a 30"), "0");
    place.log_out();
    assert_eq!(one.ask("a 40"), "0");
    let book = &place.top()["devices"][0]["processes"][0]["book"];
    assert!(book["booked"].as_u64().is_some_and(|bytes| bytes >= 70 << 20), "{book:#}");
    one.end();
    assert_eq!(place.files_left(), 0);
}

#[test]
fn the_ledger_is_written_at_the_end_with_its_stacks() {
    let place = Place::new(folder("written"));
    let file = place.folder.join("ledger.json");
    let name = file.display().to_string();
    let mut one = place.start(&["--ledger-file", &name, "--ledger-stacks"]);
    assert_eq!(one.ask("a 30"), "0");
    one.end();
    let finished = shown(&file);
    let lines = finished.json();
    let book = &lines[0]["books"][0];
    assert!(entry(book, "/hold", "segment").is_some(), "{book:#}");
    let frame = book["stacks"][0]["frames"][0].as_str().expect("a frame");
    assert!(frame.contains("hold"), "{frame}");
}

/// Runs `cachalot ledger --json` on a file.
fn shown(file: &Path) -> Finished {
    finish(Command::new(env!("CARGO_BIN_EXE_cachalot")).args(["ledger", "--json"]).arg(file))
}

#[test]
fn children_write_ledgers_of_their_own() {
    let place = Place::new(folder("children"));
    let file = place.folder.join("ledger-%p.json").display().to_string();
    let script = "for round in 1 2; do printf 'a 8\\nq\\n' | \"$0\"; done";
    let mut command = run(&place.folder, &place.driver);
    command.args(["--ledger-file", &file, "--", "sh", "-c", script]).arg(&place.program);
    assert_eq!(output_of(command.env("CACHALOT_RUN_FOLDER", place.shared())), "0\n0");
    let entries = fs::read_dir(&place.folder).expect("the folder").map(|entry| entry.expect("an entry").file_name());
    assert_eq!(entries.filter(|name| name.to_string_lossy().starts_with("ledger-")).count(), 2);
}
