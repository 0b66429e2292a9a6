//! Programs in control groups with limits of devices, which folders stand for.

use super::groups::Place;
use super::sleeping;
use crate::common::{finish, folder};
use cachalot_emulated_driver::install::install_nvml;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// Writes a file, in a new folder if necessary.
fn write(path: PathBuf, text: &str) {
    fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    fs::write(path, text).expect("written");
}

/// Makes the files of a system whose programs are in the control group `pod`, which has `most` MiB
/// of the first emulated device and uses `used`.
fn system(place: &Path, used: u64, most: u64) -> PathBuf {
    let system = place.join("system");
    let line = |mebibytes: u64| format!("nvidia/0000:01:00.0/vidmem {}\n", mebibytes << 20);
    write(system.join("proc/self/cgroup"), "0::/pod\n");
    write(system.join("sys/fs/cgroup/pod/dmem.current"), &line(used));
    write(system.join("sys/fs/cgroup/pod/dmem.max"), &line(most));
    system
}

#[test]
fn the_limit_of_a_control_group_is_the_limit_that_a_program_sees() {
    let place = Place::new(folder("pressure_limit"));
    let system = system(&place.folder, 100, 300);
    let see = |options: &[&str]| {
        let mut holder = place.start_with(options, &[("CACHALOT_SYSTEM", system.as_os_str())]);
        holder.ask("m")
    };
    assert_eq!(see(&[]), "200 300");
    assert_eq!(see(&["--limit", "250MiB"]).split(' ').next_back(), Some("250"), "the lesser of both");
    write(system.join("sys/fs/cgroup/pod/dmem.max"), "nvidia/0000:01:00.0/vidmem max\n");
    assert_eq!(see(&[]).split(' ').next_back(), Some("1024"), "no limit");
}

#[test]
fn an_idle_member_is_parked_for_its_control_group_and_says_so() {
    let place = sleeping::Place::new("pressure_parked");
    let system = system(&place.folder, 300, 300);
    let log = place.folder.join("log");
    let options = ["--group", "pod", "--yield", "--awake", "30ms"];
    let mut command = place.program(&options, &["3", "2", "2500"]);
    command.env("CACHALOT_SYSTEM", system).env("CACHALOT_LOG", format!("info:{}", log.display()));
    let child = sleeping::start(command);
    let parked = sleeping::once(&place, |status| status["state"] == "parked");
    assert_eq!(parked["parked_bytes"], sleeping::HELD, "{parked}");
    sleeping::check(child, 2);
    let said = fs::read_to_string(log).expect("a log");
    // 15/16 of the limit are 281.25 MiB.
    assert!(said.contains("parked, idle for longest: its control group wants 18.8 MiB back"), "{said}");
}

#[test]
fn without_the_option_no_program_is_parked_for_its_control_group() {
    let place = sleeping::Place::new("pressure_awake");
    let system = system(&place.folder, 300, 300);
    let mut command = place.program(&["--parkable"], &["3", "1", "700"]);
    command.env::<&str, &OsStr>("CACHALOT_SYSTEM", system.as_os_str());
    let child = sleeping::start(command);
    sleeping::once(&place, |status| status["device_bytes"] == sleeping::HELD);
    std::thread::sleep(std::time::Duration::from_millis(400));
    assert!(place.ask(&["status"]).is_none_or(|status| status["state"] == "awake"));
    sleeping::check(child, 1);
}

#[test]
fn a_control_group_keeps_the_limit_in_place_of_the_library() {
    let place = sleeping::Place::new("pressure_kernel");
    let libraries = place.folder.join("nvml");
    fs::create_dir(&libraries).expect("a folder");
    install_nvml(&libraries).expect("the emulated NVML is built");
    let group = place.folder.join("group");
    let run = |options: &[&str], group: &Path| {
        let group = ["--control-group", group.to_str().expect("UTF-8"), "--limit", "300MiB"];
        let mut command = place.program(&[&group[..], options].concat(), &["1", "1", "1"]);
        finish(command.env("LD_LIBRARY_PATH", &libraries))
    };
    // The folder is made, and is no control group.
    let refused = run(&[], &group);
    assert_eq!(refused.status, 2);
    let said = "no limit of 300.00 MiB: the group has no files dmem.*: its parent's cgroup.subtree_control needs +dmem";
    assert!(group.is_dir() && refused.errors.contains(said), "{}", refused.errors);
    for file in ["dmem.max", "dmem.min", "dmem.current", "cgroup.procs"] {
        write(group.join(file), "");
    }
    let done = run(&["--group", "pod"], &group);
    assert_eq!((done.status, done.output.trim()), (0, "1 rounds"), "{}", done.errors);
    let read = |file: &str| fs::read_to_string(group.join(file)).expect("a file");
    assert_eq!(read("dmem.max").lines().next(), Some("nvidia/0000:01:00.0/vidmem 314572800"));
    assert_eq!(read("dmem.min").lines().next(), Some("nvidia/0000:01:00.0/vidmem 0"));
    assert!(read("cgroup.procs").parse::<u32>().is_ok());
    let refused = run(&[], Path::new("/nowhere/group"));
    assert!(refused.errors.contains("--control-group: /nowhere/group: No such file"), "{}", refused.errors);
}
