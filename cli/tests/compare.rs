//! `cachalot compare`: its figures on programs that can be worked out by hand, its forms of output,
//! and what it refuses.

use crate::common::{self, Finished, cachalot, cachalot_in, folder, trace, write};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// A small and a large block, then a second small one in the place of the first.
const THREE_BLOCKS: &str = "\
action,addr,size,stream,note
A,100000000,2097152,0,
a,100000000,1000,0,
A,200000000,20971520,0,
a,200000000,2000000,0,
f,100000000,1000,0,
c,100000000,1000,0,
a,100000000,3000,0,
f,200000000,2000000,0,
c,200000000,2000000,0,
";

/// A block that another stream still uses when the next one is requested.
const PENDING_BLOCK: &str = "\
action,addr,size,stream
A,100000000,2097152,0
a,100000000,1000,0
f,100000000,1000,0
a,100000400,1000,0
c,100000000,1000,0
a,100000000,1000,0
";

const MIB: u64 = 1 << 20;

fn compare(arguments: &[&str], files: &[&Path]) -> Finished {
    let arguments = ["compare", "--repeat=1"].iter().chain(arguments).map(OsString::from);
    cachalot(arguments.chain(files.iter().map(OsString::from)))
}

/// The last line that `compare --json` prints for a file. A recording with other settings comes
/// first.
fn line(arguments: &[&str], file: &Path) -> Value {
    let finished = compare(&[&["--json"], arguments].concat(), &[file]);
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
    let mut lines = finished.json();
    assert!(lines.len() <= 2 && lines[0]["is_recorded"].is_boolean(), "{lines:?}");
    lines.remove(lines.len() - 1)
}

fn three_blocks(test: &str) -> PathBuf {
    write(&folder(test), "three.csv", THREE_BLOCKS)
}

fn number(line: &Value, key: &str) -> u64 {
    line[key].as_u64().unwrap_or_else(|| panic!("{key} of {line} is no whole number"))
}

fn assert_near(line: &Value, key: &str, expected: f64) {
    let is = line[key].as_f64().expect(key);
    assert!((is - expected).abs() < 1e-9, "{key} is {is}, not {expected}");
}

/// The calls that were made, and how often.
fn calls(line: &Value) -> Vec<(&str, u64)> {
    let calls = line["device_calls"].as_object().expect("an object").iter();
    calls.map(|(name, count)| (name.as_str(), count.as_u64().expect(name))).filter(|&(_, count)| count > 0).collect()
}

#[test]
fn the_caching_policy_shares_two_segments() {
    let line = line(&["--policy=caching"], &three_blocks("caching"));
    let mut keys: Vec<&str> = line.as_object().expect("an object").keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(
        keys,
        [
            "allocations",
            "answer",
            "cold_us_per_allocation",
            "config",
            "device_calls",
            "driver_us",
            "driver_us_by_call",
            "file",
            "fragmentation",
            "is_recorded",
            "largest_failed_bytes",
            "limit_bytes",
            "longest_stall_us",
            "ns_per_op",
            "ooms",
            "operations",
            "passes",
            "peak_live_bytes",
            "peak_reserved_bytes",
            "policy",
            "record",
            "schema",
            "steady_us_per_allocation",
            "tells_config",
            "utilisation",
        ]
    );
    assert_eq!((&line["record"], &line["policy"], &line["config"]), (&"three".into(), &"caching".into(), &"".into()));
    // 2,000,000 and 3,000 at the end; a segment of the small pool and a shared one of the large
    // pool.
    assert_eq!(number(&line, "peak_live_bytes"), 2_003_000);
    assert_eq!(number(&line, "peak_reserved_bytes"), 22 * MIB);
    assert_near(&line, "utilisation", 2_003_000.0 / 23_068_672.0);
    assert_eq!(calls(&line), [("cuMemAlloc", 2)]);
    assert_near(&line, "driver_us", 31.0 + 32.0);
    assert_near(&line["driver_us_by_call"], "cuMemAlloc", 31.0 + 32.0);
    assert_near(&line["driver_us_by_call"], "cuMemFree", 0.0);
    assert_eq!((number(&line, "allocations"), number(&line, "passes")), (3, 1));
    assert_near(&line, "cold_us_per_allocation", (31.0 + 32.0) / 3.0);
    assert_eq!(line["steady_us_per_allocation"], Value::Null);
    assert_near(&line, "longest_stall_us", 32.0);
    // Free when the second segment had been obtained: 2 MiB − 1,024 and 20 MiB − 2,000,384.
    assert_near(&line, "fragmentation", 1.0 - 18_971_136.0 / (2_096_128.0 + 18_971_136.0));
    assert_eq!((number(&line, "ooms"), number(&line, "largest_failed_bytes"), number(&line, "operations")), (0, 0, 5));
    assert_eq!(line["limit_bytes"], Value::Null);
    assert!(line["ns_per_op"].as_f64().is_some_and(|time| time > 0.0));
}

