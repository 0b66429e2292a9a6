//! Random programs of every operation under every policy: each answer, address, statistic, report,
//! notice and call to the device is as it was. `golden/courses.csv` has a digest of all that each
//! program sees, and no judgement of what is right: the model and the theorems judge. A digest
//! changes with each change of a decision, and then tells which settings decide otherwise.
//!
//! With `CACHALOT_WRITE_DOCS=1`, the tests write the digests. With `CACHALOT_COURSES=FOLDER`, they
//! write each program in words into the folder: two folders, of two commits, show what has changed.

use cachalot_tests::course::{Course, Notes};
use std::path::Path;
use std::sync::Mutex;
use std::{env, fs};

/// The digests as built: the settings, and a digest for each seed.
const GOLDEN: &str = include_str!("../golden/courses.csv");
/// The programs under each setting.
const SEEDS: u64 = 6;

/// The lines being written.
static WRITTEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Checks the programs under one setting.
fn hold(config: &str) {
    let folder = env::var_os("CACHALOT_COURSES");
    let digests = (0..SEEDS).map(|seed| {
        let notes = if folder.is_some() { Notes::in_words() } else { Notes::digested() };
        let notes = Course::run(config, seed, notes);
        if let (Some(folder), Some(text)) = (&folder, notes.text()) {
            let name = format!("{}.{seed}", config.replace([':', ',', '/'], "_"));
            fs::write(Path::new(folder).join(name), text).expect("the folder can be written");
        }
        format!("{:016x}", notes.digest())
    });
    let line = format!("\"{config}\",{}", digests.collect::<Vec<_>>().join(","));
    if env::var_os("CACHALOT_WRITE_DOCS").is_some() {
        return write(line);
    }
    let begin = format!("\"{config}\",");
    let golden = GOLDEN.lines().find(|golden| golden.starts_with(&begin)).unwrap_or("no line");
    assert_eq!(line, golden, "`{config}` decides otherwise than golden/courses.csv says");
}

/// Writes the file with the lines of all tests so far.
fn write(line: String) {
    let mut lines = WRITTEN.lock().expect("no holder panics");
    lines.push(line);
    lines.sort();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/courses.csv");
    fs::write(path, lines.join("\n") + "\n").expect("the file can be written");
}

macro_rules! settings {
    ($($name:ident: $config:literal,)*) => {$(
        #[test]
        fn $name() {
            hold($config);
        }
    )*};
}

settings! {
    caching: "",
    caching_split: "max_split_size_mb:24,max_non_split_rounding_mb:40",
    caching_collects: "garbage_collection_threshold:0.5,roundup_power2_divisions:4",
    caching_limited: "max_split_size_mb:32,per_process_memory_fraction:0.5",
    caching_throws: "throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.75",
    caching_rounds: "roundup_power2_divisions:[1:2,4:8,16:16,>:1],large_segment_size_mb:12",
    caching_reuses: "graph_capture_record_stream_reuse:True",
    caching_compact: "compact:0.05,compact_slack_mb:4",
    caching_compact_split: "compact:0,max_split_size_mb:24",
    caching_tuned: "tune:auto",
    caching_reclaims: "reclaim:auto",
    improved: "decisions:improved",
    improved_exact: "decisions:improved,compact:0.01,exact_segments:True",
    improved_reclaims: "decisions:improved,reclaim:auto,reclaim_budget:0.2",
    bfc_reclaims: "policy:bfc,reclaim:auto,reclaim_budget:1",
    improved_collects: "decisions:improved,garbage_collection_threshold:0.4,max_split_size_mb:40",
    improved_reuses: "decisions:improved,graph_capture_record_stream_reuse:True",
    expandable: "expandable_segments:True",
    expandable_split: "expandable_segments:True,max_split_size_mb:24",
    expandable_collects: "expandable_segments:True,garbage_collection_threshold:0.5,roundup_power2_divisions:8",
    expandable_reserves: "expandable_segments:True,expandable_segments_reserve:0.3,large_segment_size_mb:24",
    expandable_improved: "decisions:improved,expandable_segments:True",
    expandable_reclaims: "decisions:improved,expandable_segments:True,reclaim:auto,reclaim_budget:0.2",
    guarded: "guard:all",
    guarded_sampled: "guard:sampled:5,zero:on_free,quarantine:8",
    guarded_before: "guard:before,pattern:165",
    canaries: "canary:True,pattern:90",
    zeroed: "zero:on_alloc,decisions:improved",
    bfc: "policy:bfc",
    bfc_keeps: "policy:bfc,first_region_mb:1,region_garbage_collection:False",
    bfc_whole: "policy:bfc,allow_growth:False,max_internal_fragmentation_mb:1",
    bfc_expandable: "policy:bfc,expandable_segments:True",
    bfc_retries: "policy:bfc,retry_ms:20",
    buddy: "policy:buddy",
    buddy_small: "policy:buddy,arena_mb:4",
    size_class: "policy:size_class,chunk_mb:32",
    slab: "policy:slab",
    slab_small: "policy:slab,largest_object_kb:16",
    direct: "policy:direct",
    stitched: "policy:stitched",
    stitched_tight: "policy:stitched,slack:0,max_stall_us:200,completed_pages_only:True",
    stitched_strict: "policy:stitched,slack:0.1,max_stall_us:100,strict_stall:True",
    planned: "policy:planned",
    planned_bfc: "policy:planned,fallback:bfc",
    planned_slab: "policy:planned,fallback:slab",
    planned_buddy: "policy:planned,fallback:buddy",
    planned_stitched: "policy:planned,fallback:stitched",
    planned_expandable: "policy:planned,expandable_segments:True",
}
