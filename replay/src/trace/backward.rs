//! Finds the state at the start of a record from the state at the end, by undoing the events,
//! the last event first.
//!
//! An undone allocation makes the block free again, and an undone completion of a free restores the
//! block. The event has the address and the requested size of the block, but not the block's size:
//! a free block not worth splitting is larger than the request. The size of a block from before the
//! first event comes from the first known source:
//!
//! * the final state, if the block is still live;
//! * the address of the block allocated next directly after, because two free blocks are never
//!   neighbours;
//! * the rules: a remainder too small to split belongs to the block;
//! * the request, rounded.
//!
//! Only the last source is a guess: a block of more than 1 MiB may have kept a remainder of up to 1
//! MiB. [`Start::assumed`] counts the guesses. A wrong guess shows only if a request fits into the
//! free memory after the block and no other block fits better. Neither events nor the final state
//! tell the ages of free blocks (`garbage_collection_threshold`).

use super::start::Start;
use super::{Action, BlockState, Event, Expected, ExpectedBlock, Pools, RecordFacts, Segment};
use crate::memory::{Block, HistoryReader, Memory, Misfit, Part};
use cachalot_core::config::Policy;
use cachalot_core::rounding::{SMALL_MAX, SMALL_SEGMENT, round_size};
use cachalot_core::{Config, PoolId, PoolKind, UNIT};
use std::collections::BTreeMap;

/// What is known of a block. The size of the block is the rounded request, if it is not known.
#[derive(Clone, Copy, Default)]
struct EarlierBlock {
    /// The requested size. 0 if unknown.
    requested: u64,
    is_size_known: bool,
}

/// What is known of a segment, or of a mapped part of an expandable segment.
#[derive(Clone, Copy)]
struct EarlierPart {
    stream: u64,
    pool: (u64, u64),
    /// `None` until a block or the final state shows it.
    kind: Option<PoolKind>,
}

/// The memory of the device at some time.
struct EarlierMemory<'c> {
    memory: Memory<EarlierPart, EarlierBlock>,
    /// The latest requested size of each free block, by the end of the block. A request takes the
    /// front of a free block, and the remainder keeps the remembered size, so the end identifies
    /// the block.
    remembered: BTreeMap<u64, u64>,
    rules: Rules<'c>,
}

/// The rules by which the program's allocator placed blocks.
#[derive(Clone, Copy)]
struct Rules<'c> {
    config: &'c Config,
    pools: &'c Pools,
}

/// Finds the state before the first event.
///
/// # Errors
/// The number of the first undone event that contradicts the state after the event, and the
/// contradiction.
pub(super) fn start(events: &[Event], pools: &Pools, end: &Expected) -> Result<Start, (usize, String)> {
    // The replay of the record reports an invalid configuration.
    let config = cachalot_policies::parse(&end.config).unwrap_or_default();
    let mut memory = EarlierMemory::at_end(&end.segments, Rules { config: &config, pools });
    for (number, event) in events.iter().enumerate().rev() {
        memory.undo(event).map_err(|why| (number, why))?;
    }
    Ok(memory.start())
}

impl HistoryReader for Rules<'_> {
    type Part = EarlierPart;
    type Block = EarlierBlock;
    type Event = RecordFacts;

    fn part(&mut self, event: &Event, _: &Memory<EarlierPart, EarlierBlock>) -> Part<EarlierPart> {
        // A segment in no known pool counts as one of the default pool.
        let PoolId(one, other) = self.pools.of(event).unwrap_or_default();
        let of = EarlierPart { stream: event.of.stream, pool: (one, other), kind: None };
        Part::new(event.end(), event.action.is_expandable(), of)
    }

    fn block(&mut self, event: &Event, _: &Memory<EarlierPart, EarlierBlock>) -> Block<EarlierBlock> {
        let of = EarlierBlock { requested: event.size, is_size_known: false };
        Block { size: self.rounded(event.size), pending: true, of }
    }

    fn join(&self, new: &mut Part<EarlierPart>, beside: &Part<EarlierPart>, _: bool) -> bool {
        let joins = new.of.stream == beside.of.stream;
        if joins {
            (new.of.kind, new.of.pool) = (new.of.kind.or(beside.of.kind), beside.of.pool);
        }
        joins
    }
}

