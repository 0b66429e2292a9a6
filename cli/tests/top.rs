//! `cachalot top`: processes with a book, groups, and the driver's own figure.

use crate::common::{Finished, finish, folder, write};
use crate::export::read;
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

/// A process that holds 300 MiB, and 50 MiB of the host, in a group with a limit of 1 GiB.
fn holder(shared: &Path) -> (Ledger, Group) {
    let ledger = Ledger::in_folder(Some(shared), DEVICE, false).expect("a book");
    assert_eq!(ledger.fault(), None);
    ledger.book(Kind::Segment, 200 * MIB, 1);
    ledger.book(Kind::Plain, 100 * MIB, 2);
    ledger.book(Kind::Spilled, 50 * MIB, 3);
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
        let device = format!("{DEVICE}: 310.00 MiB of 1000.00 MiB used, as last reported to a process");
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
    smi(&place, &format!("5, {DEVICE}, 400, 1000"), &processes);
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
    assert!(text.contains(&format!("GPU 5 ({DEVICE}): 400.00 MiB of 1000.00 MiB used")), "{text}");
    assert!(text.replace("\n  ", " ").contains("Group team on GPU 5: a limit"), "{text}");
}

/// The driver of a GB10 knows what processes hold, and not what the device has.
#[test]
fn top_of_a_device_whose_memory_nvidia_smi_does_not_know_has_its_processes() {
    let place = folder("unified");
    let shared = shared(&place);
    smi(&place, &format!("0, {DEVICE}, [N/A], [N/A]"), &format!("{DEVICE}, 4194304, 70"));
    let text = top(&shared, &place, &["--once"]).output;
    assert!(text.contains(&format!("GPU 0 ({DEVICE}): 0 B booked; the driver's figure is unknown.")), "{text}");
    assert!(text.contains("(4194304), without a book"), "{text}");
    let (_ledger, _group) = holder(&shared);
    let lines = top(&shared, &place, &["--json"]).json();
    let device = &lines[0]["devices"][0];
    assert_eq!((&device["index"], &device["source"]), (&0.into(), &"process".into()));
    assert_eq!((&device["used"], &device["total"]), (&(310 * MIB).into(), &(1000 * MIB).into()));
    // The books hold 300 MiB, and the other process 70.
    assert_eq!(device["unexplained"], -60 * (MIB as i64));
    let text = top(&shared, &place, &["--once"]).output.replace("\n  ", " ");
    assert!(text.contains("310.00 MiB of 1000.00 MiB used, as last reported to a process; "), "{text}");
}

#[test]
fn top_of_a_group_has_its_members_and_no_other_process() {
    let place = folder("group");
    let shared = shared(&place);
    let (_ledger, _group) = holder(&shared);
    let pid = std::process::id();
    smi(&place, &format!("0, {DEVICE}, 400, 1000"), &format!("{DEVICE}, {pid}, 305\n{DEVICE}, 4194304, 70"));
    let lines = top(&shared, &place, &["--json", "team"]).json();
    assert_eq!(lines[0]["devices"][0]["processes"].as_array().map(Vec::len), Some(1), "{}", lines[0]);
    assert_eq!(lines[0]["groups"][0]["name"], "team");
    let finished = top(&shared, &place, &["--once", "tea"]);
    assert_eq!(finished.status, 2);
    assert!(finished.errors.contains("no group has the name"), "{}", finished.errors);
}

#[test]
fn top_tells_processes_of_one_name_apart_and_sorts_them() {
    let place = folder("names");
    let shared = shared(&place);
    let (one, two) = (Sleeping::new("61"), Sleeping::new("62"));
    let processes = format!("{DEVICE}, {}, 70\n{DEVICE}, {}, 90", one.0.id(), two.0.id());
    smi(&place, &format!("0, {DEVICE}, 400, 1000"), &processes);
    let rows = |order: &str| {
        let text = top(&shared, &place, &["--once", "--sort", order]).output;
        let rows = text.lines().filter(|line| line.contains("without a book"));
        rows.map(|line| line.split_whitespace().take(3).collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    let name = |process: &Sleeping, time: &str| format!("sleep ({}: {time}),", process.0.id());
    let by_pid = if one.0.id() < two.0.id() {
        [name(&one, "61"), name(&two, "62")]
    } else {
        [name(&two, "62"), name(&one, "61")]
    };
    assert_eq!(rows("pid"), by_pid);
    assert_eq!(rows("memory"), [name(&two, "62"), name(&one, "61")]);
}

/// A process that sleeps until the end of a test.
struct Sleeping(std::process::Child);

impl Sleeping {
    fn new(seconds: &str) -> Self {
        Self(Command::new("sleep").arg(seconds).spawn().expect("a program of every system"))
    }
}

impl Drop for Sleeping {
    fn drop(&mut self) {
        self.0.kill().expect("a child");
        self.0.wait().expect("a child");
    }
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
    smi(&place, &format!("5, {DEVICE}, 400, 1000"), &format!("{DEVICE}, 4194304, 70"));
    fit(top(&shared, &place, &["--json", "--interval=5"]));
}

#[test]
fn top_gives_its_figures_as_metrics() {
    let place = folder("metrics");
    let shared = shared(&place);
    let (_ledger, _group) = holder(&shared);
    smi(&place, &format!("2, {DEVICE}, 400, 1000"), &format!("{DEVICE}, 4194304, 70"));
    let Finished { status, output, errors } = top(&shared, &place, &["--metrics"]);
    assert_eq!((status, errors.as_str()), (0, ""));
    let device = DEVICE.to_string();
    let labels = format!("uuid=\"{}\",gpu=\"2\"", device.strip_prefix("GPU-").expect("a GPU"));
    let pid = std::process::id();
    for wanted in [
        format!("cachalot_run_device_used_bytes{{{labels}}} {}\n", 400 * MIB),
        format!("cachalot_run_process_held_bytes{{{labels},pid=\"4194304\",program=\"\"}} {}\n", 70 * MIB),
        format!("cachalot_run_process_spilled_bytes{{{labels},pid=\"{pid}\","),
        format!("kind=\"spilled\"}} {}\n", 50 * MIB),
        format!("cachalot_run_group_limit_bytes{{{labels},group=\"team\"}} {}\n", 1 << 30),
        format!("cachalot_run_member_held_bytes{{{labels},group=\"team\",pid=\"{pid}\","),
        format!("kind=\"segment\"}} {}\n", 200 * MIB),
    ] {
        assert!(output.contains(&wanted), "{wanted}\n{output}");
    }
    assert!(output.ends_with("# EOF\n"), "{output}");
    let file = write(&place, "metrics.txt", &output);
    if let Some(read) = read("metrics_text.py", &file) {
        assert_eq!(read["cachalot_run_group_limit_bytes"]["unit"], "bytes");
    }
}

#[test]
fn top_refuses_a_folder_that_is_open_to_others() {
    let place = folder("open");
    fs::set_permissions(&place, fs::Permissions::from_mode(0o755)).expect("the test's own");
    let finished = top(&place, &place, &["--once"]);
    assert_eq!(finished.status, 2);
    assert!(finished.errors.contains("0700") && finished.errors.lines().count() == 1, "{}", finished.errors);
}
