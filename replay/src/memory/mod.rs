//! The memory of a device from event to event: parts from the device, and blocks in the parts.
//! [`Memory::apply`] and [`Memory::undo`] are all that an event does to memory, forwards and
//! backwards. Undoing the events of a history from the last event on leads back to any earlier
//! time.
//!
//! The memory serves every [`HistoryReader`] of a history, which has its values for parts, blocks
//! and events, such as stream, pool, time and stack. What a history does not tell is among these
//! values. Nothing is refused: of events that contradict each other, the later one holds. A reader
//! that refuses asks [`Memory::misfit`] first.

mod event;
mod free;

pub use event::{Action, EventOf, Frees};
pub use free::{FreeMemory, SMALL_PAGE, Stuck, free_between, page_of};

use cachalot_core::UNIT;
use std::collections::BTreeMap;

/// A part with its address, and all blocks.
pub type PartAmong<'m, P, B> = (u64, &'m mut Part<P>, &'m BTreeMap<u64, Block<B>>);

/// A segment, or a mapped part of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<P> {
    /// Address after the last byte.
    pub end: u64,
    /// Size of the pages of an expandable segment, which go back to the device one by one. 0 for a
    /// segment that is released as a whole.
    pub page: u64,
    /// The reader's value.
    pub of: P,
}

impl<P> Part<P> {
    /// Returns a part that ends at an address, for a reader to which the size of pages does not
    /// matter.
    pub fn new(end: u64, is_expandable: bool, of: P) -> Self {
        Self { end, page: if is_expandable { SMALL_PAGE } else { 0 }, of }
    }
}

/// A live or pending block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block<B> {
    /// Size in bytes.
    pub size: u64,
    /// Whether the program freed the block while other streams still use the block.
    pub pending: bool,
    /// The reader's value.
    pub of: B,
}

/// The memory of a device. A block freed later counts with the requested size, rounded up to 512
/// bytes, because a history does not have the block's size.
#[derive(Clone, Debug)]
pub struct Memory<P, B> {
    /// Disjoint parts by address. Changed by the methods alone.
    parts: BTreeMap<u64, Part<P>>,
    /// By address.
    blocks: BTreeMap<u64, Block<B>>,
    reserved: u64,
    allocated: u64,
    pending: u64,
}

/// What in the memory an event does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misfit<B> {
    /// Memory that comes is there already.
    Held,
    /// Memory that goes is not there as a whole.
    NotHeld,
    /// The memory of a block that comes is not there, or in several segments.
    Outside,
    /// Memory of a block that comes, or memory that goes, is in use by the block at the address.
    InUse(u64, Block<B>),
    /// The block of a free is not there, or for an undone event, that of a request.
    NoBlock,
}

/// A reader of a history: what it knows of memory, and what it sees of a change.
pub trait HistoryReader {
    /// What the reader knows of a part.
    type Part: Copy;
    /// What the reader knows of a block.
    type Block: Copy + Default;
    /// What the reader knows of an event.
    type Event;

    /// Returns the memory that an event obtains, or for an undone event, gave back. The place is
    /// empty.
    fn part(&mut self, event: &EventOf<Self::Event>, memory: &Memory<Self::Part, Self::Block>) -> Part<Self::Part>;

    /// Returns the block that an event allocates, or for an undone event, freed: by default the
    /// rounded request, with no value.
    fn block(&mut self, event: &EventOf<Self::Event>, _memory: &Memory<Self::Part, Self::Block>) -> Block<Self::Block> {
        Block { size: rounded(event.size), pending: false, of: Self::Block::default() }
    }

    /// Joins a new part with pages with a part directly beside it, or returns `false`. `is_joined`
    /// tells whether the new part is already joined with the part on its other side.
    fn join(&self, _new: &mut Part<Self::Part>, _beside: &Part<Self::Part>, _is_joined: bool) -> bool {
        false
    }

    /// Sees a part that is new, or is left of a larger part.
    fn part_begins(
        &mut self,
        _address: u64,
        _part: &mut Part<Self::Part>,
        _blocks: &BTreeMap<u64, Block<Self::Block>>,
    ) {
    }

