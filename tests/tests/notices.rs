//! Checks the notices and the bill of materials of what is shipped: `scripts/release/notices.py`
//! names every crate in the libraries and in the command, with its licence, and refuses a licence
//! that is not on the list.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Runs a command in the root of the repository, and returns what the command prints.
fn output(command: &mut Command) -> String {
    let done = command.current_dir(ROOT).output().expect("the command exists");
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("text")
}

/// Returns whether there is a Python, and prints a line if not.
fn has_python(what: &str) -> bool {
    let found = Command::new("python3").arg("--version").output().is_ok();
    if !found {
        println!("skipped: {what} (no python3)");
    }
    found
}

/// Returns name and version of every crate from a registry in the normal dependencies of a crate,
/// as cargo prints them.
fn dependencies(of: &str) -> BTreeSet<(String, String)> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["tree", "--locked", "--offline", "--edges=normal", "--prefix=none", "--package", of]);
    let tree = output(&mut cargo);
    let crates = tree.lines().filter(|line| !line.is_empty() && !line.contains("(/"));
    let words = crates.map(|line| line.split_whitespace().map(str::to_owned));
    words
        .map(|mut words| (words.next().expect("a name"), words.next().expect("a version")))
        .map(|(name, version)| (name, version.trim_start_matches('v').to_owned()))
        .collect()
}

#[test]
fn every_crate_in_the_shipped_files_has_its_notice_and_its_licence() {
    if !has_python("notices") {
        return;
    }
    for shipped in [&["cachalot-library"][..], &["cachalot-library", "cachalot-cli"]] {
        let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("notices");
        let mut script = Command::new("python3");
        output(script.arg("scripts/release/notices.py").arg(&out).args(shipped).env("CARGO", env!("CARGO")));
        let notices = std::fs::read_to_string(out.join("THIRD-PARTY.txt")).expect("it was written");
        let bill = std::fs::read_to_string(out.join("sbom.cdx.json")).expect("it was written");
        let bill: serde_json::Value = serde_json::from_str(&bill).expect("JSON");
        let components = bill["components"].as_array().expect("a list");
        let wanted: BTreeSet<_> = shipped.iter().flat_map(|of| dependencies(of)).collect();
        assert!(wanted.iter().any(|(name, _)| name == "libloading"), "{wanted:?}");
        let listed: BTreeSet<_> = components
            .iter()
            .map(|one| (one["name"].as_str().expect("a name"), one["version"].as_str().expect("a version")))
            .map(|(name, version)| (name.to_owned(), version.to_owned()))
            .collect();
        assert_eq!(listed, wanted, "{shipped:?}");
        for (name, version) in &wanted {
            // A line of the list, and the heading of a text.
            let crate_ = format!("{name} {version}");
            assert!(notices.contains(&format!("\n{crate_}: ")), "{crate_}");
            assert!(notices.matches(&crate_).count() >= 2, "{crate_} has no text");
        }
        assert!(notices.contains("Rust's standard library") && notices.contains("Permission is hereby granted"));
        for one in components {
            assert_eq!(one["hashes"][0]["content"].as_str().map(str::len), Some(64), "{one}");
        }
    }
}

#[test]
fn a_licence_that_is_not_on_the_list_is_refused() {
    if !has_python("licences") {
        return;
    }
    for (expression, accepted) in [
        ("MIT OR GPL-3.0-only", true),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
        ("Apache-2.0 WITH LLVM-exception OR MIT", true),
        ("MIT AND GPL-3.0-only", false),
        ("Apache-2.0 WITH LLVM-exception", false),
        ("GPL-3.0-only", false),
        ("", false),
    ] {
        let program = format!(
            "import sys; sys.path.insert(0, 'scripts/release'); sys.dont_write_bytecode = True; import notices\n\
             package = {{'name': 'a', 'version': '1', 'license': {expression:?}}}\n\
             print(len(notices.refused([package])))"
        );
        let refused = output(Command::new("python3").args(["-c", &program]));
        assert_eq!(refused.trim() == "0", accepted, "`{expression}`");
    }
}
