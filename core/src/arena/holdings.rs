//! The memory that a device holds for the allocator: what may be seen of the arena where memory is
//! obtained and given back.
//!
//! ```text
//! obtain.rs              more memory from the device
//! give/ · vacate.rs      memory back to the device
//! tenants.rs             who may obtain, and who gives back first
//! compact.rs · idle/     how much is held
//! ```

use crate::arena::OnDevice;
use crate::arena::driver::Driver;
use crate::arena::heaps::{Heaps, Slot};
use crate::arena::ledger::Ledger;
use crate::arena::paging::Paging;
use crate::arena::paging::departures::GivenUp;
use crate::arena::paging::growth::PageGrowth;
use crate::arena::paging::heap_mapper::HeapMapper;
use crate::arena::paging::mapper::Mapper;
use crate::arena::paging::stitched::Stitcher;
use crate::arena::peaks::{Counters, Peaks};
use crate::arena::platform::{OwnerMap, Platform};
use crate::arena::request::Request;
use crate::arena::settings::Settings;
use crate::arena::tracing::Recorder;
use crate::error::Error;
use crate::heap::Outcome;
use crate::units::{DevicePtr, StreamId};

/// What obtaining memory and giving it back needs of a device: the heaps and their settings, the
/// pages, the page map, the ledger, and where events are counted and recorded. Not the plans, the
/// blocks that wait, the guarded blocks, what `reclaim:auto` and `tune:auto` have learned, or the
/// way of a request.
///
/// Two words, which are passed in registers, and not one for each part.
#[derive(Clone, Copy)]
pub(crate) struct Holdings<'a, P: Platform>(OnDevice<'a, P>);

impl<'a, P: Platform> Holdings<'a, P> {
    #[inline(always)]
    pub(super) fn of(device: OnDevice<'a, P>) -> Self {
        Self(device)
    }

    #[inline(always)]
    pub(in crate::arena) fn driver(self) -> &'a Driver<P::Device> {
        &self.0.arena.driver
    }

    #[inline(always)]
    pub(in crate::arena) fn settings(self) -> &'a Settings<P::Lock> {
        &self.0.arena.settings
    }

    #[inline(always)]
    pub(in crate::arena) fn heaps(self) -> &'a Heaps<P> {
        &self.0.arena.heaps
    }

    #[inline(always)]
    pub(in crate::arena) fn paging(self) -> &'a Paging<P> {
        &self.0.arena.paging
    }

    #[inline(always)]
    pub(in crate::arena) fn ledger(self) -> &'a Ledger {
        &self.0.arena.ledger
    }

    #[inline(always)]
    pub(in crate::arena) fn pages(self) -> &'a OwnerMap<P> {
        self.0.pages
    }

    #[inline(always)]
    pub(in crate::arena) fn peaks(self) -> &'a Peaks<P::Lock> {
        &self.0.arena.peaks
    }

    #[inline(always)]
    pub(in crate::arena) fn counters(self) -> Counters<'a, P> {
        self.0.arena.counters()
    }

    /// Returns what memory that is given up while work may use it needs of the arena.
    pub(in crate::arena) fn given_up(self) -> GivenUp<'a, P> {
        self.0.arena.given_up()
    }

    /// Returns the operations on virtual memory, if the device has any.
    pub(in crate::arena) fn mapper(self) -> Option<Mapper<'a, P>> {
        Mapper::of(self.0)
    }

    /// Returns the operations on the pages of heaps, if the device has virtual memory.
    pub(in crate::arena) fn heap_mapper(self) -> Option<HeapMapper<'a, P>> {
        HeapMapper::of(self.0)
    }

    /// Returns the growth of heaps on pages, if the device has virtual memory.
    pub(in crate::arena) fn page_growth(self) -> Option<PageGrowth<'a, P>> {
        PageGrowth::of(self.0)
    }

    /// Returns the operations of the stitched policy, if the policy is active and the device has
    /// virtual memory.
    pub(in crate::arena) fn stitcher(self) -> Option<Stitcher<'a, P>> {
        Stitcher::of(self.0)
    }

    /// Serves a request without a fitting free block, by the stitched policy.
    pub(in crate::arena) fn grow_stitched(self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        self.stitcher().map_or(Ok(None), |of| of.for_request(&request.mapping).grow(self.0, request))
    }

    /// Records an event, if a trace is recorded.
    #[inline]
    pub(in crate::arena) fn trace(self, record: impl FnOnce(Recorder<'_, P>)) {
        self.0.arena.trace(record);
    }

    /// Unwraps the outcome of a heap operation, and reconciles the peaks if the operation made them
    /// stale. The caller has unlocked the heap.
    #[inline]
    pub(in crate::arena) fn reconcile<T>(self, slot: &Slot<P>, done: Outcome<T>) -> T {
        self.0.arena.reconcile(slot, done)
    }

    /// Reconciles the peaks if they are stale.
    #[inline(always)]
    pub(in crate::arena) fn settle_peaks(self, slot: &Slot<P>, peaks_stale: bool) {
        self.0.arena.settle_peaks(slot, peaks_stale);
    }

    /// Removes up to `most` stale mappings of ranges whose work is complete, so their pages are
    /// spare.
    pub(in crate::arena) fn collect_departed(self, most: u32) {
        self.0.collect_departed(most);
    }

    /// Removes a few stale mappings of ranges, before more memory is obtained.
    pub(in crate::arena) fn collect_few_departed(self) {
        self.0.collect_few_departed();
    }

    /// Waits for the work before every decommit so far, and removes the stale mappings.
    ///
    /// # Errors
    /// The first error of the device, after all mappings were tried.
    pub(in crate::arena) fn wait_for_departures(self) -> Result<(), Error> {
        self.0.wait_for_departures()
    }

    /// Unmaps a segment that was removed from its heap, if a guarded block. Returns whether it was
    /// one.
    ///
    /// # Errors
    /// The error of the device, after the bytes were counted as leaked.
    pub(in crate::arena) fn release_guarded(self, base: DevicePtr, behind: Option<StreamId>) -> Result<bool, Error> {
        self.0.release_guarded(base, behind)
    }

    /// Returns the length of the segment that the device would be asked for, for a request, in
    /// bytes.
    pub(in crate::arena) fn segment_bytes(self, request: &Request) -> u64 {
        self.settings().segment_bytes(self.driver(), self.heaps(), self.ledger(), request)
    }
}
