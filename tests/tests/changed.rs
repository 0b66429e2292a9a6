//! Checks which crates `tests/changed.sh` names for a change, by which `tests/run quick` and
//! `change` choose tests.

use std::collections::BTreeSet;
use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Returns the crates that the script names, without the prefix that they share.
fn changed(arguments: &[&str]) -> BTreeSet<String> {
    let output = Command::new("tests/changed.sh").args(arguments).current_dir(ROOT).output().expect("bash is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let names = String::from_utf8(output.stdout).expect("names are ASCII");
    names.lines().map(|name| name.strip_prefix("cachalot-").unwrap_or(name).to_owned()).collect()
}

#[test]
fn a_file_belongs_to_the_innermost_crate_or_to_the_crates_that_test_it() {
    let cases: [(&str, &[&str]); 8] = [
        ("cli/src/main.rs", &["cli"]),
        ("tests/lib/src/model.rs", &["tests-lib"]),
        ("run/gate/src/gate.rs", &["gate"]),
        ("run/src/real.rs", &["run"]),
        ("include/cachalot.h", &["cachalot"]),
        ("docs/run.md", &["cli", "tests"]),
        ("python/cachalot_gpu/torch.py", &["library"]),
        ("scripts/setup/nvcc.sh", &[]),
    ];
    for (file, crates) in cases {
        let found = changed(&[file]);
        assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), crates, "{file}");
    }
    assert!(changed(&["Cargo.lock"]).len() > 20);
}

#[test]
fn with_its_users_a_crate_comes_with_every_crate_above_it() {
    let of_gate = changed(&["--users", "run/gate/src/gate.rs"]);
    assert!(["gate", "run", "front", "cli"].iter().all(|&name| of_gate.contains(name)), "{of_gate:?}");
    assert!(["core", "cuda", "cachalot", "stress"].iter().all(|&name| !of_gate.contains(name)), "{of_gate:?}");
    assert_eq!(changed(&["--users", "cli/src/main.rs"]).len(), 1);
    assert!(changed(&["--users", "planner/src/lib.rs"]).is_superset(&changed(&["--users", "core/src/lib.rs"])));
    assert_eq!(changed(&["--users", "scripts/setup/nvcc.sh"]).len(), 0);
}
