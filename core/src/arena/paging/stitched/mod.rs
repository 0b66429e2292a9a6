//! The stitched policy: a heap grows from pages that are free elsewhere before it gets new memory.
//!
//! ```text
//! grow ─▶ a free block of the stream's other heap fits ─▶ done
//!   └─▶ hold unmapped addresses ──▶ spare pages, and new ones within the budget ─┐
//!         └─▶ budget spent: wholly free pages of this stream, then of others ─────┤
//!                                              map all, set access once, extend ◀─┘
//! ```
//!
//! A moving page is mapped a second time, in the heap of the request, and the old mapping becomes
//! stale. Nothing waits: work on the page's own stream precedes the work of the request in stream
//! order, and for pages of other streams the requesting stream is ordered after the page's stream.
//! A stale mapping is removed once the work on the old addresses is complete (stale.rs). Only
//! wholly free pages move, so two live blocks never see a page through two mappings, and a live
//! block never moves.
//!
//! The budget is in budget.rs, the search for pages in gather.rs, blocks of other streams in
//! lend.rs, giving memory back in maintain.rs, and the replacement of short pages in
//! consolidate.rs.

mod budget;
mod consolidate;
mod forecast;
mod gather;
mod lend;
mod maintain;
mod pending;
mod stale;

pub(in crate::arena) use gather::{PageRequest, Requester};

use crate::arena::holdings::Holdings;
use crate::arena::paging::growth::PageGrowth;
use crate::arena::paging::heap_mapper::HeapMapper;
use crate::arena::paging::mapper::Charge;
use crate::arena::request::{Request, RequestCalls};
use crate::arena::{Arena, OnDevice, Platform};
use crate::config::rounding::PoolKind;
use crate::config::{Policy, Stitched};
use crate::error::Error;
use crate::heap::Keeps;
use crate::heap::growth::HeldRoom;
use crate::pages::Batch;
use crate::units::DevicePtr;

/// The stitched policy of a device: the operations that map and move pages.
pub(crate) struct Stitcher<'a, P: Platform> {
    pub(in crate::arena) growth: PageGrowth<'a, P>,
    pub(in crate::arena) options: Stitched,
}

impl<'a, P: Platform> Holdings<'a, P> {
    /// Returns the operations of the stitched policy, if it is active and the device has virtual
    /// memory.
    pub(in crate::arena) fn stitcher(&self) -> Option<Stitcher<'a, P>> {
        let Policy::Stitched(options) = self.settings.policy() else { return None };
        // If no request has reached the device yet, asking it may open it.
        if !self.driver.has_virtual_memory() {
            return None;
        }
        Some(Stitcher { growth: self.page_growth()?, options })
    }
}

impl<'a, P: Platform> Stitcher<'a, P> {
    /// Notes all later calls to virtual memory in `request`.
    pub(crate) fn for_request(self, request: &'a RequestCalls) -> Self {
        Self { growth: self.growth.for_request(request), ..self }
    }

