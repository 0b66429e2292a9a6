//! The memory of a device from event to event.
//!
//! State `s` is the memory after the first `s` events. A [`Watch`] sees every state, and every
//! block and part of the device's memory when it ends.

use super::begin::Begin;
use super::history::{Action, Event, Kind, Origin, Pages, UNKNOWN};
use cachalot_replay::memory::{self, rounded};
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

/// A block that is not free, with the place that it has now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Block {
    pub(super) size: u64,
    pub(super) stack: u32,
    pub(super) stream: u16,
    pub(super) pool: u16,
    pub(super) kind: Kind,
    /// The time of the start, in the terms of the watch.
    pub(super) born: u32,
    /// The time of the free by the program, or `u32::MAX`.
    pub(super) freed: u32,
}

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
    fn state(&mut self, state: u32, memory: &ForwardMemory);
}

/// The memory in a state.
#[derive(Default, Debug)]
pub(super) struct ForwardMemory {
    parts: BTreeMap<u64, Part>,
    blocks: BTreeMap<u64, Block>,
    pub(super) sums: Sums,
}

/// Runs all events of a history.
pub(super) fn run(events: &[Event], begin: &Begin, pages: Pages, watch: &mut impl Watch) {
    let mut memory = ForwardMemory::default();
    let born = watch.time(0);
    for (&address, part) in begin.memory.parts() {
        let of = Share { origin: part.of, born, active: 0, idle: 0 };
        let part = Part { end: part.end, page: part.page, of };
        memory.obtain(address, part, 0, watch);
    }
    for (&address, block) in begin.memory.blocks() {
        let (stream, pool, kind) = memory.owner(address, 0, UNKNOWN);
        let freed = if block.pending { born } else { u32::MAX };
        let block = Block { size: block.size, stack: block.of, stream, pool, kind, born, freed };
        memory.allocate(address, block, 0, watch);
    }
    watch.state(0, &memory);
    for (number, event) in (0_u32..).zip(events) {
        memory.apply(number, event, begin, pages, watch);
        watch.state(number + 1, &memory);
    }
    for (&address, block) in &memory.blocks {
        watch.block(address, block, u32::MAX);
    }
    for (&address, part) in &memory.parts {
        watch.part(address, part, u32::MAX);
    }
}

impl ForwardMemory {
    fn apply(&mut self, number: u32, event: &Event, begin: &Begin, pages: Pages, watch: &mut impl Watch) {
        let Event { addr, size, stack, .. } = *event;
        let state = number + 1;
        match event.action {
            Action::Alloc => {
                let size = begin.sizes.get(&number).copied().unwrap_or_else(|| rounded(size));
                let stack = begin.stacks.get(&number).copied().unwrap_or(stack);
                let (stream, pool, kind) = self.owner(addr, event.stream, event.pool);
                let block = Block { size, stack, stream, pool, kind, born: watch.time(state), freed: u32::MAX };
                self.allocate(addr, block, state, watch);
            }
            Action::FreeRequested => {
                if let Some(block) = self.blocks.get_mut(&addr) {
                    block.freed = watch.time(state);
                }
            }
            Action::FreeCompleted => self.free(addr, state, watch),
            Action::Obtain { expandable } => {
                let Event { stream, pool, .. } = *event;
                let pool = begin.pools.get(&number).copied().unwrap_or(pool);
                let end = addr.saturating_add(size);
                let kind = Kind::of(size, expandable, pages);
                let origin = Origin { stream, pool, expandable, kind, stack };
                let of = Share { origin, born: watch.time(state), active: 0, idle: 0 };
                self.obtain(addr, Part { end, page: pages.page(size, expandable, kind), of }, state, watch);
            }
            Action::Release { .. } => self.release(addr, addr.saturating_add(size), state, watch),
            Action::OutOfMemory | Action::Mark | Action::Snapshot | Action::Unknown => {}
        }
    }

    /// Returns the address and the part around an address.
    fn part_at(&self, address: u64) -> Option<(u64, Part)> {
        let (&start, part) = self.parts.range(..=address).next_back()?;
        (part.end > address).then_some((start, *part))
    }

    /// Returns stream, pool and kind of a block: those of the part, or those of the event.
    fn owner(&self, address: u64, stream: u16, pool: u16) -> (u16, u16, Kind) {
        match self.part_at(address) {
            Some((_, part)) => {
                let Origin { stream, pool: own, kind, .. } = part.of.origin;
                (stream, if pool == UNKNOWN { own } else { pool }, kind)
            }
            None => (stream, pool, Kind::Unknown),
        }
    }

