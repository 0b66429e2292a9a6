//! `cachalot top --all`: what root sees of other users and of containers.

use super::groups::Place;
use crate::common::{finish, folder};
use crate::schemas::validator;
use serde_json::Value;
use std::fs;
use std::process::{Command, Stdio};

/// Runs `cachalot top --all` without the folder of a test.
fn top(format: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cachalot"));
    command.args(["top", "--all", format]).env_remove("CACHALOT_RUN_FOLDER").env("COLUMNS", "500").env("PATH", "");
    let finished = finish(&mut command);
    assert_eq!(finished.status, 0, "{}", finished.errors);
    finished.output
}

/// Returns whether a command succeeds.
fn works(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Returns the ids of a process's descendants, and its own.
fn family(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| child.parse().ok());
    [pid].into_iter().chain(children.flat_map(family)).collect()
}

/// Checks what is told of a program of the group `team`, which was started by a command. Returns
/// its user and whether it is in a container.
fn check(place: &Place, options: &[&str], other: &[&str]) -> (u64, bool) {
    let mut program = place.start_in(options, other);
    assert_eq!(program.ask("a 30"), "0");
    let family = family(program.pid());
    let is_ours = |member: &Value| family.iter().any(|&pid| member["pid"] == pid);
    let lines: Value = serde_json::from_str(&top("--json")).expect("JSON");
    let faults: Vec<_> = validator("top").iter_errors(&lines).map(|fault| fault.to_string()).collect();
    assert!(faults.is_empty(), "{faults:#?}");
    let list = |of: &Value| of.as_array().expect("a list").clone();
    let processes: Vec<_> = list(&lines["devices"]).iter().flat_map(|device| list(&device["processes"])).collect();
    let ours: Vec<_> = processes.iter().filter(|process| is_ours(process)).collect();
    let [process] = ours[..] else { panic!("{family:?} in {lines:#}") };
    assert!(process["book"]["booked"].as_u64().is_some_and(|bytes| bytes >= 30 << 20), "{process:#}");
    let groups = list(&lines["groups"]);
    let group = groups.iter().find(|group| list(&group["members"]).iter().any(is_ours));
    let group = group.expect("the group of the program");
    assert_eq!((&group["name"], &group["user"]), (&"team".into(), &process["user"]));
    let user = process["user"].as_u64().expect("a number");
    let place = if process["container"].is_null() { "" } else { " in a container" };
    let (text, told) = (top("--once"), format!("({}), user {user}{place}", process["pid"]));
    assert!(text.contains(&told) && text.contains(&format!("Group team of user {user} on ")), "{told} in {text}");
    program.end();
    (user, !place.is_empty())
}

const GROUP: [&str; 4] = ["--group", "team", "--limit", "100MiB"];

/// A user without rights, on every system.
const NOBODY: u32 = 65534;

#[test]
fn root_sees_the_programs_of_other_users_and_of_containers() {
    if !rustix::process::geteuid().is_root() {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cachalot"));
        let refused = finish(command.args(["top", "--all", "--once"]));
        assert!(refused.status == 2 && refused.errors.starts_with("--all: only root"), "{}", refused.errors);
        println!("not checked: only root sees others");
        return;
    }
    let place = Place::new(folder("everyone"));
    assert_eq!(check(&place, &GROUP, &["env"]), (0, false));
    let container = ["unshare", "--mount", "--pid", "--fork", "--mount-proc"];
    let mounts = "mount -t tmpfs none /dev/shm";
    if works(Command::new(container[0]).args(&container[1..]).args(["sh", "-c", mounts])) {
        let inside = |script: &'static str| [&container[..], &["sh", "-c", script]].concat();
        // A folder that only the container has, by its name, and where processes have it.
        let named = inside("mount -t tmpfs -o mode=0700 none \"$CACHALOT_RUN_FOLDER\" && exec \"$0\"");
        assert_eq!(check(&place, &GROUP, &named), (0, true));
        let usual = inside("mount -t tmpfs none /dev/shm && exec env -u CACHALOT_RUN_FOLDER \"$0\"");
        assert_eq!(check(&place, &GROUP, &usual), (0, true));
    } else {
        println!("not checked: the system lets this process make no namespaces");
    }
    let nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    if works(Command::new(nobody[0]).args(&nobody[1..]).arg("ls").arg(&place.folder)) {
        std::os::unix::fs::chown(place.shared(), Some(NOBODY), None).expect("root gives files away");
        assert_eq!(check(&place, &GROUP, &nobody), (u64::from(NOBODY), false));
    } else {
        println!("not checked: no other user, or its way to the test's folder is closed");
    }
}