#[test]
fn the_direct_policy_calls_the_device_each_time() {
    let line = line(&["--policy=direct"], &three_blocks("direct"));
    assert_eq!(calls(&line), [("cuMemAlloc", 3), ("cuMemFree", 2)]);
    assert_eq!(number(&line, "peak_live_bytes"), 2_003_000);
    assert_eq!(number(&line, "peak_reserved_bytes"), 2_000_384 + 3_072);
    assert_near(&line, "driver_us", 3.0 * 31.0 + 2.0 * 24.0);
    assert_near(&line, "fragmentation", 0.0);
}

#[test]
fn mappings_cost_by_granule() {
    let config = "--config=policy:caching,expandable_segments:True";
    let finished = compare(&["--json", "--policy=caching", config], &[&three_blocks("mappings")]);
    let line = &finished.json()[1];
    assert_eq!(line["config"], "expandable_segments:True");
    let mut made = calls(line);
    made.sort_unstable();
    let each = ["cuMemAddressReserve", "cuMemCreate", "cuMemGetInfo", "cuMemMap", "cuMemSetAccess"];
    assert_eq!(made, each.map(|call| (call, 2)));
    // 2 and 20 MiB: created, mapped, made accessible. The handles stay with the allocator.
    let (small, large) = (9.0 + 0.6 + 23.5, 9.0 + 0.6 + 23.909);
    assert_near(line, "driver_us", 2.0 * (4.5 + 3.2) + small + large);
}

#[test]
fn passes_share_an_allocator_and_free_what_they_leave() {
    let file = three_blocks("passes");
    // The block of 3,000 bytes is live at the end of each pass.
    let direct = line(&["--policy=direct", "--passes=3"], &file);
    assert_eq!(calls(&direct), [("cuMemAlloc", 9), ("cuMemFree", 8)]);
    assert_eq!((number(&direct, "passes"), number(&direct, "allocations")), (3, 3));
    let (cold, steady) = (3.0 * 31.0 + 2.0 * 24.0, 3.0 * 31.0 + 3.0 * 24.0);
    assert_near(&direct, "driver_us", cold + 2.0 * steady);
    assert_near(&direct, "cold_us_per_allocation", cold / 3.0);
    assert_near(&direct, "steady_us_per_allocation", steady / 3.0);
    assert_near(&direct, "longest_stall_us", 31.0);
    assert_eq!(number(&direct, "peak_reserved_bytes"), 2_000_384 + 3_072);

    let caching = line(&["--policy=caching", "--passes=2"], &file);
    assert_eq!(calls(&caching), [("cuMemAlloc", 2)]);
    assert_near(&caching, "cold_us_per_allocation", (31.0 + 32.0) / 3.0);
    assert_near(&caching, "steady_us_per_allocation", 0.0);
    assert_eq!((number(&caching, "peak_live_bytes"), number(&caching, "peak_reserved_bytes")), (2_003_000, 22 * MIB));
}

