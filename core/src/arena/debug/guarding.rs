//! Guarded blocks: each is a segment of its heap, at its own addresses, which are unmapped when it
//! is free.
//!
//! ```text
//! request ─ its turn ─▶ obtain_guarded ─▶ a segment with one block, which its own stream "uses"
//! free ─▶ the block waits for its own stream and for all streams announced ─▶ segment removed ─▶ pages unmapped
//! ```

use crate::arena::Platform;
use crate::arena::debug::DebugLayer;
use crate::arena::flags::{self, Flags};
use crate::arena::heaps::HeapGuard;
use crate::arena::holdings::Holdings;
use crate::arena::paging::Paging;
use crate::arena::request::Request;
use crate::arena::waits::{DeviceWaits, Outside};
use crate::config::Guard;
use crate::device::Host;
use crate::device::explanation::STREAMS;
use crate::error::Error;
use crate::heap::Heap;
use crate::heap::block::BlockEntry;
use crate::page_map::Owner;
use crate::pages::guards::GuardedBlock;
use crate::stats::Occurrence;
use crate::streams::pending::PendingBlock;
use crate::sync::Ordering;
use crate::trace::{Action, CallSite};
use crate::units::{DevicePtr, MAX_REQUEST, NO_STREAM, StreamId};

impl DebugLayer {
    /// Returns whether the next request should get a guarded block.
    fn is_next_due(&self) -> bool {
        self.guard() != Guard::Off && self.since.load(Ordering::Relaxed) + 1 >= self.guard().interval()
    }

    /// Counts a request for `bytes`, if blocks are guarded. Returns whether the request should get
    /// a guarded block.
    pub(in crate::arena) fn is_due(&self, flags: &Flags, bytes: u64) -> bool {
        if !flags.has(flags::GUARDED) {
            return false;
        }
        let since = self.since.fetch_add(1, Ordering::Relaxed) + 1;
        // If several threads count at once, each of them may find that the interval is exceeded.
        // The last one starts again from 0.
        let due = since >= self.guard().interval();
        if due {
            self.since.store(0, Ordering::Relaxed);
        }
        due && bytes <= MAX_REQUEST / 2
    }

    /// Returns whether the request would get a guarded block now, on pages mapped for it.
    pub(in crate::arena) fn would_guard<P: Platform>(&self, held: &Holdings<'_, P>, request: &Request) -> bool {
        let may = held.driver.flags.has(flags::GUARDED) && request.pool == 0 && !request.capturing;
        may && request.bytes <= MAX_REQUEST / 2
            && self.is_next_due()
            && held.mapper().is_some_and(|mapper| mapper.has_room_to_guard(self.guard(), request.size))
    }

    /// Obtains a guarded block. Returns `None` in a private pool, during a capture, without virtual
    /// memory, and if there is no memory for the block.
    pub(in crate::arena) fn obtain_guarded<'w, P: Platform>(
        &self,
        held: &Holdings<'_, P>,
        waiting: DeviceWaits<'w, P, impl Outside<'w, P>>,
        request: &Request,
    ) -> Result<Option<DevicePtr>, Error> {
        if request.pool != 0 || request.capturing {
            return Ok(None);
        }
        let Some(mapper) = held.mapper() else { return Ok(None) };
        let mapper = mapper.for_request(&request.mapping);
        if held.driver.flags.has(flags::PENDING | flags::DEFERRED | flags::ORDERED) {
            waiting.process_events()?;
        }
        let of = |place| GuardedBlock::held(place, request.bytes, request.stream, request.site);
        let mut at = mapper.map_guarded(self.guard(), request.size, of)?;
        if at.is_none() && held.driver.flags.has(flags::PENDING | flags::ORDERED) {
            // Waits for the pages of guarded blocks that are pending now.
            waiting.wait_for_events()?;
            at = mapper.map_guarded(self.guard(), request.size, of)?;
        }
        let Some(at) = at else { return Ok(None) };
        let published = publish_guarded(held, request, at);
        if published.is_err() {
            let keep = held.settings.config.lock().quarantine();
            mapper.unmap_guarded(at, None, keep)?;
        }
        published.map(Some)
    }
}

/// Returns whether a guarded block with mapped addresses starts at `at`.
pub(super) fn is_guarded<P: Platform>(flags: &Flags, paging: &Paging<P>, at: DevicePtr) -> bool {
    flags.has(flags::GUARDED) && paging.with_guards(|guards| guards.is_mapped(at))
}

