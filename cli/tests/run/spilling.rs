//! `--spill`: programs that need more than their limit, and have the rest on the host.

use super::{clean, compile, driver, output_of, run};
use crate::common::{finish, folder};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;

/// The limit, and half as much again for the program.
const LIMIT: [&str; 2] = ["--limit", "240MiB"];
const NEEDED: &str = "360";

/// A driver, and a program that needs [`NEEDED`] MiB.
struct Place {
    folder: PathBuf,
    driver: PathBuf,
    program: PathBuf,
}

impl Place {
    fn new(name: &str) -> Self {
        let folder = folder(name);
        Self { driver: driver(&folder, &[]), program: compile("spills.c", &folder, &[]), folder }
    }

    /// Returns `cachalot run` of the program with options.
    fn served(&self, options: &[&str]) -> Command {
        let mut command = run(&self.folder, &self.driver);
        command.args(options).arg("--").arg(&self.program).arg(NEEDED);
        command
    }

    /// Returns what the program prints without `cachalot run`, with more arguments.
    fn plain(&self, more: &[&str]) -> String {
        let mut command = Command::new(&self.program);
        let driver = self.driver.parent().expect("a folder");
        output_of(clean(&mut command).arg(NEEDED).args(more).env("LD_LIBRARY_PATH", driver))
    }
}

#[test]
fn a_program_beyond_its_limit_prints_what_it_prints_without_one() {
    let place = Place::new("beyond");
    let refused = finish(&mut place.served(&LIMIT));
    assert_eq!((refused.status, refused.output.as_str()), (1, "cuMemAlloc: 2\n"), "{}", refused.errors);
    let plain = place.plain(&[]);
    for spill in ["200MiB", "auto"] {
        assert_eq!(output_of(&mut place.served(&[&LIMIT[..], &["--spill", spill]].concat())), plain, "{spill}");
    }
    let parked = ["--spill", "auto", "--parkable", "--policy", "bfc"];
    assert_eq!(output_of(&mut place.served(&[&LIMIT[..], &parked].concat())), plain);
}

/// Memory of `cuMemCreate` comes from no allocator, and JAX has nothing else.
#[test]
fn memory_that_a_program_maps_by_itself_lies_on_the_host_beyond_the_limit() {
    let place = Place::new("maps");
    let maps = |options: &[&str]| {
        let mut command = place.served(&[&LIMIT[..], options].concat());
        command.arg("maps");
        command
    };
    for options in [&[][..], &["--spill", "40MiB"]] {
        let refused = finish(&mut maps(options));
        assert_eq!((refused.status, refused.output.as_str()), (1, "cuMemCreate: 2\n"), "{}", refused.errors);
    }
    let plain = place.plain(&["maps"]);
    for parkable in [&[][..], &["--parkable"]] {
        assert_eq!(output_of(&mut maps(&[&["--spill", "200MiB"], parkable].concat())), plain);
    }
}

#[test]
fn no_more_than_the_size_lies_on_the_host() {
    let place = Place::new("bounded");
    let refused = finish(&mut place.served(&[&LIMIT[..], &["--spill", "40MiB"]].concat()));
    assert_eq!((refused.status, refused.output.as_str()), (1, "cuMemAlloc: 2\n"), "{}", refused.errors);
}

/// Pages of the host are in the book, and in no sum of the device.
#[test]
fn the_ledger_tells_what_lay_on_the_host() {
    let place = Place::new("booked");
    let file = place.folder.join("ledger.json");
    let name = file.to_str().expect("text");
    output_of(&mut place.served(&[&LIMIT[..], &["--spill", "auto", "--ledger-file", name]].concat()));
    let ledger: Value = serde_json::from_slice(&std::fs::read(file).expect("a file")).expect("JSON");
    let kinds = ledger["books"][0]["objects"][0]["kinds"].as_array().expect("a list");
    let peak = |name: &str| {
        let kind = kinds.iter().find(|kind| kind["kind"] == name);
        kind.unwrap_or_else(|| panic!("{kinds:?}"))["peak"].as_u64().expect("bytes") >> 20
    };
    assert!((100..=240).contains(&peak("pages")), "{kinds:?}");
    assert!((120..=260).contains(&peak("spilled")) && peak("pages") + peak("spilled") >= 360, "{kinds:?}");
}

#[test]
fn options_that_contradict_are_refused_with_the_reason() {
    let place = Place::new("contradicts");
    for (options, reason) in [
        (&["--spill", "1GiB", "--observe"][..], "--observe"),
        (&["--spill", "1GiB", "--config", "expandable_segments:False"], "spill has no effect"),
        (&["--spill", "1GiB", "--policy", "direct"], "--spill: "),
        (&["--spill", "1GiB", "--config", "expandable_segments:True,spill:2G"], "name one of both"),
        (&["--spill", "half"], "or `auto`"),
    ] {
        let finished = finish(&mut place.served(options));
        assert_eq!((finished.status, finished.output.as_str()), (2, ""), "{options:?}");
        assert!(finished.errors.contains(reason), "{options:?}: {}", finished.errors);
    }
}