#[test]
fn a_recorded_program_is_cold_once() {
    let file = trace("resnet50_amp.csv.gz");
    let passes = |options: &[&str]| line(&[&["--policy=caching"], options].concat(), &file);
    let (one, six) = (passes(&["--passes=1", "--ignore-empty-cache"]), passes(&["--passes=6", "--ignore-empty-cache"]));
    assert_eq!(one["cold_us_per_allocation"], six["cold_us_per_allocation"]);
    assert_eq!(one["peak_live_bytes"], six["peak_live_bytes"]);
    assert_eq!(
        six,
        passes(&["--passes=6", "--ignore-empty-cache"])
            .as_object()
            .map(|again| {
                let mut again = again.clone();
                again.insert("ns_per_op".to_owned(), six["ns_per_op"].clone());
                Value::Object(again)
            })
            .expect("an object"),
        "the estimates are the same each time"
    );
    // A program that empties its cache obtains the memory again in each pass.
    let emptied = passes(&["--passes=6"]);
    let steady = |line: &Value| line["steady_us_per_allocation"].as_f64().expect("later passes");
    assert!(steady(&emptied) > 1.0 && steady(&six) < 0.1, "{} and {}", steady(&emptied), steady(&six));
}

#[test]
fn memory_in_use_by_other_streams_can_be_reused_at_once() {
    let file = write(&folder("at_once"), "pending.csv", PENDING_BLOCK);
    let line = line(&["--policy=direct", "--ignore-record-stream"], &file);
    // The second block has the memory of the first; the third is next to it.
    assert_eq!((number(&line, "peak_live_bytes"), number(&line, "peak_reserved_bytes")), (2_000, 2 * 1_024));
    assert_eq!(calls(&line), [("cuMemAlloc", 3), ("cuMemFree", 1)]);
}

#[test]
fn a_freed_block_that_is_never_complete_does_not_pile_up_over_the_passes() {
    let record = "action,addr,size,stream\nA,100000000,2097152,0\na,100000000,1000,0\nf,100000000,1000,0\n";
    let file = write(&folder("incomplete"), "incomplete.csv", record);
    let line = line(&["--policy=caching", "--passes=50"], &file);
    assert_eq!((number(&line, "peak_live_bytes"), number(&line, "peak_reserved_bytes")), (1_000, 2 * MIB));
    let line = self::line(&["--policy=direct", "--passes=50"], &file);
    assert_eq!(number(&line, "peak_reserved_bytes"), 1_024, "{line}");
}

#[test]
fn captured_graphs_can_share_the_default_pool() {
    let file = trace("cuda_graphs__graph.csv.gz");
    let apart = line(&["--policy=caching"], &file);
    let together = line(&["--policy=caching", "--ignore-captures"], &file);
    assert_eq!(apart["peak_live_bytes"], together["peak_live_bytes"]);
    assert!(number(&together, "peak_reserved_bytes") < number(&apart, "peak_reserved_bytes"), "{apart}, {together}");
}

#[test]
fn a_limit_can_be_a_multiple_of_what_is_live() {
    let folder = folder("limit_factor");
    let one = write(&folder, "one.csv", THREE_BLOCKS);
    let fits = line(&["--policy=direct", "--limit-factor=1.05"], &one);
    // 2,003,000 bytes live at the peak.
    assert_eq!((number(&fits, "limit_bytes"), number(&fits, "ooms")), (2_103_150, 0));
    // 2,040 bytes: two blocks of 1,024 do not fit. A segment of the small pool alone has 2 MiB.
    let other = write(&folder, "other.csv", PENDING_BLOCK);
    let finished = compare(&["--policy=caching,direct", "--limit-factor=1.02"], &[&one, &other]);
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
    let last: Vec<&str> = finished.output.lines().rev().take(2).collect();
    assert_eq!(
        last,
        ["direct: 1 trace of 2 runs out of memory: other", "caching: 2 traces of 2 run out of memory: one, other"]
    );
    for (factor, what) in [("0", "`0` is not a factor"), ("x", "`x` is not a factor")] {
        let refused = compare(&["--limit-factor", factor], &[&one]);
        assert!(refused.status == 2 && refused.errors.contains(what), "{}", refused.errors);
    }
    let both = compare(&["--limit-factor=1.05", "--limit=4MiB"], &[&one]);
    assert!(both.status == 2 && both.errors.contains("cannot be used with"), "{}", both.errors);
}

