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
        let mut memory = Self { parts: BTreeMap::new(), used: BTreeMap::new() };
        for segment in snapshot.segments.iter().filter(|segment| segment.device == device) {
            let pool = Some(segment.segment_pool_id.unwrap_or_default());
            memory.parts.insert(segment.address, Part { bytes: segment.total_size, stream: segment.stream, pool });
            for (address, block) in blocks(segment).filter(|(_, block)| State::of(block) != State::Free) {
                memory.used.insert(address, (block.size, State::of(block) == State::Pending));
            }
        }
        memory
    }

    /// As it was before an event.
    pub(super) fn undo(&mut self, event: &Event) {
        let (Some(address), Ok(bytes)) = (event.addr, u64::try_from(event.size)) else { return };
        match &*event.action {
            "alloc" => drop(self.used.remove(&address)),
            "free_requested" => {
                let block = self.used.entry(address).or_insert((bytes.next_multiple_of(UNIT), false));
                block.1 = false;
            }
            "free_completed" => drop(self.used.insert(address, (bytes.next_multiple_of(UNIT), true))),
            "segment_alloc" | "segment_map" => self.cut(address, bytes),
            "segment_free" | "segment_unmap" => {
                let part = Part { bytes, stream: event.stream, pool: event.pool_id() };
                self.parts.insert(address, part);
            }
            _ => {}
        }
    }

    /// Takes a range out of the parts that it lies in.
    fn cut(&mut self, address: u64, bytes: u64) {
        let end = address.saturating_add(bytes);
        let touched: Vec<_> = self.parts.range(..end).rev().map(|(&start, part)| (start, part.clone())).collect();
        for (start, part) in touched {
            let part_end = start.saturating_add(part.bytes);
            if part_end <= address {
                break;
            }
            self.parts.remove(&start);
            if start < address {
                self.parts.insert(start, Part { bytes: address - start, ..part.clone() });
            }
            if part_end > end {
                self.parts.insert(end, Part { bytes: part_end - end, ..part });
            }
        }
    }

    /// Bytes in use and pending.
    pub(super) fn used(&self) -> (u64, u64) {
        let sum = |wanted: bool| {
            self.used.values().filter(|block| block.1 == wanted).fold(0_u64, |sum, block| sum.saturating_add(block.0))
        };
        (sum(false), sum(true))
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
