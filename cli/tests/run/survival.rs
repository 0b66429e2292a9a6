//! Programs fork, close the driver, end their threads or die with an output and a status as without
//! us.

use super::{clean, compile, driver, output_of, run};
use crate::common::folder;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

/// Runs a way of `fork.c`.
#[track_caller]
fn survives(way: &str) {
    let place = folder(way);
    let driver = driver(&place, &[]);
    let program = compile("fork.c", &place, &["-pthread"]);
    assert_eq!(output_of(run(&place, &driver).arg("--").arg(program).arg(way)), "done");
}

#[test]
fn a_child_forked_before_the_driver_starts_is_served() {
    survives("early");
}

#[test]
fn a_child_forked_after_the_driver_started_gets_an_error() {
    survives("late");
}

#[test]
fn threads_that_end_leave_nothing_behind() {
    survives("threads");
}

#[test]
fn a_driver_that_is_closed_and_opened_again_goes_on() {
    survives("close");
}

#[test]
fn a_library_whose_constructor_makes_the_first_request_is_loaded() {
    let place = folder("constructor");
    let driver = driver(&place, &[]);
    let library = compile("part.c", &place, &["-shared", "-fPIC"]);
    let program = compile("loads.c", &place, &["-rdynamic", "-pthread"]);
    assert_eq!(output_of(run(&place, &driver).arg("--").arg(program).arg(library)), "loaded");
}

#[test]
fn a_program_may_end_with_memory_outstanding() {
    survives("exit");
}

#[test]
fn a_program_that_a_signal_kills_has_the_status_of_the_signal() {
    let place = folder("signal");
    let driver = driver(&place, &[]);
    let program = compile("fork.c", &place, &["-pthread"]);
    let status = run(&place, &driver).arg("--").arg(program).arg("signal").status().expect("the command runs");
    assert_eq!(status.signal(), Some(9));
}

#[test]
fn the_arguments_the_name_and_the_status_are_the_programs_own() {
    let place = folder("arguments");
    let driver = driver(&place, &[]);
    let mut command = run(&place, &driver);
    command.args(["--", "sh", "-c", "printf '%s|' \"$@\"; exit 7", "name", "--limit", "", "a b", "--"]);
    let output = command.output().expect("the command runs");
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "--limit||a b|--|");
}

#[test]
fn a_child_inherits_the_library_unless_it_may_not_follow() {
    let place = folder("follow");
    let driver = driver(&place, &[]);
    let program = compile("ways.c", &place, &[]);
    let script = "\"$0\" open libcuda.so.1; \"$0\" open libcuda.so.1";
    let follows = output_of(run(&place, &driver).args(["--", "sh", "-c", script]).arg(&program));
    assert_eq!(follows, "SRS SR\nSRS SR");
    let mut alone = run(&place, &driver);
    // The shell is the program, and what the shell starts is a child.
    alone.env("LD_LIBRARY_PATH", driver.parent().expect("a folder")).env("LD_PRELOAD", "libdl.so.2");
    alone.args(["--no-follow", "--", "sh", "-c"]).arg(format!("{script}; echo $LD_PRELOAD,$CACHALOT_RUN"));
    assert_eq!(output_of(alone.arg(&program)), "RRR RR\nRRR RR\nlibdl.so.2,");
    // A shell that reads the list of `main` and not the C library's.
    if Command::new("bash").arg("--version").output().is_ok_and(|shell| shell.status.success()) {
        let mut bash = run(&place, &driver);
        bash.env("LD_LIBRARY_PATH", driver.parent().expect("a folder"));
        bash.args(["--no-follow", "--", "bash", "-c"]).arg("\"$0\" open libcuda.so.1; echo $LD_PRELOAD,$CACHALOT_RUN");
        assert_eq!(output_of(bash.arg(&program)), "RRR RR\n,");
    }
    let itself = output_of(run(&place, &driver).args(["--no-follow", "--"]).arg(&program).arg("open"));
    assert_eq!(itself, "SRS SR");
}

#[test]
fn an_inner_run_replaces_the_outer_one() {
    let place = folder("inner");
    let (driver, program) = (driver(&place, &[]), compile("ways.c", &place, &[]));
    let mut command = run(&place, &driver);
    command.arg("--").arg(env!("CARGO_BIN_EXE_cachalot")).args(["run", "--driver"]).arg(&driver).arg("--");
    command.args(["sh", "-c", "\"$0\" open; echo \"$LD_PRELOAD\" \"$LD_LIBRARY_PATH\""]).arg(program);
    let output = output_of(&mut command);
    let (letters, variables) = output.split_once('\n').expect("two lines");
    assert_eq!(letters, "SRS SR");
    assert_eq!(variables.matches("cachalot-run-").count(), 2, "{variables}");
}

#[test]
fn a_child_without_the_library_path_still_starts() {
    let place = folder("no_path");
    let driver = driver(&place, &[]);
    let mut command = run(&place, &driver);
    let printed = output_of(command.args(["--", "env", "-u", "LD_LIBRARY_PATH", "echo", "alive"]));
    assert_eq!(printed, "alive");
    let mut plain = Command::new("echo");
    assert_eq!(output_of(clean(&mut plain).arg("alive")), printed);
}