#[test]
fn a_request_beyond_the_limit_is_counted_and_the_program_goes_on() {
    let line = line(&["--policy=caching", "--limit=4MiB"], &three_blocks("limit"));
    assert_eq!((number(&line, "ooms"), number(&line, "largest_failed_bytes")), (1, 2_000_000));
    assert_eq!((number(&line, "peak_live_bytes"), number(&line, "peak_reserved_bytes")), (3_000, 2 * MIB));
    assert_eq!(number(&line, "limit_bytes"), 4 * MIB);
    assert_eq!(calls(&line), [("cuMemAlloc", 1), ("cuMemGetInfo", 1)]);
}

#[test]
fn a_call_that_is_refused_leaves_the_other_contenders() {
    let config = "per_process_memory_fraction:0.00001,throw_on_cudamalloc_oom:True";
    let finished = compare(&["--json", "--policy=caching", "--config", config], &[&three_blocks("refused")]);
    assert_eq!(finished.status, 1);
    assert!(finished.errors.contains(&format!("caching with `{config}` refused call 1 of the program: ")));
    assert_eq!(finished.errors.lines().count(), 1);
    assert_eq!(finished.json().len(), 1);
}

#[test]
fn a_freed_block_is_other_streams_until_the_record_says_so() {
    let line = line(&["--policy=direct"], &write(&folder("pending"), "pending.csv", PENDING_BLOCK));
    assert_eq!(number(&line, "peak_live_bytes"), 2_000);
    // Two blocks at the second request already, and no third one.
    assert_eq!(number(&line, "peak_reserved_bytes"), 2 * 1_024);
    assert!(calls(&line).contains(&("cuMemFree", 1)), "{line}");
}

#[test]
fn a_table_of_costs_takes_the_place_of_the_h200s() {
    let file = three_blocks("costs");
    let costs = write(file.parent().expect("a folder"), "costs.csv", "# A slow one.\ncall,bytes,us\ncuMemAlloc,,100\n");
    let costs = costs.to_str().expect("a name");
    assert_near(&line(&["--policy=caching", "--costs", costs], &file), "driver_us", 200.0);

    let bad = write(file.parent().expect("a folder"), "bad.csv", "call,bytes,us\ncuMemAlloc,2MiB,100\n");
    let bad = bad.to_str().expect("a name");
    let finished = compare(&["--costs", bad], &[&file]);
    assert_eq!((finished.status, finished.output.as_str()), (2, ""));
    assert_eq!(finished.errors, format!("{bad}:2: the size `2MiB` is not a number of bytes\n"));
}

#[test]
fn the_caching_policy_does_as_in_a_replay() {
    for name in ["mlp_seed", "resnet50_amp", "multistream_prefetch", "cuda_graphs__graph", "gpt2_varlen__oom"] {
        let file = trace(&format!("{name}.csv.gz"));
        let compared = line(&["--policy=caching"], &file);
        let replay = |options: &[&str]| {
            let options = ["replay", "--json"].iter().chain(options).map(OsString::from);
            cachalot(options.chain([file.clone().into_os_string()])).json().remove(0)
        };
        // The peaks are those of the recording, and the calls those of a replay at other addresses.
        let followed = replay(&[]);
        for key in ["record", "peak_live_bytes", "peak_reserved_bytes", "utilisation", "ooms"] {
            assert_eq!(compared[key], followed[key], "{key} of {name}");
        }
        let replayed = replay(&["--config", ""]);
        let calls = &compared["device_calls"];
        assert_eq!(calls["cuMemAlloc"], replayed["device_allocs"], "{name}");
        assert_eq!(calls["cuMemFree"], replayed["device_frees"], "{name}");
    }
}

#[test]
fn the_cache_is_emptied_where_the_program_did() {
    let file = trace("mlp_seed.csv.gz");
    assert_eq!(calls(&line(&["--policy=caching"], &file)), [("cuMemAlloc", 24), ("cuMemFree", 8)]);
    let ignored = line(&["--policy=caching", "--ignore-empty-cache"], &file);
    assert_eq!((calls(&ignored), &ignored["is_recorded"]), (vec![("cuMemAlloc", 20)], &false.into()));
    let head = |options: &[&str]| compare(options, &[&file]).output;
    assert!(head(&["--policy=caching"]).contains(" live at the peak, 3 calls of empty_cache()"));
    assert!(head(&["--policy=caching", "--ignore-empty-cache"]).contains(", without 3 calls of empty_cache()"));
}

