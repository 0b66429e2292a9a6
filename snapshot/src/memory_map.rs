//! The memory map: the blocks of every segment, and the distribution of their sizes. TensorFlow's
//! report of best fit with coalescing out of memory, for every policy.
//!
//! The map is built from a snapshot, so it holds no lock and calls no device. A snapshot taken
//! before a request failed can be examined later.

use cachalot_core::{BlockState, GRAIN, PyTorchSize, SnapshotBlock, SnapshotSegment};
use std::collections::BTreeMap;
use std::fmt;

/// The number of bins (`kNumBins`, TensorFlow 2.16).
pub const BINS: usize = 21;

/// The number of characters of the occupancy.
pub const OCCUPANCY_WIDTH: usize = 100;

/// The blocks of a range of sizes, from `from` bytes up to twice as many. The last bin has all
/// larger blocks too.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Bin {
    /// The least size in bytes: 256 for the first bin, doubling from bin to bin.
    pub from: u64,
    /// The number of blocks, in use or free.
    pub chunks: u64,
    /// The number of blocks in use.
    pub chunks_in_use: u64,
    /// Bytes of all blocks.
    pub bytes: u64,
    /// Bytes of the blocks in use.
    pub bytes_in_use: u64,
    /// Requested bytes of the blocks in use.
    pub requested_in_use: u64,
}

/// The blocks in use of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SizeInUse {
    /// The size in bytes.
    pub size: u64,
    /// The number of blocks in use.
    pub chunks: u64,
}

/// The memory map of a snapshot. Freed blocks that other streams still use count as in use: no
/// request may get them.
///
/// ```
/// use cachalot_core::simulated::SimulatedDevice;
/// use cachalot_core::Growable;
/// use cachalot_core::{DeviceIndex, MIB, StreamId};
/// use cachalot_core::{Allocator, Config};
/// use cachalot_snapshot::memory_map::MemoryMap;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = Config::parse("policy:bfc,first_region_mb:4")?;
/// let allocator: Allocator<_, spin::mutex::SpinMutex<()>, Growable> =
///     Allocator::new([SimulatedDevice::new(64 * MIB)], &config)?;
/// // Too little is left for a second block of this size, so the block is not split.
/// allocator.malloc(DeviceIndex(0), 3 * MIB, StreamId::DEFAULT)?;
///
/// let map = MemoryMap::of(allocator.snapshot());
/// assert_eq!((map.requested_in_use, map.bytes_in_use, map.largest_free), (3 * MIB, 4 * MIB, 0));
/// assert_eq!(map.occupancy(), "*".repeat(75) + &"x".repeat(25));
/// println!("{map}");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryMap {
    /// The segments with their blocks, by address.
    pub regions: Vec<SnapshotSegment>,
    /// The distribution of the block sizes.
    pub bins: [Bin; BINS],
    /// The blocks in use by size, ascending.
    pub sizes_in_use: Vec<SizeInUse>,
    /// Bytes allocated from the device.
    pub bytes: u64,
    /// Bytes of the blocks in use.
    pub bytes_in_use: u64,
    /// Requested bytes of the blocks in use.
    pub requested_in_use: u64,
    /// The size of the largest free block in bytes; 0 without free blocks.
    pub largest_free: u64,
}

/// Returns the bin of blocks of `bytes` bytes.
#[must_use]
pub fn bin_of(bytes: u64) -> usize {
    let log2 = (bytes.max(GRAIN) / GRAIN).ilog2();
    (log2 as usize).min(BINS - 1)
}

/// Returns whether a block counts as in use.
fn is_in_use(block: &SnapshotBlock) -> bool {
    block.state != BlockState::Inactive
}

impl MemoryMap {
    /// Builds the map of these segments: a whole snapshot, or some of its segments.
    #[must_use]
    pub fn of(segments: Vec<SnapshotSegment>) -> Self {
        let mut map = Self {
            regions: segments,
            bins: std::array::from_fn(|bin| Bin { from: GRAIN << bin, ..Bin::default() }),
            sizes_in_use: Vec::new(),
            bytes: 0,
            bytes_in_use: 0,
            requested_in_use: 0,
            largest_free: 0,
        };
        let mut sizes = BTreeMap::new();
        for block in map.regions.iter().flat_map(|region| &region.blocks) {
            let bin = &mut map.bins[bin_of(block.size)];
            bin.chunks += 1;
            bin.bytes += block.size;
            map.bytes += block.size;
            if is_in_use(block) {
                bin.chunks_in_use += 1;
                bin.bytes_in_use += block.size;
                bin.requested_in_use += block.requested_size;
                map.bytes_in_use += block.size;
                map.requested_in_use += block.requested_size;
                *sizes.entry(block.size).or_insert(0) += 1;
            } else {
                map.largest_free = map.largest_free.max(block.size);
            }
        }
        map.sizes_in_use = sizes.into_iter().map(|(size, chunks)| SizeInUse { size, chunks }).collect();
        map
    }

