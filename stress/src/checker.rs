//! Fills and checks blocks on one lane, many blocks per launch, and reads the findings long
//! afterwards.
//!
//! ```text
//! results   ├ half 0: 16 slots ┼ half 1: 16 slots ┼ 1 ┤   a slot for each launch that checks, and one for all that fill
//!             being filled       recorded, then read before it is filled again
//! ```

use crate::stage::{Checks, Device, part};
use crate::verdict::{Kind, Verdict};
use cachalot_core::{DeviceResult, Event, StreamOrder};
use cachalot_cuda::driver::types::CuStream;
use cachalot_kernels::{Evidence, Findings, Life, ROW_BYTES, Region};

/// Slots of half of the results; each launch takes a slot.
const SLOTS: usize = 16;
/// All slots: those of both halves, and the slot of the launches that fill.
const ALL_SLOTS: usize = 2 * SLOTS + 1;
/// Bytes of a slot.
const SLOT_BYTES: u64 = size_of::<Checks>() as u64;
/// The numbers of blocks are smaller: a thread's number in front of 40 bits.
const BLOCKS: u64 = 1 << 48;
/// Larger blocks get their own launch, with all threads of the device. One block in a thousand is
/// as large, so that nearly all blocks share launches, and the slots of a half last for thousands
/// of blocks.
const LARGE: u64 = 8 << 20;

/// A block's memory, and the expected pattern.
pub(crate) type Row = (Region, Life);

/// The blocks checked by a launch.
#[derive(Debug)]
struct Launch {
    /// Index of the launch's slot within its half.
    slot: usize,
    /// The number of a launch over the table. `None` for a block with its own launch.
    number: Option<u64>,
    blocks: Vec<Row>,
}

/// Half of the results.
#[derive(Debug)]
struct Half {
    event: Event,
    launches: Vec<Launch>,
    /// Whether the event is recorded after all launches of the half.
    recorded: bool,
}

/// Fills and checks blocks of a thread on a lane.
#[derive(Debug)]
pub(crate) struct Checker {
    device: &'static Device,
    table: Region,
    results: Region,
    halves: [Half; 2],
    /// Index of the half that receives new launches.
    filling: usize,
    /// The thread's own stream for reading results.
    reader: CuStream,
}

/// Number of checked blocks and bytes.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Checked {
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
}

impl Checker {
    /// Returns the bytes of device memory that a checker needs for batches of `batch` blocks.
    pub(crate) const fn bytes(batch: u32) -> u64 {
        (batch as u64 * ROW_BYTES + ALL_SLOTS as u64 * SLOT_BYTES).next_multiple_of(512)
    }

