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
use super::{Action, BlockState, Event, Expected, ExpectedBlock, Pools, Segment};
use cachalot_core::config::Policy;
use cachalot_core::rounding::{SMALL_MAX, SMALL_SEGMENT, round_size};
use cachalot_core::{Config, PoolId, PoolKind, UNIT};
use std::collections::BTreeMap;

/// A block in use or pending.
struct EarlierBlock {
    requested: u64,
    pending: bool,
    /// Size in bytes, if known.
    size: Option<u64>,
}

/// A segment, or a mapped part of an expandable segment.
#[derive(Clone)]
struct EarlierPart {
    end: u64,
    stream: u64,
    pool: (u64, u64),
    is_expandable: bool,
    /// `None` until a block or the final state shows it.
    kind: Option<PoolKind>,
}

/// The memory of the device at some time.
struct EarlierMemory<'c> {
    config: &'c Config,
    pools: &'c Pools,
    /// By address.
    parts: BTreeMap<u64, EarlierPart>,
    /// By address.
    blocks: BTreeMap<u64, EarlierBlock>,
    /// The latest requested size of each free block, by the end of the block. A request takes the
    /// front of a free block, and the remainder keeps the remembered size, so the end identifies
    /// the block.
    remembered: BTreeMap<u64, u64>,
}

/// Finds the state before the first event.
///
/// # Errors
/// The number of the first undone event that contradicts the state after the event, and the
/// contradiction.
pub(super) fn start(events: &[Event], pools: &Pools, end: &Expected) -> Result<Start, (usize, String)> {
    // The replay of the record reports an invalid configuration.
    let config = cachalot_policies::parse(&end.config).unwrap_or_default();
    let mut memory = EarlierMemory::at_end(&end.segments, pools, &config);
    for (number, event) in events.iter().enumerate().rev() {
        memory.undo(event).map_err(|why| (number, why))?;
    }
    Ok(memory.start())
}

impl<'c> EarlierMemory<'c> {
    fn at_end(segments: &[Segment], pools: &'c Pools, config: &'c Config) -> Self {
        let (parts, blocks, remembered) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut memory = Self { config, pools, parts, blocks, remembered };
        for segment in segments {
            let kind = match &*segment.segment_type {
                "small" => Some(PoolKind::Small),
                "large" => Some(PoolKind::Large),
                _ => None,
            };
            let Segment { address, total_size, stream, segment_pool_id: pool, is_expandable, .. } = *segment;
            let end = address.saturating_add(total_size);
            memory.parts.insert(address, EarlierPart { end, stream, pool, is_expandable, kind });
            for block in &segment.blocks {
                let (end, requested) = (block.address.saturating_add(block.size), block.requested_size);
                if block.state == BlockState::Inactive {
                    memory.remembered.insert(end, requested);
                } else {
                    let pending = block.state == BlockState::ActivePendingFree;
                    memory.blocks.insert(block.address, EarlierBlock { requested, pending, size: Some(block.size) });
                }
            }
        }
        memory
    }

    fn undo(&mut self, event: &Event) -> Result<(), String> {
        let (addr, size) = (event.addr, event.size);
        let end = addr.checked_add(size).ok_or("the range goes beyond the last address")?;
        match event.action {
            Action::Alloc => self.undo_alloc(addr, size),
            Action::FreeRequested => match self.blocks.get_mut(&addr) {
                Some(live) if live.pending && is_request(live, size) => {
                    live.pending = false;
                    Ok(())
                }
                _ => Err(format!("free of {addr:x}, which is neither pending nor free afterwards")),
            },
            Action::FreeCompleted => self.undo_free(addr, size),
            Action::SegmentAlloc | Action::SegmentMap => {
                self.undo_obtain(addr, end, event.action == Action::SegmentMap)
            }
            Action::SegmentFree | Action::SegmentUnmap => self.undo_release(event, end),
            Action::OutOfMemory | Action::Mark | Action::Other => Ok(()),
        }
    }

    fn undo_alloc(&mut self, addr: u64, size: u64) -> Result<(), String> {
        if !self.blocks.get(&addr).is_some_and(|live| !live.pending && is_request(live, size)) {
            return Err(format!("allocation of {size} bytes at {addr:x}, which are not there afterwards"));
        }
        self.blocks.remove(&addr);
        let Some((start, _)) = self.part_around(addr, addr.saturating_add(1)) else { return Ok(()) };
        // The preceding block ends here, otherwise free memory would have been between both.
        if let Some((&before, live)) = self.blocks.range_mut(start..addr).next_back()
            && live.size.is_none()
        {
            live.size = Some(addr - before);
        }
        Ok(())
    }

    fn undo_free(&mut self, addr: u64, size: u64) -> Result<(), String> {
        let rounded = self.rounded(size);
        let block_end = addr.saturating_add(rounded);
        let (_, end) = self
            .part_around(addr, block_end)
            .ok_or_else(|| format!("a free at {addr:x} is completed, outside of every segment"))?;
        let before = self.blocks.range(..addr).next_back();
        let before_end =
            before.map_or(0, |(at, live)| at.saturating_add(live.size.unwrap_or_else(|| self.rounded(live.requested))));
        let next = self.blocks.range(addr..end).next().map_or(end, |(&at, _)| at);
        if before_end > addr || block_end > next {
            return Err(format!("a free of {size} bytes at {addr:x} is completed, which are in use afterwards"));
        }
        // The block merged into the surrounding free memory, which remembers the block's request
        // and forgets the earlier request.
        self.remembered.remove(&next);
        self.blocks.insert(addr, EarlierBlock { requested: size, pending: true, size: None });
        let small = self.has_small_heaps() && rounded <= SMALL_MAX;
        if let Some((_, part)) = self.parts.range_mut(..=addr).next_back() {
            part.kind.get_or_insert(if small { PoolKind::Small } else { PoolKind::Large });
        }
        Ok(())
    }

