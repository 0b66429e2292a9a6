//! A heap whose segments a carver cuts: buddy, size class, slab.
//!
//! ```text
//! segment   first ─▶ the block that stands for it whole: free and in the index while nothing of it is taken, else held
//!           pieces ─▶ block ⇄ block ⇄ …   what is taken, in no order
//! ```
//!
//! So what releases wholly free segments needs to know nothing of carvers. A piece has a block only while it is taken.

use super::{Done, Heap};
use crate::block::{Block, State};
use crate::carve::Taken;
use crate::slab::NONE;
use crate::stats::{Stat, Tally};
use crate::storage::Storage;
use crate::units::DevicePtr;

impl<S: Storage> Heap<S> {
    /// Takes a piece of `size`, as the carver rounds requests, if a segment has one. Room was made for its block.
    pub(super) fn malloc_carved(&mut self, size: u64, requested: u64, tally: &Tally) -> Option<Done<DevicePtr>> {
        let carver = self.carver.as_mut()?;
        let (Taken { addr, segment }, free) = carver.take_and_count(size)?;
        let (blocks, vacancies) = self.blocks.parts();
        let entry = &mut self.segments[segment];
        let mut unsettled = if entry.live == 0 {
            let whole = entry.first;
            self.free.remove(whole, blocks);
            blocks[whole as usize].state = State::Held;
            tally.up(Stat::InactiveSplitBytes, entry.bytes - size)
        } else {
            tally.down(Stat::InactiveSplitBytes, size);
            false
        };
        unsettled |= count_pieces(&mut entry.counted, free, tally);
        entry.live += 1;
        let piece = vacancies.occupy(blocks);
        blocks[piece as usize] = Block::piece(addr, size, requested, segment, entry.pieces);
        if entry.pieces != NONE {
            blocks[entry.pieces as usize].prev = piece;
        }
        entry.pieces = piece;
        self.held.insert(piece, blocks);
        unsettled |= tally.up(Stat::Allocation, 1);
        unsettled |= tally.up(Stat::AllocatedBytes, size);
        unsettled |= tally.up(Stat::RequestedBytes, requested);
        Some(Done { value: DevicePtr(addr), unsettled })
    }

    /// A piece that is in no set, and that nothing uses any longer, goes back to the carver. True if the peaks must be settled.
    pub(super) fn complete_carved(&mut self, piece: u32, tally: &Tally) -> bool {
        let Some(carver) = self.carver.as_mut() else { return false };
        let (blocks, vacancies) = self.blocks.parts();
        let Block { addr, size, requested, prev, next, segment, .. } = blocks[piece as usize];
        tally.down(Stat::RequestedBytes, requested);
        let free = carver.give_and_count(Taken { addr, segment }, size);
        let entry = &mut self.segments[segment];
        if prev == NONE {
            entry.pieces = next;
        } else {
            blocks[prev as usize].next = next;
        }
        if next != NONE {
            blocks[next as usize].prev = prev;
        }
        vacancies.vacate(piece, blocks);
        entry.live -= 1;
        if entry.live > 0 {
            let unsettled = tally.up(Stat::InactiveSplitBytes, size);
            return unsettled | count_pieces(&mut entry.counted, free, tally);
        }
        #[cfg(feature = "alloc")]
        if carver.is_planned() {
            self.rest_if_free(segment);
            return false;
        }
        tally.down(Stat::InactiveSplitBytes, entry.bytes - size);
        tally.down(Stat::InactiveSplit, u64::from(core::mem::take(&mut entry.counted)));
        let whole = entry.first;
        let entry = &mut blocks[whole as usize];
        entry.state = State::Free;
        entry.born = self.clock;
        self.free.insert(whole, blocks);
        false
    }

    /// Whether its segments are those of a lane of the planned policy.
    pub(crate) fn is_planned(&self) -> bool {
        matches!(&self.carver, Some(carver) if carver.is_planned())
    }

    /// The piece that [`malloc_carved`](Self::malloc_carved) would take now.
    pub(super) fn peek_carved(&mut self, size: u64) -> Option<DevicePtr> {
        let carver = self.carver.as_mut()?;
        if !carver.is_ready(size) {
            return None;
        }
        carver.peek(size).map(DevicePtr)
    }

    /// The taken piece of a segment that contains `ptr`.
    pub(super) fn piece_containing(&self, segment: u32, ptr: DevicePtr) -> Option<u32> {
        self.pieces(segment).find(|&piece| {
            let block = &self.blocks[piece];
            (block.addr..block.end()).contains(&ptr.0)
        })
    }

    /// The taken pieces of a segment, in no order.
    pub(crate) fn pieces(&self, segment: u32) -> impl Iterator<Item = u32> {
        let mut at = self.segments[segment].pieces;
        core::iter::from_fn(move || {
            let piece = at;
            at = if piece == NONE { return None } else { self.blocks[piece].next };
            Some(piece)
        })
    }
}

/// `free` pieces of a segment are free beside taken ones, and `counted` were so far. True if the peaks must be settled.
fn count_pieces(counted: &mut u32, free: u32, tally: &Tally) -> bool {
    let before = core::mem::replace(counted, free);
    if free >= before {
        return tally.up(Stat::InactiveSplit, u64::from(free - before));
    }
    tally.down(Stat::InactiveSplit, u64::from(before - free));
    false
}
