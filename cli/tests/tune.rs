//! `cachalot tune`: its recommendations on made and recorded programs, and what it refuses.

use crate::common::{Finished, cachalot, folder, trace, write};
use serde_json::Value;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

fn tune(arguments: &[&str], files: &[&Path]) -> Finished {
    let arguments = ["tune", "--trials=16"].iter().chain(arguments).map(OsString::from);
    cachalot(arguments.chain(files.iter().map(OsString::from)))
}

/// The object that `tune --json` prints.
fn found(arguments: &[&str], files: &[&Path]) -> Value {
    let finished = tune(&[&["--json"], arguments].concat(), files);
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
    let mut lines = finished.json();
    assert_eq!(lines.len(), 1);
    lines.remove(0)
}

/// A record of steps whose three blocks grow from step to step, each in its own segment.
fn growing(folder: &Path, name: &str, first: u64, steps: u64) -> PathBuf {
    let mut text = "action,addr,size,stream\n".to_owned();
    let mut at = 1 << 40;
    for step in first..first + steps {
        let size = step * 2 * MIB;
        let blocks: Vec<u64> = (0..3).map(|block| at + block * size).collect();
        at += 3 * size;
        for address in &blocks {
            let _ = write!(text, "A,{address:x},{size},0\na,{address:x},{size},0\n");
        }
        for address in &blocks {
            let _ = write!(text, "f,{address:x},{size},0\nc,{address:x},{size},0\n");
        }
    }
    write(folder, name, text)
}

/// A record of two blocks of 21 MiB: each needs 22 MiB by default, and 60 MiB of pages for both in
/// expandable segments.
fn odd(folder: &Path) -> PathBuf {
    let mut text = "action,addr,size,stream\n".to_owned();
    for number in 1..3_u64 {
        let address = number << 32;
        let _ = write!(text, "A,{address:x},{},0\na,{address:x},{},0\n", 22 * MIB, 21 * MIB);
    }
    write(folder, "odd.csv", text)
}

#[test]
fn the_settings_are_printed_with_their_variables() {
    let place = folder("settings");
    let (one, other) = (growing(&place, "one.csv", 20, 8), growing(&place, "other.csv", 31, 9));
    let finished = tune(&[], &[&one, &other]);
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
    let text = &finished.output;
    let mut paragraphs = text.split("\n\n");
    let recorded = paragraphs.next().expect("the recordings");
    assert!(recorded.starts_with("one: 1.10 GiB were reserved at the peak, for at most 162.00 MiB live"), "{text}");
    let lines: Vec<&str> = paragraphs.next().expect("the programs").lines().collect();
    assert!(lines[0].starts_with("searched: ") && lines[1].starts_with("held back: "), "{text}");
    assert!(text.contains("\n  PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"), "{text}");
    assert!(text.contains("\n  CACHALOT_CONF="), "{text}");
    // Lines are folded between words.
    let words: Vec<&str> = text.split_whitespace().collect();
    assert!(words.join(" ").contains(" where it was held back, with "), "{text}");
}

#[test]
fn settings_for_torch_alone_are_torchs() {
    let place = folder("torch");
    let (one, other) = (growing(&place, "one.csv", 20, 8), growing(&place, "other.csv", 31, 9));
    let found = found(&["--apply-to=torch"], &[&one, &other]);
    assert_eq!((&found["cachalot"], &found["torch"]["variable"]), (&Value::Null, &"PYTORCH_CUDA_ALLOC_CONF".into()));
    let tried = found["tried"].as_array().expect("a list");
    assert!(tried.len() > 8 && tried.iter().all(|tried| tried["is_of_torch"] == true));
    assert!(!tried.iter().any(|tried| tried["config"].as_str().is_some_and(|text| text.contains("policy:"))));
}

#[test]
fn a_program_held_back_refuses_what_harms_it() {
    let place = folder("held_back");
    let (seen, held) = (growing(&place, "seen.csv", 20, 8), odd(&place));
    let held_back = format!("--held-back={}", held.display());
    let found = found(&["--apply-to=torch", &held_back], &[&seen]);
    assert_eq!((&found["seen"], &found["held_back"]), (&vec!["seen"].into(), &vec!["odd"].into()));
    let tried = found["tried"].as_array().expect("a list");
    let tempting = tried.iter().find(|tried| tried["config"] == "expandable_segments:True").expect("it was tried");
    assert_eq!(tempting["note"], "unconfirmed");
    assert!(tempting["held_back"]["worst_change"].as_f64() > Some(0.3), "{tempting}");
    if let Some(worst) = found["torch"]["held_back"]["worst_change"].as_f64() {
        assert!(worst <= 0.01, "{worst}");
    }
    // The text names the program.
    let text = tune(&["--apply-to=torch", &held_back], &[&seen]).output;
    assert!(found["torch"] != Value::Null || text.contains("odd then changes by +"), "{text}");
}

#[test]
fn a_single_program_is_cut_in_two() {
    let gnn = trace("gnn_graphs.csv.gz");
    let found = found(&[], &[&gnn]);
    assert_eq!((&found["halves"], &found["held_back"]), (&true.into(), &vec!["gnn_graphs"].into()));
    for whom in ["torch", "cachalot"] {
        let [seen, held] = ["seen", "held_back"].map(|part| found[whom][part]["memory_change"].as_f64().expect(whom));
        assert!(seen < -0.5 && held < -0.5, "{whom}: {seen} {held}");
    }
    let parts = tune(&["--apply-to=torch"], &[&gnn]).output;
    assert!(parts.contains("\n\nsearched: the first part of gnn_graphs\nheld back: the later part of gnn_graphs\n"));
}

