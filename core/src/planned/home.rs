//! The heap behind a lane: it holds the lane's segment, and cares for those of its blocks that are more than handed out and freed.
//!
//! That is: blocks that other streams use, that are freed at a count, or that are looked at one by one. Such a block has an entry
//! like any other heap's, and everything that holds for those holds for it; when it has become free the heap notes its address
//! for the lane. To the heap the segment is one that a carver cuts. It is held as long as the lane is there, whatever is in use.

use crate::block::{Block, State};
use crate::carve::{AnyCarver, Carver, Free, Taken};
use crate::heap::{Done, Heap};
use crate::stats::{Stat, Tally};
use crate::tables::slot_table::NONE;
use crate::tables::{CapacityError, Storage};
use crate::units::DevicePtr;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::marker::PhantomData;

/// The carver of a lane's heap. It cuts nothing by itself.
pub(crate) struct Home<S> {
    /// The lane is gone.
    ended: bool,
    segment: (u64, u64),
    /// Address and length of each block in the heap's care.
    taken: BTreeMap<u64, u64>,
    /// Addresses of those that have become free since the lane asked last.
    returned: Vec<u64>,
    of_heap: PhantomData<fn(S)>,
}

impl<S> Default for Home<S> {
    fn default() -> Self {
        Self { ended: false, segment: (0, 0), taken: BTreeMap::new(), returned: Vec::new(), of_heap: PhantomData }
    }
}

impl<S: Storage> Carver<S> for Home<S> {
    fn segment_bytes(&self, size: u64) -> u64 {
        size
    }

    fn make_room(&mut self, _bytes: u64, _size: u64) -> bool {
        true
    }

    fn add_segment(&mut self, _segment: u32, base: u64, bytes: u64, _size: u64) {
        self.segment = (base, bytes);
    }

    fn remove_segment(&mut self, _segment: u32) {
        self.segment = (0, 0);
    }

    fn take(&mut self, _size: u64) -> Result<Option<(Taken, Free)>, CapacityError> {
        Ok(None)
    }

    fn peek(&self, _size: u64) -> Option<u64> {
        None
    }

    /// What is free beside its blocks does not count as pieces, and to the last one the [heap](Heap::rest_if_free) sees itself. Not
    /// inlined: it comes seldom, where others come often.
    #[inline(never)]
    fn give(&mut self, piece: Taken, _size: u64) -> Free {
        self.taken.remove(&piece.addr);
        if !self.ended {
            self.returned.push(piece.addr);
        }
        Free { alone: true, before: 0, now: 0 }
    }

    fn visit_free(&self, _segment: u32, visit: &mut dyn FnMut(u64, u64)) {
        let (base, bytes) = self.segment;
        let mut at = base;
        for (&addr, &size) in self.taken.iter().chain([(&(base + bytes), &0)]) {
            if addr > at {
                visit(at, addr - at);
            }
            at = addr + size;
        }
    }

    fn check(&self) -> Result<(), &'static str> {
        Ok(())
    }
}

impl<S: Storage> Heap<S> {
    /// The carver, if the heap is one behind a lane.
    fn home(&mut self) -> Option<&mut Home<S>> {
        match &mut self.carver {
            Some(AnyCarver::Planned(home)) => Some(home),
            _ => None,
        }
    }

    /// Makes it the heap behind a lane with this segment. Room for it was made.
    pub(super) fn begin_plan(&mut self, base: DevicePtr, bytes: u64, tally: &Tally) -> Done<()> {
        self.carver = Some(AnyCarver::Planned(Box::default()));
        // No vacant block passes for a piece.
        self.blocks.entries_mut().iter_mut().for_each(|block| block.state = State::Held);
        let Done { value: whole, unsettled } = self.add_segment(base, bytes, bytes, tally);
        // The lane counts as one that is taken, so that the segment is never wholly free.
        self.segments[self.blocks[whole].segment].live = true;
        Done { value: (), unsettled }
    }

    /// Room for a lane's segment, and for one block.
    pub(super) fn make_room_for_plan(&mut self) -> Result<(), CapacityError> {
        self.make_room()?;
        if self.segments.make_room(1) { Ok(()) } else { Err(CapacityError) }
    }

    /// Takes a block into its care, which counts from here on by `tally`; as an oversize one from `oversize` bytes on, as it did in its
    /// lane, whatever the settings are now. True if the peaks must be settled.
    pub(super) fn take_over(
        &mut self,
        (addr, size): (u64, u64),
        requested: u64,
        oversize: u64,
        (from, tally): (&Tally, &Tally),
    ) -> Result<bool, CapacityError> {
        self.make_room()?;
        let Some(home) = self.home() else { return Err(CapacityError) };
        home.taken.insert(addr, size);
        let segment = self.newest;
        let (blocks, vacancies) = self.blocks.parts();
        let piece = vacancies.occupy(blocks);
        blocks[piece as usize] = Block::piece(addr, size, requested, segment, NONE);
        self.held.insert(piece, blocks);
        let mut unsettled = from.hand_over(tally, Stat::Allocation, 1);
        unsettled |= from.hand_over(tally, Stat::AllocatedBytes, size);
        unsettled |= from.hand_over(tally, Stat::RequestedBytes, requested);
        if size >= oversize {
            unsettled |= from.hand_over(tally, Stat::OversizeAllocations, 1);
        }
        Ok(unsettled)
    }

    /// Passes on the address of each block in its care that has become free.
    pub(super) fn take_returned(&mut self) -> Vec<u64> {
        self.home().map(|home| core::mem::take(&mut home.returned)).unwrap_or_default()
    }

    /// The lane is gone: what is in the heap's care keeps the segment from being wholly free, and nothing else.
    pub(super) fn end_plan(&mut self) {
        if let Some(home) = self.home() {
            home.ended = true;
            home.returned = Vec::new();
        }
        if self.newest != NONE {
            self.rest_if_free(self.newest);
        }
    }

    /// The segment is wholly free if the lane is gone and nothing of it is taken.
    pub(crate) fn rest_if_free(&mut self, segment: u32) {
        let free = self.home().is_some_and(|home| home.ended && home.taken.is_empty());
        self.segments[segment].live = !free;
        if free {
            let whole = self.segments[segment].first;
            self.blocks[whole].born = self.clock;
        }
    }
}
