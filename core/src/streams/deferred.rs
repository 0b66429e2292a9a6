//! Freed blocks whose events cannot be recorded yet, because a stream is capturing a graph.

use crate::device::CaptureMark;
use crate::tables::{Storage, Table};
use crate::units::StreamId;

/// The end of a block's uses within the graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EndOfUses {
    /// Marks the work captured at the free by the block's own stream and all streams in use of the block.
    pub mark: CaptureMark,
    /// The block's own stream.
    pub own: StreamId,
}

/// A block whose events cannot be recorded yet, because a stream is capturing a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Deferred {
    /// The slot of the block's heap.
    pub heap: u32,
    /// The index of the block in the heap.
    pub block: u32,
    /// The capturing stream among those that use the block, if known. While it captures, no retry
    /// is made.
    pub behind: Option<StreamId>,
    /// Where the uses of the block end in the graph, if all of them are captured. What the block's own
    /// stream captures behind this end may use the block again.
    pub end: Option<EndOfUses>,
    /// A thread tries to free the block, or to record the events. Set ⟹ no other thread tries.
    busy: bool,
}

impl Deferred {
    /// Creates an entry with `busy` unset, for a block whose uses end nowhere in the graph.
    pub(crate) fn new(heap: u32, block: u32, behind: Option<StreamId>) -> Self {
        Self { heap, block, behind, end: None, busy: false }
    }

    /// Creates an entry with `busy` unset, for a block whose uses end in the graph.
    pub(crate) fn marked(heap: u32, block: u32, end: EndOfUses) -> Self {
        Self { heap, block, behind: None, end: Some(end), busy: false }
    }
}

/// The deferred blocks of a device.
#[derive(Clone)]
pub(crate) struct DeferredBlocks<S: Storage> {
    /// The blocks, in the order in which they are retried.
    entries: S::Table<Deferred>,
    /// Reservations by [`reserve`](Self::reserve), not yet used.
    reserved: usize,
}

impl<S: Storage> Default for DeferredBlocks<S> {
    fn default() -> Self {
        Self { entries: S::Table::<Deferred>::default(), reserved: 0 }
    }
}

impl<S: Storage> DeferredBlocks<S> {
    /// Reserves an entry for [`add`](Self::add). Returns false if there is no room.
    pub(crate) fn reserve(&mut self) -> bool {
        let room = self.entries.make_room(self.reserved + 1);
        self.reserved += usize::from(room);
        room
    }

    /// Defers the recording of a block's events, using a reservation.
    pub(crate) fn add(&mut self, block: Deferred) {
        debug_assert!(self.reserved > 0, "a block is deferred after `reserve`");
        self.reserved -= 1;
        self.entries.add(block);
    }

    /// Marks the first deferred block at or after `from` busy that no other thread tries and that
    /// does not wait for the stream `capturing`. Returns its number and a copy of the entry.
    ///
    /// The caller tries to record the events, and then calls [`end`](Self::end),
    /// [`keep`](Self::keep) or [`move_to_end`](Self::move_to_end).
    pub(crate) fn take(&mut self, from: usize, capturing: Option<StreamId>) -> Option<(usize, Deferred)> {
        let ready = |entry: &Deferred| !entry.busy && (entry.behind.is_none() || entry.behind != capturing);
        let number = (from..self.entries.len()).find(|&number| ready(&self.entries[number]))?;
        self.entries[number].busy = true;
        Some((number, self.entries[number]))
    }

    /// Marks the first deferred block at or after `from` busy whose uses end in the graph, whose own stream is
    /// `own`, and that no other thread tries. Returns its number and a copy of the entry. The caller then calls
    /// [`end`](Self::end) or [`keep_marked`](Self::keep_marked).
    pub(crate) fn take_marked(&mut self, from: usize, own: StreamId) -> Option<(usize, Deferred)> {
        let ready = |entry: &Deferred| !entry.busy && entry.end.is_some_and(|end| end.own == own);
        let number = (from..self.entries.len()).find(|&number| ready(&self.entries[number]))?;
        self.entries[number].busy = true;
        Some((number, self.entries[number]))
    }

    /// Returns the present number of the block `block`, tried by the caller. Entries before it may
    /// have left.
    fn tried(&self, block: Deferred) -> Option<usize> {
        let is_tried = |entry: &Deferred| entry.busy && (entry.heap, entry.block) == (block.heap, block.block);
        self.entries.iter().position(is_tried)
    }

    /// Removes a tried block, whose events are recorded now.
    pub(crate) fn end(&mut self, block: Deferred) {
        if let Some(number) = self.tried(block) {
            // Removal that keeps the order: the entry moves to the end.
            self.entries[number..].rotate_left(1);
            self.entries.pop();
        }
    }

    /// Keeps a tried block at the present place: work of the own stream could come before the end of the uses.
    pub(crate) fn keep_marked(&mut self, block: Deferred) {
        if let Some(number) = self.tried(block) {
            self.entries[number].busy = false;
        }
    }

    /// Keeps a tried block at its place: the stream `behind` uses it and is capturing.
    pub(crate) fn keep(&mut self, block: Deferred, behind: StreamId) {
        if let Some(number) = self.tried(block) {
            self.entries[number] = Deferred { behind: Some(behind), busy: false, ..block };
        }
    }

    /// Moves a tried block to the end: its events cannot be recorded, and other blocks come first.
    pub(crate) fn move_to_end(&mut self, block: Deferred) {
        if let Some(number) = self.tried(block) {
            self.entries[number] = Deferred { busy: false, ..block };
            self.entries[number..].rotate_left(1);
        }
    }

    /// Returns whether any block is deferred.
    pub(crate) fn any(&self) -> bool {
        !self.entries.is_empty()
    }
}