#[test]
fn the_answer_comes_first() {
    let finished =
        cachalot(["compare".into(), "--repeat=1".into(), "--policy=caching".into(), trace("gnn_graphs.csv.gz")]);
    let (answer, rest) = finished.output.split_once("\n\n").expect("a paragraph");
    let words = answer.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(
        words,
        "15.73 GiB were reserved at the peak, for at most 4.81 GiB live (utilisation 30.5 %); \
         `expandable_segments:True` would have saved 10.56 GiB of it (67.1 %). When the most was in use, 125.99 MiB \
         were stuck in holes of 16 segments."
    );
    assert!(rest.starts_with("gnn_graphs: 34,963 operations"), "{rest}");
}

#[test]
fn the_first_line_of_json_has_the_answer() {
    let lines = compare(&["--json", "--policy=caching,bfc"], &[&trace("gnn_graphs.csv.gz")]).json();
    let answer = &lines[0]["answer"];
    assert!(answer["sentence"].as_str().is_some_and(|text| text.starts_with("15.73 GiB were reserved")), "{answer}");
    let (stuck, better) = (&answer["fullest"], &answer["better"]);
    assert_eq!((&stuck["hole_segments"], &stuck["idle_segments"]), (&json!(16), &json!(21)));
    assert_eq!(better["config"], "expandable_segments:True");
    assert_eq!(answer["peak_reserved_bytes"], lines[0]["peak_reserved_bytes"]);
    let less = number(better, "peak_reserved_bytes");
    assert_eq!(number(answer, "saved_bytes"), number(answer, "peak_reserved_bytes") - less);
    assert!(lines[1].get("answer").is_none(), "{}", lines[1]);
}

#[test]
fn the_table_has_a_row_for_each_trace_and_contender() {
    let folder = folder("table");
    let one = write(&folder, "first.csv", THREE_BLOCKS);
    let other = write(&folder, "second.csv", PENDING_BLOCK);
    let config = "per_process_memory_fraction:0.5";
    let finished = compare(&["--policy=caching,direct", "--config", config, "--limit=4MiB"], &[&one, &other]);
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
    let first = "caching (recorded settings)";
    let titles = [first, "direct", &format!("caching {config}"), &format!("direct {config}")];
    // The rows of a table, each by its contender: the mark stands before the name.
    let rows = |text: &str| -> Vec<(String, String)> {
        let mut longest_first = [&titles[..], &["caching", "recorded settings"]].concat();
        longest_first.sort_by_key(|title| std::cmp::Reverse(title.len()));
        let of_line = |line: &str| {
            let line = line.trim_start_matches(['*', ' ']);
            let title = longest_first.iter().find(|title| line.starts_with(*title))?;
            Some(((*title).to_owned(), line[title.len()..].trim().to_owned()))
        };
        text.lines()
            .skip_while(|line| !line.starts_with('─'))
            .skip(1)
            .take_while(|line| !line.is_empty())
            .filter_map(of_line)
            .collect()
    };
    for name in ["first", "second"] {
        let start = finished.output.find(&format!("{name}: ")).expect(name);
        assert!(finished.output[start..].lines().next().is_some_and(|line| line.contains(", limit 4.00 MiB;")));
        let rows = rows(&finished.output[start..]);
        assert_eq!(rows.iter().map(|(title, _)| title.as_str()).collect::<Vec<_>>(), titles);
        assert!(name == "second" || rows[0].1.ends_with(" 1"), "an OOM of the first contender: {rows:?}");
    }
    let all = finished.output.find("All 2 traces").expect("a table over all traces");
    let of_all: Vec<&str> = ["recorded settings", "caching"].into_iter().chain(titles[1..].iter().copied()).collect();
    assert_eq!(rows(&finished.output[all..]).iter().map(|(title, _)| title.as_str()).collect::<Vec<_>>(), of_all);
    let wide = compare(&["--wide", "--policy=caching", "--limit=4MiB"], &[&one]);
    assert!(wide.output.contains(" 1        1.91 MiB "), "the largest failed request: {}", wide.output);
}

