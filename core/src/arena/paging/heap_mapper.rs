//! The pages of heaps: maps them into a heap and unmaps them, and notes every change.
//!
//! When a heap gains or loses memory, this is noted in three places: its addresses in the page map,
//! the event in the trace, and the bytes in the peaks. A [`HeapMapper`] is a [`Mapper`] that knows
//! these three.

use crate::arena::heaps::Slot;
use crate::arena::holdings::Holdings;
use crate::arena::paging::mapper::Mapper;
use crate::arena::paging::undo::Undo;
use crate::arena::peaks::{Counters, Peaks};
use crate::arena::request::RequestCalls;
use crate::arena::tracing::{History, Recorder};
use crate::arena::{OwnerMap, Platform, flags};
use crate::error::Error;
use crate::heap::moves::PagedHeap;
use crate::heap::{Heap, Outcome};
use crate::page_map::Owner;
use crate::pages::Batch;
use crate::stats::Stat;
use crate::sync::Ordering;
use crate::trace::Action;
use crate::units::DevicePtr;
use core::ops::Deref;

/// Maps pages into heaps, and unmaps them.
pub(crate) struct HeapMapper<'a, P: Platform> {
    mapper: Mapper<'a, P>,
    /// The page map, which finds the heap of an address.
    pub(super) owners: &'a OwnerMap<P>,
    history: &'a History<P::Lock>,
    pub(super) peaks: &'a Peaks<P::Lock>,
    /// The counters that the peaks follow.
    counters: Counters<'a, P>,
}

impl<'a, P: Platform> Deref for HeapMapper<'a, P> {
    type Target = Mapper<'a, P>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.mapper
    }
}

impl<'a, P: Platform> Holdings<'a, P> {
    /// Returns the operations on the pages of the heaps, if the device has virtual memory.
    pub(in crate::arena) fn heap_mapper(&self) -> Option<HeapMapper<'a, P>> {
        let &Self { pages: owners, history, peaks, .. } = self;
        Some(HeapMapper { mapper: self.mapper()?, owners, history, peaks, counters: self.counters() })
    }
}

impl<'a, P: Platform> HeapMapper<'a, P> {
    /// Notes all later calls to virtual memory in `request`.
    pub(in crate::arena) fn for_request(self, request: &'a RequestCalls) -> Self {
        Self { mapper: self.mapper.for_request(request), ..self }
    }

    /// Records an event, if a trace is recorded.
    pub(super) fn trace(&self, record: impl FnOnce(Recorder<'_, P>)) {
        if self.driver.flags.has(flags::TRACE) {
            record(Recorder { driver: self.driver, heaps: self.heaps, history: self.history });
        }
    }

    /// Records how much memory of the host is mapped, if a trace is recorded and that has changed.
    pub(super) fn trace_spilled(&self, heap: &mut Heap<P::Storage>) {
        self.trace(|recorder| recorder.spilled(heap, self.paging.spilled_bytes()));
    }

    /// Returns the value of a heap operation, after reconciling the peaks if the operation made
    /// them stale. The caller has unlocked the heap.
    pub(super) fn reconcile<T>(&self, slot: &Slot<P>, done: Outcome<T>) -> T {
        if done.peaks_stale {
            self.peaks.reconcile_slot(&self.counters, slot);
        }
        done.value
    }

    /// Returns the current sum of a statistic over the device.
    pub(super) fn current(&self, stat: Stat) -> u64 {
        self.peaks.current(&self.counters, stat)
    }

    /// Returns the most bytes that were ever live at one time, or would be live with `more` bytes
    /// now, as [`Peaks::most_live_with`] does.
    pub(super) fn most_live_with(&self, more: u64) -> u64 {
        self.peaks.most_live_with(&self.counters, more, || self.paging.bytes().asleep)
    }

    /// Enters addresses in the page map as those of the heap in `slot`. Undoing this removes them
    /// again.
    ///
    /// # Errors
    /// [`Error::TableFull`].
    pub(in crate::arena) fn list(
        &self,
        slot: u32,
        at: DevicePtr,
        bytes: u64,
    ) -> Result<Undo<impl FnOnce() + use<'a, P>>, Error> {
        let owners = self.owners;
        owners.insert(at, bytes, Owner::Heap(self.heaps.heap_ref(slot)))?;
        Ok(Undo::by(move || owners.remove(at, bytes)))
    }

    /// Leaves stale mappings at the old places of the batch's pages.
    pub(super) fn leave_origins(&self, batch: &Batch) {
        let mut moved = 0;
        for page in self.paging.numbers_of(batch) {
            let origin = self.paging.pool.lock().count_alias_of_origin(page);
            let Some((from, block)) = origin else { continue };
            let counters = &self.heaps.slot(from).counters;
            let mut heap = self.heaps.lock(from);
            let (addr, bytes) = PagedHeap(&mut heap).leave_stale(block, counters);
            self.paging.stale_mappings.fetch_add(1, Ordering::Relaxed);
            self.trace(|recorder| recorder.release(&mut heap, Action::SegmentUnmap, addr, bytes));
            drop(heap);
            moved += bytes;
        }
        self.paging.moved_bytes.fetch_add(moved, Ordering::Relaxed);
    }
}