    /// Creates a checker over `memory`, for batches of `batch` blocks.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn new(device: &'static Device, memory: Region, batch: u32, reader: CuStream) -> DeviceResult<Self> {
        let table = part(memory, 0, u64::from(batch) * ROW_BYTES);
        let results = part(memory, table.bytes(), ALL_SLOTS as u64 * SLOT_BYTES);
        for slot in 0..ALL_SLOTS as u64 {
            device.kernels.clear(reader, part(results, slot * SLOT_BYTES, SLOT_BYTES))?;
        }
        device.synchronize(reader)?;
        let half = || -> DeviceResult<Half> {
            Ok(Half { event: device.take_event()?, launches: Vec::new(), recorded: false })
        };
        let halves = [half()?, half()?];
        Ok(Self { device, table, results, halves, filling: 0, reader })
    }

    /// Writes the patterns of blocks, in the order of `stream`.
    ///
    /// # Errors
    /// The device's. The contents of the blocks are then unknown.
    pub(crate) fn fill(&self, stream: CuStream, blocks: &[Row]) -> DeviceResult<()> {
        let (large, small) = by_size(blocks);
        for (region, life) in large {
            self.device.kernels.fill(stream, region, life)?;
        }
        for rows in small.chunks(self.rows()) {
            self.device.kernels.fill_many(stream, rows, self.table, Some(self.evidence_of_fills()))?;
        }
        Ok(())
    }

    /// Checks blocks, in the order of `stream`. Findings are reported later, by another call or
    /// by [`finish`](Self::finish).
    ///
    /// # Errors
    /// The device's. Some blocks may then be unchecked.
    pub(crate) fn verify(&mut self, stream: CuStream, blocks: &[Row], verdict: &Verdict) -> DeviceResult<Checked> {
        let (large, small) = by_size(blocks);
        for (region, life) in large {
            let slot = self.slot(stream, verdict)?;
            let result = self.slot_region(slot);
            self.device.kernels.verify(stream, region, life, result)?;
            self.halves[self.filling].launches.push(Launch { slot, number: None, blocks: vec![(region, life)] });
        }
        for rows in small.chunks(self.rows()) {
            let slot = self.slot(stream, verdict)?;
            let result = self.slot_region(slot);
            let number = self.device.kernels.verify_many(stream, rows, self.table, result)?;
            self.halves[self.filling].launches.push(Launch { slot, number: Some(number), blocks: rows.to_vec() });
        }
        Ok(Checked { blocks: blocks.len() as u64, bytes: blocks.iter().map(|(region, _)| region.bytes()).sum() })
    }

    /// Waits for all queued checks, and reports the findings.
    ///
    /// # Errors
    /// The device's. The findings are then unknown.
    pub(crate) fn finish(&mut self, stream: CuStream, verdict: &Verdict) -> DeviceResult<()> {
        let other = self.read_half(1 - self.filling, verdict);
        let half = &mut self.halves[self.filling];
        let recorded = if half.launches.is_empty() { Ok(()) } else { self.device.record(half.event, stream) };
        half.recorded = recorded.is_ok();
        let read = recorded.and_then(|()| self.read_half(self.filling, verdict));
        self.halves[self.filling].launches.clear();
        other.and(read)
    }

    /// Returns the number of blocks that fit into a table.
    fn rows(&self) -> usize {
        (self.table.bytes() / ROW_BYTES) as usize
    }

    /// Returns where launches that fill leave their evidence.
    fn evidence_of_fills(&self) -> Region {
        part(self.slot_of_fills(), size_of::<Findings>() as u64, size_of::<Evidence>() as u64)
    }

    fn slot_of_fills(&self) -> Region {
        part(self.results, 2 * SLOTS as u64 * SLOT_BYTES, SLOT_BYTES)
    }

    fn slot_region(&self, slot: usize) -> Region {
        part(self.results, (self.filling * SLOTS + slot) as u64 * SLOT_BYTES, SLOT_BYTES)
    }

    /// Returns a slot for one more launch. If the half is full, reads the other half and continues
    /// in the other half.
    fn slot(&mut self, stream: CuStream, verdict: &Verdict) -> DeviceResult<usize> {
        let half = &mut self.halves[self.filling];
        if half.launches.len() == SLOTS {
            let recorded = self.device.record(half.event, stream);
            half.recorded = recorded.is_ok();
            let read = self.read_half(1 - self.filling, verdict);
            self.filling = 1 - self.filling;
            recorded.and(read)?;
        }
        Ok(self.halves[self.filling].launches.len())
    }

    /// Waits for a half's launches, and reports the findings. Afterwards the half is empty, even
    /// after an error.
    fn read_half(&mut self, number: usize, verdict: &Verdict) -> DeviceResult<()> {
        let half = &mut self.halves[number];
        let launches = std::mem::take(&mut half.launches);
        if !std::mem::take(&mut half.recorded) || launches.is_empty() {
            return Ok(());
        }
        self.device.cuda.wait(half.event)?;
        let offset = (number * SLOTS) as u64 * SLOT_BYTES;
        let region = part(self.results, offset, SLOTS as u64 * SLOT_BYTES);
        let found = self.device.read_results(self.reader, region, SLOTS)?;
        let of_fills = self.device.read_results(self.reader, self.slot_of_fills(), 1)?[0].evidence;
        if of_fills.is_taken != 0 {
            verdict.report(Kind::Content, format!("a fill {}", describe_evidence(None, of_fills)));
        }
        for launch in launches {
            let checks = found[launch.slot];
            if let Some((row, offset)) = checks.findings.first_of_many() {
                verdict.report(Kind::Content, describe(&launch, checks, row, offset));
            }
        }
        Ok(())
    }
}

/// Splits blocks into large blocks, with a launch each, and blocks that share a launch.
fn by_size(blocks: &[Row]) -> (Vec<Row>, Vec<Row>) {
    blocks.iter().partition(|(region, _)| region.bytes() > LARGE)
}

/// Describes a finding as text.
fn describe(launch: &Launch, checks: Checks, row: usize, offset: u64) -> String {
    let Launch { number, blocks, .. } = launch;
    let (found, evidence) = (checks.findings, checks.evidence);
    let Some((region, life)) = blocks.get(row) else {
        return format!("{found:?} in a launch of {} blocks", blocks.len());
    };
    // Nearly all bytes: the launch is wrong as a whole. A part: the memory of some blocks.
    let all: u64 = blocks.iter().map(|(region, _)| region.bytes()).sum();
    // A check of a block alone leaves no evidence.
    let seen = if evidence.is_taken == 0 {
        String::new()
    } else {
        format!("; a thread {}", describe_evidence(*number, evidence))
    };
    format!(
        "{} wrong bytes of {all} in a launch of {} blocks; the first at offset {offset} of row {row}, block {:#x} (generation {}), {} bytes at {}{seen}",
        found.wrong_bytes,
        blocks.len(),
        life.block,
        life.generation,
        region.bytes(),
        region.address()
    )
}

/// Describes what a thread of the launch `number` has read and compared. A launch that fills leaves
/// evidence only of a row of another launch.
fn describe_evidence(number: Option<u64>, evidence: Evidence) -> String {
    let Evidence { block, generation, word, actual, launch, .. } = evidence;
    if number != Some(launch) {
        return format!(
            "has read a row of launch {launch}, block {block:#x} (generation {generation}), in launch {word}"
        );
    }
    let there = Life::of_word(word, actual, BLOCKS).map_or_else(
        || format!("the word {actual:#x}"),
        |life| format!("the pattern of block {:#x} (generation {})", life.block, life.generation),
    );
    format!("has expected block {block:#x} (generation {generation}) at word {word}, and found {there}")
}
