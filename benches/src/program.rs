//! Recorded programs: every allocation and free of a real program, in order, as fast as the subject
//! serves the requests.
//!
//! A recording is a file `NAME.csv.gz` with the columns `action,addr,size,stream`. Only the events
//! `a` (allocated) and `f` (freed) are used here. `NAME.expected.json.gz` contains the
//! configuration and the limit of the recording.

use crate::cachalot::Cachalot;
use crate::settings::Settings;
use crate::subject::Subject;
use crate::workload::Workload;
use cachalot_core::DeviceIndex;
use cachalot_core::simulated::Call;
use flate2::read::GzDecoder;
use rustc_hash::FxHashMap;
use serde::Deserialize;
use std::error::Error;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Number of runs of a program before the measurement. Afterwards the cache contains all memory for
/// the program.
const WARM_UP: u64 = 3;

/// An operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Step {
    /// Requested bytes, or 0 for a free.
    bytes: u64,
    stream: u64,
    /// Index of the slot with the block.
    slot: u32,
}

/// A recorded program. Frees all live blocks at the end, so the program can be repeated.
#[derive(Clone, Debug)]
pub struct Program {
    /// The recording's name.
    pub name: String,
    settings: Settings,
    /// The largest number of reserved bytes under the recording's configuration.
    reserved: u64,
    steps: Arc<[Step]>,
    slots: usize,
}

#[derive(Deserialize)]
struct Expected {
    config: String,
    limit_bytes: Option<u64>,
    stats: FxHashMap<String, serde_json::Value>,
}

/// Collects steps, and assigns blocks to the smallest number of slots.
#[derive(Default)]
struct StepRecorder {
    steps: Vec<Step>,
    live: FxHashMap<u64, Step>,
    vacant: Vec<u32>,
    slots: u32,
}

impl StepRecorder {
    fn malloc(&mut self, addr: u64, bytes: u64, stream: u64) {
        let slot = self.vacant.pop().unwrap_or(self.slots);
        self.slots = self.slots.max(slot + 1);
        let step = Step { bytes, stream, slot };
        self.live.insert(addr, step);
        self.steps.push(step);
    }

    fn free(&mut self, addr: u64) -> Result<(), String> {
        let step = self.live.remove(&addr).ok_or_else(|| format!("{addr:x} is freed but not live"))?;
        self.vacant.push(step.slot);
        self.steps.push(Step { bytes: 0, ..step });
        Ok(())
    }

    fn finish(mut self) -> (Arc<[Step]>, usize) {
        // Sorted, since the order of a hash table would differ between runs.
        let mut left: Vec<Step> = self.live.into_values().map(|step| Step { bytes: 0, ..step }).collect();
        left.sort_by_key(|step| step.slot);
        self.steps.append(&mut left);
        (self.steps.into(), self.slots as usize)
    }
}

/// Reads all recordings in `folder`, sorted by name.
///
/// # Errors
/// If the folder cannot be read, or contains an invalid recording.
pub fn programs(folder: &Path) -> Result<Vec<Program>, Box<dyn Error>> {
    let entries: Result<Vec<PathBuf>, _> = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect();
    let mut paths: Vec<PathBuf> = entries.map_err(|error: std::io::Error| error)?;
    paths.retain(|path| path.to_string_lossy().ends_with(".csv.gz"));
    paths.sort();
    paths.iter().map(|path| Program::read(path)).collect()
}

impl Program {
    /// Reads the recording at `path`, and the file with its expected results.
    ///
    /// # Errors
    /// If either file cannot be read or is invalid.
    pub fn read(path: &Path) -> Result<Self, Box<dyn Error>> {
        let file = path.to_string_lossy();
        let stem = file.strip_suffix(".csv.gz").ok_or("a recording ends in .csv.gz")?;
        let expected = GzDecoder::new(BufReader::new(File::open(format!("{stem}.expected.json.gz"))?));
        let Expected { config, limit_bytes, stats } = serde_json::from_reader(expected)?;
        let peak = stats.get("reserved_bytes.all.peak").and_then(serde_json::Value::as_u64);
        let mut recorder = StepRecorder::default();
        let mut rows =
            csv::ReaderBuilder::new().flexible(true).from_reader(GzDecoder::new(BufReader::new(File::open(path)?)));
        for row in rows.records() {
            let row = row?;
            let field = |column: usize| row.get(column).ok_or_else(|| format!("{file}: column {column} is missing"));
            let hex = |column: usize| Ok::<_, Box<dyn Error>>(u64::from_str_radix(field(column)?, 16)?);
            match field(0)? {
                "a" => recorder.malloc(hex(1)?, field(2)?.parse()?, hex(3)?),
                "f" => recorder.free(hex(1)?).map_err(|error| format!("{file}: {error}"))?,
                _ => {}
            }
        }
        let (steps, slots) = recorder.finish();
        let name = Path::new(stem).file_name().ok_or("a recording has a name")?.to_string_lossy().into_owned();
        let reserved = peak.ok_or("the peak is missing")?;
        let settings = Settings { config, limit: limit_bytes };
        Ok(Self { name, settings, reserved, steps, slots })
    }

