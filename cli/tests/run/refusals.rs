//! Programs and drivers beyond our reach: a line and status 2, or the program alone with
//! `--optional`.

use super::{compile, driver, output_of, run};
use crate::common::{finish, folder, write};
use cachalot_run::group::{Group, Uuid};
use cachalot_run::options::GroupOptions;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Runs a program, and checks the refusal.
#[track_caller]
fn refused(place: &Path, driver: &Path, program: &Path, reason: &str) {
    let finished = finish(run(place, driver).arg("--").arg(program));
    assert_eq!((finished.status, finished.output.as_str()), (2, ""), "{}", finished.errors);
    assert_eq!(finished.errors.lines().count(), 1, "{}", finished.errors);
    assert!(finished.errors.contains(reason), "{}", finished.errors);
}

#[test]
fn a_static_program_is_refused_or_runs_alone() {
    let place = folder("static");
    let driver = driver(&place, &[]);
    let source = write(&place, "static.c", "#include <stdio.h>\nint main(void) { puts(\"alone\"); }\n");
    let program = place.join("static");
    let compiled = std::process::Command::new("cc").args(["-static", "-o"]).args([&program, &source]).status();
    assert!(compiled.expect("a C compiler").success());
    refused(&place, &driver, &program, "linked statically");
    let finished = finish(run(&place, &driver).arg("--optional").arg("--").arg(&program));
    assert_eq!((finished.status, finished.output.as_str()), (0, "alone\n"));
    assert!(finished.errors.contains("runs without the library"), "{}", finished.errors);
}

/// Writes a copy of a program with a change in the file.
fn changed(place: &Path, name: &str, change: impl FnOnce(&mut Vec<u8>)) -> std::path::PathBuf {
    let mut image = std::fs::read(compile("ways.c", place, &[])).expect("the program");
    change(&mut image);
    let file = write(place, name, image);
    std::fs::set_permissions(&file, Permissions::from_mode(0o755)).expect("a program");
    file
}

#[test]
fn a_program_for_another_machine_is_refused() {
    let place = folder("machine");
    let driver = driver(&place, &[]);
    // The number of AArch64 in place of that of x86-64, and a file of 32 bits.
    let arm = changed(&place, "arm", |image| image[18] = 183);
    refused(&place, &driver, &arm, "another architecture");
    let small = changed(&place, "small", |image| image[4] = 1);
    refused(&place, &driver, &small, "not a program for x86-64");
}

#[test]
fn a_program_of_musl_is_refused() {
    let place = folder("musl");
    let driver = driver(&place, &[]);
    let program = changed(&place, "program", |image| {
        let (old, new) = (b"/lib64/ld-linux-x86-64.so.2\0", b"/lib/ld-musl-x86_64.so.1\0\0\0\0");
        let at = image.windows(old.len()).position(|part| part == old).expect("the name of the loader");
        image[at..at + new.len()].copy_from_slice(new);
    });
    refused(&place, &driver, &program, "musl");
}

#[test]
fn a_program_with_the_rights_of_another_user_is_refused() {
    let place = folder("setuid");
    let driver = driver(&place, &[]);
    let program = compile("ways.c", &place, &[]);
    // The superuser can give the file away; another user's own setuid file changes no rights, and
    // is served.
    let other = std::os::unix::fs::chown(&program, Some(65534), None).is_ok();
    std::fs::set_permissions(&program, Permissions::from_mode(0o4755)).expect("the owner's own file");
    if other {
        refused(&place, &driver, &program, "setuid");
    } else {
        assert_eq!(output_of(run(&place, &driver).arg("--").arg(program).arg("open")), "SRS SR");
    }
}

#[test]
fn a_script_is_judged_by_its_interpreter() {
    let place = folder("script");
    let driver = driver(&place, &[]);
    let program = changed(&place, "arm", |image| image[18] = 183);
    let script = write(&place, "script", format!("#!{}\n", program.display()));
    std::fs::set_permissions(&script, Permissions::from_mode(0o755)).expect("a program");
    refused(&place, &driver, &script, "another architecture");
    let shell = write(&place, "shell", "#!/usr/bin/env sh\necho \"$LD_PRELOAD\"\n");
    std::fs::set_permissions(&shell, Permissions::from_mode(0o755)).expect("a program");
    assert!(output_of(run(&place, &driver).arg("--").arg(shell)).contains("/cachalot-run-"));
}

#[test]
fn a_driver_that_is_missing_or_none_is_refused() {
    let place = folder("driver");
    let program = Path::new("/bin/echo");
    refused(&place, &place.join("libcuda.so.1"), program, "--driver names the driver");
    let text = write(&place, "text", "no library");
    refused(&place, &text, program, "text: ");
    refused(&place, Path::new("/lib/x86_64-linux-gnu/libc.so.6"), program, "no function cuInit");
    refused(&place, Path::new("libnone.so.1"), program, "no libnone.so.1 in LD_LIBRARY_PATH");
    let finished = finish(run(&place, &text).args(["--optional", "--", "echo", "alone"]));
    assert_eq!((finished.status, finished.output.as_str()), (0, "alone\n"));
}

