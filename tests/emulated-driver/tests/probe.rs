//! The emulated driver answers the probe as written down in `probe/expected.txt`.

mod common;

use cachalot_emulated_driver::install::built_library;
use std::process::Command;

#[test]
fn the_probe_finds_the_expected_answers() {
    let expected = concat!(env!("CARGO_MANIFEST_DIR"), "/probe/expected.txt");
    let mut probe = Command::new(env!("CARGO_BIN_EXE_driver-probe"));
    probe.arg("--library").arg(built_library().expect("built")).args(["--compare", expected]);
    let output = probe.output().expect("the probe");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // A run that asked nothing would differ from nothing.
    assert!(output.stdout.len() > 10_000);
}

#[test]
fn a_wrong_answer_is_found() {
    let expected = concat!(env!("CARGO_MANIFEST_DIR"), "/probe/expected.txt");
    let mut probe = Command::new(env!("CARGO_BIN_EXE_driver-probe"));
    probe.arg("--library").arg(built_library().expect("built")).args(["--compare", expected]);
    let output = probe.env("CACHALOT_EMU_ANSWERS", r#"{"free_null": 1}"#).output().expect("the probe");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert_eq!(told.trim(), "memory cuMemFree_v2 of 0: expected 0, answered 1");
}
