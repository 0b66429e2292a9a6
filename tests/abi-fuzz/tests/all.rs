//! Tests of the fuzzer: the functions of the header, and a short campaign.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

/// Functions of simulated devices. Cases on the emulated driver cannot call these functions.
const OF_SIMULATED_DEVICES: [&str; 2] = ["cachalot_simulate_capture", "cachalot_simulate_progress"];

/// Runs the fuzzer.
fn fuzzer(arguments: &[&str]) -> (Output, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cachalot-abi-fuzz"));
    let output = command.args(arguments).output().expect("the fuzzer was just built");
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output, text)
}

/// Returns the functions declared in the header.
fn declared() -> BTreeSet<String> {
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include");
    let topics = std::fs::read_dir(include.join("cachalot")).expect("the folder exists");
    let topics = topics.map(|entry| entry.expect("an entry").path());
    let texts = topics.chain([include.join("cachalot.h")]).map(std::fs::read_to_string);
    let header: String = texts.map(|text| text.expect("the header is text")).collect();
    let declarations =
        header.lines().filter(|line| line.starts_with("CACHALOT_API") || line.starts_with("CACHALOT_CHECKED"));
    let names = declarations.filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next());
    names.map(str::to_owned).filter(|name| !OF_SIMULATED_DEVICES.contains(&name.as_str())).collect()
}

#[test]
fn every_function_of_the_header_is_known_to_the_fuzzer() {
    let (_, printed) = fuzzer(&["functions"]);
    let known: BTreeSet<String> = printed.lines().map(str::to_owned).collect();
    assert_eq!(known, declared());
}

// With one thread, a seed is the same program at every run. Four threads are the campaign's:
// tests/abi_fuzz.sh.
#[test]
fn a_short_campaign_calls_every_function_and_finds_nothing() {
    let (output, printed) = fuzzer(&[
        "campaign",
        "--seed",
        "3000",
        "--seeds",
        "24",
        "--ops",
        "800",
        "--jobs",
        "2",
        "--threads",
        "1",
        "--calls",
    ]);
    println!("{printed}");
    assert!(output.status.success(), "{printed}");
    let count = |name: &str| {
        let line = printed.lines().find(|line| line.split_whitespace().nth(1) == Some(name));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    let missing: Vec<String> = declared().into_iter().filter(|name| count(name) == 0).collect();
    assert_eq!(missing, [""; 0], "{printed}");
}
