//! The memory of a device as it was before: events are undone from the end on.

use super::{State, blocks};
use cachalot_core::UNIT;
use cachalot_snapshot::{Event, Snapshot};
use std::collections::BTreeMap;

/// A segment, or a mapped part of one.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) bytes: u64,
    pub(super) stream: i64,
    /// Its pool, as far as that is known: `None` of one that is gone at the end.
    pub(super) pool: Option<(u64, u64)>,
}

/// The memory of a device at some time. Of a block that was freed since it is only known what was asked for: it counts as that, rounded
/// up to 512.
#[derive(Debug)]
pub(super) struct Memory {
    /// By address, apart from each other.
    pub(super) parts: BTreeMap<u64, Part>,
    /// Blocks that are not free, by address: their bytes, and whether they are pending.
    used: BTreeMap<u64, (u64, bool)>,
    /// The bytes of all parts, of the blocks that the program holds, and of pending ones.
    pub(super) reserved: u64,
    pub(super) allocated: u64,
    pub(super) pending: u64,
}

/// Free memory between blocks that are not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Hole {
    pub(super) bytes: u64,
    /// Whether it is all of a part.
    pub(super) whole: bool,
}

impl Memory {
    /// As a snapshot has it.
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

    /// As it was before an event.
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

    /// The block at an address is another one, or none.
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

    /// Takes a range out of the parts that it lies in.
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

    /// The blocks that are not free, by address: their bytes, and whether they are pending.
    pub(super) fn used(&self) -> impl Iterator<Item = (u64, u64, bool)> {
        self.used.iter().map(|(&address, &(bytes, is_pending))| (address, bytes, is_pending))
    }

    /// The holes of a part; `pending` blocks are holes if so wanted.
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
