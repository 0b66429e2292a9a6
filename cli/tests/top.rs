//! `cachalot top`: processes with a book, groups, and the driver's own figure.

use crate::common::{Finished, finish, folder, write};
use crate::schemas::validator;
use cachalot_run::group::{Group, Uuid};
use cachalot_run::ledger::{Kind, Ledger};
use cachalot_run::options::GroupOptions;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

const DEVICE: Uuid = Uuid([9; 16]);
const MIB: u64 = 1 << 20;

/// Runs `cachalot top` with a folder of shared files, and with a folder of programs in place of the
/// system's.
fn top(shared: &Path, programs: &Path, options: &[&str]) -> Finished {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cachalot"));
    finish(command.arg("top").args(options).env("CACHALOT_RUN_FOLDER", shared).env("PATH", programs))
}

/// Creates a folder that only the user may look into.
fn shared(place: &Path) -> std::path::PathBuf {
    let folder = place.join("shared");
    fs::create_dir(&folder).expect("a new folder");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).expect("the test's own");
    folder
}

/// Writes a program in place of `nvidia-smi`.
fn smi(place: &Path, devices: &str, processes: &str) {
    let text = format!("#!/bin/sh\ncase $1 in\n--query-gpu*) echo '{devices}' ;;\n*) echo '{processes}' ;;\nesac\n");
    let file = write(place, "nvidia-smi", text);
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).expect("the test's own");
}

/// A process that holds 300 MiB, in a group with a limit of 1 GiB.
fn holder(shared: &Path) -> (Ledger, Group) {
    let ledger = Ledger::in_folder(Some(shared), DEVICE, false).expect("a book");
    assert_eq!(ledger.fault(), None);
    ledger.book(Kind::Segment, 200 * MIB, 1);
    ledger.book(Kind::Plain, 100 * MIB, 2);
    ledger.driver(310 * MIB, 1000 * MIB);
    let options = GroupOptions { name: "team".to_owned(), low: MIB, max: None, weight: 100 };
    let group = Group::join_in(shared, &options, Some(1 << 30), DEVICE).expect("a group");
    group.reserve(300 * MIB).expect("it fits");
    (ledger, group)
}

#[test]
fn top_without_books_says_so() {
    let place = folder("nothing");
    let shared = shared(&place);
    let finished = top(&shared, &place, &["--once"]);
    assert_eq!(finished.status, 0, "{}", finished.errors);
    assert_eq!(
        finished.output,
        "No process of this user has a book, and no group has a member: start programs by `cachalot run` to see them here.\n"
    );
    let finished = top(&shared, &place, &["--once", "4711"]);
    assert_eq!(finished.status, 2);
    assert!(finished.errors.starts_with("process 4711 has no book"), "{}", finished.errors);
}

#[test]
fn top_does_not_wait_for_a_driver_that_hangs() {
    let place = folder("hangs");
    let shared = shared(&place);
    let (_ledger, _group) = holder(&shared);
    let file = write(&place, "nvidia-smi", "#!/bin/sh\nexec /bin/sleep 60\n");
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).expect("the test's own");
    let finished = top(&shared, &place, &["--once"]);
    assert_eq!(finished.status, 0, "{}", finished.errors);
    assert!(finished.output.contains("300.00 MiB booked"), "{}", finished.output);
    assert_eq!(finished.errors, "nvidia-smi did not answer within 2 s\n");
}

#[test]
fn top_shows_books_groups_and_the_rest() {
    let place = folder("books");
    let shared = shared(&place);
    let (_ledger, _group) = holder(&shared);
    let pid = std::process::id().to_string();
    for options in [&["--once"][..], &[], &["--once", &pid]] {
        let Finished { status, output, errors } = top(&shared, &place, options);
        assert_eq!(status, 0, "{errors}");
        let text = output.split_whitespace().collect::<Vec<_>>().join(" ");
        let device = format!("{DEVICE}: 310.00 MiB of 1000.00 MiB used, as a process was told last");
        assert!(text.contains(&device), "{output}");
        assert!(text.contains("300.00 MiB booked, 10.00 MiB unexplained."), "{output}");
        assert!(text.contains(&format!("Group team on {DEVICE}: a limit of 1.00 GiB, 300.00 MiB held")), "{output}");
        assert!(text.contains(&format!("({pid}) 300.00 MiB")), "{output}");
        assert!(text.contains(", segment 200.00 MiB 1 200.00 MiB"), "{output}");
        assert!(text.contains(", plain 100.00 MiB 1 100.00 MiB"), "{output}");
        assert!(text.ends_with("unexplained 10.00 MiB"), "{output}");
    }
}

#[test]
fn top_prefers_the_figures_of_nvidia_smi() {
    let place = folder("smi");
    let shared = shared(&place);
    let (_ledger, _group) = holder(&shared);
    let pid = std::process::id();
    let processes = format!("{DEVICE}, {pid}, 305\n{DEVICE}, 4194304, 70");
    smi(&place, &format!("{DEVICE}, 400, 1000"), &processes);
    let finished = top(&shared, &place, &["--json"]);
    let lines = finished.json();
    let device = &lines[0]["devices"][0];
    assert_eq!((&device["used"], &device["source"]), (&(400 * MIB).into(), &"nvidia_smi".into()));
    assert_eq!(device["unexplained"], 30 * MIB);
    let processes = device["processes"].as_array().expect("a list");
    assert_eq!(processes.len(), 2);
    assert_eq!((&processes[0]["used"], &processes[0]["book"]["booked"]), (&(305 * MIB).into(), &(300 * MIB).into()));
    assert!(processes[1]["book"].is_null());
    let text = top(&shared, &place, &["--once"]).output;
    assert!(text.contains("(4194304), without a book"), "{text}");
}

#[test]
fn top_fits_its_schema() {
    let place = folder("schema");
    let shared = shared(&place);
    let fit = |finished: Finished| {
        let lines = finished.json();
        assert_eq!(lines.len(), 1, "{}", finished.errors);
        let faults: Vec<_> = validator("top").iter_errors(&lines[0]).map(|fault| fault.to_string()).collect();
        assert!(faults.is_empty(), "{faults:#?}");
        assert_eq!(lines[0]["schema"], 1);
    };
    fit(top(&shared, &place, &["--json"]));
    let (_ledger, _group) = holder(&shared);
    fit(top(&shared, &place, &["--json"]));
    smi(&place, &format!("{DEVICE}, 400, 1000"), &format!("{DEVICE}, 4194304, 70"));
    fit(top(&shared, &place, &["--json", "--interval=5"]));
}

#[test]
fn top_refuses_a_folder_that_is_open_to_others() {
    let place = folder("open");
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).expect("the test's own");
    let finished = top(&place, &place, &["--once"]);
    assert_eq!(finished.status, 2);
    assert!(finished.errors.contains("0700") && finished.errors.lines().count() == 1, "{}", finished.errors);
}
