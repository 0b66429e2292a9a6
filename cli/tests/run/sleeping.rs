//! Programs whose memory sleeps: idle, told to, and for other members of a group.

use super::{compile, driver, run};
use crate::common::{finish, folder};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The pages of the program's blocks, in bytes: 30 MiB, in pages of 20 MiB.
pub(super) const HELD: u64 = 40 << 20;

/// A place for a test: a driver, a program, and a folder of shared files.
pub(super) struct Place {
    pub(super) folder: PathBuf,
    driver: PathBuf,
    program: PathBuf,
}

impl Place {
    pub(super) fn new(name: &str) -> Self {
        Self::with(name, "turns.c")
    }

    /// Returns a place for a program of a source.
    fn with(name: &str, source: &str) -> Self {
        let folder = folder(name);
        let shared = folder.join("shared");
        fs::create_dir(&shared).expect("a new folder");
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o700)).expect("the test's own");
        Self { driver: driver(&folder, &[]), program: compile(source, &folder, &[]), folder }
    }

    fn shared(&self) -> PathBuf {
        self.folder.join("shared")
    }

    /// Returns the command of a program that sleeps.
    pub(super) fn program(&self, options: &[&str], arguments: &[&str]) -> Command {
        let mut command = run(&self.folder, &self.driver);
        command.args(options).arg("--").arg(&self.program).args(arguments).env("CACHALOT_RUN_FOLDER", self.shared());
        command
    }

    /// Asks by a command of `cachalot`, and returns the only process of the answer, or nothing.
    pub(super) fn ask(&self, arguments: &[&str]) -> Option<serde_json::Value> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cachalot"));
        let finished = finish(command.args(arguments).arg("--json").env("CACHALOT_RUN_FOLDER", self.shared()));
        finished.json().first()?["processes"].as_array()?.first().cloned()
    }
}

pub(super) fn start(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).spawn().expect("the command runs")
}

/// Checks that a program has found all its bytes in all rounds.
pub(super) fn check(child: Child, rounds: u32) {
    let output = child.wait_with_output().expect("a program");
    assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{rounds} rounds\n"));
}

/// Returns what a process tells once `done` returns true of it.
pub(super) fn once(place: &Place, done: impl Fn(&serde_json::Value) -> bool) -> serde_json::Value {
    let begin = Instant::now();
    loop {
        if let Some(status) = place.ask(&["status"]).filter(&done) {
            return status;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", place.ask(&["status"]));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_idle_program_is_parked_and_finds_its_bytes() {
    let place = Place::new("sleeping_idle");
    let child = start(place.program(&["--park-idle", "50ms"], &["3", "2", "2500"]));
    let parked = once(&place, |status| status["state"] == "parked");
    assert_eq!((&parked["device_bytes"], &parked["parked_bytes"]), (&0.into(), &HELD.into()), "{parked}");
    check(child, 2);
}

#[test]
fn a_program_is_parked_and_woken_by_name() {
    let place = Place::new("sleeping_by_name");
    let child = start(place.program(&["--parkable", "--name", "sleeper"], &["5", "2", "3000"]));
    once(&place, |status| status["device_bytes"] == HELD);
    let parked = place.ask(&["park", "sleeper"]).expect("an answer");
    assert_eq!((&parked["state"], &parked["device_bytes"]), (&"parked".into(), &0.into()), "{parked}");
    let woken = place.ask(&["wake", "sleeper"]).expect("an answer");
    assert_eq!((&woken["state"], &woken["parked_bytes"]), (&"awake".into(), &0.into()), "{woken}");
    check(child, 2);
}

#[test]
fn a_program_that_maps_by_itself_is_parked_and_finds_its_bytes_after_a_fork() {
    let place = Place::with("sleeping_maps", "maps.c");
    let child = start(place.program(&["--park-idle", "50ms"], &["2500"]));
    let parked = once(&place, |status| status["state"] == "parked");
    // Six pages of 2 MiB. Nothing of the program's own is left.
    assert_eq!((&parked["device_bytes"], &parked["parked_bytes"]), (&0.into(), &(12 << 20).into()), "{parked}");
    let remaining = parked["remaining"].as_array().expect("a list");
    assert!(remaining.iter().all(|rest| rest["what"] != "virtual" && rest["what"] != "exported"), "{parked}");
    let output = child.wait_with_output().expect("a program");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "equal\n");
}

#[test]
fn members_of_a_group_are_parked_for_each_other_and_each_gets_its_turn() {
    let place = Place::new("sleeping_group");
    // Room for one of the three.
    let options = ["--group", "turns", "--limit", "44MiB", "--yield", "--awake", "30ms"];
    let members: Vec<Child> =
        ["1", "2", "3"].map(|value| start(place.program(&options, &[value, "3", "40"]))).into_iter().collect();
    members.into_iter().for_each(|member| check(member, 3));
}

#[test]
fn members_that_hold_and_want_more_of_their_own_maps_get_their_turns() {
    let place = Place::with("sleeping_group_maps", "maps.c");
    // Room for one of the three, and for the first two pieces of two.
    let options = ["--group", "maps", "--limit", "16MiB", "--yield", "--awake", "30ms"];
    let members: Vec<Child> = (0..3).map(|_| start(place.program(&options, &["200"]))).collect();
    for member in members {
        let output = member.wait_with_output().expect("a program");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "equal\n");
    }
}

#[test]
fn a_request_that_no_member_can_make_room_for_fails_soon() {
    let place = Place::new("sleeping_hopeless");
    let options = ["--group", "small", "--limit", "20MiB", "--yield"];
    let begin = Instant::now();
    let finished = finish(&mut place.program(&options, &["1", "1", "1"]));
    assert!(finished.errors.contains("group `small` holds"), "{}", finished.errors);
    assert_eq!(finished.output.trim(), "cuMemAlloc: 2 in round 0");
    assert!(begin.elapsed() < Duration::from_secs(50), "long before the timeout");
}

#[test]
fn nothing_can_be_parked_without_the_option() {
    let place = Place::new("sleeping_not");
    let child = start(place.program(&[], &["1", "1", "300"]));
    assert!(place.ask(&["status"]).is_none());
    check(child, 1);
}
