//! Memory that belongs to live blocks: which bytes, on which physical pages, with what contents.
//!
//! ```text
//! Ranges        ranges without overlap, each with an owner
//! Claims        the addresses and the physical memory of live blocks, in ranges
//! Marks         the contents of a block, one number for each page
//! ```

use cachalot_core::DevicePtr;
use cachalot_core::simulated::SimulatedDevice;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// Ranges of numbers without overlap, each with an owner.
#[derive(Clone, Debug)]
pub struct Ranges<T>(BTreeMap<u64, (u64, T)>);

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T: Clone> Ranges<T> {
    /// Adds a range that is not empty.
    ///
    /// # Errors
    /// A range that overlaps, with its owner.
    pub fn claim(&mut self, range: Range<u64>, owner: T) -> Result<(), (Range<u64>, T)> {
        if let Some((other, owner)) = self.overlapping(range.clone()).next() {
            return Err((other, owner.clone()));
        }
        self.0.insert(range.start, (range.end, owner));
        Ok(())
    }

    /// Removes the range that begins at `start`. Returns its end.
    pub fn give_up(&mut self, start: u64) -> Option<u64> {
        self.0.remove(&start).map(|(end, _)| end)
    }

    /// Returns the ranges that overlap with `range`, the highest first.
    pub fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, &T)> {
        let before = self.0.range(..range.end).rev().map(|(&start, (end, owner))| (start..*end, owner));
        before.take_while(move |(other, _)| other.end > range.start)
    }

    /// Returns whether every number of a range is in the ranges.
    pub fn cover(&self, range: Range<u64>) -> bool {
        let mut end = range.end;
        for (other, _) in self.overlapping(range.clone()) {
            if other.end < end {
                return false;
            }
            end = other.start;
        }
        end <= range.start
    }

    /// Returns all ranges, the lowest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (Range<u64>, &T)> {
        self.0.iter().map(|(&start, (end, owner))| (start..*end, owner))
    }
}

/// A part of physical memory: the number of the handle, and the bytes within. A segment without
/// virtual memory has handle 0, and the bytes are addresses.
pub type Piece = (u64, Range<u64>);

/// Returns the physical memory under a block. `None` if a part has none.
pub fn pieces(device: &SimulatedDevice, ptr: DevicePtr, bytes: u64) -> Option<Vec<Piece>> {
    let pieces = device.physical(ptr, bytes)?;
    Some(pieces.into_iter().map(|(handle, range)| (handle.0, range)).collect())
}

/// Returns two of the pieces that have a byte in common.
pub fn shared(mut pieces: Vec<Piece>) -> Option<[Piece; 2]> {
    pieces.sort_unstable_by_key(|(handle, bytes)| (*handle, bytes.start));
    let shared = pieces.windows(2).find(|pair| pair[0].0 == pair[1].0 && pair[0].1.end > pair[1].1.start);
    shared.map(|pair| [pair[0].clone(), pair[1].clone()])
}

/// A block where it is.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The number of the block.
    pub number: u64,
    /// The address.
    pub ptr: DevicePtr,
    /// The requested bytes.
    pub bytes: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {} ({} bytes at {})", self.number, self.bytes, self.ptr)
    }
}

/// The memory of all live blocks.
#[derive(Default, Debug)]
pub struct Claims {
    addresses: Ranges<u64>,
    /// For each physical handle, the ranges within.
    physical: BTreeMap<u64, Ranges<u64>>,
    /// The physical memory of each block.
    pieces: BTreeMap<u64, Vec<Piece>>,
}

impl Claims {
    /// Claims the addresses and the physical memory of a new block.
    ///
    /// # Errors
    /// A sentence.
    pub fn claim(&mut self, device: &SimulatedDevice, block: Place) -> Result<(), String> {
        let claimed = self.addresses.claim(block.ptr.0..block.ptr.0 + block.bytes, block.number);
        claimed.map_err(|(_, other)| format!("{block} is in the live block {other}"))?;
        self.claim_memory(device, block)
    }