#[test]
fn the_library_in_front_is_not_taken_for_the_driver() {
    let place = folder("itself");
    let driver = driver(&place, &[]);
    let folder = output_of(run(&place, &driver).args(["--", "sh", "-c", "echo $LD_LIBRARY_PATH"]));
    refused(&place, &Path::new(&folder).join("libcuda.so.1"), Path::new("/bin/echo"), "cannot be the driver");
}

#[test]
fn a_missing_program_is_127_and_no_program_126() {
    let place = folder("missing");
    let driver = driver(&place, &[]);
    for name in ["no-such-program", "/no/such/program"] {
        assert_eq!(finish(run(&place, &driver).arg("--").arg(name)).status, 127, "{name}");
    }
    let text = write(&place, "text", "no program");
    assert_eq!(finish(run(&place, &driver).args(["--optional", "--"]).arg(text)).status, 126);
}

#[test]
fn a_folder_for_others_becomes_private() {
    let place = folder("private");
    let driver = driver(&place, &[]);
    std::fs::create_dir(place.join("cachalot")).expect("a folder");
    std::fs::set_permissions(place.join("cachalot"), Permissions::from_mode(0o777)).expect("for all");
    let folder = output_of(run(&place, &driver).args(["--", "sh", "-c", "echo $LD_LIBRARY_PATH"]));
    // Users that root's programs become find the library there.
    let mode = if rustix::process::geteuid().is_root() { 0o755 } else { 0o700 };
    for path in [Path::new(&folder), &place.join("cachalot")] {
        assert_eq!(path.metadata().expect("a folder").permissions().mode() & 0o777, mode, "{}", path.display());
    }
}

/// Runs a command of the user that cannot work, and checks the status and the line.
#[track_caller]
fn stopped(place: &Path, driver: &Path, arguments: &[&str], status: i32, reason: &str) {
    let mut command = run(place, driver);
    let finished = finish(command.args(arguments).env("CACHALOT_RUN_FOLDER", place.join("shared")));
    assert_eq!((finished.status, finished.output.as_str()), (status, ""), "{arguments:?}: {}", finished.errors);
    assert!(finished.errors.contains(reason), "{arguments:?}: {}", finished.errors);
}

#[test]
fn a_misspelled_option_is_no_program() {
    let place = folder("misspelled");
    let driver = driver(&place, &[]);
    stopped(&place, &driver, &["--polcy", "stitched", "--", "true"], 2, "--policy");
    let printed = output_of(run(&place, &driver).args(["--limit", "1GiB", "echo", "--polcy", "-x", "--", "a"]));
    assert_eq!(printed, "--polcy -x -- a");
}

#[test]
fn files_and_groups_that_cannot_be_stop_the_start() {
    let place = folder("start");
    let driver = driver(&place, &[]);
    for option in ["--record", "--ledger-file"] {
        let missing = place.join("none/file");
        stopped(&place, &driver, &[option, &missing.display().to_string(), "--", "echo", "ran"], 2, option);
    }
    let device = output_of(run(&place, &driver).args(["--ledger-file", "/dev/null", "--", "echo", "ran"]));
    assert_eq!(device, "ran");
    stopped(&place, &driver, &["--group", "a/b", "--", "echo", "ran"], 2, "no name of a group");
    let low = ["--group", "a", "--low", "2MiB", "--max", "1MiB", "--", "echo", "ran"];
    stopped(&place, &driver, &low, 2, "at most its `max`");
    let shared = place.join("shared");
    std::fs::create_dir(&shared).expect("a new folder");
    std::fs::set_permissions(&shared, Permissions::from_mode(0o700)).expect("the test's own");
    let options = GroupOptions { name: "a".to_owned(), low: 0, max: None, weight: 100 };
    let _member = Group::join_in(&shared, &options, Some(400 << 20), Uuid([1; 16])).expect("a group");
    stopped(&place, &driver, &["--group", "a", "--limit", "300MiB", "--", "echo", "ran"], 2, "a limit of 400.00 MiB");
    let mut fits = run(&place, &driver);
    fits.args(["--group", "a", "--limit", "400MiB", "--", "echo", "ran"]).env("CACHALOT_RUN_FOLDER", &shared);
    assert_eq!(output_of(&mut fits), "ran");
}

#[test]
fn a_folder_is_126_and_a_script_without_a_first_line_runs() {
    let place = folder("forms");
    let driver = driver(&place, &[]);
    stopped(&place, &driver, &["--", &place.display().to_string()], 126, "not executable");
    let script = write(&place, "script", "echo \"$0 $1\"\n");
    stopped(&place, &driver, &["--", &script.display().to_string()], 126, "not executable");
    std::fs::set_permissions(&script, Permissions::from_mode(0o755)).expect("a program");
    let printed = output_of(run(&place, &driver).arg("--").arg(&script).arg("word"));
    assert_eq!(printed, format!("{} word", script.display()));
}
