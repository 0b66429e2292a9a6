//! `spill` in a replay: how much of a recorded program would lie on the host, and what it costs.

use crate::common::{cachalot, folder, write};
use serde_json::Value;
use std::path::Path;

/// The length of a block.
const BLOCK: u64 = 40 << 20;

/// Three blocks at the same time, and the third of them once more.
fn record() -> String {
    let events = [("A", 1), ("a", 1), ("A", 2), ("a", 2), ("A", 3), ("a", 3), ("f", 3), ("c", 3), ("a", 3)];
    let lines = events.map(|(action, place)| format!("{action},{place}00000000,{BLOCK},0\n"));
    String::from("action,addr,size,stream\n") + &lines.concat()
}

/// Replays a record in 80 MiB of the device. Returns the exit status, and what it says of the host.
fn replayed(file: &Path, more: &[&str]) -> (i32, Value) {
    let head = ["replay", "--json", "--limit", "80MiB"];
    let finished = cachalot(head.iter().chain(more).map(|part| (*part).to_owned()).chain([file.display().to_string()]));
    (finished.status, finished.json().remove(0)["spilled"].take())
}

#[test]
fn a_replay_tells_what_would_lie_on_the_host_and_how_long_the_link_takes() {
    let file = write(&folder("spilled"), "blocks.csv", record());
    assert_eq!(replayed(&file, &["--config", "expandable_segments:True"]), (1, Value::Null));
    for policy in ["expandable_segments:True", "policy:stitched", "policy:bfc,expandable_segments:True"] {
        let config = format!("{policy},spill:1G");
        let (status, told) = replayed(&file, &["--config", &config]);
        assert_eq!(status, 0, "{policy}");
        let bytes = |key: &str| told[key].as_u64().expect("bytes");
        // The third block is requested twice, and its pages are made once.
        assert_eq!([bytes("peak_bytes"), bytes("made_bytes"), bytes("block_bytes")], [BLOCK, BLOCK, 2 * BLOCK]);
        let close = |key: &str, expected: f64| (told[key].as_f64().expect("a time") - expected).abs() < 1e-6;
        assert!(close("link_ms", 4.0 * BLOCK as f64 / 52e6) && close("make_ms", 40.0 / 1024.0 * 270.0), "{told}");
        let (_, slower) = replayed(&file, &["--link", "26", "--config", &config]);
        let link = |told: &Value| told["link_ms"].as_f64().expect("a time");
        assert!((link(&slower) - 2.0 * link(&told)).abs() < 1e-6, "{slower}");
    }
    // A part of `spill` is not enough for the block.
    let (status, told) = replayed(&file, &["--config", "expandable_segments:True,spill:0.03G"]);
    assert_eq!((status, told["block_bytes"].as_u64()), (1, Some(0)));
}

#[test]
fn a_history_tells_how_much_lay_on_the_host_at_the_peaks() {
    let folder = folder("spilled_history");
    // In the end, no block is there.
    let freed = [1, 2, 3].map(|place| format!("f,{place}00000000,{BLOCK},0\nc,{place}00000000,{BLOCK},0\n"));
    let file = write(&folder, "blocks.csv", record() + &freed.concat());
    let at_peak = |more: &[&str]| {
        let out = folder.join("end.json");
        let head = ["snapshot".to_owned(), file.display().to_string(), "-o".to_owned(), out.display().to_string()];
        let made = cachalot(head.into_iter().chain(more.iter().map(|part| (*part).to_owned())));
        assert_eq!(made.status, 0, "{}", made.output);
        let report = cachalot(["inspect".to_owned(), "--json".to_owned(), out.display().to_string()]).json().remove(0);
        report["peaks"][0]["spilled"].as_u64()
    };
    for policy in ["expandable_segments:True", "policy:stitched"] {
        assert_eq!(at_peak(&["--limit", "80MiB", "--config", &format!("{policy},spill:1G")]), Some(BLOCK), "{policy}");
        assert_eq!(at_peak(&["--config", policy]), None, "{policy}");
    }
}

#[test]
fn the_table_has_columns_of_the_host_where_something_lies_there() {
    let file = write(&folder("spilled_table"), "blocks.csv", record());
    // Titles are folded where there is little room.
    let shown = |width: &str, config: &str| {
        let options = ["replay", width, "--limit", "80MiB", "--config", config];
        cachalot(options.iter().map(|part| (*part).to_owned()).chain([file.display().to_string()])).output
    };
    let spilled = shown("--wide", "expandable_segments:True,spill:1G");
    assert!(["on the host", "at least", "making pages"].iter().all(|title| spilled.contains(title)), "{spilled}");
    assert!(spilled.contains("3.23 ms") && spilled.contains("10.55 ms"), "{spilled}");
    assert!(!shown("--repeat=1", "expandable_segments:True").contains("making"));
    assert!(shown("--repeat=1", "expandable_segments:True,spill:1G").contains("making"));
    for rate in ["0", "-1", "fast", "inf"] {
        let refused = cachalot(["replay", &format!("--link={rate}"), "x.csv"]);
        assert!(refused.status == 2 && refused.errors.contains("is not a rate"), "{rate}: {}", refused.errors);
    }
}