/// The setting is refused in the part held back, where it exceeds the budget and gains.
#[test]
fn what_only_the_budget_refuses_is_named_with_its_gain() {
    let options = ["tune", "--apply-to=torch", "--trials=2", "--time-budget=0.1"].map(Path::new);
    let text = cachalot(options.into_iter().chain([trace("gnn_graphs.csv.gz").as_path()])).output;
    let words = text.replace('\u{a0}', " ").split_whitespace().collect::<Vec<_>>().join(" ");
    let bound = "nothing better than the default settings was found within 0.1 µs of driver time a request; without this \
                 bound, −58.9 % where it was searched with `expandable_segments:True` (1.01 µs)";
    assert!(words.contains(bound), "{text}");
    let why = "The search does not recommend `expandable_segments:True`, which the first sentence names: gnn_graphs then takes ";
    assert!(words.contains(why) && words.contains(" µs of driver time a request after its start, "), "{text}");
    assert!(!words.contains("then changes by"), "{text}");
}

#[test]
fn a_program_too_short_to_be_cut_is_not_checked() {
    let place = folder("short");
    let finished = tune(&["--apply-to=torch"], &[&growing(&place, "short.csv", 20, 4)]);
    assert!(finished.output.contains("\nnothing could be held back, because the program is too short"));
    assert!(!finished.output.contains("where it was held back"), "{}", finished.output);
}

#[test]
fn equal_seeds_print_equal_results() {
    let gnn = trace("gnn_graphs.csv.gz");
    let with = |arguments: &[&str]| tune(arguments, &[&gnn]).output;
    assert_eq!(with(&["--json", "--seed=3"]), with(&["--json", "--seed=3"]));
    assert_ne!(with(&["--json", "--seed=3"]), with(&["--json", "--seed=4"]));
}

#[test]
fn a_deadline_ends_the_search_with_the_best_so_far() {
    let gnn = trace("gnn_graphs.csv.gz");
    let begin = Instant::now();
    let found = found(&["--deadline=0.000001"], &[&gnn]);
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    assert_eq!((&found["stopped_at_deadline"], &found["torch"]), (&true.into(), &Value::Null));
    let text = tune(&["--deadline=0.000001"], &[&gnn]).output;
    assert!(text.contains("1 candidate, stopped by the deadline\n"), "{text}");
    assert!(text.contains("For PyTorch's allocator: nothing better than the default settings was found"), "{text}");
}

#[test]
fn what_cannot_be_used_is_refused() {
    let place = folder("refused");
    let good = growing(&place, "good.csv", 20, 8);
    let refuse = |arguments: &[&str], files: &[&Path]| {
        let finished = tune(arguments, files);
        assert_eq!((finished.status, finished.output.as_str()), (2, ""), "{arguments:?}");
        finished.errors
    };
    let missing = place.join("missing.csv");
    assert!(refuse(&[], &[&good, &missing]).contains("missing.csv: cannot be read: "));
    let empty = write(&place, "empty.csv", "");
    assert!(refuse(&[], &[&empty]).contains("empty.csv:1: the file is empty"));
    assert!(
        refuse(&["--baseline=max_split_size_mb:5"], &[&good]).starts_with("--baseline: max_split_size_mb does not")
    );
    assert!(refuse(&["--costs", "/nowhere.csv"], &[&good]).starts_with("/nowhere.csv: cannot be read"));
    assert!(refuse(&["--deadline=0"], &[&good]).contains("`0` is not a number of seconds"));
    assert!(refuse(&["--most-harm=-1"], &[&good]).contains("`-1` is not a percentage"));
    assert!(refuse(&["--for=speed"], &[&good]).contains("memory, time"));
    let none = cachalot(["tune", "--trials=0", "none.csv"]);
    assert!(none.status == 2 && none.errors.contains("1..=100000"), "{}", none.errors);
    assert!(refuse(&[], &[]).contains("<FILE>"));
    let held = format!("--held-back={}", good.display());
    assert!(refuse(&[&held, "--hold-back=later"], &[&good]).contains("cannot be used with"));
}

/// The recorded program fails in its later part, which is held back. `garbage_collection_threshold`
/// saves memory of the first part, and the request still fails; `expandable_segments:True` needs
/// more, and serves it.
#[test]
fn a_setting_that_serves_a_failed_request_comes_before_one_that_saves_memory() {
    let failing = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/traces/gpt2_varlen__oom.csv.gz");
    let found = found(&["--apply-to=torch"], &[&failing]);
    let best = &found["torch"];
    assert_eq!((&best["seen"]["ooms"], &best["held_back"]["ooms"]), (&0.into(), &0.into()), "{found:#}");
    // The best is the first of the list, and the text has a column of failed requests.
    assert_eq!(found["tried"][1]["config"], best["config"]);
    let failed = |tried: &Value| tried["seen"]["ooms"].as_u64().zip(tried["held_back"]["ooms"].as_u64());
    let failed = found["tried"].as_array().expect("a list")[1..].iter().filter_map(failed);
    assert!(failed.map(|(seen, held)| seen + held).is_sorted(), "{found:#}");
    let text = tune(&["--apply-to=torch"], &[&failing]).output;
    let sentence = found["recorded"][0]["answer"]["sentence"].as_str().expect("a sentence");
    assert!(
        sentence.contains("A request of 1.26 GiB failed; enough would have been a limit of 9.12 GiB"),
        "{sentence}"
    );
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words(&text).starts_with(&words(&format!("gpt2_varlen__oom: {sentence}"))), "{text}");
    assert!(text.contains("serves the request that failed") && text.contains(" OOMs "), "{text}");
}