#[test]
fn the_best_row_is_marked_and_measured_against_the_first() {
    let config = "expandable_segments:True";
    let finished = compare(&["--policy=caching,bfc,direct", "--config", config], &[&trace("gnn_graphs.csv.gz")]);
    // `direct` has no such setting, so it is compared without.
    assert_eq!(finished.status, 0, "{}", finished.errors);
    assert_eq!(finished.output.matches(config).count(), 3, "the answer, caching, bfc: {}", finished.output);
    let policy = format!("policy:caching,{config}");
    let finished = compare(&["--policy=caching,bfc,direct", "--config", &policy], &[&trace("gnn_graphs.csv.gz")]);
    let marked: Vec<&str> = finished.output.lines().filter(|line| line.starts_with("* ")).collect();
    assert_eq!(marked.len(), 2, "{}", finished.output);
    // `direct` needs less, at a driver's call for each request: it is a yardstick.
    assert!(marked[0].starts_with("* caching expandable_segments:True  "), "{marked:?}");
    assert!(marked[0].contains("−10.56 GiB −67.1 %"), "{marked:?}");
    assert_eq!(marked[1], "* against caching (recorded): −10.56 GiB −67.1 %, +7.16 ms of driver calls");
    // Fewer failed requests come before less memory.
    let finished = compare(&["--policy=caching", "--config", config], &[&trace("gpt2_varlen__oom.csv.gz")]);
    let line = finished.output.lines().last().expect("a line");
    assert_eq!(line, "* against caching (recorded): +1.02 GiB +13.0 %, +10.17 ms of driver calls, 0 OOMs instead of 1");
}

#[test]
fn every_policy_is_compared_unless_some_are_named() {
    let file = three_blocks("policies");
    let lines = compare(&["--json"], &[&file]).json();
    let policies: Vec<&str> = lines.iter().map(|line| line["policy"].as_str().expect("a name")).collect();
    assert!(["caching", "direct"].iter().all(|name| policies.iter().filter(|policy| *policy == name).count() == 1));
    assert!(lines.iter().all(|line| line["config"] == "" && number(line, "peak_live_bytes") == 2_003_000));
}

#[test]
fn an_unknown_policy_is_refused_with_those_there_are() {
    let file = three_blocks("unknown_policy");
    for (option, what) in [
        ("--policy=caching,chaching", "[possible values: caching, "),
        ("--config=policy:chaching,max_split_size_mb:64", "unknown policy `chaching`: it must be one of caching, "),
    ] {
        let finished = compare(&[option], &[&file]);
        assert_eq!((finished.status, finished.output.as_str()), (2, ""));
        assert!(finished.errors.contains(what) && finished.errors.contains("direct"), "{}", finished.errors);
    }
}

#[test]
fn a_configuration_is_refused_by_the_name_of_what_is_wrong() {
    let file = three_blocks("bad_config");
    for (config, what) in [
        ("max_split_size:64", "max_split_size"),
        ("policy:caching,max_split_size_mb:x", "max_split_size_mb"),
        ("max_split_size_mb:64,policy:caching", "`policy:NAME` comes first"),
    ] {
        let finished = compare(&["--config", config], &[&file]);
        assert_eq!((finished.status, finished.output.as_str()), (2, ""));
        assert!(finished.errors.contains(what), "{}", finished.errors);
    }
}

#[test]
fn a_file_that_is_missing_leaves_the_others() {
    let file = three_blocks("missing_file");
    let missing = file.with_file_name("none.csv");
    let finished = compare(&["--json", "--policy=caching"], &[&missing, &file]);
    assert_eq!(finished.status, 2);
    let what = "cannot be read: No such file or directory (os error 2)";
    assert_eq!(finished.errors, format!("{}: {what}\n", missing.display()));
    assert_eq!(finished.json().len(), 1);
}

