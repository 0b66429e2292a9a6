//! Two drivers answer the probe as written in `probe/expected.txt`: the emulated driver, asked
//! during the test, and a real driver with answers in `tests/results/driver.md`.

use cachalot_emulated_driver::install::built_library;
use std::path::Path;
use std::process::{Command, Output};

/// The expected answers.
const EXPECTED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/probe/expected.txt");
/// The answers of a real driver.
const REAL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/results/driver.md");

/// Asks the emulated driver.
fn ask(variables: &[(&str, &str)]) -> Output {
    let mut probe = Command::new(env!("CARGO_BIN_EXE_driver-probe"));
    probe.arg("--library").arg(built_library().expect("built")).args(["--compare", EXPECTED]);
    // A stale handle crashes a real driver.
    probe.env("CACHALOT_EMU_STRICT", "1").envs(variables.iter().copied()).output().expect("the probe")
}

/// Compares recorded answers.
fn compare(answers: &Path) -> Output {
    let mut probe = Command::new(env!("CARGO_BIN_EXE_driver-probe"));
    probe.arg("--answers").arg(answers).args(["--compare", EXPECTED]).output().expect("the probe")
}

/// Returns the output of a program as text: the answers, and the differences.
fn printed(output: &Output) -> (String, String) {
    let text = |bytes| String::from_utf8_lossy(bytes).trim().to_owned();
    (text(&output.stdout), text(&output.stderr))
}

#[test]
fn the_probe_finds_the_expected_answers() {
    let output = ask(&[]);
    let (answers, differences) = printed(&output);
    assert!(output.status.success(), "{differences}");
    // The emulated driver gives the first answers, not the second. A run without questions would
    // have no differences.
    assert!(answers.ends_with("# 1653 answers as expected, 0 differ on purpose, 0 not asked, 0 differ"), "{answers}");
}

#[test]
fn a_wrong_answer_is_found() {
    let output = ask(&[("CACHALOT_EMU_ANSWERS", r#"{"free_null": 1}"#)]);
    assert!(!output.status.success());
    let told = printed(&output).1;
    // The questions about stale handles report their aborts.
    let differences: Vec<&str> = told.lines().filter(|line| line.contains(": expected ")).collect();
    let wanted =
        ["gated cuMemFree_v2 of 0: expected no 0, answered no 1", "memory cuMemFree_v2 of 0: expected 0, answered 1"];
    assert_eq!(differences, wanted);
}

#[test]
fn a_real_driver_gave_the_expected_answers() {
    let output = compare(Path::new(REAL));
    let (told, differences) = printed(&output);
    assert!(output.status.success(), "{differences}");
    assert!(told.starts_with("# 1538 answers as expected, 115 differ on purpose, 0 not asked, 0 differ\n"), "{told}");
}

#[test]
fn a_wrong_answer_is_found_in_a_run_that_was_kept() {
    let real = std::fs::read_to_string(REAL).expect("the answers");
    let file = std::env::temp_dir().join(format!("cachalot-probe-{}.txt", std::process::id()));
    let wrong = real.replace("memory cuMemFree_v2 of 0 = 0\n", "memory cuMemFree_v2 of 0 = 1\n");
    std::fs::write(&file, wrong).expect("written");
    let output = compare(&file);
    std::fs::remove_file(file).expect("removed");
    assert!(!output.status.success());
    assert_eq!(printed(&output).1, "memory cuMemFree_v2 of 0: expected 0, answered 1");
}
