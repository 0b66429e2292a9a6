//! The memory of a device from event to event.
//!
//! State `s` is the memory after the first `s` events. A [`Watch`] sees every state, and every
//! block and part of the device's memory when it ends.

use super::begin::Begin;
use super::history::{Event, Kind, Origin, Pages, Seen, UNKNOWN};
use cachalot_replay::memory::{self, Action, HistoryReader, Memory, rounded};
use std::collections::BTreeMap;

/// A part of the device's memory: a segment, or contiguous memory of an expandable segment.
pub(super) type Part = memory::Part<Share>;

/// The state of a part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Share {
    pub(super) origin: Origin,
    /// The time of the start, in the terms of the watch.
    pub(super) born: u32,
    /// Bytes of the part's blocks that are not free.
    active: u64,
    /// Bytes of the part that can go back to the device.
    idle: u64,
}

/// What is known of a block that is not free, with the place that it has now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Facts {
    pub(super) stack: u32,
    pub(super) stream: u16,
    pub(super) pool: u16,
    pub(super) kind: Kind,
    /// The time of the start, in the terms of the watch.
    pub(super) born: u32,
    /// The time of the free by the program, or `u32::MAX`.
    pub(super) freed: u32,
}

/// A block that is not free.
pub(super) type Block = memory::Block<Facts>;

/// Sums in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    /// Memory from the device.
    pub(super) reserved: u64,
    /// Blocks that are not free: allocated or pending.
    pub(super) active: u64,
    /// Free memory that cannot go back to the device: outside of wholly free parts and pages.
    pub(super) holes: u64,
}

/// The free memory of all parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FreeParts {
    /// Number of parts with holes.
    pub(super) with_holes: u64,
    /// The bytes of each pool that can go back to the device, and the number of its wholly free
    /// parts.
    pub(super) idle: Vec<(u16, u64, u64)>,
}

/// Looks on as the memory changes.
pub(super) trait Watch {
    /// Returns the time of changes that show in state `state`.
    fn time(&self, state: u32) -> u32;
    /// A block ends in `state`, or does not end for `u32::MAX`.
    fn block(&mut self, address: u64, block: &Block, state: u32);
    /// A part ends in `state`, or does not end for `u32::MAX`.
    fn part(&mut self, address: u64, part: &Part, state: u32);
    /// State number `state` is complete.
    fn state(&mut self, state: u32, memory: &ForwardMemory<'_>);
}

/// The memory in a state.
pub(super) struct ForwardMemory<'m> {
    memory: &'m Memory<Share, Facts>,
    holes: u64,
}

impl ForwardMemory<'_> {
    /// Returns the sums.
    pub(super) fn sums(&self) -> Sums {
        let active = self.memory.allocated().saturating_add(self.memory.pending());
        Sums { reserved: self.memory.reserved(), active, holes: self.holes }
    }

    /// Returns the parts with holes and the idle memory.
    pub(super) fn free_parts(&self) -> FreeParts {
        let mut free = FreeParts::default();
        for (&start, part) in self.memory.parts() {
            free.with_holes += u64::from(holes(start, part) > 0);
            let Share { origin, active, idle, .. } = part.of;
            let segments = u64::from(active == 0);
            if idle == 0 && segments == 0 {
                continue;
            }
            match free.idle.iter_mut().find(|(pool, ..)| *pool == origin.pool) {
                Some((_, bytes, count)) => (*bytes, *count) = (bytes.saturating_add(idle), *count + segments),
                None => free.idle.push((origin.pool, idle, segments)),
            }
        }
        free
    }
}

/// Runs all events of a history.
pub(super) fn run(events: &[Event], begin: &Begin, pages: Pages, watch: &mut impl Watch) {
    let mut memory = Memory::default();
    let mut reader = ForwardReader { begin, pages, watch, state: 0, holes: 0 };
    let born = reader.watch.time(0);
    for (&address, &memory::Part { end, page, of: origin }) in begin.memory.parts() {
        let part = Part { end, page, of: Share { origin, born, active: 0, idle: 0 } };
        memory.place(address, part, &mut reader);
    }
    for (&address, &memory::Block { size, pending, of: stack }) in begin.memory.blocks() {
        let (stream, pool, kind) = owner(&memory, address, 0, UNKNOWN);
        let freed = if pending { born } else { u32::MAX };
        let of = Facts { stack, stream, pool, kind, born, freed };
        memory.set_block(address, Some(Block { size, pending, of }));
        reader.account(&mut memory, address, size, true);
    }
    reader.complete(&memory);
    for (state, event) in (1..).zip(events) {
        reader.state = state;
        reader.apply(&mut memory, event);
        reader.complete(&memory);
    }
    for (&address, block) in memory.blocks() {
        reader.watch.block(address, block, u32::MAX);
    }
    for (&address, part) in memory.parts() {
        reader.watch.part(address, part, u32::MAX);
    }
}

/// Reads events for a watch.
struct ForwardReader<'r, W> {
    begin: &'r Begin,
    pages: Pages,
    watch: &'r mut W,
    /// Number of events so far, with the present one.
    state: u32,
    /// Free memory that cannot go back to the device.
    holes: u64,
}