impl Rules<'_> {
    fn rounded(self, bytes: u64) -> u64 {
        // Every other policy has different rules of rounding, never to less than the request.
        let rounds = self.config.policy().traits().follows_pytorch;
        if rounds { round_size(bytes, self.config.roundup_power2_divisions()).unwrap_or(bytes) } else { bytes }
    }

    fn has_small_heaps(self) -> bool {
        matches!(self.config.policy(), Policy::Caching | Policy::Direct)
    }

    /// Returns the kind of a segment by size, for a segment without later blocks.
    fn kind_of(self, address: u64, part: &Part<EarlierPart>) -> PoolKind {
        let bytes = part.end - address;
        let small = if part.page > 0 {
            !bytes.is_multiple_of(self.config.large_segment_size())
        } else {
            bytes == SMALL_SEGMENT
        };
        if small && self.has_small_heaps() { PoolKind::Small } else { PoolKind::Large }
    }

    /// Returns whether a remainder of `rest` bytes is split from a block of `size`.
    fn splits(self, kind: PoolKind, size: u64, rest: u64) -> bool {
        if kind == PoolKind::Small || self.config.expandable_segments() {
            rest >= UNIT
        } else {
            rest > SMALL_MAX && self.config.max_split_size().is_none_or(|most| size < most)
        }
    }
}

impl<'c> EarlierMemory<'c> {
    fn at_end(segments: &[Segment], rules: Rules<'c>) -> Self {
        let (mut memory, mut remembered) = (Memory::default(), BTreeMap::new());
        for segment in segments {
            let kind = match &*segment.segment_type {
                "small" => Some(PoolKind::Small),
                "large" => Some(PoolKind::Large),
                _ => None,
            };
            let Segment { address, total_size, stream, segment_pool_id: pool, is_expandable, .. } = *segment;
            let end = address.saturating_add(total_size);
            memory.insert(address, Part::new(end, is_expandable, EarlierPart { stream, pool, kind }));
            for &ExpectedBlock { address, size, requested_size: requested, state } in &segment.blocks {
                if state == BlockState::Inactive {
                    remembered.insert(address.saturating_add(size), requested);
                } else {
                    let of = EarlierBlock { requested, is_size_known: true };
                    let pending = state == BlockState::ActivePendingFree;
                    memory.set_block(address, Some(Block { size, pending, of }));
                }
            }
        }
        Self { memory, remembered, rules }
    }

