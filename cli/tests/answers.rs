//! The first sentences of the tools on recordings of an H200, beside the sentences that a person
//! wants: `tests/results/answers.md`.
//!
//! `tests/answers/wanted.csv` was written before the tools had seen the recordings.

use crate::common::{cachalot, folder};
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// What a person wants to read about a recording.
struct Wanted {
    fixture: String,
    sentence: String,
    says: Vec<String>,
    says_not: Vec<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn wanted() -> Vec<Wanted> {
    let text = fs::read_to_string(root().join("tests/answers/wanted.csv")).expect("wanted.csv");
    let mut rows = csv::Reader::from_reader(text.as_bytes());
    let parts = |cell: &str| cell.split(" | ").filter(|part| !part.is_empty()).map(str::to_owned).collect();
    let row = |row: csv::StringRecord| Wanted {
        fixture: row[0].to_owned(),
        sentence: row[1].to_owned(),
        says: parts(&row[2]),
        says_not: parts(&row[3]),
    };
    rows.records().map(|found| row(found.expect("a row"))).collect()
}

fn recording(fixture: &str) -> PathBuf {
    root().join(format!("tests/answers/recordings/{fixture}.pickle.gz"))
}

/// Runs a command on a recording, and returns what it prints. Nothing if it refuses the recording.
fn printed(arguments: &[&str], fixture: &str) -> String {
    let file = recording(fixture);
    cachalot(arguments.iter().map(Path::new).chain([file.as_path()])).output
}

/// Returns the first paragraph, in one line.
fn first(text: &str) -> String {
    let paragraph = text.split("\n\n").next().unwrap_or_default();
    paragraph.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the first line of the stacks of the three largest groups, with their bytes.
fn largest(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let has_bytes = |line: &str| line.trim_start().starts_with(|letter: char| letter.is_ascii_digit());
    let is_group = |lines: &&[&str]| has_bytes(lines[0]) && lines[0].contains("  in ") && lines[0].contains(" block");
    let of = |pair: &[&str]| {
        let bytes = pair[0].split("  in ").next().unwrap_or_default().trim();
        let line = if pair[1].starts_with("              ") { pair[1] } else { pair[2] };
        format!("{bytes} {}", line.trim())
    };
    lines.windows(3).filter(is_group).take(3).map(of).collect()
}

/// Returns every value with a key, at any depth.
fn values<'v>(value: &'v Value, key: &str) -> Vec<&'v Value> {
    match value {
        Value::Object(object) => {
            let inner = object.values().flat_map(|value| values(value, key));
            object.get(key).into_iter().chain(inner).collect()
        }
        Value::Array(all) => all.iter().flat_map(|value| values(value, key)).collect(),
        _ => Vec::new(),
    }
}

/// The tools, with the options that make them quick.
const TOOLS: [&[&str]; 4] =
    [&["inspect", "--wide"], &["tune", "--trials=1"], &["compare", "--repeat=1", "--policy=caching"], &["view"]];

/// Returns what a tool says about a recording: its first paragraph, without the name of the file.
fn said(tool: &[&str], fixture: &str) -> (String, Vec<String>) {
    let page = folder(&format!("answers_{fixture}")).join("page.html");
    let options = if tool[0] == "view" { vec!["-o", page.to_str().expect("a name")] } else { Vec::new() };
    let file = recording(fixture);
    let arguments = tool.iter().copied().chain(options).map(Path::new).chain([file.as_path()]);
    let finished = cachalot(arguments);
    let text = if finished.status == 0 { &finished.output } else { &finished.errors };
    let sentence = first(text);
    let name = format!("{fixture}.pickle.gz, device 0: ");
    let place = format!("{}: ", file.display());
    let sentence = sentence.strip_prefix(&name).or(sentence.strip_prefix(&place)).unwrap_or(&sentence);
    let sentence = sentence.strip_prefix(&format!("{fixture}: ")).unwrap_or(sentence);
    (sentence.to_owned(), if tool[0] == "inspect" { largest(text) } else { Vec::new() })
}

/// Judges what a tool says. `inspect` says all that is wanted; the others say the first of it. None
/// says what is wrong.
fn verdict(tool: &str, wanted: &Wanted, sentence: &str, lines: &[String]) -> String {
    let all = std::iter::once(sentence).chain(lines.iter().map(String::as_str));
    let text = all.collect::<Vec<_>>().join("\n");
    let needed = if tool == "inspect" { wanted.says.len() } else { 1 };
    let lacking = wanted.says.iter().take(needed).filter(|part| !text.contains(part.as_str()));
    let lacking: Vec<String> = lacking.map(|part| format!("lacks {part}")).collect();
    let wrong = wanted.says_not.iter().filter(|part| text.contains(part.as_str())).map(|part| format!("says {part}"));
    let faults: Vec<String> = lacking.into_iter().chain(wrong).collect();
    if faults.is_empty() { "right".to_owned() } else { format!("wrong: {}", faults.join(", ")) }
}

#[test]
fn the_first_sentences_are_those_of_the_table() {
    let mut table = csv::Writer::from_writer(Vec::new());
    table.write_record(["recording", "wanted", "tool", "first sentence", "top lines", "judged"]).expect("memory");
    let mut counts = String::new();
    for wanted in wanted() {
        for tool in TOOLS {
            let (sentence, lines) = said(tool, &wanted.fixture);
            let judged = verdict(tool[0], &wanted, &sentence, &lines);
            if judged != "right" {
                let _ = writeln!(counts, "{} {}: {judged}: {sentence}", wanted.fixture, tool[0]);
            }
            let row = [&wanted.fixture, &wanted.sentence, tool[0], &sentence, &lines.join("; "), &judged];
            table.write_record(row).expect("memory");
        }
    }
    let text = String::from_utf8(table.into_inner().expect("memory")).expect("text");
    let file = root().join("tests/results/answers/answers.csv");
    if std::env::var_os("CACHALOT_WRITE_DOCS").is_some() {
        fs::write(&file, &text).expect("a file");
    }
    assert!(text == fs::read_to_string(&file).unwrap_or_default(), "CACHALOT_WRITE_DOCS=1 writes {}", file.display());
    assert!(counts.is_empty(), "{counts}");
}

/// The saving of the first sentence, and what it is measured against.
#[test]
fn inspect_compare_view_and_tune_agree_on_the_saving_to_the_byte() {
    for Wanted { fixture, .. } in wanted() {
        let object = |arguments: &[&str]| -> Value {
            let text = printed(arguments, &fixture);
            serde_json::from_str(text.lines().next().unwrap_or("null")).expect("JSON")
        };
        let page = folder(&format!("agree_{fixture}")).join("page.html");
        let page = page.to_str().expect("a name");
        let told = [
            object(&["inspect", "--json"]),
            object(&["compare", "--json", "--repeat=1", "--policy=caching"]),
            object(&["view", "--json", "-o", page]),
            object(&["tune", "--json", "--trials=1", "--apply-to=torch"]),
        ];
        for key in ["better", "replayed_bytes", "idle_before_bytes"] {
            let found: Vec<Option<&Value>> = told.iter().map(|told| values(told, key).first().copied()).collect();
            let found: Vec<&Value> = found.into_iter().flatten().filter(|value| !value.is_null()).collect();
            assert!(found.iter().all(|&value| value == found[0]), "{fixture} {key}: {found:?}");
        }
        // One event is no history, about which `inspect` tells the end.
        let [inspect, .., tune] = &told;
        if !values(inspect, "better").is_empty() && !tune.is_null() {
            assert_eq!(values(inspect, "sentence")[0], values(tune, "sentence")[0], "{fixture}");
        }
    }
}
