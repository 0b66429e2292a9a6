//! The uses of a heap's blocks by streams other than the heap's own.
//!
//! When the block is freed, an event is recorded for each use, after all work that is then on the
//! stream. A use may already have an event, which was recorded when the use was announced; then
//! later work on the stream is not waited for.

use crate::device::Event;
use crate::heap::Heap;
use crate::heap::block::{BlockEntry, Blocks, FRONTIER_BIT};
use crate::streams::deferred_frees::UseFence;
use crate::streams::fences::Fence;
use crate::streams::groups::GroupSet;
use crate::sync::impl_empty;
use crate::tables::slot_table::{NONE, SlotTable, vacant};
use crate::tables::{CapacityError, Lazy, Storage};
use crate::units::{DevicePtr, StreamId};

/// The most uses that a call of [`Uses::begin_waits`] or [`Uses::take_fences`] returns.
pub(crate) const SOME: usize = 8;

/// A use of a block by another stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamUse {
    /// The stream that uses the block.
    stream: StreamId,
    /// Whether the use was announced during graph capture. Then the graph orders the use, and no
    /// event is needed.
    captured: bool,
    /// Whether the block was allocated for this stream, as a loan of the heap. Set ⟹ `event` is
    /// `None`, and `captured` is not set.
    borrowed: bool,
    /// The event recorded at the use; `None` if the event will be recorded at the free.
    event: Option<Event>,
    /// The [number](Fence::number) of the event's fence, if there is an event.
    number: u64,
    /// The next use of the block. In a vacant entry, the next vacant entry.
    next: u32,
}

impl StreamUse {
    /// Creates a use by `stream` that needs an event.
    const fn by(stream: StreamId) -> Self {
        Self { stream, captured: false, borrowed: false, event: None, number: 0, next: NONE }
    }

    /// Takes the fence of the use. After that, the use needs a new one.
    fn take_fence(&mut self) -> Option<Fence> {
        let Self { stream, number, .. } = *self;
        self.event.take().map(|event| Fence { stream, number, event })
    }
}

vacant!(StreamUse, next, keeps, |next| Self { next, ..Self::by(StreamId::DEFAULT) });

/// Which of the uses of a block have events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Events {
    /// No use has an event.
    None,
    /// Some uses have an event, and some need an event.
    Some,
    /// Every use that needs an event has one.
    All,
}

/// How many events the pending blocks of a heap wait for, and in which groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EventWaits {
    /// The sum of the numbers of events of the blocks.
    pub count: u32,
    /// The groups of the streams of these events, and possibly other groups. Empty ⟸ `count` is 0.
    pub groups: GroupSet,
}

impl_empty! { EventWaits { count, groups: GroupSet(0) } }

/// The uses of the blocks of one heap.
pub(crate) struct Uses<'a, S: Storage> {
    blocks: &'a mut Blocks<S>,
    waits: &'a mut EventWaits,
    table: &'a mut SlotTable<StreamUse, S>,
    /// The heap's own stream.
    own: StreamId,
}

impl<S: Storage> Heap<S> {
    /// Returns the uses of the heap's blocks.
    pub(crate) fn uses(&mut self) -> Uses<'_, S> {
        let sets = &mut *self.sets;
        Uses { blocks: &mut self.blocks, waits: &mut sets.waits, table: &mut sets.uses, own: self.stream }
    }

    /// Ends the loan of the block at `ptr`, which nothing has used meanwhile.
    pub(crate) fn take_back(&mut self, ptr: DevicePtr) {
        if let Some(block) = self.lookup(ptr) {
            self.uses().clear(block);
        }
    }

    /// Returns the groups of the streams that pending blocks wait for, and possibly other groups.
    pub(crate) fn waiting(&self) -> GroupSet {
        if self.sets.is_made() { self.sets.waits.groups } else { GroupSet::default() }
    }
}

/// Returns whether a block of the heap is lent to another stream. `uses` is the table of uses.
pub(super) fn is_lent<S: Storage>(block: &BlockEntry, uses: &SlotTable<StreamUse, S>) -> bool {
    loan(block, uses).is_some()
}

/// Returns the use by the stream to which a block is lent.
fn loan<'a, S: Storage>(block: &BlockEntry, uses: &'a SlotTable<StreamUse, S>) -> Option<&'a StreamUse> {
    from(uses, block.uses).map(|(_, known)| known).find(|known| known.borrowed)
}

