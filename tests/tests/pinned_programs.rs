//! What real programs pin of the host's memory, replayed with the settings of pinned memory.
//!
//! `tests/traces/pinned` has the records, which `tests/pytorch/pinned_programs.py` made.

use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{Allocator, Config, DevicePtr, Growable, StreamId};
use cachalot_cuda::{HOST_SETTINGS, HOST_STREAM};
use cachalot_tests::host::{DEVICE, MIB};
use flate2::read::GzDecoder;
use std::collections::HashMap;
use std::fs::File;
use std::path::Path;

/// Length of the segments that blocks of at most 1 MiB share, in bytes.
const SHARED: f64 = 2.0 * MIB as f64;

/// The most bytes of a program: asked for by the program, and held by the allocator.
#[derive(Debug)]
struct Peaks {
    asked: f64,
    held: f64,
}

/// Replays a record. Copies are complete when the allocator asks.
fn replay(file: &Path) -> Peaks {
    let device = SimulatedDevice::new(64 << 30).with_work_done_at_once();
    let config = Config::parse(HOST_SETTINGS).unwrap();
    let allocator: Allocator<_, parking_lot::RawMutex, Growable> = Allocator::new([device], &config).unwrap();
    let mut live: HashMap<u64, (DevicePtr, u64)> = HashMap::new();
    let (mut asked, mut most_asked) = (0, 0);
    let calls = csv::ReaderBuilder::new()
        .has_headers(false)
        .flexible(true)
        .from_reader(GzDecoder::new(File::open(file).expect("a record")));
    for call in calls.into_records() {
        let call = call.expect("a line of the record");
        let number = |at: usize| call[at].parse::<u64>().expect("a number");
        match &call[0] {
            "a" => {
                let bytes = number(2);
                let block = allocator.malloc(DEVICE, bytes, HOST_STREAM).expect("the device is large");
                assert!(live.insert(number(1), (block, bytes)).is_none(), "block {} is requested once", number(1));
                asked += bytes;
                most_asked = most_asked.max(asked);
            }
            "u" => allocator.record_stream(live[&number(1)].0, StreamId(number(2) + 1)).expect("it is live"),
            "f" => {
                let (block, bytes) = live.remove(&number(1)).expect("it is live");
                allocator.free(block).expect("it is live");
                asked -= bytes;
            }
            other => panic!("action {other}"),
        }
    }
    allocator.check_invariants().unwrap();
    let held = allocator.stats(DEVICE).unwrap().reserved_bytes().peak;
    Peaks { asked: most_asked as f64, held: held as f64 }
}

#[test]
fn real_programs_hold_at_most_two_hundredths_more_than_they_ask_for() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/pinned");
    let mut programs = 0;
    for entry in std::fs::read_dir(folder).expect("the records") {
        let file = entry.expect("a file").path();
        let name = file.file_name().expect("a name").to_string_lossy().into_owned();
        let peaks = replay(&file);
        println!("{name}: {:.1} MiB, {:.4}", peaks.asked / MIB as f64, peaks.held / peaks.asked);
        // A program that asks for little has one segment more than the least.
        assert!(peaks.held <= (1.02 * peaks.asked).max(peaks.asked + 2.0 * SHARED), "{name}: {peaks:?}");
        programs += 1;
    }
    assert!(programs >= 9, "{programs} programs");
}
