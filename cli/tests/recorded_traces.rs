//! `cachalot replay` on every recorded trace of the repository.

use crate::common::{Finished, cachalot, folder, gzip, text_of, trace, traces_with, write};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

/// The keys of a line of `--json`, in order.
const KEYS: [&str; 18] = [
    "schema",
    "file",
    "record",
    "policy",
    "allocations",
    "checked",
    "mismatches",
    "stats_checked",
    "stats_mismatches",
    "peak_live_bytes",
    "peak_reserved_bytes",
    "utilisation",
    "device_allocs",
    "device_frees",
    "ns_per_op",
    "ooms",
    "largest_failed_bytes",
    "stats",
];

/// The statistics of `torch.cuda.memory_stats()` in `PyTorch` 2.11.
const STATISTICS: u64 = 122;

fn replay(arguments: &[&str], files: impl IntoIterator<Item = PathBuf>) -> Finished {
    let arguments = ["replay"].iter().chain(arguments).map(OsString::from);
    cachalot(arguments.chain(files.into_iter().map(OsString::from)))
}

fn number(line: &Value, key: &str) -> u64 {
    line[key].as_u64().unwrap_or_else(|| panic!("{key} of {line} is no whole number"))
}

/// Returns the rows of the table in the traces' own description, by trace.
fn described() -> BTreeMap<String, Vec<u64>> {
    let text = fs::read_to_string(trace("README.md")).expect("the description of the traces");
    let rows = text.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| trace"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        (cells[0].to_owned(), cells[2..].iter().map(|cell| cell.parse().expect(row)).collect())
    })
    .collect()
}

#[test]
fn every_trace_is_repeated_without_a_mismatch() {
    let files = traces_with(".csv.gz");
    let described = described();
    assert_eq!(files.len(), described.len());
    let finished = replay(&["--check", "--json"], files);
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
    let lines = finished.json();
    assert_eq!(lines.len(), described.len());
    for line in &lines {
        let name = line["record"].as_str().expect("a name");
        assert_eq!((number(line, "mismatches"), number(line, "stats_mismatches")), (0, 0), "{name}");
        assert_eq!(number(line, "stats_checked"), STATISTICS, "{name}");
        assert!(number(line, "checked") > 3 * number(line, "allocations"), "{name}");
        let stat = |key: &str| number(&line["stats"], key);
        let replayed = [
            number(line, "allocations"),
            number(line, "peak_live_bytes"),
            stat("allocated_bytes.all.peak"),
            number(line, "peak_reserved_bytes"),
            number(line, "device_allocs"),
            number(line, "device_frees"),
            stat("num_alloc_retries"),
            stat("num_ooms"),
        ];
        assert_eq!(described[name], replayed, "{name}");
    }
}

#[test]
fn a_check_ends_with_a_sentence() {
    let last = |options: &[&str], files: &[&str]| {
        let finished = replay(&[&["--check"], options].concat(), files.iter().map(|file| trace(file)));
        finished.output.lines().last().expect("a line").to_owned()
    };
    let those = "are those of the recorded allocator";
    let one = last(&[], &["mlp_seed.csv.gz"]);
    assert_eq!(one, format!("mlp_seed: all 252 decisions and all 122 statistics {those}"));
    let both = last(&[], &["mlp_seed.csv.gz", "gpt2_varlen.csv.gz"]);
    assert_eq!(both, format!("2 traces: all 96,124 decisions and all 244 statistics {those}"));
    let other = last(&["--config", "expandable_segments:True"], &["mlp_seed.csv.gz"]);
    let differences = "261 differences in 252 decisions and 39 differences in 122 statistics";
    assert_eq!(other, format!("mlp_seed: {differences}"));
}

#[test]
fn a_snapshot_is_repeated_with_the_segments_at_its_end() {
    let finished = replay(&["--check", "--json"], traces_with(".pickle.gz"));
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
    let lines = finished.json();
    assert_eq!(lines.len(), 2);
    for (line, (name, events)) in lines.iter().zip([("mlp_seed__stacks", 220), ("multistream_prefetch__stacks", 25447)])
    {
        assert_eq!(line["record"], name);
        assert_eq!(number(line, "mismatches"), 0);
        // The segments and blocks of the snapshot come on top of the events.
        assert!(number(line, "checked") > events, "{line}");
        assert_eq!(number(line, "stats_checked"), 0);
    }
}