    fn undo(&mut self, event: &Event) -> Result<(), String> {
        let Event { addr, size, action, .. } = *event;
        let end = addr.checked_add(size).ok_or("the range goes beyond the last address")?;
        // The memory of a freed block is more than the request.
        let taken = if action == Action::FreeCompleted { self.rules.rounded(size) } else { size };
        if let Some(misfit) = self.memory.misfit(&Event { size: taken, ..*event }, true) {
            return Err(contradiction(event, misfit));
        }
        if let Some(block) = self.memory.blocks().get(&addr)
            && matches!(action, Action::Alloc | Action::FreeRequested)
            && (block.pending != (action == Action::FreeRequested) || !is_request(block.of, size))
        {
            return Err(contradiction(event, Misfit::NoBlock));
        }
        match action {
            // The block merged into the surrounding free memory, which remembers the block's
            // request and forgets the earlier request.
            Action::FreeCompleted => _ = self.remembered.remove(&self.free_end(addr)),
            // The free memory before the part took over the remembered request of the part, and
            // forgot the own request.
            _ if action.obtains() => _ = self.remembered.remove(&end),
            _ => {}
        }
        self.memory.undo(event, &mut self.rules);
        match action {
            Action::Alloc => self.end_block_before(addr),
            Action::FreeCompleted => {
                let small = self.rules.has_small_heaps() && taken <= SMALL_MAX;
                if let Some((_, part, _)) = self.memory.part_at_mut(addr) {
                    part.of.kind.get_or_insert(if small { PoolKind::Small } else { PoolKind::Large });
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the end of the free memory at an address.
    fn free_end(&self, addr: u64) -> u64 {
        let end = self.memory.part_at(addr).map_or(addr, |(_, part)| part.end);
        self.memory.blocks().range(addr..end).next().map_or(end, |(&next, _)| next)
    }

    /// Ends the block before an allocated one there, otherwise free memory would have been between
    /// both.
    fn end_block_before(&mut self, addr: u64) {
        let Some((start, _)) = self.memory.part_at(addr) else { return };
        let before = self.memory.blocks().range(start..addr).next_back().map(|(&before, block)| (before, *block));
        if let Some((before, block)) = before.filter(|(_, block)| !block.of.is_size_known) {
            let of = EarlierBlock { is_size_known: true, ..block.of };
            self.memory.set_block(before, Some(Block { size: addr - before, of, ..block }));
        }
    }

    /// Returns the state as segments with blocks.
    fn start(self) -> Start {
        let mut start = Start::default();
        for (&address, part) in self.memory.parts() {
            let kind = part.of.kind.unwrap_or_else(|| self.rules.kind_of(address, part));
            let blocks = self.blocks_of(address, part, kind, &mut start.assumed);
            let sum = |is: fn(BlockState) -> bool, of: fn(&ExpectedBlock) -> u64| {
                blocks.iter().filter(|block| is(block.state)).map(of).sum()
            };
            start.segments.push(Segment {
                device: 0,
                address,
                total_size: part.end - address,
                allocated_size: sum(|state| state == BlockState::ActiveAllocated, |block| block.size),
                active_size: sum(|state| state != BlockState::Inactive, |block| block.size),
                requested_size: sum(|state| state != BlockState::Inactive, |block| block.requested_size),
                stream: part.of.stream,
                segment_type: if kind == PoolKind::Small { "small" } else { "large" }.to_owned(),
                segment_pool_id: part.of.pool,
                is_expandable: part.page > 0,
                blocks,
            });
        }
        start
    }

    /// Returns the blocks of a part, including free blocks.
    fn blocks_of(
        &self,
        address: u64,
        part: &Part<EarlierPart>,
        kind: PoolKind,
        assumed: &mut u64,
    ) -> Vec<ExpectedBlock> {
        let mut blocks = Vec::new();
        let mut at = address;
        let mut live = self.memory.blocks().range(address..part.end).peekable();
        loop {
            let next = live.peek().map_or(part.end, |&(&next, _)| next);
            if at < next {
                let requested_size = self.remembered.get(&next).copied().unwrap_or(0);
                blocks.push(ExpectedBlock {
                    address: at,
                    size: next - at,
                    requested_size,
                    state: BlockState::Inactive,
                });
            }
            let Some((&address, block)) = live.next() else { return blocks };
            let next = live.peek().map_or(part.end, |&(&next, _)| next);
            let EarlierBlock { requested, is_size_known } = block.of;
            let size = if is_size_known {
                block.size
            } else {
                let (least, most) = (block.size, next - address);
                let splits = self.rules.splits(kind, least, most.saturating_sub(least));
                *assumed += u64::from(splits && kind == PoolKind::Large && !self.rules.config.expandable_segments());
                if splits { least } else { most }
            };
            let state = if block.pending { BlockState::ActivePendingFree } else { BlockState::ActiveAllocated };
            // The oldest snapshots have no requested sizes.
            let requested_size = if requested == 0 { size } else { requested };
            blocks.push(ExpectedBlock { address, size, requested_size, state });
            at = address.saturating_add(size);
        }
    }
}

/// Puts into words what an undone event does not fit.
fn contradiction(event: &Event, misfit: Misfit<EarlierBlock>) -> String {
    let Event { addr, size, action, .. } = *event;
    match (misfit, action) {
        (Misfit::Held, _) => format!("memory is given back at {addr:x}, and still there afterwards"),
        (Misfit::NotHeld, _) => format!("memory is obtained at {addr:x}, and not there afterwards"),
        (Misfit::Outside, _) => format!("a free at {addr:x} is completed, outside of every segment"),
        (Misfit::InUse(..), Action::FreeCompleted) => {
            format!("a free of {size} bytes at {addr:x} is completed, which are in use afterwards")
        }
        (Misfit::InUse(..), _) => format!("memory is obtained at {addr:x}, and in use before that"),
        (Misfit::NoBlock, Action::Alloc) => {
            format!("allocation of {size} bytes at {addr:x}, which are not there afterwards")
        }
        (Misfit::NoBlock, _) => format!("free of {addr:x}, which is neither pending nor free afterwards"),
    }
}

/// Returns whether a block may have been requested with `bytes`. An unknown request matches any
/// size.
fn is_request(live: EarlierBlock, bytes: u64) -> bool {
    live.requested == bytes || live.requested == 0
}

#[cfg(test)]
mod tests {
    use super::start;
    use crate::trace::{Action, BlockState, Event, Expected, ExpectedBlock, Note, Place, Pools, RecordFacts, Segment};
    use cachalot_core::MIB;

    #[test]
    fn memory_is_not_obtained_under_a_block_that_was_there() {
        let of = RecordFacts { stream: 0, place: Place::Event(0), pool: None, note: Note::None };
        let events = [Event { action: Action::SegmentMap, addr: 60 * MIB, size: 20 * MIB, of }];
        let verdict = |size: u64| {
            let state = BlockState::ActiveAllocated;
            let block = ExpectedBlock { address: 40 * MIB, size, requested_size: size, state };
            let segment = Segment {
                address: 40 * MIB,
                total_size: 40 * MIB,
                is_expandable: true,
                blocks: vec![block],
                ..Segment::default()
            };
            let end = Expected { segments: vec![segment], ..Expected::default() };
            start(&events, &Pools::default(), &end).map(|start| start.segments.len())
        };
        assert_eq!(verdict(20 * MIB), Ok(1));
        // The block reaches into memory that is mapped after the block was allocated.
        let what = "memory is obtained at 3c00000, and in use before that";
        assert_eq!(verdict(20 * MIB + 512), Err((0, what.to_owned())));
    }
}
