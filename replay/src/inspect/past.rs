//! The earlier memory of a device, found by undoing events from the end backwards.

use super::{State, blocks};
use cachalot_core::UNIT;
use cachalot_snapshot::{Event, Snapshot};
use std::collections::BTreeMap;

/// A segment, or a mapped part of a segment.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) bytes: u64,
    pub(super) stream: i64,
    /// The pool. `None` if unknown, because the segment is gone at the end.
    pub(super) pool: Option<(u64, u64)>,
}

/// The memory of a device at some time. A block freed since then counts with the requested size,
/// rounded up to 512, because the snapshot no longer has the block's size.
#[derive(Debug)]
pub(super) struct Memory {
    /// Disjoint parts by address.
    pub(super) parts: BTreeMap<u64, Part>,
    /// Blocks not free, by address: size in bytes, and whether the block is pending.
    used: BTreeMap<u64, (u64, bool)>,
    /// Total bytes of all parts, of allocated blocks, and of pending blocks.
    pub(super) reserved: u64,
    pub(super) allocated: u64,
    pub(super) pending: u64,
}

/// Free memory between two used blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Hole {
    pub(super) bytes: u64,
    /// Whether the hole is a whole part.
    pub(super) whole: bool,
}

impl Memory {
    /// Returns the memory at the end, from a snapshot.
    pub(super) fn at_end(snapshot: &Snapshot, device: i64) -> Self {
        let (parts, used) = (BTreeMap::new(), BTreeMap::new());
        let mut memory = Self { parts, used, reserved: 0, allocated: 0, pending: 0 };
        for segment in snapshot.segments.iter().filter(|segment| segment.device == device) {
            let pool = Some(segment.segment_pool_id.unwrap_or_default());
            memory.insert(segment.address, Part { bytes: segment.total_size, stream: segment.stream, pool });
            for (address, block) in blocks(segment).filter(|(_, block)| State::of(block) != State::Free) {
                memory.set_used(address, Some((block.size, State::of(block) == State::Pending)));
            }
        }
        memory
    }

    /// Undoes an event.
    pub(super) fn undo(&mut self, event: &Event) {
        let (Some(address), Ok(bytes)) = (event.addr, u64::try_from(event.size)) else { return };
        match &*event.action {
            "alloc" => self.set_used(address, None),
            "free_requested" => {
                let size = self.used.get(&address).map_or(bytes.next_multiple_of(UNIT), |block| block.0);
                self.set_used(address, Some((size, false)));
            }
            "free_completed" => self.set_used(address, Some((bytes.next_multiple_of(UNIT), true))),
            "segment_alloc" | "segment_map" => self.cut(address, bytes),
            "segment_free" | "segment_unmap" => {
                self.insert(address, Part { bytes, stream: event.stream, pool: event.pool_id() });
            }
            _ => {}
        }
    }

    /// Replaces or removes the block at an address.
    fn set_used(&mut self, address: u64, block: Option<(u64, bool)>) {
        let before = match block {
            Some(block) => self.used.insert(address, block),
            None => self.used.remove(&address),
        };
        if let Some((bytes, is_pending)) = before {
            let sum = if is_pending { &mut self.pending } else { &mut self.allocated };
            *sum = sum.saturating_sub(bytes);
        }
        if let Some((bytes, is_pending)) = block {
            let sum = if is_pending { &mut self.pending } else { &mut self.allocated };
            *sum = sum.saturating_add(bytes);
        }
    }

    fn insert(&mut self, address: u64, part: Part) {
        self.reserved = self.reserved.saturating_add(part.bytes);
        if let Some(before) = self.parts.insert(address, part) {
            self.reserved = self.reserved.saturating_sub(before.bytes);
        }
    }

    /// Removes a range from all overlapping parts.
    fn cut(&mut self, address: u64, bytes: u64) {
        let end = address.saturating_add(bytes);
        let reaches = |(start, part): &(&u64, &Part)| start.saturating_add(part.bytes) > address;
        let below = self.parts.range(..end).rev().take_while(reaches);
        let touched: Vec<_> = below.map(|(&start, part)| (start, part.clone())).collect();
        for (start, part) in touched {
            let part_end = start.saturating_add(part.bytes);
            self.parts.remove(&start);
            self.reserved = self.reserved.saturating_sub(part.bytes);
            if start < address {
                self.insert(start, Part { bytes: address - start, ..part.clone() });
            }
            if part_end > end {
                self.insert(end, Part { bytes: part_end - end, ..part });
            }
        }
    }

    /// Returns all blocks that are not free: address, size in bytes, and whether the block is
    /// pending.
    pub(super) fn used(&self) -> impl Iterator<Item = (u64, u64, bool)> {
        self.used.iter().map(|(&address, &(bytes, is_pending))| (address, bytes, is_pending))
    }

    /// Returns the block at an address that is not free, in the form of [`used`](Self::used).
    pub(super) fn used_at(&self, address: u64) -> Option<(u64, u64, bool)> {
        self.used.get(&address).map(|&(bytes, is_pending)| (address, bytes, is_pending))
    }

    /// Returns the holes of a part. With `pending`, pending blocks count as holes.
    pub(super) fn holes(&self, address: u64, part: &Part, pending: bool) -> Vec<Hole> {
        let end = address.saturating_add(part.bytes);
        let (mut holes, mut at) = (Vec::new(), address);
        for (&start, &(bytes, is_pending)) in self.used.range(address..end) {
            if is_pending && pending {
                continue;
            }
            if start > at {
                holes.push(Hole { bytes: start - at, whole: false });
            }
            at = at.max(start.saturating_add(bytes));
        }
        if at < end {
            holes.push(Hole { bytes: end - at, whole: at == address });
        }
        holes
    }
}
