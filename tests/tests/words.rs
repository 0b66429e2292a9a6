//! Limits the share of pointing words in doc comments.
//!
//! A *pointing word* (it, that, what, those, one, …) sends the reader back to an earlier sentence.
//! Of the words in the docs of hashbrown, smallvec, `parking_lot_core` and crossbeam, 3 to 5 %
//! point. Each crate has a limit.

use std::ffi::OsStr;
use std::path::Path;
use walkdir::WalkDir;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// The largest share of pointing words in the docs of each crate, in percent.
const LIMITS: [(&str, f64); 15] = [
    ("core/src", 4.0),
    ("planner/src", 4.0),
    ("tests/lib/src", 4.0),
    ("tests/tests", 4.0),
    ("ffi", 4.0),
    ("snapshot", 4.0),
    ("emulated-driver", 4.0),
    ("emulated-runtime", 4.0),
    ("fuzz", 4.0),
    ("tests/fuzz", 4.0),
    ("cli/src/commands/plan", 4.0),
    ("replay/src/inspect", 4.0),
    ("replay/src/plan", 4.0),
    ("tuner/src/program", 4.0),
    ("replay/src/trace", 4.0),
];

const POINTING: [&str; 25] = [
    "it", "its", "itself", "that", "what", "those", "these", "this", "one", "ones", "who", "whom", "whoever",
    "whatever", "nobody", "somebody", "anybody", "anyone", "someone", "everyone", "such", "there", "other", "others",
    "same",
];

/// Returns the text of the doc comments of a file, without code in backticks.
fn docs(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim_start);
    let docs = lines.filter_map(|line| line.strip_prefix("///").or_else(|| line.strip_prefix("//!")));
    docs.map(|line| line.split('`').step_by(2).collect::<Vec<_>>().join(" X ")).collect()
}

/// Splits a line of documentation into words.
fn words(line: &str) -> impl Iterator<Item = String> {
    let apart = line.split(|c: char| !c.is_ascii_alphabetic() && c != '\'');
    apart.filter(|word| word.starts_with(|c: char| c.is_ascii_alphabetic())).map(str::to_lowercase)
}

/// Reads the doc comments of every Rust file below a folder.
fn docs_below(folder: &str) -> Vec<String> {
    let entries = WalkDir::new(Path::new(ROOT).join(folder)).into_iter().map(|entry| entry.expect("it can be read"));
    let sources = entries.filter(|entry| entry.path().extension() == Some(OsStr::new("rs")));
    sources.flat_map(|entry| docs(&std::fs::read_to_string(entry.path()).expect("Rust is text"))).collect()
}

#[test]
fn docs_name_the_thing_they_speak_of() {
    for (folder, limit) in LIMITS {
        let docs = docs_below(folder);
        let count = |wanted: &dyn Fn(&str) -> bool| {
            docs.iter().flat_map(|line| words(line)).filter(|word| wanted(word)).count() as f64
        };
        let share = 100.0 * count(&|word| POINTING.contains(&word)) / count(&|_| true);
        println!("{folder}: {share:.2} % of the words of the docs point");
        assert!(share <= limit, "{folder}: {share:.2} % of the words of the docs point, {limit} % are allowed");
    }
}

#[test]
fn pointing_words_are_found_in_docs_and_nowhere_else() {
    let text = "//! That is one.\nlet it = 1; // what\n    /// The `it` of those.\n/// It's its own.";
    let found: Vec<String> = docs(text).iter().flat_map(|line| words(line)).collect();
    assert_eq!(found, ["that", "is", "one", "the", "x", "of", "those", "it's", "its", "own"]);
}
