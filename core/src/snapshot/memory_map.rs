//! The memory map: what lies where in every segment, and how the sizes are distributed. TensorFlow's report when its best fit with
//! coalescing runs out of memory, for every policy.
//!
//! It is made from a snapshot, so it holds no lock and calls no device, and one that was taken before a request failed can be read
//! at leisure.

use crate::device::oom::Size;
use crate::snapshot::{BlockState, SnapshotBlock, SnapshotSegment};
use crate::units::GRAIN;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

/// How many bins there are (`kNumBins`, TensorFlow 2.16).
pub const BINS: usize = 21;

/// How many characters the occupancy has.
pub const OCCUPANCY_WIDTH: usize = 100;

/// The blocks of one range of sizes, from so many bytes up to twice as many; the last bin holds everything above, too.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Bin {
    /// The least size, in bytes: 256 for the first bin, and twice as many for each further one.
    pub from: u64,
    /// Blocks, in use or free.
    pub chunks: u64,
    /// Those in use.
    pub chunks_in_use: u64,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Bytes of those in use.
    pub bytes_in_use: u64,
    /// Bytes that the program asked for, of those in use.
    pub requested_in_use: u64,
}

/// Blocks in use of one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SizeInUse {
    /// Their size in bytes.
    pub size: u64,
    /// How many there are.
    pub chunks: u64,
}

/// The map. FreeArgs blocks that other streams still use count as in use: nobody else may have them.
///
/// ```
/// use cachalot_core::memory_map::MemoryMap;
/// use cachalot_core::simulated::SimulatedDevice;
/// use cachalot_core::Growable;
/// use cachalot_core::{DeviceIndex, MIB, StreamId};
/// use cachalot_core::{Allocator, Config};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let config = Config::parse("policy:bfc,first_region_mb:4")?;
/// let allocator: Allocator<_, spin::mutex::SpinMutex<()>, Growable> =
///     Allocator::new([SimulatedDevice::new(64 * MIB)], &config)?;
/// // A second block of so many bytes would not fit in the rest, so nothing is split off.
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
    /// How the sizes of the blocks are distributed.
    pub bins: [Bin; BINS],
    /// Blocks in use by size, ascending.
    pub sizes_in_use: Vec<SizeInUse>,
    /// Bytes held from the device.
    pub bytes: u64,
    /// Bytes of the blocks in use.
    pub bytes_in_use: u64,
    /// Bytes that the program asked for, of the blocks in use.
    pub requested_in_use: u64,
    /// The largest free block, in bytes; 0 if there is none.
    pub largest_free: u64,
}

/// The bin of blocks of so many bytes.
#[must_use]
pub fn bin_of(bytes: u64) -> usize {
    let log2 = (bytes.max(GRAIN) / GRAIN).ilog2();
    (log2 as usize).min(BINS - 1)
}

fn is_in_use(block: &SnapshotBlock) -> bool {
    block.state != BlockState::Inactive
}

impl MemoryMap {
    /// The map of these segments: a whole snapshot, or the part of it that is of interest.
    #[must_use]
    pub fn of(segments: Vec<SnapshotSegment>) -> Self {
        let mut map = Self {
            regions: segments,
            bins: core::array::from_fn(|bin| Bin { from: GRAIN << bin, ..Bin::default() }),
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

    /// All blocks, by address.
    pub fn chunks(&self) -> impl Iterator<Item = &SnapshotBlock> {
        self.regions.iter().flat_map(|region| &region.blocks)
    }

    /// Bytes of the free blocks.
    #[must_use]
    pub const fn bytes_free(&self) -> u64 {
        self.bytes - self.bytes_in_use
    }

    /// The part of the free bytes that is not in the largest free block, 0 to 1; 0 if nothing is free.
    #[must_use]
    pub fn fragmentation(&self) -> f64 {
        if self.bytes_free() == 0 {
            return 0.0;
        }
        1.0 - self.largest_free as f64 / self.bytes_free() as f64
    }

    /// What the memory looks like from afar, all regions together, in [`OCCUPANCY_WIDTH`] characters: `*` for bytes that the
    /// program asked for, `x` for the rest of blocks in use, `_` for free blocks. A character stands for what fills most of its
    /// part, of several the first of these. Empty if nothing is held.
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

/// What a part of the memory may be filled with.
const KINDS: [char; 3] = ['*', 'x', '_'];
const REQUESTED: usize = 0;
const SLACK: usize = 1;
const FREE: usize = 2;

/// How much of each character is filled with what. Places are bytes times the width, so that characters begin at whole ones.
struct Line {
    /// Of a character: as many as the memory has bytes.
    length: u128,
    /// How far it is filled.
    at: u128,
    filled: [[u128; KINDS.len()]; OCCUPANCY_WIDTH],
}

impl Line {
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

fn most(character: &[u128; KINDS.len()]) -> char {
    let mut kind = REQUESTED;
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
            [self.from, self.bytes, self.bytes_in_use, self.requested_in_use].map(Size);
        write!(f, "from {from}: blocks {}, in use {}; ", self.chunks, self.chunks_in_use)?;
        write!(f, "{bytes}, in use {in_use}, asked for {requested}")
    }
}

/// The report: bins that hold anything, every block by region, blocks in use by size, sums, and the occupancy.
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
            writeln!(f, "  {chunks} of {size} bytes: {}", Size(size * chunks))?;
        }
        let [bytes, in_use, requested, free, largest] =
            [self.bytes, self.bytes_in_use, self.requested_in_use, self.bytes_free(), self.largest_free].map(Size);
        writeln!(
            f,
            "Of {bytes}: in use {in_use}, asked for {requested}, free {free}, at most {largest} in one piece."
        )?;
        write!(f, "[{}]", self.occupancy())
    }
}
