//! Growth of a heap: allocates a segment from the device or expands one, and serves a request from
//! the new memory. Also decides the size of the segment.
//!
//! Heaps are locked one at a time, and never across a call to the device. The order is: charge the
//! bytes against the limit, allocate the segment, enter it in the page map, add it to the heap.
//! Each step is undone if a later step fails.

use crate::arena::OnDevice;
use crate::arena::driver::Driver;
use crate::arena::flags::{self, Flags};
use crate::arena::heaps::Heaps;
use crate::arena::ledger::Ledger;
use crate::arena::platform::{OwnerMap, Platform};
use crate::arena::request::Request;
use crate::arena::settings::Settings;
use crate::config::rounding::SMALL_SEGMENT;
use crate::config::{Bfc, Policy};
use crate::device::{AddressLack, DeviceResult, ErrorKind, Segments};
use crate::error::Error;
use crate::heap::Heap;
use crate::heap::split_rules::{PageRules, Source};
use crate::page_map::Owner;
use crate::stats::Occurrence;
use crate::sync::{Lock, Ordering};
use crate::tables::Storage;
use crate::trace::Action;
use crate::units::{DevicePtr, GRAIN};

impl<P: Platform> OnDevice<'_, P> {
    /// Allocates a segment for the request's heap or expands one, and serves the request from the
    /// new memory. Returns `None` if the device, the limit, or the `max` of the pool's tag does not
    /// allow more memory.
    #[inline(always)]
    pub(crate) fn grow(self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        // The default pool has no tag, and only pays for this test.
        if request.pool == 0 { self.grow_freely(request) } else { self.grow_in_tag(request) }
    }

    /// Grows as [`grow`](Self::grow) does, if the `max` of the pool's tag permits the growth.
    #[cold]
    fn grow_in_tag(self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        // Before the device is called for pages or addresses.
        if self.holdings().is_refused_by_max(request)? {
            return Ok(None);
        }
        let source = self.heaps.source_now(&self.driver.flags, request);
        // Pages are charged later, where their number is known.
        let segment = if source.maps_pages() { 0 } else { self.segment_bytes(request) };
        let Ok(_charged) = self.heaps.charge_tag(&self.driver.flags, request, segment) else { return Ok(None) };
        self.grow_freely(request)
    }

    /// Grows as [`grow`](Self::grow) does, without checking the `max` of a tag for segments.
    #[inline(always)]
    fn grow_freely(self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        if !request.capturing && self.paging.has_departures() {
            self.holdings().collect_for_growth();
        }
        let source = self.heaps.source_now(&self.driver.flags, request);
        if source.maps_pages()
            && let Some(served) = self.holdings().grow_on_host(request)?
        {
            return Ok(Some(served));
        }
        match source {
            Source::Device | Source::Host => self.add_segment(request),
            Source::Pages if self.settings.policy().traits().moves_pages => {
                let served =
                    self.stitcher().map_or(Ok(None), |of| of.for_request(&request.mapping).grow(self, request));
                self.or_without_addresses(request, served)
            }
            Source::Pages => {
                if self.paging.may_lend() {
                    self.holdings().take_lent_granules(request)?;
                }
                // Checked but not charged, because `expand` counts each mapped range. Whole
                // granules may exceed the limit by less than one granule for each request, as in
                // PyTorch.
                let bytes = self.segment_bytes(request);
                let growth = self.holdings().page_growth().filter(|growth| growth.has_room_to_map(bytes));
                let served = growth.map_or(Ok(None), |growth| growth.for_request(&request.mapping).expand(request));
                self.or_without_addresses(request, served)
            }
        }
    }

    /// Serves a request from an ordinary segment if pages did not serve it because there were no
    /// addresses. The device can find a place for a segment where no reservation fits.
    #[inline]
    fn or_without_addresses(
        self,
        request: &Request,
        served: Result<Option<DevicePtr>, Error>,
    ) -> Result<Option<DevicePtr>, Error> {
        let lacks = matches!(served, Ok(None)) && request.mapping.lack() == AddressLack::Refused;
        if lacks { self.add_unpaged_segment(request) } else { served }
    }

    /// Serves a request from an ordinary segment in a heap on pages. Returns `None` in a pool with
    /// a tag, because it can be parked, and only pages can be.
    #[cold]
    fn add_unpaged_segment(self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        if self.heaps.lock(request.slot).parkable {
            return Ok(None);
        }
        // Ordinary segments cannot use spare pages.
        if self.paging.bytes().spare > 0 {
            self.holdings().destroy_spares()?;
        }
        self.allocate_segment(request, self.segment_bytes(request).max(request.size))
    }

    /// Allocates an ordinary segment of `bytes`, and serves the request from it. Returns `None` if
    /// the device or the limit does not allow `bytes` more.
    pub(crate) fn allocate_segment(self, request: &Request, bytes: u64) -> Result<Option<DevicePtr>, Error> {
        // Full tables are found before the device is called. The request uses the pair, so the heap
        // keeps its stream while the lock is dropped.
        self.heaps.lock(request.slot).make_room_for_segment(bytes, request.size)?;
        // Charge first, so that two threads that both saw room below the limit cannot exceed it
        // together.
        if !self.ledger.charge(bytes) {
            return Ok(None);
        }
        // Until the segment is in the heap, another request of the heap finds neither room below
        // the limit nor a free block. The count makes that request wait and search again.
        let pending = &self.heaps.slot(request.slot).pending_segments;
        pending.fetch_add(1, Ordering::Relaxed);
        let served = self.allocate_charged_segment(request, bytes);
        // Release: a thread that reads zero with Acquire sees the heap with the new segment.
        pending.fetch_sub(1, Ordering::Release);
        served
    }

    /// Allocates a segment that has already been charged against the limit, and serves the request
    /// from it. Refunds the charge on failure.
    fn allocate_charged_segment(self, request: &Request, bytes: u64) -> Result<Option<DevicePtr>, Error> {
        let owner = Owner::Heap(self.heaps.heap_ref(request.slot));
        let is_supplied = self.heaps.source(request) == Source::Host;
        // The request keeps the pool in use, so its name does not change.
        let supplied = is_supplied.then(|| self.heaps.shared_pool(request.pool).id());
        // In a captured graph, an allocation in the order of a stream would become part of the
        // graph.
        let may_order = self.driver.flags.has(flags::DIRECT) && !request.capturing;
        let obtain = |device: &P::Device| match supplied {
            Some(pool) => device.obtain_for(pool, bytes),
            None if may_order && device.is_ordered() => device.obtain_on(request.stream, bytes),
            None => device.obtain(bytes),
        };
        let Some(base) = self.ledger.allocate_charged::<P>(&self.driver, self.pages, bytes, owner, obtain)? else {
            return Ok(None);
        };
        let slot = self.heaps.slot(request.slot);
        let mut heap = self.heaps.lock(request.slot);
        // Room was made before the lock was dropped, and other calls may have used it since.
        if heap.make_room_for_segment(bytes, request.size).is_err() {
            drop(heap);
            self.ledger.undo_allocation::<P>(&self.driver, self.pages, base, bytes)?;
            return Err(Error::TableFull("segments"));
        }
        self.peaks.device.count(Occurrence::DeviceAlloc);
        self.trace(|recorder| recorder.segment(&mut heap, Action::SegmentAlloc, request.site, base, bytes));
        let segment = heap.add_segment(base, bytes, request.size, &slot.counters);
        if self.settings.policy().traits().grows_regions && !self.driver.flags.has(flags::DIRECT) {
            heap.region = next_region(heap.region, request.size);
        }
        // The block is taken under the lock that added the segment, so no other request can take it
        // first.
        let served = heap.allocate_from_new(segment.value, request.size, request.bytes, &slot.counters);
        if let Some(served) = &served {
            self.trace(|recorder| recorder.alloc(&mut heap, request.site, served.value, request.bytes));
        }
        drop(heap);
        // `None` if a sub-allocator has no entry for the sub-block. The segment stays in the heap.
        let Some(mut served) = served else { return Err(Error::TableFull("sub-blocks")) };
        // One reconciliation of the peaks covers the segment and the block.
        served.peaks_stale |= segment.peaks_stale;
        Ok(Some(self.reconcile(slot, served)))
    }

    /// Allocates an ordinary segment for the request's heap, and serves the request from it.
    /// Returns `None` if the device, the host or the limit does not allow more memory.
    fn add_segment(self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        let mut bytes = self.segment_bytes(request);
        if self.paging.may_lend() {
            self.holdings().take_lent(bytes, |_| false, request.capturing)?;
        }
        // Ordinary segments cannot use spare pages.
        if self.paging.bytes().spare > 0 {
            self.holdings().destroy_spares()?;
        }
        if bytes > self.settings.policy().max_segment_bytes() {
            return Ok(None);
        }
        // Some policies accept a smaller segment than the preferred size, so try each size in turn.
        // `smaller_segment` decreases strictly and never goes below the request, so the loop ends.
        loop {
            let served = self.allocate_segment(request, bytes)?;
            if served.is_some() {
                return Ok(served);
            }
            match self.settings.policy().smaller_segment(bytes, request.size) {
                Some(smaller) => bytes = smaller,
                None => return Ok(None),
            }
        }
    }
}