/// Iterates over the uses of a block, from the use `first` on.
fn from<S: Storage>(uses: &SlotTable<StreamUse, S>, first: u32) -> impl Iterator<Item = (u32, &StreamUse)> {
    uses.chain(first, |known| known.next)
}

/// Returns what `pick` returns for some uses of a block, starting with the use `next`, and moves
/// `next` past the last use that was examined.
fn some<S: Storage, T>(
    uses: &mut SlotTable<StreamUse, S>,
    next: &mut u32,
    mut pick: impl FnMut(&mut StreamUse) -> Option<T>,
) -> heapless::Vec<T, SOME> {
    let mut picked = heapless::Vec::new();
    while *next != NONE && !picked.is_full() {
        let known = &mut uses[*next];
        *next = known.next;
        if let Some(value) = pick(known) {
            let _room = picked.push(value);
        }
    }
    picked
}

impl<S: Storage> Uses<'_, S> {
    /// Records that `stream` uses `block`. The event is recorded at the free. This changes nothing
    /// for the heap's own stream, and for a stream that is recorded already. `captured` is whether
    /// the use was announced during graph capture. Returns the fence of an earlier use by the
    /// stream, if it is no longer needed.
    ///
    /// # Errors
    /// [`CapacityError`] if the table is full. Nothing has changed then.
    pub(crate) fn add(&mut self, block: u32, stream: StreamId, captured: bool) -> Result<Option<Fence>, CapacityError> {
        if let Some(known) = self.find(block, stream) {
            if captured {
                return Ok(None);
            }
            // One use outside a capture is enough to need an event.
            known.captured = false;
            return Ok(known.take_fence());
        }
        self.insert(block, StreamUse { captured, ..StreamUse::by(stream) })?;
        Ok(None)
    }

    /// Records that the stream of `fence` uses `block` until the fence is complete. Returns a fence
    /// that is no longer needed: that of an earlier use by the stream, or `fence` itself if it is
    /// on the heap's own stream or on the stream that borrowed the block.
    ///
    /// # Errors
    /// [`CapacityError`] if the table is full. Nothing has changed then.
    pub(crate) fn add_until(&mut self, block: u32, fence: Fence) -> Result<Option<Fence>, CapacityError> {
        let Fence { stream, number, event } = fence;
        if stream == self.own {
            return Ok(Some(fence));
        }
        if let Some(known) = self.find(block, stream) {
            if known.borrowed {
                return Ok(Some(fence));
            }
            let earlier = known.take_fence();
            // The fence covers earlier work of the stream as well.
            (known.captured, known.number, known.event) = (false, number, Some(event));
            return Ok(earlier);
        }
        self.insert(block, StreamUse { event: Some(event), number, ..StreamUse::by(stream) })?;
        Ok(None)
    }

    /// Makes room for one use.
    ///
    /// # Errors
    /// [`CapacityError`] if the table is full.
    pub(crate) fn make_room(&mut self) -> Result<(), CapacityError> {
        if self.table.make_room(1) { Ok(()) } else { Err(CapacityError) }
    }

    /// Lends the unused `block` to `stream`. The caller has made room.
    pub(crate) fn lend(&mut self, block: u32, stream: StreamId) {
        debug_assert!(stream != self.own && self.blocks[block].uses == NONE, "the block has just been allocated");
        self.blocks[block].uses = self.table.insert(StreamUse { borrowed: true, ..StreamUse::by(stream) });
    }

    /// Adds a use of `block` by the heap's own stream, so that a free waits for this stream. The
    /// caller has made room. If the stream may be gone by the time of the free, the free waits for
    /// [every stream](StreamId::EVERY), because what was announced for the stream does not include
    /// the work in its own blocks.
    pub(crate) fn add_own(&mut self, block: u32, reports_end: bool) {
        let next = self.blocks[block].uses;
        let stream = if reports_end { self.own } else { StreamId::EVERY };
        self.blocks[block].uses = self.table.insert(StreamUse { next, ..StreamUse::by(stream) });
    }

    /// Returns the stream to which `block` is lent. It may have ended.
    pub(crate) fn borrower(&self, block: u32) -> Option<StreamId> {
        loan(&self.blocks[block], self.table).map(|lent| lent.stream)
    }

    /// Iterates over the uses of `block`.
    fn of(&self, block: u32) -> impl Iterator<Item = (u32, &StreamUse)> {
        from(self.table, self.blocks[block].uses)
    }

    fn find(&mut self, block: u32, stream: StreamId) -> Option<&mut StreamUse> {
        let (at, _) = self.of(block).find(|(_, known)| known.stream == stream)?;
        Some(&mut self.table[at])
    }

    fn insert(&mut self, block: u32, entry: StreamUse) -> Result<(), CapacityError> {
        if entry.stream == self.own {
            return Ok(());
        }
        if !self.table.make_room(1) {
            return Err(CapacityError);
        }
        let next = self.blocks[block].uses;
        self.blocks[block].uses = self.table.insert(StreamUse { next, ..entry });
        Ok(())
    }

    /// Returns the lowest stream above `last` that uses a block of the heap.
    pub(crate) fn next_stream(&self, last: Option<StreamId>) -> Option<StreamId> {
        let uses = self.blocks.entries().iter().flat_map(|block| from(self.table, block.uses));
        uses.map(|(_, known)| known.stream).filter(|&stream| last.is_none_or(|last| stream > last)).min()
    }

    /// Returns whether any use of `block` was announced during graph capture.
    pub(crate) fn is_any_captured(&self, block: u32) -> bool {
        self.of(block).any(|(_, known)| known.captured)
    }

    /// Returns which of the uses of `block` have events.
    pub(crate) fn events(&self, block: u32) -> Events {
        let (mut some, mut all) = (false, true);
        for (_, StreamUse { event, captured, .. }) in self.of(block) {
            some |= event.is_some();
            all &= event.is_some() || *captured;
        }
        match (some, all) {
            (false, _) => Events::None,
            (true, false) => Events::Some,
            (true, true) => Events::All,
        }
    }

    /// Returns the first use that has a fence, starting with the use `first`.
    pub(crate) fn next_fence(&self, first: u32) -> Option<UseFence> {
        from(self.table, first).find_map(|(_, &StreamUse { stream, event, number, next, .. })| {
            Some(UseFence { fence: Fence { stream, number, event: event? }, next })
        })
    }

    /// Takes some fences from the uses of a block, starting with the use `next`. Moves `next` past
    /// the last use that was examined, or to [`NONE`] after the last use of the block.
    pub(crate) fn take_fences(&mut self, next: &mut u32) -> heapless::Vec<Fence, SOME> {
        some(self.table, next, StreamUse::take_fence)
    }

    /// Returns the next streams with current work that a pending block must wait for, and counts
    /// the waits, each in the group that `group_of` returns for its stream. Starts with the use
    /// `next`, and moves `next` past the last use that was examined, or to [`NONE`] after the last
    /// use of the block. A use during a capture is ordered by the capture, so it needs no wait.
    pub(crate) fn begin_waits(
        &mut self,
        block: u32,
        next: &mut u32,
        group_of: impl Fn(StreamId) -> u32,
    ) -> heapless::Vec<StreamId, SOME> {
        let groups = &mut self.waits.groups;
        let streams = some(self.table, next, |known| {
            if known.captured {
                return None;
            }
            groups.add(group_of(known.stream));
            Some(known.stream)
        });
        let begun = streams.len() as u32;
        self.blocks[block].events += begun;
        self.waits.count += begun;
        streams
    }

    /// Returns the next streams that use `block`. Starts with the use `next`, and moves `next` past
    /// the last use that was examined, or to [`NONE`] after the last use of the block.
    pub(crate) fn next_streams(&mut self, next: &mut u32) -> heapless::Vec<StreamId, SOME> {
        some(self.table, next, |known| Some(known.stream))
    }

    /// Counts a wait of a pending block on behalf of the calling thread.
    pub(crate) fn hold(&mut self, block: u32) {
        self.blocks[block].events += 1;
        self.waits.count += 1;
    }

    /// Ends `ended` waits of a block. Returns how many waits are left.
    pub(crate) fn end_waits(&mut self, block: u32, ended: u32) -> u32 {
        let events = &mut self.blocks[block].events;
        debug_assert!(*events & !FRONTIER_BIT >= ended, "a wait is counted before it is queued");
        *events -= ended;
        self.waits.count -= ended;
        if self.waits.count == 0 {
            self.waits.groups = GroupSet::default();
        }
        *events & !FRONTIER_BIT
    }

    /// Clears the list of other streams that use `block`. No use may still have an event.
    pub(crate) fn clear(&mut self, block: u32) {
        let mut at = core::mem::replace(&mut self.blocks[block].uses, NONE);
        while at != NONE {
            let StreamUse { event, next, .. } = self.table[at];
            debug_assert!(event.is_none(), "the fence of a use ends first");
            self.table.remove(at);
            at = next;
        }
    }
}
