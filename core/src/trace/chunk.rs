//! Chunks of records: a heap fills one in place, and hands it in at the ring when it is full.

use super::record::Record;
use crate::sync::impl_empty;
use crate::tables::{Lazy, Storage, Table};

/// The clock is read before every such record of a heap, if times are numbered. It divides the
/// records of a chunk on the host's heap.
const PER_READING: usize = 32;

/// The records of a chunk, which are allocated when the first is recorded.
pub(super) type Records<S> = <S as Storage>::Lazy<<S as Storage>::Chunk<Record>>;

/// The latest events of a heap, under the heap's lock.
#[derive(Clone)]
pub(crate) struct EventBuffer<S: Storage> {
    /// How many records are added before [`is_due`](Self::is_due) returns true again. It is at most
    /// the room of `records`.
    left: u32,
    /// The number of events in `records`.
    pub(super) events: u32,
    /// The time of the latest event. Every event gets a later time than the one before, even if the
    /// clock stands still.
    latest: u64,
    /// The number by which the ring knows the heap; 0 before it has handed in a chunk.
    pub(super) owner: u32,
    /// The records, in the order of time.
    pub(super) records: Records<S>,
}

impl_empty! { [S: Storage] EventBuffer<S> { left, events, latest, owner, records } }

impl<S: Storage> EventBuffer<S> {
    /// Returns whether the caller must hand the chunk in if it is [full](Self::is_full), may read
    /// the clock, and must call [`prepare`](Self::prepare), before it adds a record. One test
    /// covers all of them.
    #[inline(always)]
    pub(crate) fn is_due(&self) -> bool {
        self.left == 0
    }

    /// Makes room for the next records, of which there is some in the chunk.
    pub(crate) fn prepare(&mut self) {
        let room = S::CHUNK - self.records.get_or_make().len();
        self.left = room.min(PER_READING) as u32;
    }

    /// Returns whether the chunk has no room.
    pub(crate) fn is_full(&self) -> bool {
        self.records.is_made() && self.records.len() == S::CHUNK
    }

    /// Adds an event, at a later tick than the previous one. The buffer is not due.
    #[inline(always)]
    pub(crate) fn push(&mut self, mut record: Record) {
        record.ticks = record.ticks.max(self.latest + 1);
        self.latest = record.last();
        self.left -= 1;
        self.events += record.count();
        self.records.add(record);
    }

    /// Returns the time of the latest event.
    pub(crate) fn latest(&self) -> u64 {
        self.latest
    }

    /// Gives later events times after `ticks`.
    pub(crate) fn raise(&mut self, ticks: u64) {
        self.latest = self.latest.max(ticks);
    }

    /// Removes all records.
    pub(super) fn clear(&mut self) {
        (self.left, self.events) = (0, 0);
        if self.records.is_made() {
            self.records.clear();
        }
    }

    /// Drops all records, and the chunk on the host's heap. Returns the time of the latest event.
    pub(crate) fn restart(&mut self) -> u64 {
        self.clear();
        self.records.drop_value();
        self.owner = 0;
        self.latest
    }
}

/// A chunk in the ring.
#[derive(Clone)]
pub(super) struct Chunk<S: Storage> {
    pub(super) records: Records<S>,
    /// The time of the last event.
    pub(super) latest: u64,
    /// The number of the heap that has filled the chunk; 0 if it was none.
    pub(super) owner: u32,
    /// The number of records that the present reader has passed.
    next: u32,
}

impl_empty! { [S: Storage] Chunk<S> { records, latest, owner, next } }

impl<S: Storage> Chunk<S> {
    /// Returns whether the chunk has room for a record.
    pub(super) fn has_room(&self) -> bool {
        !self.records.is_made() || self.records.len() < S::CHUNK
    }

    /// Adds a record, which may be older than others. The chunk has room.
    pub(super) fn add(&mut self, record: Record) {
        self.latest = self.latest.max(record.last());
        self.records.get_or_make().add(record);
    }

    /// Returns the records.
    pub(super) fn records(&self) -> &[Record] {
        if self.records.is_made() { &self.records[..] } else { &[] }
    }

    /// Prepares the chunk for a reader of the records after `lost`.
    fn begin(&mut self, lost: u64) {
        let records = &mut self.records.get_or_make()[..];
        // Those of a heap are sorted.
        if !records.is_sorted_by_key(|record| record.ticks) {
            records.sort_unstable_by_key(|record| record.ticks);
        }
        self.next = records.partition_point(|record| record.ticks <= lost) as u32;
    }

    /// Returns the next record of the reader.
    fn present(&self) -> Option<Record> {
        self.records.get(self.next as usize).copied()
    }

    /// Returns the time of the next record of the reader, or the largest time after the last.
    fn time(&self) -> u64 {
        self.records.get(self.next as usize).map_or(u64::MAX, |record| record.ticks)
    }
}

/// Calls `visit` with the records of all chunks after `lost`, in the order of time.
pub(super) fn merge<S: Storage>(chunks: &mut [Chunk<S>], lost: u64, mut visit: impl FnMut(&Record)) {
    chunks.iter_mut().for_each(|chunk| chunk.begin(lost));
    // The chunks are the heap of a priority queue: each is at most as late as the two below it. No
    // memory is needed.
    for at in (0..chunks.len()).rev() {
        sink(chunks, at);
    }
    while let Some(record) = chunks.first().and_then(Chunk::present) {
        visit(&record);
        chunks[0].next += 1;
        sink(chunks, 0);
    }
}

/// Moves a chunk down to its place in the priority queue.
fn sink<S: Storage>(chunks: &mut [Chunk<S>], mut at: usize) {
    let time = chunks[at].time();
    loop {
        let below = (2 * at + 1..chunks.len()).take(2).min_by_key(|&below| chunks[below].time());
        let Some(below) = below.filter(|&below| chunks[below].time() < time) else { return };
        chunks.swap(at, below);
        at = below;
    }
}
