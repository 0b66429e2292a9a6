//! Runs every target of the fuzzer on the seeds, and for a short time on mutations of the seeds.
//!
//! The mutations are equal on every machine: mutation *n* of a target depends only on *n* and the
//! seeds. A failure prints the target, the number and the path of the written input file.

use cachalot_fuzz_harness::TARGETS;
use mutatis::Session;
use std::any::Any;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time for the mutations of each target, and the greatest number of mutations.
const TIME: Duration = Duration::from_millis(500);
const MOST_MUTATIONS: u64 = 20_000;

/// Greatest number of changes from a seed to a mutation.
const MOST_CHANGES: u64 = 16;

/// Greatest length of a mutation. Long inputs take long.
const LONGEST_BYTES: usize = 4096;

/// A file of a target's folder.
struct Seed {
    path: PathBuf,
    bytes: Vec<u8>,
}

fn seeds(target: &str) -> Vec<Seed> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{}: no seeds", folder.display());
    let read = |path: PathBuf| Seed { bytes: fs::read(&path).expect("a seed"), path };
    paths.into_iter().map(read).collect()
}

/// Returns mutation number `number`: parts of two seeds, changed.
fn mutation(seeds: &[Seed], number: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(number);
    let mut pick = || &seeds[random.usize(..seeds.len())].bytes;
    let (first, second) = (pick(), pick());
    let mut bytes = first[..first.len().min(LONGEST_BYTES)].to_vec();
    if random.bool() {
        let at = random.usize(..=bytes.len());
        let from = random.usize(..=second.len());
        let to = random.usize(from..=second.len());
        bytes.splice(at..at, second[from..to].iter().copied());
        bytes.truncate(LONGEST_BYTES);
    }
    let mut session = Session::new().seed(number);
    for _ in 0..random.u64(1..=MOST_CHANGES) {
        // An empty input has no mutation of every kind.
        let _ = session.mutate(&mut bytes);
    }
    bytes
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a text")
}

#[test]
fn every_target_runs_on_its_seeds_and_on_mutations_of_them() {
    for (name, run) in TARGETS {
        let seeds = seeds(name);
        for seed in &seeds {
            let result = catch_unwind(AssertUnwindSafe(|| run(&seed.bytes)));
            result.unwrap_or_else(|panic| panic!("{}: {}", seed.path.display(), message(&*panic)));
        }
        let start = Instant::now();
        let mut count = 0;
        while count < MOST_MUTATIONS && start.elapsed() < TIME {
            let bytes = mutation(&seeds, count);
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(&bytes))) {
                let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{count}"));
                fs::write(&file, bytes).expect("the test's folder can be written");
                panic!("target {name}, mutation {count}, in {}: {}", file.display(), message(&*panic));
            }
            count += 1;
        }
        println!("{name}: {} seeds, {count} mutations", seeds.len());
    }
}
