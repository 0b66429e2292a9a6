//! The memory of a device as a snapshot shows it: at the end, and before each event.

use super::{EndState, blocks};
use crate::memory::{self, Block, Part};
use cachalot_snapshot::{Event, Snapshot};

/// The stream and the pool of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Placement {
    /// The stream.
    pub stream: i64,
    /// The pool. `(0, 0)` is the default pool, and `None` is unknown: a segment released before the
    /// end.
    pub pool: Option<(u64, u64)>,
}

/// The memory of a device. The pool of a segment that is gone at the end is unknown.
pub(super) type PastMemory = memory::Memory<Placement, ()>;

/// Returns the memory at the end.
pub(super) fn at_end(snapshot: &Snapshot, device: i64) -> PastMemory {
    let mut memory = PastMemory::default();
    for segment in snapshot.segments.iter().filter(|segment| segment.device == device) {
        let pool = Some(segment.segment_pool_id.unwrap_or_default());
        let end = segment.address.saturating_add(segment.total_size);
        memory.insert(segment.address, Part { end, of: Placement { stream: segment.stream, pool } });
        for (address, block) in blocks(segment).filter(|(_, block)| EndState::of(block) != EndState::Free) {
            let pending = EndState::of(block) == EndState::Pending;
            memory.set_block(address, Some(Block { size: block.size, pending, of: () }));
        }
    }
    memory
}

/// Undoes an event.
pub(super) fn undo(memory: &mut PastMemory, event: &Event) {
    let (Some(address), Ok(bytes)) = (event.addr, u64::try_from(event.size)) else { return };
    let end = address.saturating_add(bytes);
    match &*event.action {
        "alloc" => _ = memory.undo_alloc(address),
        "free_requested" => memory.undo_free_requested(address, bytes, ()),
        "free_completed" => memory.undo_free_completed(address, bytes, ()),
        "segment_alloc" | "segment_map" => memory.cut(address, end),
        "segment_free" | "segment_unmap" => {
            memory.insert(address, Part { end, of: Placement { stream: event.stream, pool: event.pool_id() } });
        }
        _ => {}
    }
}
