//! The memory of a device as a snapshot shows it: at the end, and before each event.

use super::{EndState, blocks};
use crate::memory::{self, Block, Part, SMALL_PAGE};
use cachalot_snapshot::{Event, Segment, Snapshot};

/// The stream and the pool of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Placement {
    /// The stream.
    pub stream: i64,
    /// The pool. `(0, 0)` is the default pool, and `None` is unknown: a segment released before the
    /// end.
    pub pool: Option<(u64, u64)>,
}

impl Placement {
    /// Returns whether the pool is known, and not the default pool.
    pub(super) fn is_private(self) -> bool {
        self.pool.is_some_and(|pool| pool != (0, 0))
    }
}

/// The memory of a device. The pool of a segment that is gone at the end is unknown.
pub(super) type PastMemory = memory::Memory<Placement, ()>;

/// Returns the size of large pages in expandable segments, from the settings of a snapshot.
pub(crate) fn large_page(snapshot: &Snapshot) -> u64 {
    let text = snapshot.allocator_settings.as_ref().and_then(|settings| settings.string.as_deref());
    let config = text.and_then(|text| cachalot_policies::parse(text).ok()).unwrap_or_default();
    config.large_segment_size()
}

/// Returns the size of a segment's pages, or 0 for a segment that is released as a whole.
pub(crate) fn page(segment: &Segment, large_page: u64) -> u64 {
    match (segment.is_expandable.unwrap_or_default(), segment.segment_type.as_deref()) {
        (false, _) => 0,
        (true, Some("small")) => SMALL_PAGE,
        (true, Some(_)) => large_page,
        (true, None) => memory::page_of(segment.total_size, large_page),
    }
}

/// Returns the memory at the end.
pub(super) fn at_end(snapshot: &Snapshot, device: i64) -> PastMemory {
    let mut memory = PastMemory::default();
    let large_page = large_page(snapshot);
    for segment in snapshot.segments.iter().filter(|segment| segment.device == device) {
        let pool = Some(segment.segment_pool_id.unwrap_or_default());
        let end = segment.address.saturating_add(segment.total_size);
        let page = page(segment, large_page);
        memory.insert(segment.address, Part { end, page, of: Placement { stream: segment.stream, pool } });
        for (address, block) in blocks(segment).filter(|(_, block)| EndState::of(block) != EndState::Free) {
            let pending = EndState::of(block) == EndState::Pending;
            memory.set_block(address, Some(Block { size: block.size, pending, of: () }));
        }
    }
    memory
}

/// Returns whether memory of unknown pool belongs to the part of an expandable segment next to it.
fn takes(one: Placement, other: Placement) -> bool {
    one.stream == other.stream && other.pool.is_none()
}

/// Undoes the events of a device.
#[derive(Clone, Copy)]
pub(super) struct Undo {
    large_page: u64,
    /// Whether the history has no `free_requested`, so that nothing is known to be pending.
    completes_alone: bool,
}

impl Undo {
    /// Returns how the events of a device are undone.
    pub(super) fn of(snapshot: &Snapshot, trace: &[Event]) -> Self {
        let count = |action: &str| trace.iter().filter(|event| event.action == action).count();
        // A completion alone may have its request before the history.
        let completes_alone = count("free_requested") == 0 && count("free_completed") > 1;
        Self { large_page: large_page(snapshot), completes_alone }
    }

    /// Undoes event number `number`.
    pub(super) fn undo(self, memory: &mut PastMemory, number: usize, event: &Event) {
        undo(memory, event, self.large_page);
        // A free is two events at once. The one before the first of the history is missing.
        if event.action == "free_completed"
            && (self.completes_alone || number == 0)
            && let (Some(address), Ok(bytes)) = (event.addr, u64::try_from(event.size))
        {
            memory.undo_free_requested(address, bytes, ());
        }
    }
}

/// Undoes an event.
fn undo(memory: &mut PastMemory, event: &Event, large_page: u64) {
    let (Some(address), Ok(bytes)) = (event.addr, u64::try_from(event.size)) else { return };
    let end = address.saturating_add(bytes);
    match &*event.action {
        "alloc" => _ = memory.undo_alloc(address),
        "free_requested" => memory.undo_free_requested(address, bytes, ()),
        "free_completed" => memory.undo_free_completed(address, bytes, ()),
        "segment_alloc" | "segment_map" => memory.cut(address, end),
        "segment_free" | "segment_unmap" => {
            let page = if event.action == "segment_free" { 0 } else { memory::page_of(bytes, large_page) };
            memory.map(
                address,
                Part { end, page, of: Placement { stream: event.stream, pool: event.pool_id() } },
                takes,
            );
        }
        _ => {}
    }
}
