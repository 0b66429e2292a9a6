//! Keys without effect, which `Config::notes` names: a program is decided alike with and without
//! each of them, and otherwise where the key has an effect.

use cachalot_core::config::REFERENCE;
use cachalot_core::simulated::Call;
use cachalot_core::{DevicePtr, Error, Host as _, StreamId};
use cachalot_tests::host::{DEVICE, Host, MIB};
use std::fs;
use std::path::{Path, PathBuf};

/// Capacity of the device: small, so that requests run out of memory.
const CAPACITY: u64 = 512 * MIB;
/// Streams of the program.
const STREAMS: u64 = 2;

/// Returns the notes of a configuration, in one text.
fn notes(config: &str, limited: bool) -> String {
    let config = cachalot_policies::parse(config).unwrap_or_else(|error| panic!("{config}: {error}"));
    config.notes(limited).map(|note| note.to_string()).collect::<Vec<_>>().join("\n")
}

fn answer(result: Result<DevicePtr, Error>) -> (String, Option<DevicePtr>) {
    match result {
        Ok(ptr) => (format!("{ptr}"), Some(ptr)),
        // The report names the segment that was tried, and the driver's calls are compared below.
        Err(Error::OutOfMemory(_)) => ("out of memory".to_owned(), None),
        Err(error) => (error.to_string(), None),
    }
}

/// Runs a program of random requests, frees, uses on another stream and upkeep, and returns each
/// decision, each call of the driver by kind, and the final segments.
fn decisions(config: &str, limit: Option<u64>) -> Vec<String> {
    let host = Host::new(config, CAPACITY);
    if limit.is_some() {
        host.allocator.settings(DEVICE).expect("there is one device").set_limit(limit);
    }
    let mut random = fastrand::Rng::with_seed(7);
    let (mut held, mut log) = (Vec::new(), Vec::new());
    for _ in 0..1500 {
        let stream = StreamId(random.u64(..STREAMS));
        match random.u32(..20) {
            0..9 => {
                let most = [MIB / 2, 9 * MIB, 30 * MIB, 90 * MIB][random.usize(..4)];
                let (told, ptr) = answer(host.allocator.malloc(DEVICE, random.u64(1..most), stream));
                held.extend(ptr);
                log.push(told);
            }
            9..17 if !held.is_empty() => host.free(held.swap_remove(random.usize(..held.len()))),
            17 if !held.is_empty() => {
                host.allocator.record_stream(held[random.usize(..held.len())], stream).expect("the block is live");
            }
            18 => host.device().complete(stream),
            _ => {
                host.device().pause(4_000_000);
                host.allocator.pages(DEVICE).and_then(|pages| pages.maintain(10_000)).expect("nothing fails");
            }
        }
    }
    log.extend(Call::ALL.map(|call| format!("{call:?}: {}", host.device().calls(call))));
    log.push(format!("{:?}", host.allocator.snapshot()));
    log
}

/// A configuration, an entry, and whether there is a memory limit of 300 MiB.
type Case = (&'static str, &'static str, bool);

/// The entry has no effect beside the configuration.
const WITHOUT: [Case; 22] = [
    ("expandable_segments:True", "compact:0", false),
    ("expandable_segments:True,parity:False", "compact:0.05", true),
    ("", "compact_slack_mb:64", false),
    ("expandable_segments:True,compact:0", "compact_slack_mb:64", true),
    ("expandable_segments:True", "exact_segments:True", false),
    ("", "expandable_segments_reserve:0.25", false),
    ("policy:bfc", "expandable_segments_reserve:0.25", true),
    ("policy:bfc,allow_growth:False", "first_region_mb:16", true),
    ("policy:bfc,allow_growth:False,expandable_segments:True", "first_region_mb:16", true),
    ("expandable_segments:True", "garbage_collection_threshold:0.3", true),
    ("", "garbage_collection_threshold:0.3", false),
    ("exact_segments:True", "large_segment_size_mb:64", true),
    ("exact_segments:True,compact:0.05", "large_segment_size_mb:64", false),
    ("", "max_non_split_rounding_mb:64", true),
    ("max_split_size_mb:24,parity:False,expandable_segments:True", "max_non_split_rounding_mb:64", true),
    ("parity:False,expandable_segments:True", "max_split_size_mb:24", true),
    ("", "quarantine:0", false),
    ("", "reclaim_budget:1", true),
    ("expandable_segments:True", "reclaim_budget:1", true),
    ("policy:direct", "throw_on_cudamalloc_oom:True", true),
    ("policy:direct,per_process_memory_fraction:0.5", "throw_on_cudamalloc_oom:True", false),
    ("", "tune_budget_ms:5", true),
];

