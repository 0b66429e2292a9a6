//! Guarded blocks: each is a segment of its heap, on its own pages, and is unmapped when it is
//! free.
//!
//! ```text
//! request ─ its turn ─▶ obtain_guarded ─▶ a segment with one block, which its own stream "uses"
//! free ─▶ the block waits for its own stream and for all streams announced ─▶ segment removed ─▶ pages unmapped
//! ```
//!
//! The use by the own stream sends each free of a guarded block the way of blocks that several
//! streams use. The fast paths know nothing of guards.

use crate::arena::driver::Driver;
use crate::arena::flags::{self, Flags};
use crate::arena::heaps::{HeapGuard, Heaps};
use crate::arena::paging::Paging;
use crate::arena::request::Request;
use crate::arena::waits::Outside;
use crate::arena::{OnDevice, OwnerMap, Platform};
use crate::config::{Config, Filling, Guard};
use crate::device::Host;
use crate::error::Error;
use crate::heap::Heap;
use crate::heap::block::BlockEntry;
use crate::page_map::{HeapRef, Owner};
use crate::pages::guards::GuardedBlock;
use crate::stats::Occurrence;
use crate::streams::pending::{PendingBlock, PendingFree};
use crate::sync::{AtomicU32, Ordering, impl_empty};
use crate::trace::{Action, CallSite};
use crate::units::{DevicePtr, MAX_REQUEST, NO_STREAM, StreamId};
use spin::Once;

/// Which requests get a guarded block.
#[derive(Debug)]
pub(crate) struct Guarding {
    /// The setting, and what is written to blocks. Set by the start, and never changed.
    set: Once<(Guard, Filling)>,
    /// Number of requests since the last guarded block.
    since: AtomicU32,
}

impl_empty! { Guarding { set: Once::new(), since } }

impl Guarding {
    /// Sets which requests get a guarded block.
    pub(super) fn start(&self, config: &Config) {
        self.set.call_once(|| (config.guard(), config.filling()));
    }

    /// Returns the setting.
    fn guard(&self) -> Guard {
        self.set.get().map_or(Guard::Off, |&(guard, _)| guard)
    }

    /// Returns what is written to blocks.
    pub(super) fn filling(&self) -> Filling {
        self.set.get().map_or(Filling::NOTHING, |&(_, filling)| filling)
    }

    /// Returns a copy for another device.
    #[cfg(feature = "alloc")]
    pub(super) fn copy(&self) -> Self {
        let set = Once::initialized((self.guard(), self.filling()));
        Self { set, since: AtomicU32::new(self.since.load(Ordering::Relaxed)) }
    }

    /// Returns whether the next request is to get a guarded block.
    fn is_next_due(&self) -> bool {
        let guard = self.guard();
        guard != Guard::Off && self.since.load(Ordering::Relaxed) + 1 >= guard.interval()
    }

    /// Counts a request. Returns whether the request is to get a guarded block.
    fn is_due(&self) -> bool {
        let since = self.since.fetch_add(1, Ordering::Relaxed) + 1;
        // Of threads that count at once, each may find the interval exceeded. The last one starts
        // again from 0.
        let due = since >= self.guard().interval();
        if due {
            self.since.store(0, Ordering::Relaxed);
        }
        due
    }
}

impl<P: Platform> Heaps<P> {
    /// Returns the heap of the live block at `ptr`. `None` for a block of a plan.
    pub(super) fn owner_of(&self, pages: &OwnerMap<P>, ptr: DevicePtr) -> Option<HeapRef> {
        match pages.owner(ptr) {
            Owner::Heap(owner) => Some(owner),
            Owner::Shared => {
                let has_block = |&slot: &u32| self.lock(slot).lookup(ptr).is_some();
                self.slot_numbers().find(has_block).map(|slot| self.heap_ref(slot))
            }
            Owner::Lane(_) | Owner::None => None,
        }
    }

