//! Writing and checking blocks on one lane, many with one launch, and reading the findings back long afterwards.
//!
//! ```text
//! results   ├ half 0: 16 slots ┼ half 1: 16 slots ┤     a slot for each launch that checks
//!             being filled       recorded, then read before it is filled again
//! ```

use crate::stage::{Device, part};
use crate::verdict::{Kind, Verdict};
use cachalot_core::{DeviceMemory, DeviceResult, Event};
use cachalot_cuda::driver::types::CuStream;
use cachalot_kernels::{Findings, Life, ROW_BYTES, Region};

/// Launches that a half of the results has slots for.
const SLOTS: usize = 16;
/// Bytes of a slot.
const SLOT_BYTES: u64 = size_of::<Findings>() as u64;
/// Larger blocks have a launch of their own, with all of the device's threads.
const LARGE: u64 = 256 << 10;

/// A block's memory, and what is to be in it.
pub(crate) type Row = (Region, Life);

/// What one launch checked.
#[derive(Debug)]
struct Launch {
    /// Its place among the slots of its half.
    slot: usize,
    blocks: Vec<Row>,
}

/// One half of the results.
#[derive(Debug)]
struct Half {
    event: Event,
    launches: Vec<Launch>,
    /// The event stands behind all of them.
    recorded: bool,
}

/// One thread's writing and checking on one lane.
#[derive(Debug)]
pub(crate) struct Checker {
    device: &'static Device,
    table: Region,
    results: Region,
    halves: [Half; 2],
    /// The half that is being filled.
    filling: usize,
    /// The thread's own stream for reading.
    reader: CuStream,
}

/// What has been checked.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Checked {
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
}

impl Checker {
    /// Bytes of device memory that a checker needs.
    pub(crate) const fn bytes(batch: u32) -> u64 {
        (batch as u64 * ROW_BYTES + 2 * SLOTS as u64 * SLOT_BYTES).next_multiple_of(512)
    }

    /// A checker with memory of its own for batches of so many blocks.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn new(device: &'static Device, memory: Region, batch: u32, reader: CuStream) -> DeviceResult<Self> {
        let table = part(memory, 0, u64::from(batch) * ROW_BYTES);
        let results = part(memory, table.bytes(), 2 * SLOTS as u64 * SLOT_BYTES);
        for slot in 0..2 * SLOTS as u64 {
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
    /// The device's: what the blocks hold is not known then.
    pub(crate) fn fill(&self, stream: CuStream, blocks: &[Row]) -> DeviceResult<()> {
        let (large, small) = by_size(blocks);
        for (region, life) in large {
            self.device.kernels.fill(stream, region, life)?;
        }
        for rows in small.chunks(self.rows()) {
            self.device.kernels.fill_many(stream, rows, self.table)?;
        }
        Ok(())
    }

    /// Checks blocks, in the order of `stream`. What is found is told later, by this or by [`settle`](Self::settle).
    ///
    /// # Errors
    /// The device's: some of the blocks may not be checked then.
    pub(crate) fn verify(&mut self, stream: CuStream, blocks: &[Row], verdict: &Verdict) -> DeviceResult<Checked> {
        let (large, small) = by_size(blocks);
        for (region, life) in large {
            let slot = self.slot(stream, verdict)?;
            let result = self.slot_region(slot);
            self.device.kernels.verify(stream, region, life, result)?;
            self.halves[self.filling].launches.push(Launch { slot, blocks: vec![(region, life)] });
        }
        for rows in small.chunks(self.rows()) {
            let slot = self.slot(stream, verdict)?;
            let result = self.slot_region(slot);
            self.device.kernels.verify_many(stream, rows, self.table, result)?;
            self.halves[self.filling].launches.push(Launch { slot, blocks: rows.to_vec() });
        }
        Ok(Checked { blocks: blocks.len() as u64, bytes: blocks.iter().map(|(region, _)| region.bytes()).sum() })
    }

    /// Waits for everything that is being checked, and reads what was found.
    ///
    /// # Errors
    /// The device's: what was found is not known then.
    pub(crate) fn settle(&mut self, stream: CuStream, verdict: &Verdict) -> DeviceResult<()> {
        let other = self.read_half(1 - self.filling, verdict);
        let half = &mut self.halves[self.filling];
        let recorded = if half.launches.is_empty() { Ok(()) } else { self.device.record(half.event, stream) };
        half.recorded = recorded.is_ok();
        let read = recorded.and_then(|()| self.read_half(self.filling, verdict));
        self.halves[self.filling].launches.clear();
        other.and(read)
    }

    /// How many blocks a table holds.
    fn rows(&self) -> usize {
        (self.table.bytes() / ROW_BYTES) as usize
    }

    fn slot_region(&self, slot: usize) -> Region {
        part(self.results, (self.filling * SLOTS + slot) as u64 * SLOT_BYTES, SLOT_BYTES)
    }

    /// A slot for one more launch. If the half is full, the other one is read and filled instead.
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

    /// Waits for a half's launches and reads what they found. Afterwards the half is empty, whatever comes of it.
    fn read_half(&mut self, number: usize, verdict: &Verdict) -> DeviceResult<()> {
        let half = &mut self.halves[number];
        let launches = std::mem::take(&mut half.launches);
        if !std::mem::take(&mut half.recorded) || launches.is_empty() {
            return Ok(());
        }
        self.device.cuda.wait(half.event)?;
        let offset = (number * SLOTS) as u64 * SLOT_BYTES;
        let region = part(self.results, offset, SLOTS as u64 * SLOT_BYTES);
        let found = self.device.read(self.reader, region, SLOTS)?;
        for Launch { slot, blocks } in launches {
            if let Some((row, offset)) = found[slot].first_of_many() {
                verdict.report(Kind::Content, describe(&blocks, found[slot], row, offset));
            }
        }
        Ok(())
    }
}

/// The blocks that have a launch of their own, and those that share one.
fn by_size(blocks: &[Row]) -> (Vec<Row>, Vec<Row>) {
    blocks.iter().partition(|(region, _)| region.bytes() > LARGE)
}

/// A finding in words.
fn describe(blocks: &[Row], found: Findings, row: usize, offset: u64) -> String {
    let Some((region, life)) = blocks.get(row) else {
        return format!("{found:?} in a launch of {} blocks", blocks.len());
    };
    format!(
        "{} wrong bytes in a launch of {} blocks; the first at offset {offset} of block {:#x} (generation {}), {} bytes at {}",
        found.wrong_bytes,
        blocks.len(),
        life.block,
        life.generation,
        region.bytes(),
        region.address()
    )
}