#[test]
fn without_files_the_shipped_traces_are_compared() {
    let folder = folder("shipped");
    let run = || cachalot_in(&folder, ["compare", "--json", "--policy=caching", "--repeat=1"]);
    let finished = run();
    assert_eq!((finished.status, finished.output.as_str()), (2, ""));
    assert!(finished.errors.starts_with("tests/traces: cannot be read: No such file"), "{}", finished.errors);

    let traces = folder.join("tests/traces");
    fs::create_dir_all(&traces).expect("a folder");
    write(&traces, "README.md", "no trace");
    assert_eq!(run().errors, "tests/traces: holds no trace (*.csv.gz)\n");

    for name in ["b", "a"] {
        write(&traces, &format!("{name}.csv.gz"), common::gzip(THREE_BLOCKS));
    }
    let finished = run();
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
    let names: Vec<Value> = finished.json().iter().map(|line| line["record"].clone()).collect();
    assert_eq!(names, ["a", "b"]);
}

#[test]
fn the_picture_has_a_panel_for_each_trace_and_a_line_for_each_contender() {
    let folder = folder("plot");
    let one = write(&folder, "first.csv", THREE_BLOCKS);
    let other = write(&folder, "second&last.csv", PENDING_BLOCK);
    let picture = folder.join("out.svg");
    let config = "roundup_power2_divisions:[256:1,>:8]";
    let plot = format!("--plot={}", picture.display());
    let finished = compare(
        &["--policy=caching,direct", "--config=policy:caching,roundup_power2_divisions:[256:1,>:8]", &plot],
        &[&one, &other],
    );
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
    assert!(finished.output.contains("first"), "the table is printed all the same");

    let text = fs::read_to_string(&picture).expect("the picture");
    let svg = roxmltree::Document::parse(&text).expect("well-formed XML");
    assert!(svg.root_element().has_tag_name(("http://www.w3.org/2000/svg", "svg")));
    let texts: Vec<&str> = svg.descendants().filter_map(|node| Some(node.text()?.trim())).collect();
    for name in ["first", "second&last"] {
        assert!(texts.contains(&name), "{name} in {texts:?}");
    }
    // After each line stand its value at the end and its contender; a line that several have is
    // drawn once.
    let both = format!("22.00 MiB caching (recorded), caching {config}");
    assert!(texts.iter().any(|text| *text == both), "{both} in {texts:?}");
    let lines = |colour: &str| {
        let coloured = svg.descendants().filter(|node| {
            node.has_tag_name(("http://www.w3.org/2000/svg", "polyline")) && node.attribute("stroke") == Some(colour)
        });
        coloured.map(|node| node.attribute("points").expect("points").split_whitespace().count()).collect::<Vec<_>>()
    };
    // A line and the stroke to its label in each panel.
    for colour in ["#0072B2", "#D55E00"] {
        assert_eq!(lines(colour).len(), 4, "{colour}");
    }
    assert!(lines("#009E73").is_empty(), "the third contender's line is the first one's");
}

#[test]
fn lines_in_a_picture_do_not_hide_each_other() {
    // `slab` and `caching` differ by 6 MiB of 15.7 GiB, which is less than a pixel.
    let picture = folder("plot_wide").join("out.svg");
    let plot = format!("--plot={}", picture.display());
    let finished = compare(&["--policy=caching,slab", &plot], &[&trace("gnn_graphs.csv.gz")]);
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
    let text = fs::read_to_string(&picture).expect("the picture");
    let svg = roxmltree::Document::parse(&text).expect("well-formed XML");
    // Of the lines, not of the strokes to their labels; in the order in which they are drawn.
    let long = |node: &roxmltree::Node<'_, '_>| {
        node.attribute("points").is_some_and(|points| points.split_whitespace().count() > 100)
            && node.attribute("fill") == Some("none")
    };
    let styles: Vec<_> =
        svg.descendants().filter(long).map(|node| (node.attribute("stroke"), node.attribute("stroke-width"))).collect();
    assert_eq!(styles, [(Some("#D55E00"), Some("4")), (Some("#0072B2"), Some("2"))]);
}

