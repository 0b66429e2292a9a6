//! `cachalot replay --check` on programs with combinations of rules. A recorded program follows
//! only one of the rules at a time.

use crate::common::cachalot;
use std::ffi::OsString;
use std::path::Path;

#[test]
fn every_record_is_repeated_without_a_mismatch() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/records");
    let names = [
        "graphs__expandable_limit",
        "streams__collection_split",
        "streams__emptied_before_collection",
        "streams__expandable_collection",
        "streams__expandable_limit",
    ];
    let files = names.map(|name| folder.join(format!("{name}.csv.gz")).into_os_string());
    let options = ["replay", "--check", "--json"].map(OsString::from);
    let finished = cachalot(options.into_iter().chain(files));
    assert_eq!((finished.status, finished.errors.as_str()), (0, ""));
    let lines = finished.json();
    assert_eq!(lines.len(), names.len());
    for (line, name) in lines.iter().zip(names) {
        assert_eq!(line["record"], name);
        assert_eq!((&line["mismatches"], &line["stats_mismatches"]), (&0.into(), &0.into()), "{name}");
        assert!(line["checked"].as_u64() > line["allocations"].as_u64(), "{name}");
        assert_eq!(line["stats_checked"], 122, "{name}");
    }
}

// PyTorch's allocator gives oversize segments of a graph's pool back while the graph can be
// launched, so that a replay would write into memory of others. This is the one decision that is
// not repeated.
#[test]
fn the_memory_of_a_graph_is_not_given_back_as_in_the_record() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/records/graphs__collection_split.csv.gz");
    let finished = cachalot(["replay".into(), "--check".into(), file.into_os_string()]);
    assert_eq!(finished.status, 1);
    let (recorded, replayed) = finished.errors.split_once("replayed:").expect("the first difference");
    assert!(recorded.contains("releases the segment of 136314880 bytes at 7f03aba00000"), "{recorded}");
    assert!(replayed.contains("hands out 140668225 bytes"), "{replayed}");
}
