//! The memory of a device as a snapshot shows it: at the end, and before each event.

use super::{EndState, blocks};
use crate::memory::{self, Action, Block, Frees, HistoryReader, Part, SMALL_PAGE};
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
    /// Returns what an event says. A pool is in the history since PyTorch 2.12.
    pub(crate) fn of(event: &Event) -> Self {
        Self { stream: event.stream, pool: event.pool_id() }
    }

    /// Returns whether memory belongs to the part of an expandable segment next to it: it does, if
    /// its pool is unknown.
    pub(crate) fn is_of(self, beside: Self) -> bool {
        self.stream == beside.stream && self.pool.is_none()
    }

    /// Returns whether the pool is known, and not the default pool.
    pub(super) fn is_private(self) -> bool {
        cachalot_snapshot::is_private(self.pool)
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

/// Undoes the events of a device.
#[derive(Clone, Copy)]
pub(super) struct Undo {
    large_page: u64,
    frees: Frees,
}

impl Undo {
    /// Returns how the events of a device are undone.
    pub(super) fn of(snapshot: &Snapshot, trace: &[Event]) -> Self {
        let actions = trace.iter().filter_map(|event| Action::named(&event.action));
        Self { large_page: large_page(snapshot), frees: Frees::of(actions) }
    }

    /// Undoes event number `number`.
    pub(super) fn undo(self, memory: &mut PastMemory, number: usize, event: &Event) {
        let (large_page, waits) = (self.large_page, self.frees.waits(number));
        let event = memory::EventOf::of_snapshot(event, Placement::of(event));
        memory.undo(&event, &mut PastReader { large_page, waits });
    }
}

/// Reads an event backwards.
struct PastReader {
    large_page: u64,
    /// Whether the block of a completed free was pending.
    waits: bool,
}

impl HistoryReader for PastReader {
    type Part = Placement;
    type Block = ();
    type Event = Placement;

    fn part(&mut self, event: &memory::EventOf<Placement>, _: &PastMemory) -> Part<Placement> {
        Part { end: event.end(), page: event.page(self.large_page), of: event.of }
    }

    fn block(&mut self, event: &memory::EventOf<Placement>, _: &PastMemory) -> Block<()> {
        Block { size: memory::rounded(event.size), pending: self.waits, of: () }
    }

    fn join(&self, new: &mut Part<Placement>, beside: &Part<Placement>, is_joined: bool) -> bool {
        let joins = new.of == beside.of || (!is_joined && new.of.is_of(beside.of));
        if joins {
            new.of = beside.of;
        }
        joins
    }
}