impl Ledger {
    /// Allocates `bytes`, which are already charged against the limit, with `obtain`. Adds them to
    /// the page map as those of `owner`. Returns `None` if there is not enough memory. Refunds the
    /// charge unless the memory is returned.
    pub(super) fn allocate_charged<P: Platform>(
        &self,
        driver: &Driver<P::Device>,
        pages: &OwnerMap<P>,
        bytes: u64,
        owner: Owner,
        obtain: impl FnOnce(&P::Device) -> DeviceResult<DevicePtr>,
    ) -> Result<Option<DevicePtr>, Error> {
        let base = match driver.call(obtain) {
            Ok(base) => base,
            Err(error) => {
                self.refund(bytes);
                // The ladder continues only if memory is certainly short. Any other error is
                // reported.
                return if error.kind == ErrorKind::OutOfMemory { Ok(None) } else { Err(error.into()) };
            }
        };
        // Listed before any block of the segment can be returned, so that every `free` finds the
        // owner.
        if let Err(error) = pages.insert(base, bytes, owner) {
            self.release(driver, base, bytes)?;
            return Err(error);
        }
        Ok(Some(base))
    }

    /// Undoes [`allocate_charged`](Self::allocate_charged).
    pub(super) fn undo_allocation<P: Platform>(
        &self,
        driver: &Driver<P::Device>,
        pages: &OwnerMap<P>,
        base: DevicePtr,
        bytes: u64,
    ) -> Result<(), Error> {
        pages.remove(base, bytes);
        self.release(driver, base, bytes)
    }
}