    fn undo_obtain(&mut self, addr: u64, end: u64, is_expandable: bool) -> Result<(), String> {
        let found = self.part_around(addr, end).and_then(|(start, _)| Some((start, self.parts.get(&start)?.clone())));
        let fits = |&(start, ref part): &(u64, EarlierPart)| {
            part.is_expandable == is_expandable && (is_expandable || (start, part.end) == (addr, end))
        };
        let Some((start, part)) = found.filter(fits) else {
            return Err(format!("memory is obtained at {addr:x}, and not there afterwards"));
        };
        if self.blocks.range(addr..end).next().is_some() {
            return Err(format!("memory is obtained at {addr:x}, and in use before that"));
        }
        self.parts.remove(&start);
        if start < addr {
            self.parts.insert(start, EarlierPart { end: addr, ..part.clone() });
        }
        // The free memory before the part took over the remembered request of the part, and forgot
        // the own request.
        self.remembered.remove(&end);
        if end < part.end {
            self.parts.insert(end, part);
        }
        Ok(())
    }

    fn undo_release(&mut self, event: &Event, end: u64) -> Result<(), String> {
        let addr = event.addr;
        let overlaps = self.parts.range(..end).next_back().is_some_and(|(_, part)| part.end > addr);
        if overlaps {
            return Err(format!("memory is given back at {addr:x}, and still there afterwards"));
        }
        let is_expandable = event.action == Action::SegmentUnmap;
        let mut start = addr;
        // A segment in no known pool counts as one of the default pool.
        let PoolId(one, other) = self.pools.of(event).unwrap_or_default();
        let pool = (one, other);
        let mut part = EarlierPart { end, stream: event.of.stream, pool, is_expandable, kind: None };
        if is_expandable {
            let alike = |part: &EarlierPart| part.is_expandable && part.stream == event.of.stream;
            let before = self.parts.range(..addr).next_back().filter(|(_, other)| other.end == addr && alike(other));
            if let Some((at, other)) = before.map(|(&at, other)| (at, other.clone())) {
                (start, part.kind, part.pool) = (at, other.kind, other.pool);
            }
            if let Some(other) = self.parts.get(&end).filter(|other| alike(other)).cloned() {
                self.parts.remove(&end);
                (part.end, part.kind, part.pool) = (other.end, part.kind.or(other.kind), other.pool);
            }
        }
        self.parts.insert(start, part);
        Ok(())
    }

    /// Returns start and end of the part that contains a range.
    fn part_around(&self, addr: u64, end: u64) -> Option<(u64, u64)> {
        let (&start, part) = self.parts.range(..=addr).next_back()?;
        (end <= part.end).then_some((start, part.end))
    }

    fn rounded(&self, bytes: u64) -> u64 {
        // Every other policy has different rules of rounding, never to less than the request.
        let rounds = self.config.policy().traits().follows_pytorch;
        if rounds { round_size(bytes, self.config.roundup_power2_divisions()).unwrap_or(bytes) } else { bytes }
    }

    fn has_small_heaps(&self) -> bool {
        matches!(self.config.policy(), Policy::Caching | Policy::Direct)
    }

    /// Returns the state as segments with blocks.
    fn start(self) -> Start {
        let mut start = Start::default();
        for (&address, part) in &self.parts {
            let kind = part.kind.unwrap_or_else(|| self.kind_of(address, part));
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
                stream: part.stream,
                segment_type: if kind == PoolKind::Small { "small" } else { "large" }.to_owned(),
                segment_pool_id: part.pool,
                is_expandable: part.is_expandable,
                blocks,
            });
        }
        start
    }

    /// Returns the kind of a segment by size, for a segment without later blocks.
    fn kind_of(&self, address: u64, part: &EarlierPart) -> PoolKind {
        let bytes = part.end - address;
        let small = if part.is_expandable {
            !bytes.is_multiple_of(self.config.large_segment_size())
        } else {
            bytes == SMALL_SEGMENT
        };
        if small && self.has_small_heaps() { PoolKind::Small } else { PoolKind::Large }
    }

    /// Returns the blocks of a part, including free blocks.
    fn blocks_of(&self, address: u64, part: &EarlierPart, kind: PoolKind, assumed: &mut u64) -> Vec<ExpectedBlock> {
        let mut blocks = Vec::new();
        let mut at = address;
        let mut live = self.blocks.range(address..part.end).peekable();
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
            let size = block.size.unwrap_or_else(|| {
                let (least, most) = (self.rounded(block.requested), next - address);
                let splits = self.splits(kind, least, most.saturating_sub(least));
                *assumed += u64::from(splits && kind == PoolKind::Large && !self.config.expandable_segments());
                if splits { least } else { most }
            });
            let state = if block.pending { BlockState::ActivePendingFree } else { BlockState::ActiveAllocated };
            // The oldest snapshots have no requested sizes.
            let requested_size = if block.requested == 0 { size } else { block.requested };
            blocks.push(ExpectedBlock { address, size, requested_size, state });
            at = address.saturating_add(size);
        }
    }

    /// Returns whether the rules split a remainder of `rest` bytes from a block of `size`.
    fn splits(&self, kind: PoolKind, size: u64, rest: u64) -> bool {
        if kind == PoolKind::Small || self.config.expandable_segments() {
            rest >= UNIT
        } else {
            rest > SMALL_MAX && self.config.max_split_size().is_none_or(|most| size < most)
        }
    }
}

/// Returns whether a block may have been requested with `bytes`. An unknown request matches any
/// size.
fn is_request(live: &EarlierBlock, bytes: u64) -> bool {
    live.requested == bytes || live.requested == 0
}