/// The entry has an effect beside the configuration.
const WITH: [Case; 20] = [
    ("", "compact:0", false),
    ("compact:0", "compact_slack_mb:64", false),
    ("", "exact_segments:True", false),
    // A request needs room for a segment of its size, and not for 20 MiB.
    ("expandable_segments:True", "exact_segments:True", true),
    ("expandable_segments:True", "expandable_segments_reserve:0.25", false),
    ("policy:bfc,expandable_segments:True", "expandable_segments_reserve:0.25", false),
    ("policy:bfc", "first_region_mb:100", false),
    ("", "garbage_collection_threshold:0.3", true),
    ("per_process_memory_fraction:0.6", "garbage_collection_threshold:0.3", false),
    ("", "large_segment_size_mb:64", false),
    // The size of a page.
    ("expandable_segments:True", "large_segment_size_mb:64", false),
    ("exact_segments:True,expandable_segments:True", "large_segment_size_mb:64", false),
    // The default of `max_non_split_rounding_mb`.
    ("exact_segments:True,max_split_size_mb:40", "large_segment_size_mb:40", false),
    ("max_split_size_mb:24", "max_non_split_rounding_mb:64", false),
    ("max_split_size_mb:24,expandable_segments:True", "max_non_split_rounding_mb:64", false),
    ("expandable_segments:True", "max_split_size_mb:24", false),
    ("guard:all", "quarantine:0", false),
    ("reclaim:auto", "reclaim_budget:0", false),
    // Memory that a release would make room for counts as in use.
    ("", "throw_on_cudamalloc_oom:True", false),
    ("per_process_memory_fraction:0.5", "throw_on_cudamalloc_oom:True", false),
];

fn joined(config: &str, entry: &str) -> (String, String) {
    let comma = if config.is_empty() { "" } else { "," };
    let (key, _) = entry.split_once(':').expect("an entry has a key");
    (format!("{config}{comma}{entry}"), format!("{key} has no effect: "))
}

#[test]
fn a_key_with_a_note_changes_no_decision() {
    let passed_on = REFERENCE.iter().filter(|setting| setting.effect.starts_with("No effect:"));
    let passed_on: Vec<_> = passed_on.map(|setting| format!("{}:{}", setting.key, setting.example)).collect();
    assert_eq!(passed_on.len(), 11, "{passed_on:?}");
    let of_passed_on = passed_on.iter().map(|entry| ("", entry.as_str(), true));
    for (config, entry, limited) in WITHOUT.into_iter().chain(of_passed_on) {
        let (with, note) = joined(config, entry);
        // A second name of a key is told by the first.
        let note = note.replace("_hip", "_cuda");
        let before = notes(config, limited);
        assert_eq!(notes(&with, limited).matches(&note).count(), 1, "{with}: {}", notes(&with, limited));
        assert!(!before.contains(&note), "{config}: {before}");
        let limit = limited.then_some(300 * MIB);
        assert!(decisions(&with, limit) == decisions(config, limit), "{with}");
    }
}

#[test]
fn a_key_without_a_note_changes_decisions() {
    for (config, entry, limited) in WITH {
        let (with, note) = joined(config, entry);
        assert!(!notes(&with, limited).contains(&note), "{with}: {}", notes(&with, limited));
        let limit = limited.then_some(300 * MIB);
        assert!(decisions(&with, limit) != decisions(config, limit), "{with}");
    }
}

#[test]
fn a_default_has_no_note() {
    for setting in cachalot_policies::settings() {
        if let cachalot_core::config::SettingDefault::Value(value) = setting.default {
            let policy = ["caching", "bfc", "buddy", "size_class", "slab", "stitched", "planned"];
            let config = |policy| cachalot_policies::parse(&format!("policy:{policy},{}:{value}", setting.key));
            let config = policy.into_iter().find_map(|policy| config(policy).ok()).expect("a policy has the key");
            assert_eq!(config.notes(false).count(), 0, "{config}");
        }
    }
}

#[test]
fn a_note_of_a_key_that_is_passed_on_says_what_the_reference_says() {
    for setting in REFERENCE.iter().filter(|setting| setting.effect.starts_with("No effect:")) {
        let told = notes(&format!("{}:{}", setting.key, setting.example), false);
        let reason = told.split(" has no effect: ").nth(1).unwrap_or_default();
        assert!(setting.effect.starts_with(&format!("No effect: {reason}.")), "{told}");
    }
}

/// The documents with configurations.
fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let pages =
        fs::read_dir(root.join("docs")).expect("there is a folder").map(|entry| entry.expect("it is read").path());
    let pages = pages.filter(|page| page.extension().is_some_and(|extension| extension == "md"));
    let others = ["README.md", "include/cachalot.h", "include/cachalot.hpp", "include/cachalot_torch.h"];
    let topics = fs::read_dir(root.join("include/cachalot")).expect("there is a folder");
    let topics = topics.map(|entry| entry.expect("it is read").path());
    pages.chain(topics).chain(others.map(|file| root.join(file))).collect()
}

#[test]
fn the_configurations_in_the_documents_have_no_notes() {
    let mut found = 0;
    for document in documents() {
        let text = fs::read_to_string(&document).expect("the document is text");
        let words = text.split(|c: char| c.is_whitespace() || "`\"'()=".contains(c));
        for word in words.map(|word| word.trim_end_matches(['.', ',', ';'])).filter(|word| word.contains(':')) {
            let Ok(config) = cachalot_policies::parse(word) else { continue };
            found += 1;
            let notes: Vec<_> = config.notes(false).map(|note| note.to_string()).collect();
            assert!(notes.is_empty(), "{}: {word}: {notes:?}", document.display());
        }
    }
    assert!(found > 100, "{found}");
}