impl<P: Platform> Heaps<P> {
    /// Returns where the new memory for a request comes from: the source of the heap, but never
    /// pages in direct mode.
    pub(in crate::arena) fn source_now(&self, flags: &Flags, request: &Request) -> Source {
        match self.source(request) {
            source if source.maps_pages() && flags.has(flags::DIRECT) => Source::Device,
            source => source,
        }
    }
}

impl<R: Lock> Settings<R> {
    /// Returns the size in bytes of the segment that [`grow`](OnDevice::grow) would try first for a
    /// request. In a heap of the stitched policy, returns the bytes that would be mapped.
    pub(crate) fn segment_bytes<P: Platform<Lock = R>>(
        &self,
        driver: &Driver<P::Device>,
        heaps: &Heaps<P>,
        ledger: &Ledger,
        request: &Request,
    ) -> u64 {
        if driver.flags.has(flags::DIRECT) {
            return request.size;
        }
        match self.policy() {
            Policy::Bfc(bfc) => region_bytes(driver, heaps, ledger, &bfc, request),
            policy => {
                // The heap's lock ends with this statement, before `config` is locked.
                let of_heap = bytes_of_heap(&mut heaps.lock(request.slot), request.size);
                let bytes = of_heap.unwrap_or_else(|| policy.segment_bytes(request.size, &self.config.lock()));
                let shrinks = policy.traits().shrinks_segments;
                if shrinks {
                    self.shrink_to_available(bytes, ledger.available_bytes(driver), request.size)
                } else {
                    bytes
                }
            }
        }
    }

    /// Returns the first of the policy's segment sizes, from `bytes` down, that is at most
    /// `available`. If none fits, returns the smallest size that holds `needed` bytes.
    fn shrink_to_available(&self, mut bytes: u64, available: u64, needed: u64) -> u64 {
        while bytes > available
            && let Some(smaller) = self.policy().smaller_segment(bytes, needed)
        {
            bytes = smaller;
        }
        bytes
    }
}

/// Returns the size in bytes of a heap's next region under best fit with coalescing.
///
/// With `allow_growth` the size doubles from region to region, and as often as the request needs.
/// Without it, the region takes all available memory. Both are capped by the limit and the device.
fn region_bytes<P: Platform>(
    driver: &Driver<P::Device>,
    heaps: &Heaps<P>,
    ledger: &Ledger,
    bfc: &Bfc,
    request: &Request,
) -> u64 {
    let (region, no_split) = {
        let heap = heaps.lock(request.slot);
        (heap.region, heap.rules.no_split())
    };
    // Blocks are not split, so the rest of a larger region could serve no other request.
    if no_split {
        return request.size;
    }
    // Rounded down, so that the cap is a multiple of the grain, as every region size is.
    let available = ledger.available_bytes(driver) / GRAIN * GRAIN;
    let region = if bfc.allow_growth { double_to_fit(region, request.size) } else { available };
    // At least the request, even above the cap. The charge or the device then refuses it.
    region.min(available).max(request.size)
}

/// Returns how many bytes a heap would add for a block of `size` bytes, if it sizes its own
/// segments because it uses a sub-allocator or pages that move.
fn bytes_of_heap<S: Storage>(heap: &mut Heap<S>, size: u64) -> Option<u64> {
    if let Some(suballocator) = &heap.suballocator {
        return Some(suballocator.segment_bytes(size));
    }
    if !heap.rules.source.maps_pages() || heap.rules.pages == PageRules::Stay {
        return None;
    }
    // A heap without addresses would map all of the block.
    Some(heap.lacking(size).map_or(size.next_multiple_of(SMALL_SEGMENT), |lacking| lacking.needed))
}

/// Doubles `region` until it holds `needed` bytes.
fn double_to_fit(mut region: u64, needed: u64) -> u64 {
    while region < needed {
        // `GRAIN` raises a region of 0 bytes, which doubling alone would leave at 0.
        region = region.max(GRAIN).saturating_mul(2);
    }
    region
}

/// Returns the size of the region that follows a region allocated for `needed` bytes.
fn next_region(region: u64, needed: u64) -> u64 {
    // A region that was doubled for the request is not doubled a second time.
    if region < needed { double_to_fit(region, needed) } else { region.saturating_mul(2) }
}
