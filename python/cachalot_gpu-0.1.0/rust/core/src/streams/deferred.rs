//! Freed blocks whose events cannot be recorded yet, because a stream is capturing a graph.

use crate::device::CaptureMark;
use crate::tables::Storage;
use crate::tables::busy_list::BusyList;
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
}

impl Deferred {
    /// Creates an entry for a block whose uses end nowhere in the graph.
    pub(crate) fn new(heap: u32, block: u32, behind: Option<StreamId>) -> Self {
        Self { heap, block, behind, end: None }
    }

    /// Creates an entry for a block whose uses end in the graph.
    pub(crate) fn marked(heap: u32, block: u32, end: EndOfUses) -> Self {
        Self { heap, block, behind: None, end: Some(end) }
    }

    /// Returns whether the block does not wait for the stream `capturing`.
    pub(crate) fn is_ready(&self, capturing: Option<StreamId>) -> bool {
        self.behind.is_none() || self.behind != capturing
    }

    /// Returns whether the uses of the block end in the graph, and the own stream of the block is `own`.
    pub(crate) fn is_marked_on(&self, own: StreamId) -> bool {
        self.end.is_some_and(|end| end.own == own)
    }
}

/// The deferred blocks of a device.
pub(crate) struct DeferredBlocks<S: Storage> {
    /// The blocks, in the order in which they are retried. A thread takes a block to free it, or to record its events.
    pub list: BusyList<Deferred, S>,
    /// Reservations by [`reserve`](Self::reserve), not yet used.
    reserved: u32,
}

impl<S: Storage> Default for DeferredBlocks<S> {
    fn default() -> Self {
        Self { list: BusyList::default(), reserved: 0 }
    }
}

impl<S: Storage> Clone for DeferredBlocks<S> {
    /// Returns the blocks on which no thread works. What a thread has done of a block is not known: the block stays
    /// pending in the copy.
    fn clone(&self) -> Self {
        let mut list = self.list.clone();
        for entry in self.list.busy_entries() {
            list.take(entry);
            list.remove(entry);
        }
        Self { list, reserved: 0 }
    }
}

impl<S: Storage> DeferredBlocks<S> {
    /// Reserves an entry for [`add`](Self::add). Returns false if there is no room.
    pub(crate) fn reserve(&mut self) -> bool {
        let room = self.list.make_room(self.reserved + 1);
        self.reserved += u32::from(room);
        room
    }

    /// Defers the recording of a block's events, using a reservation.
    pub(crate) fn add(&mut self, block: Deferred) {
        debug_assert!(self.reserved > 0, "a block is deferred after `reserve`");
        self.reserved -= 1;
        self.list.add(block);
    }

    /// Keeps a taken block at its place: the stream `behind` uses it and is capturing.
    pub(crate) fn keep_behind(&mut self, entry: u32, behind: StreamId) {
        self.list[entry].behind = Some(behind);
        self.list.keep(entry);
    }
}