    /// Sees a part that is gone, cut or joined.
    fn part_ends(&mut self, _address: u64, _part: &Part<Self::Part>) {}
}

impl<P, B> Default for Memory<P, B> {
    fn default() -> Self {
        Self { parts: BTreeMap::new(), blocks: BTreeMap::new(), reserved: 0, allocated: 0, pending: 0 }
    }
}

/// Returns the size of a block for a request: a multiple of 512 bytes.
pub fn rounded(bytes: u64) -> u64 {
    bytes.max(1).checked_next_multiple_of(UNIT).unwrap_or(bytes)
}

impl<P: Copy, B: Copy> Memory<P, B> {
    /// Returns all parts by address.
    pub fn parts(&self) -> &BTreeMap<u64, Part<P>> {
        &self.parts
    }

    /// Returns the live and pending blocks by address.
    pub fn blocks(&self) -> &BTreeMap<u64, Block<B>> {
        &self.blocks
    }

    /// Returns the bytes of all parts.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Returns the bytes of all live blocks.
    pub fn allocated(&self) -> u64 {
        self.allocated
    }

    /// Returns the bytes of all pending blocks.
    pub fn pending(&self) -> u64 {
        self.pending
    }

    /// Returns the part around an address, with the address of the part.
    pub fn part_at(&self, address: u64) -> Option<(u64, &Part<P>)> {
        let (&start, part) = self.parts.range(..=address).next_back()?;
        (address < part.end).then_some((start, part))
    }

