//! Memory of a process parked to files, and woken.

use super::setup::PAGE;
use super::sleep::{PATIENCE, Sleeps, check, failing, filled, phase, setup_with, touch, used};
use cachalot_run::Options;
use cachalot_run::control::{RefusalKind, SleepState};
use cachalot_run::options::SleepOptions;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

/// Names the folder to a process of another test.
const FOLDER: &str = "CACHALOT_TEST_FOLDER";

/// Starts a process whose memory is parked to files of a folder.
fn setup_in(folder: &Path, settings: &str) -> Sleeps {
    let sleep = SleepOptions { folder: Some(folder.to_owned()), ..SleepOptions::default() };
    setup_with(sleep, Options { settings: settings.into(), ..Options::default() })
}

/// Returns a new folder, in memory if the system has one there.
fn folder() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder")
}

/// Returns the number of names in a folder, and the number of its files that a process has open.
fn files_of(folder: &Path, process: &str) -> (usize, usize) {
    let open = std::fs::read_dir(format!("/proc/{process}/fd")).expect("a process");
    let links = open.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let of_folder = links.filter(|link| link.starts_with(folder)).count();
    (folder.read_dir().expect("a folder").count(), of_folder)
}

#[test]
fn memory_parked_to_a_file_wakes_where_it_was_and_the_file_goes() {
    for settings in ["", "expandable_segments:True"] {
        let folder = folder();
        let setup = setup_in(folder.path(), settings);
        let before = used(&setup);
        let mut blocks = filled(&setup);
        // Enough for several threads.
        let (large, bytes) = (setup.take(40 * PAGE), 40 * PAGE);
        setup.fill(large, 77, bytes, setup.stream());
        assert_eq!(setup.cuCtxSynchronize(), 0);
        blocks.push((large, bytes, 77));
        for round in 1..=3 {
            setup.process.park(PATIENCE).unwrap();
            assert_eq!((phase(&setup), used(&setup)), (SleepState::Parked, before), "{settings}");
            assert_eq!(files_of(folder.path(), "self"), (0, 1), "{settings}");
            touch(&setup).unwrap();
            check(&setup, &blocks);
            assert_eq!(files_of(folder.path(), "self"), (0, 0), "{settings}");
            let (_, _, figures) = setup.process.sleep().unwrap();
            assert_eq!((figures.parks, figures.wakes, figures.failure), (round, round, None));
        }
    }
}

/// The calls for copies to and from files, and for the memory of the threads that copy.
const CALLS: [&str; 10] = [
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuStreamCreate",
    "cuStreamSynchronize",
    "cuStreamDestroy_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventSynchronize",
];

/// Parks and wakes, with each call failed once, and checks that every block has its byte after each
/// failure.
#[test]
fn each_call_of_the_copies_fails_once_and_nothing_is_lost() {
    let folder = folder();
    let setup = setup_in(folder.path(), "");
    let blocks = filled(&setup);
    let mut failed = Vec::new();
    for function in CALLS {
        for nth in 1.. {
            let parking = failing(&setup, function, nth, || _ = setup.process.park(PATIENCE));
            touch(&setup).unwrap_or_else(|code| panic!("{function} {nth}: {code}"));
            check(&setup, &blocks);
            setup.process.park(PATIENCE).unwrap_or_else(|error| panic!("{function} {nth}: {error}"));
            let waking = failing(&setup, function, nth, || _ = touch(&setup));
            touch(&setup).unwrap_or_else(|code| panic!("{function} {nth}: {code}"));
            check(&setup, &blocks);
            if !parking && !waking {
                break;
            }
            failed.push(function);
        }
    }
    failed.dedup();
    assert_eq!(failed, CALLS, "a park or a wake makes each call");
    assert_eq!(files_of(folder.path(), "self"), (0, 0));
}

#[test]
fn a_folder_that_has_gone_refuses_the_park_and_is_named() {
    let folder = folder();
    let path = folder.path().to_owned();
    let setup = setup_in(&path, "");
    let blocks = filled(&setup);
    folder.close().expect("removed");
    let refusal = setup.process.park(PATIENCE).unwrap_err();
    assert_eq!((refusal.kind, phase(&setup)), (RefusalKind::Unsupported, SleepState::Awake), "{refusal}");
    assert!(refusal.text.contains(&path.display().to_string()), "{refusal}");
    check(&setup, &blocks);
    std::fs::create_dir(&path).expect("again");
    setup.process.park(PATIENCE).unwrap();
    touch(&setup).unwrap();
    check(&setup, &blocks);
    std::fs::remove_dir(&path).expect("empty");
}

/// Parks, in a process that may have short files only.
#[test]
#[ignore = "runs in a process of another test"]
fn limited() {
    let folder = PathBuf::from(std::env::var_os(FOLDER).expect("a folder"));
    let setup = setup_in(&folder, "");
    let blocks = filled(&setup);
    let limit = libc::rlimit { rlim_cur: 1 << 20, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: `limit` outlives the call, which reads it.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) }, 0);
    let refusal = setup.process.park(PATIENCE).unwrap_err();
    assert_eq!((refusal.kind, phase(&setup)), (RefusalKind::NoFileSpace, SleepState::Awake), "{refusal}");
    assert!(refusal.text.contains(&folder.display().to_string()), "{refusal}");
    assert!(refusal.text.contains("ulimit -f"), "{refusal}");
    check(&setup, &blocks);
}

/// Parks, and stays parked until it is killed.
#[test]
#[ignore = "runs in a process of another test"]
fn parked() {
    let folder = PathBuf::from(std::env::var_os(FOLDER).expect("a folder"));
    let setup = setup_in(&folder, "");
    filled(&setup);
    setup.process.park(PATIENCE).unwrap();
    println!("parked");
    std::io::stdin().lines().for_each(drop);
}

/// Starts a test in its own process.
fn start(test: &str, folder: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("a test has a file"));
    command.args(["--exact", &format!("serve::sleep_files::{test}"), "--ignored", "--nocapture"]);
    command.env(FOLDER, folder).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the test runs")
}

#[test]
fn a_folder_without_room_refuses_the_park_before_anything_moves() {
    let folder = folder();
    let output = start("limited", folder.path()).wait_with_output().expect("the test ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn a_killed_process_leaves_no_file() {
    let folder = folder();
    let mut child = start("parked", folder.path());
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    assert!(lines.map_while(Result::ok).any(|line| line.contains("parked")), "the process has ended");
    assert_eq!(files_of(folder.path(), &child.id().to_string()), (0, 1));
    child.kill().expect("killed");
    child.wait().expect("a child");
    assert_eq!(folder.path().read_dir().expect("a folder").count(), 0);
}