    /// Claims the physical memory of a block.
    ///
    /// # Errors
    /// A sentence.
    pub fn claim_memory(&mut self, device: &SimulatedDevice, block: Place) -> Result<(), String> {
        let pieces = pieces(device, block.ptr, block.bytes);
        let pieces = pieces.ok_or_else(|| format!("{block} has no memory in a part"))?;
        for (handle, range) in &pieces {
            let claimed = self.physical.entry(*handle).or_default().claim(range.clone(), block.number);
            claimed.map_err(|(_, other)| format!("{block} has the physical memory of the live block {other}"))?;
        }
        self.pieces.insert(block.number, pieces);
        Ok(())
    }

    /// Gives the physical memory of a block up, before the park.
    pub fn give_memory_up(&mut self, block: Place) {
        for (handle, range) in self.pieces.remove(&block.number).into_iter().flatten() {
            self.physical.entry(handle).or_default().give_up(range.start);
        }
    }

    /// Gives a block up, before the free.
    pub fn give_up(&mut self, block: Place) {
        self.addresses.give_up(block.ptr.0);
        self.give_memory_up(block);
    }

    /// Returns whether the physical memory of a block is claimed: that of a parked block is not.
    pub fn has_memory(&self, block: Place) -> bool {
        self.pieces.contains_key(&block.number)
    }

    /// Checks whether a live block still has its first physical memory.
    ///
    /// # Errors
    /// A sentence.
    pub fn check(&self, device: &SimulatedDevice, block: Place) -> Result<(), String> {
        let Some(claimed) = self.pieces.get(&block.number) else { return Ok(()) };
        let present = pieces(device, block.ptr, block.bytes).unwrap_or_default();
        if present == *claimed {
            return Ok(());
        }
        Err(format!("{block} was given other memory: {present:?}, and had {claimed:?}"))
    }
}

/// Bytes between two marks of a block: the length of the shortest physical page.
const MARKED: u64 = 2 << 20;

/// The contents of memory by address. Each piece of physical memory has its own contents from the
/// start, so nothing has to be written.
#[derive(Clone, Default, Debug)]
pub struct Marks(Vec<(DevicePtr, u64)>);

impl Marks {
    /// Notes the contents under a block.
    pub fn add(&mut self, device: &SimulatedDevice, ptr: DevicePtr, bytes: u64) {
        let places = (0..bytes).step_by(MARKED as usize).map(|offset| ptr.offset(offset));
        self.0.extend(places.filter_map(|at| Some((at, device.read(at)?))));
    }

    /// Forgets the contents of a range.
    pub fn forget(&mut self, range: &Range<DevicePtr>) {
        self.0.retain(|(at, _)| !range.contains(at));
    }

    /// Compares the contents with the marks.
    ///
    /// # Errors
    /// A sentence.
    pub fn check(&self, device: &SimulatedDevice) -> Result<(), String> {
        for &(at, expected) in &self.0 {
            let found = device.read(at);
            if found != Some(expected) {
                return Err(format!("the contents {found:x?} at {at} in place of {expected:x}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_claimed_once_and_again_after_it_was_given_up() {
        let mut ranges = Ranges::default();
        assert_eq!(ranges.claim(10..20, 'a'), Ok(()));
        assert_eq!(ranges.claim(20..30, 'b'), Ok(()));
        for taken in [9..11, 12..13, 19..25, 0..40] {
            assert!(ranges.claim(taken.clone(), 'c').is_err(), "{taken:?}");
        }
        assert_eq!(ranges.overlapping(15..25).map(|(_, owner)| *owner).collect::<String>(), "ba");
        assert_eq!((ranges.cover(10..30), ranges.cover(9..12), ranges.cover(25..31)), (true, false, false));
        assert_eq!(ranges.give_up(10), Some(20));
        assert_eq!((ranges.give_up(10), ranges.cover(15..25), ranges.claim(0..20, 'd')), (None, false, Ok(())));
    }

    #[test]
    fn two_pieces_share_bytes_of_one_handle_alone() {
        assert_eq!(shared(vec![(1, 0..10), (2, 5..15), (1, 10..20)]), None);
        assert_eq!(shared(vec![(1, 5..15), (2, 0..9), (1, 0..10)]), Some([(1, 0..10), (1, 5..15)]));
    }
}
