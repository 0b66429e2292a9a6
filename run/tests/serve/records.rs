//! Recorded programs, replayed.

use super::setup::{PAGE, Setup};
use cachalot_replay::replay::{self, Options as ReplayOptions};
use cachalot_replay::trace::{Action, Trace};
use cachalot_run::Options;
use std::path::Path;

/// Runs a program with memory of both kinds, recorded in a file.
fn record(file: &Path, options: Options) {
    let setup = Setup::with(&[], Options { record: Some(file.to_owned()), ..options });
    let mut random = fastrand::Rng::with_seed(7);
    let streams = [setup.stream(), setup.stream()];
    let mut held = Vec::new();
    for _ in 0..3000 {
        let bytes = match random.u32(0..10) {
            0 => PAGE * random.usize(1..8) + random.usize(0..5000),
            _ => random.usize(1..50_000),
        };
        match random.u32(0..5) {
            // Small: which large segments of a stream go back to the driver depends on the progress
            // of the stream's work.
            0 => held.push((setup.take_on(bytes % 50_000 + 1, streams[0]), random.choice(streams).expect("two"))),
            1 | 2 => held.push((setup.take(bytes), 0)),
            _ if held.is_empty() => {}
            _ => {
                let (block, stream) = held.swap_remove(random.usize(0..held.len()));
                let code = if stream == 0 {
                    setup.fill(block, 1, 1, streams[1]);
                    setup.give(block)
                } else {
                    setup.give_on(block, stream)
                };
                assert_eq!(code, 0);
            }
        }
        if random.u32(0..200) == 0 {
            assert_eq!(setup.cuCtxSynchronize(), 0);
        }
    }
}

#[test]
fn a_recorded_program_is_replayed_without_a_difference() {
    let dir = tempfile::tempdir().expect("a folder");
    let all = [
        ("default", "", 0),
        ("slack", "", 64 << 20),
        ("caching", "exact_segments:False,max_split_size_mb:40", 0),
        ("pages", "expandable_segments:True", 64 << 20),
    ];
    for (name, settings, slack) in all {
        let file = dir.path().join(format!("{name}.csv"));
        record(&file, Options { settings: settings.to_owned(), slack, ..Options::default() });
        let traces = Trace::load(&file).expect("a record");
        let trace = &traces[0];
        let count = |action| trace.events.iter().filter(|event| event.action == action).count();
        let counts = (count(Action::Alloc), count(Action::FreeCompleted));
        assert!(counts.0 > 1500 && counts.1 > 0, "{name}: {counts:?}");
        let options = ReplayOptions { check: true, repeat: 1, ..ReplayOptions::default() };
        let outcome = replay::replay(trace, &options).expect("replayed");
        let checked = outcome.checked.expect("checked");
        assert!(checked.decisions >= trace.events.len() as u64);
        assert_eq!((checked.mismatches, checked.first), (0, None), "{name}");
    }
}

#[test]
fn further_contexts_have_records_of_their_own() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("run.csv");
    let setup = Setup::with(&[], Options { record: Some(file.clone()), ..Options::default() });
    setup.take(512);
    let other = setup.retain(1);
    assert_eq!(setup.cuCtxSetCurrent(other), 0);
    setup.take(512);
    drop(setup);
    let records = std::fs::read_dir(dir.path()).expect("the folder").flatten();
    let records = records.filter(|entry| entry.path().extension().is_some_and(|ending| ending == "csv"));
    let traces: Vec<_> = records.flat_map(|entry| Trace::load(&entry.path()).expect("a record")).collect();
    assert_eq!(traces.len(), 2);
}

#[test]
fn a_process_that_observes_records_each_allocation_of_the_driver() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("run.csv");
    record(&file, Options { observe: true, ..Options::default() });
    let traces = Trace::load(&file).expect("a record");
    let count = |action| traces[0].events.iter().filter(|event| event.action == action).count();
    assert_eq!(
        (count(Action::Alloc), count(Action::SegmentAlloc)),
        (count(Action::SegmentAlloc), count(Action::Alloc))
    );
    assert!(count(Action::Alloc) > 1500);
    assert_eq!(count(Action::FreeRequested), count(Action::SegmentFree));
}

/// Returns the names of the tables in a folder.
fn tables(folder: &std::path::Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    files.filter(|name| Path::new(name).extension().is_some_and(|ending| ending == "csv")).collect()
}

#[test]
fn threads_that_request_at_once_begin_one_record() {
    for _ in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.csv");
        let setup = Setup::with(&[], Options { record: Some(path.clone()), ..Options::default() });
        let barrier = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    assert_eq!(setup.cuCtxSetCurrent(setup.context), 0);
                    barrier.wait();
                    setup.take(512);
                });
            }
        });
        assert_eq!(tables(dir.path()), ["run.csv"]);
    }
}

#[test]
fn a_context_that_cannot_be_served_begins_no_record() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { record: Some(dir.path().join("run.csv")), ..Options::default() };
    let setup = Setup::with(&[], options);
    setup.control.plan(r#"{"fn": "cuCtxGetDevice", "code": 999, "persistent": true}"#).expect("a plan");
    for _ in 0..3 {
        assert_ne!(setup.take(512), 0);
    }
    assert_eq!((setup.process.counts().passed, tables(dir.path()).len()), (3, 0));
}

#[test]
fn the_thread_that_writes_handles_no_signal_of_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let setup = Setup::with(&[], Options { record: Some(dir.path().join("run.csv")), ..Options::default() });
    setup.take(512);
    let read = |thread: &std::path::Path, file: &str| std::fs::read_to_string(thread.join(file)).unwrap_or_default();
    let threads = std::fs::read_dir("/proc/self/task").unwrap().map(|thread| thread.unwrap().path());
    let writers: Vec<_> = threads.filter(|thread| read(thread, "comm").starts_with("cachalot-record")).collect();
    assert!(!writers.is_empty());
    for writer in writers {
        let status = read(&writer, "status");
        // A thread of another test may have ended meanwhile.
        let Some(blocked) = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).map(str::trim) else {
            continue;
        };
        // SIGTERM is 15: bit 14.
        assert_ne!(u64::from_str_radix(blocked, 16).unwrap() & 1 << 14, 0, "{status}");
    }
}