    /// Iterates over all blocks, by address.
    pub fn chunks(&self) -> impl Iterator<Item = &SnapshotBlock> {
        self.regions.iter().flat_map(|region| &region.blocks)
    }

    /// Returns the bytes of the free blocks.
    #[must_use]
    pub const fn bytes_free(&self) -> u64 {
        self.bytes - self.bytes_in_use
    }

    /// Returns the fraction of the free bytes outside of the largest free block, 0 to 1; 0 without
    /// free blocks.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        if self.bytes_free() == 0 {
            return 0.0;
        }
        1.0 - self.largest_free as f64 / self.bytes_free() as f64
    }

    /// Draws all segments together in [`OCCUPANCY_WIDTH`] characters: `*` for requested bytes, `x`
    /// for the rest of blocks in use, `_` for free blocks. Each character represents the same part
    /// of the memory, and shows what fills most of that part; in a tie, the first in this order.
    /// Empty without segments.
    #[must_use]
    pub fn occupancy(&self) -> String {
        let mut line = Line { length: u128::from(self.bytes), at: 0, filled: [[0; KINDS.len()]; OCCUPANCY_WIDTH] };
        for block in self.chunks() {
            if is_in_use(block) {
                let requested = block.requested_size.min(block.size);
                line.fill(REQUESTED, requested);
                line.fill(SLACK, block.size - requested);
            } else {
                line.fill(FREE, block.size);
            }
        }
        if self.bytes == 0 { String::new() } else { line.filled.iter().map(most).collect() }
    }
}

/// The characters of the occupancy. The constants below index this table.
const KINDS: [char; 3] = ['*', 'x', '_'];
/// Requested bytes.
const REQUESTED: usize = 0;
/// Bytes of blocks in use beyond the requested size.
const SLACK: usize = 1;
/// Bytes of free blocks.
const FREE: usize = 2;

/// Fills the characters of the occupancy from left to right. Positions are bytes times the width,
/// so each character starts at a whole position.
struct Line {
    /// The width of a character: the bytes of the memory.
    length: u128,
    /// The position reached.
    at: u128,
    /// The filled part of each character, by kind.
    filled: [[u128; KINDS.len()]; OCCUPANCY_WIDTH],
}

impl Line {
    /// Fills the next `bytes` of the memory with `kind`.
    fn fill(&mut self, kind: usize, bytes: u64) {
        let end = self.at + u128::from(bytes) * OCCUPANCY_WIDTH as u128;
        while self.at < end {
            let character = self.at / self.length;
            let until = end.min((character + 1) * self.length);
            self.filled[character as usize][kind] += until - self.at;
            self.at = until;
        }
    }
}

/// Returns the character of the kind that fills most.
fn most(character: &[u128; KINDS.len()]) -> char {
    let mut kind = REQUESTED;
    // `>` and not `>=`: in a tie the earlier kind wins.
    for other in [SLACK, FREE] {
        if character[other] > character[kind] {
            kind = other;
        }
    }
    KINDS[kind]
}

impl fmt::Display for Bin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [from, bytes, in_use, requested] =
            [self.from, self.bytes, self.bytes_in_use, self.requested_in_use].map(PyTorchSize);
        write!(f, "from {from}: blocks {}, in use {}; ", self.chunks, self.chunks_in_use)?;
        write!(f, "{bytes}, in use {in_use}, asked for {requested}")
    }
}

/// Writes the report: the bins with blocks, every block by segment, the blocks in use by size, the
/// sums, and the occupancy.
impl fmt::Display for MemoryMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Blocks by size:")?;
        for bin in self.bins.iter().filter(|bin| bin.chunks > 0) {
            writeln!(f, "  {bin}")?;
        }
        for SnapshotSegment { device, address, total_size, stream, pool, blocks, .. } in &self.regions {
            writeln!(f, "Segment at {address} of {total_size} bytes, device {}, {stream:?}, pool {pool}:", device.0)?;
            for SnapshotBlock { address, size, requested_size, state, .. } in blocks {
                match state {
                    BlockState::ActiveAllocated => {
                        writeln!(f, "  in use  at {address} of {size} bytes, {requested_size} asked for")?;
                    }
                    BlockState::ActivePendingFree => {
                        writeln!(f, "  pending at {address} of {size} bytes, freed but not done with")?;
                    }
                    BlockState::Inactive => writeln!(f, "  free    at {address} of {size} bytes")?,
                }
            }
        }
        writeln!(f, "Blocks in use by size:")?;
        for &SizeInUse { size, chunks } in &self.sizes_in_use {
            writeln!(f, "  {chunks} of {size} bytes: {}", PyTorchSize(size * chunks))?;
        }
        let [bytes, in_use, requested, free, largest] =
            [self.bytes, self.bytes_in_use, self.requested_in_use, self.bytes_free(), self.largest_free]
                .map(PyTorchSize);
        writeln!(
            f,
            "Of {bytes}: in use {in_use}, asked for {requested}, free {free}, at most {largest} in one piece."
        )?;
        write!(f, "[{}]", self.occupancy())
    }
}