#[test]
fn a_line_of_json_has_exactly_the_documented_keys() {
    let finished = replay(&["--json"], [trace("mlp_seed.csv.gz")]);
    assert_eq!(finished.status, 0);
    let mut at = 0;
    for key in KEYS {
        let found =
            finished.output[at..].find(&format!("\"{key}\":")).unwrap_or_else(|| panic!("{key} is not in its place"));
        at += found;
    }
    let line = &finished.json()[0];
    assert_eq!(line.as_object().expect("an object").len(), KEYS.len());
    assert_eq!(line["policy"], "caching");
    assert_eq!((number(line, "checked"), number(line, "mismatches")), (0, 0));
    assert!(line["ns_per_op"].as_f64().expect("a number") > 0.0);
    let utilisation = number(line, "peak_live_bytes") as f64 / number(line, "peak_reserved_bytes") as f64;
    assert!((line["utilisation"].as_f64().expect("a number") - utilisation).abs() < 1e-12);
    assert!(line["stats"].as_object().expect("an object").len() as u64 >= STATISTICS);
}

#[test]
fn the_table_names_each_trace_with_its_figures() {
    let finished = replay(&["--check", "--repeat", "3"], [trace("mlp_seed.csv.gz"), trace("gpt2_varlen__oom.csv.gz")]);
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
    let row = |finished: &Finished, name: &str| {
        let line = finished.output.lines().find(|line| line.starts_with(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("{name} is not in the table")).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row(&finished, "mlp_seed"), "mlp_seed 534.00 MiB 252 0 122 0");
    let wide = replay(&["--check", "--wide"], [trace("mlp_seed.csv.gz"), trace("gpt2_varlen__oom.csv.gz")]);
    let mlp = row(&wide, "mlp_seed");
    assert!(mlp.starts_with("mlp_seed 64 506.01 MiB 534.00 MiB 94.8 % 0 32 "), "{mlp}");
    assert!(mlp.ends_with(" 252 0 122 0"), "{mlp}");
    let oom = row(&wide, "gpt2_varlen__oom");
    assert!(oom.starts_with("gpt2_varlen__oom 2410 7.56 GiB 7.85 GiB 96.3 % 1 "), "{oom}");
}

#[test]
fn files_are_recognised_by_their_content() {
    let folder = folder("recognised");
    let csv = write(&folder, "plain.log", text_of("mlp_seed.csv.gz"));
    let compressed = fs::read(trace("mlp_seed__stacks.pickle.gz")).expect("a snapshot");
    let snapshot = write(&folder, "snapshot.bin", compressed);
    let finished = replay(&["--check", "--json"], [csv, snapshot]);
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
    let names: Vec<Value> = finished.json().iter().map(|line| line["record"].clone()).collect();
    assert_eq!(names, ["plain.log", "snapshot.bin"]);
}

#[test]
fn another_configuration_leads_to_other_segments_and_is_not_checked() {
    let own = replay(&["--json"], [trace("multistream_prefetch.csv.gz")]).json().remove(0);
    let finished = replay(&["--json", "--config", "expandable_segments:True"], [trace("multistream_prefetch.csv.gz")]);
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
    let other = finished.json().remove(0);
    assert_eq!(number(&other, "checked"), 0);
    assert_eq!(number(&other, "allocations"), number(&own, "allocations"));
    assert_eq!(number(&other, "peak_live_bytes"), number(&own, "peak_live_bytes"));
    assert!(number(&other, "peak_reserved_bytes") < number(&own, "peak_reserved_bytes"));
    assert_eq!(other["stats"]["segment.all.allocated"], 0);
}

#[test]
fn passes_are_run_on_one_allocator() {
    let file = || [trace("mlp_seed.csv.gz")];
    let once = replay(&["--json", "--passes=1", "--ignore-empty-cache"], file()).json().remove(0);
    let twice = replay(&["--json", "--passes=2", "--ignore-empty-cache"], file()).json().remove(0);
    // The second pass obtains a segment that the first could do without, and nothing is released.
    for (line, obtained) in [(&once, 20), (&twice, 21)] {
        assert_eq!((number(line, "device_allocs"), number(line, "device_frees")), (obtained, 0), "{line}");
    }
    for line in [&once, &twice] {
        assert_eq!((number(line, "allocations"), number(line, "checked")), (64, 0));
        assert_eq!(line["peak_live_bytes"], once["peak_live_bytes"]);
        assert_eq!(line["cold_us_per_allocation"], once["cold_us_per_allocation"]);
    }
    assert_eq!((number(&once, "passes"), number(&twice, "passes")), (1, 2));
    assert_eq!(once["steady_us_per_allocation"], Value::Null);
    // A segment of 48 MiB, between 32 µs for 20 MiB and 49 µs for 200 MiB, for 64 requests.
    let steady = twice["steady_us_per_allocation"].as_f64().expect("a second pass");
    assert!((steady - 34.644 / 64.0).abs() < 1e-9, "{steady}");
    // With its own calls that empty the cache the program releases 8 segments in a pass, as the
    // record says.
    let emptied = replay(&["--json", "--passes=1"], file()).json().remove(0);
    assert_eq!((number(&emptied, "device_allocs"), number(&emptied, "device_frees")), (24, 8));
}

#[test]
fn a_limit_that_follows_from_what_is_live_is_kept_to() {
    let finished = replay(&["--json", "--limit-factor=1.05"], [trace("llm_generate.csv.gz")]);
    assert_eq!(finished.status, 1);
    assert!(finished.errors.starts_with("llm_generate: out of memory: "), "{}", finished.errors);
    let line = finished.json().remove(0);
    // 1.05 times 1,409,217,536 bytes.
    assert!(number(&line, "ooms") > 0 && number(&line, "peak_reserved_bytes") <= 1_479_678_412, "{line}");
}

#[test]
fn what_is_checked_is_not_varied() {
    for option in
        ["--passes=2", "--ignore-empty-cache", "--ignore-record-stream", "--ignore-captures", "--limit-factor=2"]
    {
        let finished = replay(&["--check", option], [trace("mlp_seed.csv.gz")]);
        assert!(finished.status == 2 && finished.errors.contains("cannot be used with"), "{}", finished.errors);
    }
}

#[test]
fn another_limit_is_kept_to() {
    let finished = replay(&["--json", "--limit", "300MiB"], [trace("mlp_seed.csv.gz")]);
    let complaint =
        "mlp_seed: out of memory: 11 requests that the recorded program was served; the largest has 48.00 MiB\n";
    assert_eq!((finished.status, finished.errors.as_str()), (1, complaint));
    let line = finished.json().remove(0);
    assert_eq!((number(&line, "ooms"), number(&line, "largest_failed_bytes")), (11, 48 << 20));
    assert!(number(&line, "peak_reserved_bytes") <= 300 << 20);
    // Refused requests were never live.
    assert!(number(&line, "peak_live_bytes") <= number(&line, "peak_reserved_bytes"));
    assert!(line["stats"]["num_ooms"].as_u64().expect("a number") > 0);
}

#[test]
fn a_limit_in_decimal_units() {
    let binary = replay(&["--json", "--limit", "300000kB"], [trace("mlp_seed.csv.gz")]).json().remove(0);
    let decimal = replay(&["--json", "--limit", "300MB"], [trace("mlp_seed.csv.gz")]).json().remove(0);
    assert_eq!(binary["stats"], decimal["stats"]);
    assert!(number(&decimal, "peak_reserved_bytes") <= 300_000_000);
}

#[test]
fn a_request_that_failed_in_the_recording_too_is_counted_and_no_failure() {
    let finished = replay(&[], [trace("gpt2_varlen__oom.csv.gz")]);
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
    let row: Vec<&str> = finished.output.lines().last().expect("a row").split_whitespace().collect();
    assert_eq!((row[0], row.last()), ("gpt2_varlen__oom", Some(&"1")));
    // The limit causes failures besides the recorded failure.
    let finished = replay(&["--limit", "7GiB"], [trace("gpt2_varlen__oom.csv.gz")]);
    assert_eq!(finished.status, 1);
    let complaint = "that the recorded program was served, and 1 that failed in the recording too; the largest has ";
    assert!(finished.errors.contains(complaint), "{}", finished.errors);
}

#[test]
fn the_first_difference_shows_both_decisions_and_the_blocks_considered() {
    let arguments = ["--check", "--json", "--config", "max_split_size_mb:20"];
    let file = trace("mlp_seed.csv.gz");
    let finished = replay(&arguments, [file.clone()]);
    assert_eq!(finished.status, 1);
    let line = finished.json().remove(0);
    assert!(number(&line, "mismatches") > 1 && number(&line, "stats_mismatches") > 1, "{line}");
    let expected = format!(
        "{}:87: the first difference
  recorded:
    hands out 12582912 bytes at 7fbaee000000 on stream 0
  replayed:
    obtains a segment of 12582912 bytes at ",
        file.display()
    );
    assert!(finished.errors.starts_with(&expected), "{}", finished.errors);
    let considered = "
  of the 4 free blocks of stream 0 in the large pools, 2 have the 12582912 bytes that are needed:
    25165824 bytes at 7fbaee000000, stream 0, pool (0, 0), in a segment of 25165824 bytes at 7fbaee000000
    50331648 bytes at 7fbaf6000000, stream 0, pool (0, 0), in a segment of 50331648 bytes at 7fbaf6000000
";
    assert!(finished.errors.ends_with(considered), "{}", finished.errors);
}

/// Checks `mlp_seed` with a changed word in the file about the end. Returns the result of the
/// check.
fn check_with_end(test: &str, from: &str, to: &str) -> Finished {
    let folder = folder(test);
    let record = write(&folder, "mlp.csv", text_of("mlp_seed.csv.gz"));
    let end = text_of("mlp_seed.expected.json.gz");
    assert_eq!(end.matches(from).count(), 1, "{from}");
    write(&folder, "mlp.expected.json.gz", gzip(end.replace(from, to)));
    replay(&["--check", "--json"], [record])
}

#[test]
fn a_statistic_that_differs_at_the_end_is_named() {
    let finished = check_with_end("statistic", "\"num_device_free\": 8", "\"num_device_free\": 9");
    assert_eq!(finished.status, 1);
    assert!(
        finished.errors.ends_with("at the end, num_device_free\n  recorded: 9\n  replayed: 8\n"),
        "{}",
        finished.errors
    );
    let line = finished.json().remove(0);
    assert_eq!((number(&line, "mismatches"), number(&line, "stats_mismatches")), (0, 1));
}

#[test]
fn a_block_that_differs_at_the_end_is_shown() {
    let from = "\"size\": 2097152, \"requested_size\": 4, \"state\": \"inactive\"";
    let finished = check_with_end("block", from, &from.replace(": 4,", ": 8,"));
    assert_eq!(finished.status, 1);
    let line = finished.json().remove(0);
    assert_eq!((number(&line, "mismatches"), number(&line, "stats_mismatches")), (1, 0));
    let shown = "at the end, the block at 7fbb13400000
  recorded: 2097152 bytes, free, 8 requested
  replayed: 2097152 bytes, free, 4 requested
";
    assert!(finished.errors.ends_with(shown), "{}", finished.errors);
}

#[test]
fn a_configuration_that_is_recorded_and_unusable_is_bad_input() {
    let finished = check_with_end("unusable", "\"config\": \"\"", "\"config\": \"max_split_size_mb:2\"");
    assert_eq!((finished.status, finished.output.as_str()), (2, ""));
    assert!(finished.errors.contains("mlp.csv: the recorded configuration `max_split_size_mb:2` cannot be used: "));
    assert_eq!(finished.errors.lines().count(), 1);
}