impl<W: Watch> ForwardReader<'_, W> {
    fn apply(&mut self, memory: &mut Memory<Share, Facts>, event: &Event) {
        let before = memory.apply(event, self);
        if event.action == Action::FreeRequested {
            if let Some(block) = memory.block_mut(event.addr) {
                block.freed = self.watch.time(self.state);
            }
            return;
        }
        if let Some(block) = before {
            self.account(memory, event.addr, block.size, false);
            self.watch.block(event.addr, &block, self.state);
        }
        if event.action == Action::Alloc
            && let Some(size) = memory.blocks().get(&event.addr).map(|block| block.size)
        {
            self.account(memory, event.addr, size, true);
        }
    }

    fn complete(&mut self, memory: &Memory<Share, Facts>) {
        self.watch.state(self.state, &ForwardMemory { memory, holes: self.holes });
    }

    /// Changes the bytes in use of the part around a block that comes or goes, and the part's idle
    /// bytes.
    fn account(&mut self, memory: &mut Memory<Share, Facts>, address: u64, size: u64, is_used: bool) {
        let Some((start, part, blocks)) = memory.part_at_mut(address) else { return };
        let pages = own_pages(blocks, address, size, start, part);
        let before = holes(start, part);
        let length = part.end - start;
        let Share { active, idle, .. } = &mut part.of;
        if part.page > 0 && *active == 0 {
            *idle = length / part.page * part.page;
        }
        if is_used {
            (*active, *idle) = (active.saturating_add(size), idle.saturating_sub(pages));
        } else {
            (*active, *idle) = (active.saturating_sub(size), idle.saturating_add(pages));
        }
        if *active == 0 || part.page == 0 {
            *idle = if *active == 0 { length } else { 0 };
        }
        self.holes = self.holes.saturating_sub(before).saturating_add(holes(start, part));
    }
}

impl<W: Watch> HistoryReader for ForwardReader<'_, W> {
    type Part = Share;
    type Block = Facts;
    type Event = Seen;

    fn part(&mut self, event: &Event, _: &Memory<Share, Facts>) -> Part {
        let (Seen { stream, pool, stack, .. }, expandable) = (event.of, event.action.is_expandable());
        let pool = self.begin.pools.get(&(self.state - 1)).copied().unwrap_or(pool);
        let kind = Kind::of(event.size, expandable, self.pages);
        let origin = Origin { stream, pool, expandable, kind, stack };
        let of = Share { origin, born: self.watch.time(self.state), active: 0, idle: 0 };
        Part { end: event.end(), page: self.pages.page(event.size, expandable, kind), of }
    }

    fn block(&mut self, event: &Event, memory: &Memory<Share, Facts>) -> Block {
        let number = self.state - 1;
        let size = self.begin.sizes.get(&number).copied().unwrap_or_else(|| rounded(event.size));
        let stack = self.begin.stacks.get(&number).copied().unwrap_or(event.of.stack);
        let (stream, pool, kind) = owner(memory, event.addr, event.of.stream, event.of.pool);
        let of = Facts { stack, stream, pool, kind, born: self.watch.time(self.state), freed: u32::MAX };
        Block { size, pending: false, of }
    }

    fn join(&self, new: &mut Part, beside: &Part, _: bool) -> bool {
        let (origin, other) = (&mut new.of.origin, beside.of.origin);
        if origin.stream != other.stream {
            return false;
        }
        if origin.pool == UNKNOWN || other.pool != UNKNOWN {
            origin.pool = other.pool;
        }
        (origin.stack, origin.kind) = (other.stack, other.kind);
        true
    }

    fn part_begins(&mut self, address: u64, part: &mut Part, blocks: &BTreeMap<u64, Block>) {
        let blocks = || blocks.range(address..part.end).map(|(&start, block)| (start, block.size));
        let active = blocks().map(|(_, size)| size).fold(0, u64::saturating_add);
        let idle = memory::free_between(address, part.end, part.page, blocks()).idle;
        (part.of.active, part.of.idle, part.of.born) = (active, idle, self.watch.time(self.state));
        self.holes = self.holes.saturating_add(holes(address, part));
    }

    fn part_ends(&mut self, address: u64, part: &Part) {
        self.holes = self.holes.saturating_sub(holes(address, part));
        self.watch.part(address, part, self.state);
    }
}

/// Returns stream, pool and kind of a block: those of the part, or those of the event.
fn owner(memory: &Memory<Share, Facts>, address: u64, stream: u16, pool: u16) -> (u16, u16, Kind) {
    match memory.part_at(address) {
        Some((_, part)) => {
            let Origin { stream, pool: own, kind, .. } = part.of.origin;
            (stream, if pool == UNKNOWN { own } else { pool }, kind)
        }
        None => (stream, pool, Kind::Unknown),
    }
}

/// Returns the bytes of the pages that a block touches and no other block does. The block is
/// not in the memory, and its part starts at `start`.
fn own_pages(blocks: &BTreeMap<u64, Block>, address: u64, size: u64, start: u64, part: &Part) -> u64 {
    let page = part.page;
    if page == 0 || size == 0 {
        return 0;
    }
    let end = address.saturating_add(size).min(part.end);
    // The pages before `first` and from `last` on belong to no byte of the block alone.
    let (mut first, mut last) = ((address - start) / page, (end - start).div_ceil(page));
    let before = blocks.range(..address).next_back();
    let reach = before.map_or(0, |(&other, block)| other.saturating_add(block.size));
    if reach > start.saturating_add(first.saturating_mul(page)) {
        first += 1;
    }
    let behind = blocks.range(end.max(address)..).next().map(|(&other, _)| other);
    if last > first && behind.is_some_and(|other| other < start.saturating_add(last.saturating_mul(page))) {
        last -= 1;
    }
    // A part of a page at the end is never idle alone.
    last.min((part.end - start) / page).saturating_sub(first).saturating_mul(page)
}

/// Returns the free bytes of a part that cannot go back to the device.
fn holes(start: u64, part: &Part) -> u64 {
    (part.end - start).saturating_sub(part.of.active).saturating_sub(part.of.idle)
}