    fn mapper(&self) -> &HeapMapper<'a, P> {
        &self.growth.mapper
    }

    /// Returns the step in bytes. The sizes of pages are multiples of it.
    fn step(&self) -> u64 {
        self.growth.granule(PoolKind::Small)
    }

    /// Serves a request for which its heap has no fitting free block. Returns `None` if neither
    /// free pages nor the limit and the device allow the growth.
    pub(crate) fn grow(&self, on: OnDevice<'_, P>, request: &Request) -> Result<Option<DevicePtr>, Error> {
        if let Some(ptr) = self.search_other_heap(on.arena, request)? {
            return Ok(Some(ptr));
        }
        self.unmap_some_stale(request);
        if let Some(ptr) = self.borrow(on, request, self.allowance(request))? {
            return Ok(Some(ptr));
        }
        // After the search for a block of another stream, which maps nothing.
        if on.paging.may_lend() {
            let wanted = self.growth.bytes_to_map(request);
            on.holdings().take_lent(wanted, |bytes| bytes <= wanted, request.capturing)?;
        }
        let allowed = self.allowance(request);
        let served = self.grow_with_pending(on, request, allowed)?;
        if served.is_some() || allowed == 0 {
            return Ok(served);
        }
        // The limit or the device allows less than the budget, but free pages may still be enough.
        self.grow_with_pending(on, request, 0)
    }

    /// Extends the request's heap as [`grow_within`](Self::grow_within) does. If this would take
    /// more than `allowed` bytes of new memory, first makes pending memory free.
    fn grow_with_pending(
        &self,
        on: OnDevice<'_, P>,
        request: &Request,
        allowed: u64,
    ) -> Result<Option<DevicePtr>, Error> {
        match self.use_pending(on, request, allowed)? {
            Some(ptr) => Ok(Some(ptr)),
            None => self.grow_within(request, allowed),
        }
    }

    /// Serves a request from the stream's heap of the other kind, which costs nothing.
    fn search_other_heap(&self, arena: &Arena<P>, request: &Request) -> Result<Option<DevicePtr>, Error> {
        let Some(slot) = self.other_heap(request) else { return Ok(None) };
        arena.search(&Request { slot, mapping: RequestCalls::default(), ..*request })
    }

    /// Returns the slot of the stream's heap of the other kind, if the heap may serve the request.
    fn other_heap(&self, request: &Request) -> Option<u32> {
        let serves = request.pool == 0 && !self.mapper().heaps.lock(request.slot).rules.no_split();
        // The small heap of a pair is in an even slot, and the large heap in the slot after it.
        serves.then_some(request.slot ^ 1)
    }

    /// Extends the request's heap and serves the request. Uses at most `allowed` bytes of new
    /// memory, as long as free pages can provide the rest. Returns `None` if the memory is not
    /// enough. On `Ok(None)` and on errors nothing is mapped.
    fn grow_within(&self, request: &Request, allowed: u64) -> Result<Option<DevicePtr>, Error> {
        self.growth.grow(request, |held, batch| self.provide(request, held, allowed, batch))
    }

    /// Collects pages of at least `needed` bytes: spare pages, free pages of the request's stream
    /// and of other streams, and new pages. Returns false if the limit or the device does not allow
    /// the rest.
    fn provide(&self, request: &Request, held: &HeldRoom, allowed: u64, batch: &mut Batch) -> Result<bool, Error> {
        let HeldRoom { needed, room, .. } = *held;
        self.mapper().paging.take_spares(needed, u64::MAX, batch);
        // The permission is held until the pages are ordered, so that no capture starts in between.
        // Only departed pages have a departure.
        if self.may_move(request)
            && let Some(_permission) = self.mapper().driver.may_record()
        {
            self.mapper().take_departed(request.stream, needed, self.options.completed_pages_only, batch)?;
            self.mapper().order_batch(batch, request.stream, true)?;
        }
        let missing = |batch: &Batch| needed.saturating_sub(batch.bytes);
        let mut count = 0;
        let to_move = missing(batch).saturating_sub(allowed);
        if to_move > 0 && self.may_move(request) {
            let mut moves = self.most_moves(request, to_move, room);
            let before = batch.count;
            let wanted = PageRequest { end: batch.bytes + to_move, room };
            self.gather(request.into(), wanted, &mut moves, batch)?;
            count = batch.count - before;
        }
        if self.mapper().lacks(missing(batch)) {
            return Ok(false);
        }
        let sizes = self.new_page_sizes(request, missing(batch), allowed, count);
        while batch.bytes < needed {
            let bytes = sizes.min(missing(batch));
            if !self.mapper().new_page(bytes, Charge::WithinLimit, batch)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns whether pages may move for a request. They never move into a pool with memory of a
    /// captured graph, nor while the request's stream captures one, because the graph would write
    /// to the pages at every replay.
    fn may_move(&self, request: &Request) -> bool {
        let of_graphs = || self.mapper().heaps.lock(request.slot).keeps == Keeps::ForGraphs;
        !request.capturing && (request.pool == 0 || !of_graphs())
    }
}