    /// Returns the bytes of the pages that a block touches and no other block does. The block is
    /// not in the memory, and its part starts at `start`.
    fn own_pages(&self, address: u64, size: u64, start: u64, part: &Part) -> u64 {
        let page = part.page;
        if page == 0 || size == 0 {
            return 0;
        }
        let end = address.saturating_add(size).min(part.end);
        // The pages before `first` and from `last` on belong to no byte of the block alone.
        let (mut first, mut last) = ((address - start) / page, (end - start).div_ceil(page));
        let before = self.blocks.range(..address).next_back();
        let reach = before.map_or(0, |(&other, block)| other.saturating_add(block.size));
        if reach > start.saturating_add(first.saturating_mul(page)) {
            first += 1;
        }
        let behind = self.blocks.range(end.max(address)..).next().map(|(&other, _)| other);
        if last > first && behind.is_some_and(|other| other < start.saturating_add(last.saturating_mul(page))) {
            last -= 1;
        }
        // A part of a page at the end is never idle alone.
        last.min((part.end - start) / page).saturating_sub(first).saturating_mul(page)
    }

    /// Changes the bytes in use of the part around a block that is not in the memory, and the
    /// part's idle bytes.
    fn account(&mut self, address: u64, size: u64, is_used: bool) {
        let Some((start, found)) = self.part_at(address) else { return };
        let pages = self.own_pages(address, size, start, &found);
        let Some(part) = self.parts.get_mut(&start) else { return };
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
        self.sums.holes = self.sums.holes.saturating_sub(before).saturating_add(holes(start, part));
    }

    fn allocate(&mut self, address: u64, block: Block, state: u32, watch: &mut impl Watch) {
        // Of a contradictory record, the later event holds.
        self.free(address, state, watch);
        self.account(address, block.size, true);
        self.blocks.insert(address, block);
        self.sums.active = self.sums.active.saturating_add(block.size);
    }

    fn free(&mut self, address: u64, state: u32, watch: &mut impl Watch) {
        let Some(block) = self.blocks.remove(&address) else { return };
        self.sums.active = self.sums.active.saturating_sub(block.size);
        self.account(address, block.size, false);
        watch.block(address, &block, state);
    }

    /// Adds a part. A part of an expandable segment is joined with its neighbours.
    fn obtain(&mut self, address: u64, mut part: Part, state: u32, watch: &mut impl Watch) {
        let mut address = address;
        if part.end == address {
            return;
        }
        self.release(address, part.end, state, watch);
        let Origin { stream, expandable, .. } = part.of.origin;
        let alike = |other: &Part| expandable && other.of.origin.expandable && other.of.origin.stream == stream;
        let before = self.parts.range(..address).next_back().map(|(&start, part)| (start, *part));
        let before = before.filter(|(_, other)| other.end == address && alike(other));
        let behind = self.parts.get(&part.end).copied().filter(alike).map(|other| (part.end, other));
        for (start, other) in before.into_iter().chain(behind) {
            self.remove(start, state, watch);
            address = address.min(start);
            part.end = part.end.max(other.end);
            part.page = other.page;
            let (origin, other) = (&mut part.of.origin, other.of.origin);
            if origin.pool == UNKNOWN || other.pool != UNKNOWN {
                origin.pool = other.pool;
            }
            (origin.stack, origin.kind) = (other.stack, other.kind);
        }
        self.insert(address, part);
    }

    fn insert(&mut self, address: u64, mut part: Part) {
        let blocks = || self.blocks.range(address..part.end).map(|(&start, block)| (start, block.size));
        let active = blocks().map(|(_, size)| size).fold(0, u64::saturating_add);
        let idle = memory::free_between(address, part.end, part.page, blocks()).idle;
        (part.of.active, part.of.idle) = (active, idle);
        self.sums.reserved = self.sums.reserved.saturating_add(part.end - address);
        self.sums.holes = self.sums.holes.saturating_add(holes(address, &part));
        self.parts.insert(address, part);
    }

    fn remove(&mut self, address: u64, state: u32, watch: &mut impl Watch) {
        if let Some(part) = self.parts.remove(&address) {
            self.lose(address, &part, state, watch);
        }
    }

    /// Takes a removed part out of the sums.
    fn lose(&mut self, address: u64, part: &Part, state: u32, watch: &mut impl Watch) {
        self.sums.reserved = self.sums.reserved.saturating_sub(part.end - address);
        self.sums.holes = self.sums.holes.saturating_sub(holes(address, part));
        watch.part(address, part, state);
    }

    /// Removes a range from all overlapping parts.
    fn release(&mut self, address: u64, end: u64, state: u32, watch: &mut impl Watch) {
        let (mut removed, mut left) = (Vec::new(), Vec::new());
        memory::cut(
            &mut self.parts,
            address,
            end,
            |start, part| removed.push((start, part)),
            |_, start, part| left.push((start, part)),
        );
        for (start, part) in removed {
            self.lose(start, &part, state, watch);
        }
        for (start, part) in left {
            let of = Share { born: watch.time(state), ..part.of };
            self.insert(start, Part { of, ..part });
        }
    }

    /// Returns the parts with holes and the idle memory.
    pub(super) fn free_parts(&self) -> FreeParts {
        let mut free = FreeParts::default();
        for (&start, part) in &self.parts {
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

/// Returns the free bytes of a part that cannot go back to the device.
fn holes(start: u64, part: &Part) -> u64 {
    (part.end - start).saturating_sub(part.of.active).saturating_sub(part.of.idle)
}