/// Notes what is known of a pending block at its free, if the block is guarded: the call site, and
/// the streams that were said to use it. Unlocks the heap meanwhile, which is safe because no other
/// call touches a pending block. Returns the heap, and the call site.
pub(in crate::arena) fn freed<'a, P: Platform>(
    held: &Holdings<'a, P>,
    heap: HeapGuard<'a, P>,
    block: PendingBlock,
    site: u32,
) -> (HeapGuard<'a, P>, u32) {
    let at = DevicePtr(heap.blocks[block.index].addr);
    if !is_guarded(&held.driver.flags, held.paging, at) {
        return (heap, site);
    }
    drop(heap);
    // Asked with no lock held, because the host may walk the stack of an interpreter.
    let site = if site == 0 { held.driver.device().call_site(CallSite::Free) } else { site };
    let mut heap = held.heaps.lock(block.slot);
    let (own, mut next) = (heap.stream, heap.blocks[block.index].uses);
    let uses = heap.uses().next_streams(&mut next).into_iter();
    let others = uses.filter(|&stream| stream != own && stream != StreamId::EVERY).take(STREAMS).collect();
    held.paging.with_guards(|guards| guards.note_free(at, site, others));
    (heap, site)
}

/// Notes that the free of the block at `at` has failed.
pub(in crate::arena) fn undo_freed<P: Platform>(flags: &Flags, paging: &Paging<P>, at: DevicePtr) {
    if flags.has(flags::GUARDED) {
        paging.with_guards(|guards| guards.undo_free(at));
    }
}

/// Keeps a guarded block pending although its free is complete, if the program has pinned its
/// memory: the memory must remain, and other blocks at its addresses would not be guarded. Returns
/// whether the block is kept.
pub(super) fn stays_pinned<P: Platform>(held: &Holdings<'_, P>, heap: &mut Heap<P::Storage>, block: u32) -> bool {
    let BlockEntry { addr, segment, .. } = heap.blocks[block];
    let is_pinned = held.driver.flags.has(flags::GUARDED) && heap.segments[segment].pins > 0;
    let stays = is_pinned && held.paging.with_guards(|guards| guards.stay_pinned(DevicePtr(addr)));
    if stays {
        heap.uses().hold(block);
    }
    stays
}

/// Ends the wait of the guarded block at `at` for the end of a pin, if it was kept for a pin that
/// is over. The block is the whole of `segment`. Returns the block, which may be free now.
pub(in crate::arena) fn end_pin<P: Platform>(
    flags: &Flags,
    paging: &Paging<P>,
    heap: &mut Heap<P::Storage>,
    at: DevicePtr,
    segment: u32,
) -> Option<u32> {
    let is_over = flags.has(flags::GUARDED) && heap.segments[segment].pins == 0;
    if !is_over || !paging.with_guards(|guards| guards.end_pin(at)) {
        return None;
    }
    let block = heap.segments[segment].first;
    heap.uses().end_waits(block, 1);
    Some(block)
}

/// Removes the guarded block `block`, which has just become free, from its heap. Returns the
/// address to unmap once the heap is unlocked. `None` for an ordinary block.
pub(super) fn remove_guarded<P: Platform>(
    held: &Holdings<'_, P>,
    slot: u32,
    heap: &mut Heap<P::Storage>,
    block: u32,
) -> Option<DevicePtr> {
    let at = DevicePtr(heap.blocks[block].addr);
    if !is_guarded(&held.driver.flags, held.paging, at) || !heap.is_releasable(block) {
        return None;
    }
    let (at, size) = heap.remove_segment(block, &held.heaps.slot(slot).counters);
    held.pages.remove(at, size);
    held.peaks.device.count(Occurrence::DeviceFree);
    held.trace(|recorder| recorder.release(heap, Action::SegmentFree, at, size));
    Some(at)
}

/// Gives back the addresses of all unmapped guarded blocks.
pub(crate) fn end_quarantine<P: Platform>(held: &Holdings<'_, P>) {
    // Without guards the device may not be open yet.
    if held.driver.flags.has(flags::GUARDED)
        && let Some(mapper) = held.mapper()
    {
        mapper.end_quarantine();
    }
}

/// Adds the guarded block at `at`, which is mapped, to the request's heap.
fn publish_guarded<P: Platform>(held: &Holdings<'_, P>, request: &Request, at: DevicePtr) -> Result<DevicePtr, Error> {
    let size = request.size;
    held.pages.insert(at, size, Owner::Heap(held.heaps.heap_ref(request.slot)))?;
    let slot = held.heaps.slot(request.slot);
    let mut heap = held.heaps.lock(request.slot);
    if heap.make_room_for_segment(size, size).is_err() || heap.uses().make_room().is_err() {
        drop(heap);
        held.pages.remove(at, size);
        return Err(Error::TableFull("segments"));
    }
    held.peaks.device.count(Occurrence::DeviceAlloc);
    held.trace(|recorder| recorder.segment(&mut heap, Action::SegmentAlloc, request.site, at, size));
    let segment = heap.add_segment(at, size, size, &slot.counters);
    let mut served = heap.allocate_from(segment.value, size, request.bytes, &slot.counters);
    // Because of this use, the free goes to the waits.
    heap.uses().add_own(segment.value, held.driver.may_use(request.stream, NO_STREAM));
    held.trace(|recorder| recorder.alloc(&mut heap, request.site, served.value, request.bytes));
    drop(heap);
    served.peaks_stale |= segment.peaks_stale;
    Ok(held.reconcile(slot, served))
}