    /// Lets the free of the block at `ptr`, of the heap in `slot`, wait for the block's own stream,
    /// too. Without an entry for the use, the free is complete at once.
    pub(super) fn watch(&self, driver: &Driver<P::Device>, slot: u32, ptr: DevicePtr) {
        let mut heap = self.lock(slot);
        let reports_end = driver.may_use(heap.stream, NO_STREAM);
        if let Some(block) = heap.lookup(ptr)
            // A captured graph orders the uses of its blocks.
            && heap.pool == 0
            && heap.uses().make_room().is_ok()
        {
            heap.uses().add_own(block, reports_end);
        }
    }
}

impl<P: Platform> Paging<P> {
    /// Keeps a guarded block pending whose free is complete, if the program has its memory pinned:
    /// other blocks at its addresses would not be guarded. Returns whether it was one.
    pub(in crate::arena) fn stays_pinned(&self, flags: &Flags, heap: &mut Heap<P::Storage>, block: u32) -> bool {
        let BlockEntry { addr, segment, .. } = heap.blocks[block];
        let is_pinned = flags.has(flags::GUARDED) && heap.segments[segment].pins > 0;
        let stays = is_pinned && self.note_guarded_pin(DevicePtr(addr));
        if stays {
            heap.uses().hold(block);
        }
        stays
    }
}