#[test]
fn labels_of_a_picture_fit_and_are_in_the_order_of_their_values() {
    let picture = folder("plot_labels").join("out.svg");
    let plot = format!("--plot={}", picture.display());
    // Splits differ, and the memory does not: three contenders share a line, and a label of 141
    // characters.
    let configs = [
        "garbage_collection_threshold:0.9,max_split_size_mb:2000",
        "max_split_size_mb:2000,max_non_split_rounding_mb:2000",
    ];
    let configs = configs.map(|config| format!("--config=policy:caching,{config}"));
    let arguments = ["--policy=caching,bfc,buddy,slab,planned", &configs[0], &configs[1], &plot];
    let finished = compare(&arguments, &[&trace("mlp_seed.csv.gz")]);
    let is_note = |line: &str| line.starts_with("note: caching garbage_collection_threshold:0.9,");
    assert!(finished.status == 0 && finished.errors.lines().all(is_note), "{}", finished.errors);
    let text = fs::read_to_string(&picture).expect("the picture");
    let svg = roxmltree::Document::parse(&text).expect("well-formed XML");
    let number = |node: roxmltree::Node<'_, '_>, name| node.attribute(name)?.parse::<f64>().ok();
    let width = number(svg.root_element(), "width").expect("a width");
    let labels = svg.descendants().filter_map(|node| {
        let text = node.text()?.trim();
        let mut words = text.split(' ');
        let (amount, unit) = (words.next()?.parse::<f64>().ok()?, words.next()?);
        let bytes = amount * if unit == "GiB" { 1024.0 } else { 1.0 };
        Some((bytes, number(node, "x")? + 6.0 * text.chars().count() as f64))
    });
    let (values, ends): (Vec<f64>, Vec<f64>) = labels.unzip();
    assert_eq!(values.len(), 6, "{values:?}");
    assert!(values.is_sorted_by(|above, below| above >= below), "{values:?}");
    assert!(ends.iter().all(|&end| end <= width), "{ends:?} of {width}");
}

#[test]
fn a_picture_that_cannot_be_written_is_a_complaint() {
    let file = three_blocks("no_picture");
    let picture = file.join("out.svg");
    let finished = compare(&["--policy=caching", &format!("--plot={}", picture.display())], &[&file]);
    assert_eq!(finished.status, 2);
    assert!(finished.errors.starts_with(&format!("{}: cannot be written: ", picture.display())), "{}", finished.errors);
}

#[test]
fn a_key_without_effect_is_named_on_standard_error() {
    let file = three_blocks("notes");
    let file = file.to_str().expect("text");
    let config = "compact:0.05,expandable_segments:True";
    let note = "compact has no effect: expandable segments have no budget";
    for (arguments, start) in [
        (&["compare", "--repeat=1", "--policy=caching", "--config"][..], format!("caching {config}: ")),
        (&["replay", "--config"], String::new()),
        (&["tune", "--trials=1", "--baseline"], "--baseline: ".to_owned()),
    ] {
        let finished = cachalot(arguments.iter().chain(&[config, file, file]));
        let notes: Vec<_> = finished.errors.lines().filter(|line| line.starts_with("note: ")).collect();
        assert_eq!((finished.status, notes), (0, vec![&*format!("note: {start}{note}")]), "{}", finished.errors);
    }
    // The threshold is one of the limit, which may be the record's.
    let config = "garbage_collection_threshold:0.5";
    for (limit, count) in [(&[][..], 1), (&["--limit=1GiB"], 0)] {
        let finished = cachalot(["replay", "--config", config, file].iter().chain(limit));
        assert_eq!((finished.status, finished.errors.lines().count()), (0, count), "{}", finished.errors);
    }
}

/// A mixture of experts that is converted while it loads, in the default pool, and in a pool of the
/// program on one and on two streams.
#[test]
fn a_converted_model_holds_little_more_than_its_weights_under_stitched_in_pools_too() {
    for name in ["moe", "moe_pool", "moe_pool_streams"] {
        let file = trace(&format!("loading/{name}.pickle.gz"));
        let options = ["--json", "--policy=caching,stitched", "--config=policy:caching,expandable_segments:True"];
        let lines = compare(&options, &[&file]).json();
        let utilisation = |policy: &str, config: &str| {
            let is_wanted = |line: &&Value| line["policy"] == policy && line["config"] == config;
            let line = lines.iter().find(is_wanted).unwrap_or_else(|| panic!("{policy}, `{config}`: {lines:#?}"));
            line["utilisation"].as_f64().expect("a share")
        };
        assert!(utilisation("caching", "expandable_segments:True") < 0.72, "{name}");
        let stitched = utilisation("stitched", "");
        assert!(stitched > 0.96, "{name}: {stitched}");
    }
}