    /// Runs the program once. Returns false if a request was refused. Afterwards no block is live.
    #[inline(never)]
    pub fn pass<S: Subject>(&self, subject: &mut S, slots: &mut Vec<Option<S::Handle>>) -> bool {
        slots.resize(self.slots, None);
        let mut served = true;
        for step in &*self.steps {
            let slot = &mut slots[step.slot as usize];
            if step.bytes > 0 {
                *slot = subject.malloc(step.bytes, step.stream);
                served &= slot.is_some();
            } else if let Some(block) = slot.take() {
                subject.free(block);
            }
        }
        served
    }

    /// Returns the number of device calls for memory in a run after the warm-up.
    pub fn device_calls(&self) -> u64 {
        let mut subject = Cachalot::<::cachalot::HeapLock>::new(&self.settings);
        let calls = |subject: &Cachalot<::cachalot::HeapLock>| {
            let device = subject.allocator().device(DeviceIndex(0));
            let kinds = [Call::Obtain, Call::Release, Call::Create, Call::Destroy];
            kinds.map(|kind| device.map_or(0, |device| device.calls(kind))).iter().sum::<u64>()
        };
        let mut slots = Vec::new();
        for _ in 0..WARM_UP {
            self.pass(&mut subject, &mut slots);
        }
        let before = calls(&subject);
        self.pass(&mut subject, &mut slots);
        calls(&subject) - before
    }
}

impl Workload for Program {
    fn lane<S: Subject + 'static>(&self, mut subject: S) -> Option<Box<dyn FnMut(u64)>> {
        let (program, mut slots) = (self.clone(), Vec::new());
        for _ in 0..WARM_UP {
            // Under a limit, requests of the recorded program were refused too.
            if !program.pass(&mut subject, &mut slots) && program.settings.limit.is_none() {
                return None;
            }
        }
        Some(Box::new(move |times| {
            for _ in 0..times {
                program.pass(&mut subject, &mut slots);
            }
        }))
    }

    fn operations(&self) -> u64 {
        self.steps.len() as u64
    }

    fn arena(&self) -> u64 {
        // Other placement rules cause other fragmentation, so the arena has twice the peak.
        (self.reserved * 2).next_power_of_two()
    }

    fn settings(&self) -> Settings {
        self.settings.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btree::BTree;

    /// Stores the address of every served block.
    struct AddressLog<S: Subject>(S, Vec<S::Handle>);

    impl<S: Subject> Subject for AddressLog<S> {
        type Handle = S::Handle;

        fn malloc(&mut self, bytes: u64, stream: u64) -> Option<S::Handle> {
            let block = self.0.malloc(bytes, stream)?;
            self.1.push(block);
            Some(block)
        }

        fn free(&mut self, block: S::Handle) {
            self.0.free(block);
        }
    }

    /// The baseline must make the decisions of this project's allocator, and keep the same
    /// statistics.
    #[test]
    fn the_baseline_makes_equal_decisions() {
        let mut compared = 0;
        for program in programs(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/traces"))).unwrap() {
            let Some(baseline) = BTree::new(&program.settings) else { continue };
            let ours = Cachalot::<::cachalot::HeapLock>::new(&program.settings);
            let (mut ours, mut baseline) = (AddressLog(ours, Vec::new()), AddressLog(baseline, Vec::new()));
            for _ in 0..2 {
                assert!(program.pass(&mut ours, &mut Vec::new()));
                assert!(program.pass(&mut baseline, &mut Vec::new()));
            }
            assert!(ours.1.iter().map(|ptr| ptr.0).eq(baseline.1), "{}", program.name);
            let stats = ours.0.allocator().stats(DeviceIndex(0)).unwrap().totals();
            baseline.0.for_each_stat(|key, value| assert_eq!(stats.get(key), Some(value), "{} {key}", program.name));
            compared += 1;
        }
        assert!(compared >= 14, "{compared} recordings were compared");
    }

    #[test]
    fn slots_are_reused_and_live_blocks_are_freed_at_the_end() {
        let mut recorder = StepRecorder::default();
        recorder.malloc(0x1000, 1, 0);
        recorder.malloc(0x2000, 2, 7);
        recorder.free(0x1000).unwrap();
        recorder.malloc(0x1000, 3, 0);
        assert!(recorder.free(0x3000).is_err());
        let (steps, slots) = recorder.finish();
        let expected = [(1, 0, 0), (2, 7, 1), (0, 0, 0), (3, 0, 0), (0, 0, 0), (0, 7, 1)];
        let expected = expected.map(|(bytes, stream, slot)| Step { bytes, stream, slot });
        assert_eq!((&*steps, slots), (&expected[..], 2));
    }
}
