//! Programs with our functions from the resolver: every byte of their memory is theirs, with each
//! option.

use super::{clean, compile, driver, output_of, run};
use crate::common::{finish, folder};
use std::process::Command;

/// Threads of the program, and rounds of each thread.
const SIZE: [&str; 2] = ["3", "60"];

/// Runs `served.c` with options of `cachalot run`.
#[track_caller]
fn keeps_every_byte(name: &str, options: &[&str]) {
    let place = folder(name);
    let driver = driver(&place, &[]);
    let program = compile("served.c", &place, &["-pthread"]);
    assert_eq!(output_of(run(&place, &driver).args(options).arg("--").arg(program).args(SIZE)), "done");
}

#[test]
fn the_program_itself_is_right_without_us() {
    let place = folder("alone");
    let driver = driver(&place, &[]);
    let mut plain = Command::new(compile("served.c", &place, &["-pthread"]));
    let folder = driver.parent().expect("a folder");
    assert_eq!(output_of(clean(&mut plain).args(SIZE).env("LD_LIBRARY_PATH", folder)), "done");
}

#[test]
fn memory_of_the_default_settings_keeps_every_byte() {
    keeps_every_byte("default", &[]);
}

#[test]
fn memory_of_every_option_keeps_every_byte() {
    for (name, options) in [
        ("observe", &["--observe"][..]),
        ("sync_free", &["--sync-free"]),
        ("stitched", &["--policy", "stitched"]),
        ("limit", &["--limit", "2GiB"]),
        ("spill", &["--limit", "100MiB", "--spill", "2GiB"]),
        ("ledger", &["--ledger"]),
        ("settings", &["--config", "max_split_size_mb:32"]),
    ] {
        keeps_every_byte(name, options);
    }
}

#[test]
fn a_limit_is_an_error_of_the_driver_and_named_in_a_line() {
    let place = folder("over");
    let driver = driver(&place, &[]);
    let program = compile("served.c", &place, &["-pthread"]);
    let finished = finish(run(&place, &driver).args(["--limit", "4MiB", "--"]).arg(program).args(["1", "300"]));
    assert_eq!((finished.status, finished.output.as_str()), (1, "cuMemAlloc: 2\n"), "{}", finished.errors);
    assert!(finished.errors.contains("cachalot: "), "{}", finished.errors);
}
