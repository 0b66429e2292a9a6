//! Measures the cost of recording a trace for `malloc` and `free`, and the time of a snapshot:
//! prints two tables, or runs one measured loop for `valgrind`.

use cachalot::c::abi::{CACHALOT_JSON, CACHALOT_PICKLE};
use cachalot_benches::crowd::{Crowd, Layout};
use cachalot_benches::measure::{Clock, Effort, Lane, interleave};
use cachalot_benches::recorder::{FRAMES, Recorder, Recording};
use cachalot_benches::subject::Subject;
use cachalot_benches::workload::Workload;
use cachalot_instructions::{available, per_pair_of};
use clap::{Args, Parser, Subcommand};
use std::time::{Duration, Instant};

/// The lanes, in order.
const RECORDINGS: [(&str, Recording); 4] = [
    ("off", Recording::Off),
    ("clock", Recording::Clock),
    ("events", Recording::Events),
    ("stacks", Recording::Stacks),
];

/// Request sizes of the small and of the large pool, in bytes.
const SIZES: [u64; 2] = [4 << 10, 8 << 20];

/// Pairs for the count of instructions. Large, since the calibration of the clock takes a varying
/// number of instructions.
const COUNTED: u64 = 200_000;

/// Blocks of the snapshot.
const BLOCKS: u64 = 100_000;

/// Measure the cost of recording a trace.
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Option<Job>,
    /// Number of rounds of each lane
    #[arg(long, default_value_t = 51)]
    rounds: usize,
}

#[derive(Subcommand)]
enum Job {
    /// Only run a number of pairs, for use under valgrind
    Run(Run),
}

#[derive(Args)]
struct Run {
    /// Number of the recording
    recording: usize,
    /// Bytes of a request
    bytes: u64,
    /// Number of pairs
    pairs: u64,
}

fn lane(recording: usize, bytes: u64) -> Option<Lane> {
    let (name, recording) = *RECORDINGS.get(recording)?;
    let run = Crowd::new(Layout::Equal, bytes, 1)?.lane(Recorder::new(recording))?;
    Some(Lane { name, operations: 1, clock: Clock::Thread, run })
}

fn pairs(rounds: usize) {
    println!(
        "Nanoseconds (instructions) of a pair of malloc and free of a cached block, and what is more than without a trace"
    );
    println!(
        "for each of the two. clock: nothing is recorded, but the clock is read as often; stacks: the same one of {FRAMES} frames"
    );
    println!("each time.\n");
    let program = std::env::current_exe().ok().filter(|_| available());
    for bytes in SIZES {
        let mut lanes: Vec<_> = (0..RECORDINGS.len()).filter_map(|recording| lane(recording, bytes)).collect();
        let timings = interleave(&mut lanes, Effort { rounds, round: Duration::from_millis(2) });
        for (at, (lane, timing)) in lanes.iter().zip(&timings).enumerate() {
            let arguments = ["run".to_owned(), at.to_string(), bytes.to_string()];
            let counted = program.as_ref().and_then(|program| per_pair_of(program, &arguments, COUNTED));
            let counted = counted.map_or("not counted".to_owned(), |instructions| format!("{instructions:.0}"));
            let more = (timing.median - timings[0].median) / 2.0;
            println!("{bytes:>8} B  {:8} {:7.1} ({counted})  +{more:.1}", lane.name, timing.median);
        }
    }
}

fn snapshots() {
    let mut recorder = Recorder::new(Recording::Stacks);
    // Free every other block, so that half of the blocks are cached and half are live.
    let held: Vec<_> = (0..BLOCKS).map(|at| recorder.malloc(600 + at % 5000, 0).expect("there is memory")).collect();
    for block in held.into_iter().step_by(2) {
        recorder.free(block);
    }
    println!("\nSeconds for a snapshot of {BLOCKS} blocks with 100,000 events and stacks, the fastest of 5\n");
    for (name, format) in [("pickle", CACHALOT_PICKLE), ("JSON", CACHALOT_JSON)] {
        let mut fastest = (Duration::MAX, 0);
        for _ in 0..5 {
            let start = Instant::now();
            let bytes = recorder.snapshot(format);
            fastest = fastest.min((start.elapsed(), bytes));
        }
        let (took, bytes) = fastest;
        println!("{name:6} {:.3}  {:.1} MB", took.as_secs_f64(), bytes as f64 / 1e6);
    }
}

fn main() {
    let cli = Cli::parse();
    if let Some(Job::Run(run)) = cli.command {
        let mut lane = lane(run.recording, run.bytes).expect("there is such a recording");
        (lane.run)(run.pairs);
        return;
    }
    pairs(cli.rounds);
    snapshots();
}