impl<P: Platform> OnDevice<'_, P> {
    /// Serves a request with a guarded block, if it is the request's turn. Returns `None` for an
    /// ordinary block.
    pub(super) fn malloc_guarded(self, bytes: u64, stream: StreamId) -> Result<Option<DevicePtr>, Error> {
        if !self.guarding.is_due() || bytes > MAX_REQUEST / 2 {
            return Ok(None);
        }
        self.driver.health()?;
        // With no lock held: the host may walk the stack of an interpreter. Asked without a trace
        // as well.
        let site = self.driver.device().call_site(CallSite::Alloc);
        let served = self.with_request(bytes, stream, site, Heaps::use_pair, |request| self.obtain_guarded(request));
        match served {
            // Whatever is full, an ordinary block takes less of it.
            Err(Error::TableFull(_)) => Ok(None),
            served => served,
        }
    }

    /// Returns whether the request, made now, would get a guarded block, on pages mapped for it.
    pub(super) fn would_guard(self, request: &Request) -> bool {
        let may = self.driver.flags.has(flags::GUARDED) && request.pool == 0 && !request.capturing;
        may && request.bytes <= MAX_REQUEST / 2
            && self.guarding.is_next_due()
            && self.mapper().is_some_and(|mapper| mapper.has_room_to_guard(self.guarding.guard(), request.size))
    }

    /// Obtains a guarded block. Returns `None` in a private pool, during a capture, and if the
    /// memory lacks.
    fn obtain_guarded(self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        if request.pool != 0 || request.capturing {
            return Ok(None);
        }
        let Some(mapper) = self.mapper() else { return Ok(None) };
        let mapper = mapper.for_request(&request.mapping);
        if self.driver.flags.has(flags::PENDING | flags::DEFERRED | flags::ORDERED) {
            self.waiting().process_events()?;
        }
        let of = |place| GuardedBlock::held(place, request.bytes, request.stream, request.site);
        let mut at = mapper.map_guarded(self.guarding.guard(), request.size, of)?;
        if at.is_none() && self.driver.flags.has(flags::PENDING | flags::ORDERED) {
            // Pages of blocks that are pending now.
            self.waiting().wait_for_events()?;
            at = mapper.map_guarded(self.guarding.guard(), request.size, of)?;
        }
        let Some(at) = at else { return Ok(None) };
        let published = self.publish_guarded(request, at);
        if published.is_err() {
            let keep = self.settings.config.lock().quarantine();
            mapper.unmap_guarded(at, None, keep)?;
        }
        published.map(Some)
    }

    /// Adds the guarded block at `at`, which is mapped, to the request's heap.
    fn publish_guarded(self, request: &Request, at: DevicePtr) -> Result<DevicePtr, Error> {
        let size = request.size;
        self.pages.insert(at, size, Owner::Heap(self.heaps.heap_ref(request.slot)))?;
        let slot = self.heaps.slot(request.slot);
        let mut heap = self.heaps.lock(request.slot);
        if heap.make_room_for_segment(size, size).is_err() || heap.uses().make_room().is_err() {
            drop(heap);
            self.pages.remove(at, size);
            return Err(Error::TableFull("segments"));
        }
        self.peaks.device.count(Occurrence::DeviceAlloc);
        self.trace(|recorder| recorder.segment(&mut heap, Action::SegmentAlloc, request.site, at, size));
        let segment = heap.add_segment(at, size, size, &slot.counters);
        let mut served = heap.allocate_from(segment.value, size, request.bytes, &slot.counters);
        // The use that sends the free to `free_with_uses`.
        heap.uses().add_own(segment.value, self.driver.may_use(request.stream, NO_STREAM));
        self.trace(|recorder| recorder.alloc(&mut heap, request.site, served.value, request.bytes));
        drop(heap);
        served.peaks_stale |= segment.peaks_stale;
        Ok(self.reconcile(slot, served))
    }

    /// Completes the free of the guarded block at `at`, the whole of `segment`, if the block has
    /// stayed for a pin that is over. Unlocks the heap.
    pub(in crate::arena) fn end_pin(self, slot: u32, mut heap: HeapGuard<'_, P>, at: DevicePtr, segment: u32) {
        let is_over = self.driver.flags.has(flags::GUARDED) && heap.segments[segment].pins == 0;
        if is_over && self.paging.end_guarded_pin(at) {
            let block = heap.segments[segment].first;
            heap.uses().end_waits(block, 1);
            self.free_if_unused(heap, PendingBlock { slot, index: block });
        }
    }

    /// Removes the guarded block `block`, which has just become free, from its heap. Returns the
    /// address to unmap once the heap is unlocked. `None` for an ordinary block.
    pub(in crate::arena) fn remove_guarded(
        self,
        slot: u32,
        heap: &mut Heap<P::Storage>,
        block: u32,
    ) -> Option<DevicePtr> {
        let at = DevicePtr(heap.blocks[block].addr);
        if !self.paging.is_guarded(&self.driver.flags, at) || !heap.is_releasable(block) {
            return None;
        }
        let (at, size) = heap.remove_segment(block, &self.heaps.slot(slot).counters);
        self.pages.remove(at, size);
        self.peaks.device.count(Occurrence::DeviceFree);
        self.trace(|recorder| recorder.release(heap, Action::SegmentFree, at, size));
        Some(at)
    }

    /// Notes what is known of a pending block at its free, if a guarded block, and frees the block
    /// as [`wait_for_uses`](Self::wait_for_uses) does. Unlocks the
    /// heap; no other call touches a pending block.
    pub(in crate::arena) fn note_and_wait(
        self,
        heap: HeapGuard<'_, P>,
        block: PendingBlock,
        site: u32,
    ) -> Result<(), Error> {
        let (mut heap, mut site) = (heap, site);
        let at = DevicePtr(heap.blocks[block.index].addr);
        if self.paging.is_guarded(&self.driver.flags, at) {
            drop(heap);
            // With no lock held: the host may walk the stack of an interpreter.
            if site == 0 {
                site = self.driver.device().call_site(CallSite::Free);
            }
            heap = self.heaps.lock(block.slot);
            let own = heap.stream;
            let mut next = heap.blocks[block.index].uses;
            let uses = heap.uses().next_streams(&mut next);
            let others = uses.into_iter().filter(|&stream| stream != own && stream != StreamId::EVERY);
            self.paging.note_guarded_free(at, site, others);
        }
        self.wait_for_uses(heap, PendingFree { block, site: Some(site) })
    }
}