    /// Returns the reader's value of the part around an address, for changes, with the part and all
    /// blocks.
    pub fn part_at_mut(&mut self, address: u64) -> Option<PartAmong<'_, P, B>> {
        let (&start, part) = self.parts.range_mut(..=address).next_back()?;
        (address < part.end).then_some((start, part, &self.blocks))
    }

    /// Returns the reader's value of the block at an address, for changes.
    pub fn block_mut(&mut self, address: u64) -> Option<&mut B> {
        self.blocks.get_mut(&address).map(|block| &mut block.of)
    }

    /// Returns the reader's value of each block, for changes.
    pub fn blocks_mut(&mut self) -> impl Iterator<Item = &mut B> {
        self.blocks.values_mut().map(|block| &mut block.of)
    }

    /// Makes the change of an event. Returns the block that was at the address before.
    pub fn apply<R: HistoryReader<Part = P, Block = B>>(
        &mut self,
        event: &EventOf<R::Event>,
        reader: &mut R,
    ) -> Option<Block<B>> {
        match event.action {
            Action::Alloc => {
                let block = reader.block(event, self);
                self.set_block(event.addr, Some(block))
            }
            Action::FreeRequested => self.set_pending(event.addr, true),
            Action::FreeCompleted => self.set_block(event.addr, None),
            Action::SegmentAlloc | Action::SegmentMap => self.obtain(event, reader),
            Action::SegmentFree | Action::SegmentUnmap => self.release(event, reader),
            Action::OutOfMemory | Action::Mark | Action::Other => None,
        }
    }

    /// Undoes the change of an event. Returns the block that was at the address after the event.
    pub fn undo<R: HistoryReader<Part = P, Block = B>>(
        &mut self,
        event: &EventOf<R::Event>,
        reader: &mut R,
    ) -> Option<Block<B>> {
        match event.action {
            Action::Alloc => self.set_block(event.addr, None),
            Action::FreeRequested if self.blocks.contains_key(&event.addr) => self.set_pending(event.addr, false),
            Action::FreeRequested => {
                let block = reader.block(event, self);
                self.set_block(event.addr, Some(Block { pending: false, ..block }))
            }
            Action::FreeCompleted => {
                let block = reader.block(event, self);
                self.set_block(event.addr, Some(block))
            }
            Action::SegmentAlloc | Action::SegmentMap => self.release(event, reader),
            Action::SegmentFree | Action::SegmentUnmap => self.obtain(event, reader),
            Action::OutOfMemory | Action::Mark | Action::Other => None,
        }
    }

    /// Returns what the change of an event does not fit, or for `is_undone`, what does not fit that
    /// the change was. What a block must be like is the reader's to say.
    pub fn misfit<E>(&self, event: &EventOf<E>, is_undone: bool) -> Option<Misfit<B>> {
        let (addr, end) = (event.addr, event.end());
        match (event.action, is_undone) {
            (Action::Alloc, false) => self.in_use(addr, end).or_else(|| self.outside(addr, end)),
            // The end of a history has all segments, and its beginning may not.
            (Action::FreeCompleted, true) => self.outside(addr, end).or_else(|| self.in_use(addr, end)),
            (Action::Alloc | Action::FreeRequested | Action::FreeCompleted, _) => {
                (!self.blocks.contains_key(&addr)).then_some(Misfit::NoBlock)
            }
            (Action::SegmentAlloc | Action::SegmentMap, false) | (Action::SegmentFree | Action::SegmentUnmap, true) => {
                self.overlaps(addr, end).then_some(Misfit::Held)
            }
            (Action::SegmentAlloc | Action::SegmentFree, _) => {
                let is_held = self.parts.get(&addr).is_some_and(|part| part.page == 0 && part.end == end);
                if is_held { self.in_use(addr, end) } else { Some(Misfit::NotHeld) }
            }
            (Action::SegmentMap | Action::SegmentUnmap, _) => {
                let is_held = self.part_at(addr).is_some_and(|(_, part)| part.page > 0 && part.end >= end);
                if is_held { self.in_use(addr, end) } else { Some(Misfit::NotHeld) }
            }
            (Action::OutOfMemory | Action::Mark | Action::Other, _) => None,
        }
    }

    /// Returns whether memory of a part is in a range.
    pub fn overlaps(&self, address: u64, end: u64) -> bool {
        self.parts.range(..end).next_back().is_some_and(|(_, part)| part.end > address)
    }

    fn outside(&self, address: u64, end: u64) -> Option<Misfit<B>> {
        let is_within = self.part_at(address).is_some_and(|(_, part)| end <= part.end);
        (!is_within).then_some(Misfit::Outside)
    }

    /// Returns the last block in a range. If blocks are disjoint, no other one reaches further.
    fn in_use(&self, address: u64, end: u64) -> Option<Misfit<B>> {
        let (&start, &block) = self.blocks.range(..end).next_back()?;
        (start.saturating_add(block.size) > address).then_some(Misfit::InUse(start, block))
    }

    /// Adds the memory of an event in the place of all memory there.
    fn obtain<R: HistoryReader<Part = P, Block = B>>(
        &mut self,
        event: &EventOf<R::Event>,
        reader: &mut R,
    ) -> Option<Block<B>> {
        if event.size > 0 {
            self.cut(event.addr, event.end(), reader);
            let part = reader.part(event, self);
            self.place(event.addr, part, reader);
        }
        None
    }

    /// Removes the memory of an event.
    fn release<R: HistoryReader<Part = P, Block = B>>(
        &mut self,
        event: &EventOf<R::Event>,
        reader: &mut R,
    ) -> Option<Block<B>> {
        self.cut(event.addr, event.end(), reader);
        None
    }

    /// Adds a part where no memory is. A part with pages is joined with its neighbours, if the
    /// reader says so.
    pub fn place<R: HistoryReader<Part = P, Block = B>>(
        &mut self,
        mut address: u64,
        mut part: Part<P>,
        reader: &mut R,
    ) {
        if part.page > 0 {
            let below = self.parts.range(..address).next_back().map(|(&start, other)| (start, *other));
            let below = below.filter(|(_, other)| other.end == address);
            let above = self.parts.get(&part.end).map(|&other| (part.end, other));
            let mut is_joined = false;
            for (start, other) in below.into_iter().chain(above).filter(|(_, other)| other.page > 0) {
                if reader.join(&mut part, &other, is_joined) {
                    self.remove(start, reader);
                    address = address.min(start);
                    part.end = part.end.max(other.end);
                    part.page = other.page;
                    is_joined = true;
                }
            }
        }
        self.add(address, part, reader);
    }

    /// Removes a range from all overlapping parts.
    pub fn cut<R: HistoryReader<Part = P, Block = B>>(&mut self, address: u64, end: u64, reader: &mut R) {
        let below = self.parts.range(..end).rev().take_while(|(_, part)| part.end > address);
        let touched: Vec<(u64, Part<P>)> = below.map(|(&start, part)| (start, *part)).collect();
        for &(start, _) in &touched {
            self.remove(start, reader);
        }
        for (start, part) in touched {
            if start < address {
                self.add(start, Part { end: address, ..part }, reader);
            }
            if part.end > end {
                self.add(end, part, reader);
            }
        }
    }

    fn add<R: HistoryReader<Part = P, Block = B>>(&mut self, address: u64, mut part: Part<P>, reader: &mut R) {
        reader.part_begins(address, &mut part, &self.blocks);
        self.insert(address, part);
    }

    fn remove<R: HistoryReader<Part = P, Block = B>>(&mut self, address: u64, reader: &mut R) {
        if let Some(part) = self.parts.remove(&address) {
            self.reserved = self.reserved.saturating_sub(part.end - address);
            reader.part_ends(address, &part);
        }
    }

    /// Adds a part of the memory at one time. Replaces a part at the same address.
    pub fn insert(&mut self, address: u64, part: Part<P>) {
        self.reserved = self.reserved.saturating_add(part.end - address);
        if let Some(before) = self.parts.insert(address, part) {
            self.reserved = self.reserved.saturating_sub(before.end - address);
        }
    }

    /// Replaces or removes the block at an address. Returns the former block.
    pub fn set_block(&mut self, address: u64, block: Option<Block<B>>) -> Option<Block<B>> {
        let before = match block {
            Some(block) => self.blocks.insert(address, block),
            None => self.blocks.remove(&address),
        };
        if let Some(Block { size, pending, .. }) = before {
            let sum = if pending { &mut self.pending } else { &mut self.allocated };
            *sum = sum.saturating_sub(size);
        }
        if let Some(Block { size, pending, .. }) = block {
            let sum = if pending { &mut self.pending } else { &mut self.allocated };
            *sum = sum.saturating_add(size);
        }
        before
    }

    /// Makes a block pending or live. Returns the former block.
    fn set_pending(&mut self, address: u64, pending: bool) -> Option<Block<B>> {
        let block = self.blocks.get_mut(&address)?;
        let before = *block;
        if before.pending != pending {
            block.pending = pending;
            let (from, to) = if pending {
                (&mut self.allocated, &mut self.pending)
            } else {
                (&mut self.pending, &mut self.allocated)
            };
            (*from, *to) = (from.saturating_sub(before.size), to.saturating_add(before.size));
        }
        Some(before)
    }

    /// Returns the memory in words of [`Stuck`]. `is_private` tells whether the pool of a part is
    /// private.
    pub fn stuck(&self, is_private: impl Fn(P) -> bool) -> Stuck {
        let mut stuck = Stuck::default();
        for (&address, part) in &self.parts {
            stuck.add(part.end - address, self.free(address, part, false), is_private(part.of));
        }
        stuck
    }

    /// Returns the free memory of a part. With `pending`, pending blocks count as free.
    pub fn free(&self, address: u64, part: &Part<P>, pending: bool) -> FreeMemory {
        // The block before the part may reach into the part.
        let before = self.blocks.range(..address).next_back();
        let before = before.filter(|(start, block)| start.saturating_add(block.size) > address);
        let within = before.into_iter().chain(self.blocks.range(address..part.end.max(address)));
        let used = within.filter(|(_, block)| !(pending && block.pending)).map(|(&start, block)| (start, block.size));
        free_between(address, part.end, part.page, used)
    }
}

#[cfg(test)]
mod tests;
