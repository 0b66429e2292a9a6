//! The addresses and the physical memory of each live block, and the marks to be found in the
//! memory.

use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{DevicePtr, StreamId};
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes between two marks of a block: the length of the shortest physical page.
const MARKED: u64 = 2 << 20;

/// A block that a thread of the world holds.
#[derive(Clone, Debug)]
pub(crate) struct Block {
    /// Unique in the world.
    pub number: u64,
    pub ptr: DevicePtr,
    pub bytes: u64,
    /// The own stream.
    pub home: StreamId,
    /// The stream of the last use.
    pub last: StreamId,
    /// The contents at the first use, by address. Each piece of physical memory has contents of its
    /// own.
    marks: Vec<(DevicePtr, u64)>,
}

impl Block {
    pub(crate) fn new(number: u64, ptr: DevicePtr, bytes: u64, home: StreamId) -> Self {
        Self { number, ptr, bytes, home, last: home, marks: Vec::new() }
    }

    /// Notes the contents under the block.
    pub(crate) fn mark(&mut self, device: &SimulatedDevice) {
        let places = (0..self.bytes).step_by(MARKED as usize).map(|offset| self.ptr.offset(offset));
        self.marks = places.filter_map(|at| Some((at, device.read(at)?))).collect();
    }

    /// Compares the contents with the marks.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn check(&self, device: &SimulatedDevice) -> Result<(), String> {
        for &(at, expected) in &self.marks {
            let found = device.read(at);
            if found != Some(expected) {
                let Self { number, ptr, bytes, home, .. } = self;
                return Err(format!(
                    "block {number} ({bytes} bytes at {ptr} of {home:?}) has the contents {found:x?} at {at} in place of {expected:x}"
                ));
            }
        }
        Ok(())
    }
}

/// Ranges that belong to blocks: start → end, block.
type Ranges = BTreeMap<u64, (u64, u64)>;

/// The memory of all live blocks.
#[derive(Default, Debug)]
pub(crate) struct Claims {
    addresses: Ranges,
    /// For each physical handle, the ranges within. Segments have the handle 0, and addresses as
    /// ranges.
    physical: BTreeMap<u64, Ranges>,
    /// The physical memory of each block.
    pieces: BTreeMap<u64, Vec<(u64, Range<u64>)>>,
}

/// Adds a range.
///
/// # Errors
/// The block to which a part of the range belongs.
fn add(ranges: &mut Ranges, range: &Range<u64>, block: u64) -> Result<(), u64> {
    if let Some((_, &(end, other))) = ranges.range(..range.end).next_back()
        && end > range.start
    {
        return Err(other);
    }
    ranges.insert(range.start, (range.end, block));
    Ok(())
}

impl Claims {
    /// Claims the addresses and the physical memory of a new block.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn claim(&mut self, device: &SimulatedDevice, block: &Block) -> Result<(), String> {
        let &Block { number, ptr, bytes, .. } = block;
        add(&mut self.addresses, &(ptr.0..ptr.0 + bytes), number)
            .map_err(|other| format!("block {number} ({bytes} bytes at {ptr}) is in the live block {other}"))?;
        self.claim_memory(device, block)
    }

    /// Claims the physical memory of a block.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn claim_memory(&mut self, device: &SimulatedDevice, block: &Block) -> Result<(), String> {
        let &Block { number, ptr, bytes, .. } = block;
        let pieces = device.physical(ptr, bytes);
        let pieces =
            pieces.ok_or_else(|| format!("block {number} ({bytes} bytes at {ptr}) has no memory in a part"))?;
        let pieces: Vec<_> = pieces.into_iter().map(|(handle, range)| (handle.0, range)).collect();
        for (handle, range) in &pieces {
            add(self.physical.entry(*handle).or_default(), range, number).map_err(|other| {
                format!("block {number} ({bytes} bytes at {ptr}) has the physical memory of the live block {other}")
            })?;
        }
        self.pieces.insert(number, pieces);
        Ok(())
    }

    /// Gives the physical memory of a block up, before the park.
    pub(crate) fn give_memory_up(&mut self, block: &Block) {
        for (handle, range) in self.pieces.remove(&block.number).into_iter().flatten() {
            let ranges = self.physical.entry(handle).or_default();
            ranges.remove(&range.start);
            if ranges.is_empty() {
                self.physical.remove(&handle);
            }
        }
    }

    /// Gives a block up, before the free.
    pub(crate) fn give_up(&mut self, block: &Block) {
        self.addresses.remove(&block.ptr.0);
        self.give_memory_up(block);
    }

    /// Checks whether a live block still has its first physical memory.
    ///
    /// # Errors
    /// A sentence.
    pub(crate) fn check(&self, device: &SimulatedDevice, block: &Block) -> Result<(), String> {
        let Some(claimed) = self.pieces.get(&block.number) else { return Ok(()) };
        let present = device.physical(block.ptr, block.bytes).unwrap_or_default();
        if !present
            .iter()
            .map(|(handle, range)| (handle.0, range))
            .eq(claimed.iter().map(|(handle, range)| (*handle, range)))
        {
            let Block { number, ptr, bytes, .. } = block;
            return Err(format!(
                "block {number} ({bytes} bytes at {ptr}) was given other memory: {present:?}, and had {claimed:?}"
            ));
        }
        block.check(device)
    }
}
