//! Free blocks that other streams lend to a request.
//!
//! ```text
//! lender    ── work ── event ┐                                  ┌── work in the block, once it is free
//! borrower                   └─ wait ── work in the block ── free ── event
//! ```
//!
//! If the free pages of its own stream are not enough, a request would take pages of other streams
//! and map each of them. A large enough free block of another stream serves the request in place:
//! the borrowing stream is ordered after the lender's work, and nothing is mapped. The block may
//! even share pages with live blocks, although such pages cannot move.
//!
//! The block stays in the heap and the range of the lender, and keeps its borrower until the free,
//! whichever stream ends in between. The borrower uses the block as if the program had announced
//! the use ([`record_stream`](crate::Allocator::record_stream)): after the free, the block waits
//! for the borrower's work, and then belongs to the lender again. If the borrower has ended, the
//! device still records an event after its work, as for any stream with an announced use of a live
//! block ([`StreamOrder::record`](crate::StreamOrder::record)).
//!
//! Private pools neither lend nor borrow. Nothing is lent while a graph is captured, or if pages
//! move only after their work is complete. A parked heap lends nothing.

use super::Stitcher;
use super::gather::slots_of;
use crate::arena::driver::RecordPermission;
use crate::arena::flags;
use crate::arena::request::Request;
use crate::arena::{OnDevice, Platform};
use crate::device::StreamOrder;
use crate::error::Error;
use crate::heap::moves::PagedHeap;
use crate::pages::counts::PageCounts;
use crate::units::{DevicePtr, NO_STREAM};

impl<P: Platform> Stitcher<'_, P> {
    /// Serves a request from a free block of another stream, if `allowed` bytes of new memory and
    /// the free pages of the request's own stream are not enough. Orders the request's stream after
    /// the lender's work. The host does not wait.
    pub(super) fn borrow(
        &self,
        on: OnDevice<'_, P>,
        request: &Request,
        allowed: u64,
    ) -> Result<Option<DevicePtr>, Error> {
        let mapper = self.mapper();
        // Held until the streams are ordered, so that no capture starts in between.
        let Some(permission) = mapper.driver.may_record() else { return Ok(None) };
        let Some(slot) = self.lender(request, allowed)? else { return Ok(None) };
        // In use, so that the heap keeps its stream.
        let Some(_used) = mapper.heaps.enter_pair(slot / 2) else { return Ok(None) };
        // Taken before the event is recorded, because memory that is freed later may have later
        // work.
        let Some((ptr, is_quiet)) = self.take_loan(request, slot)? else { return Ok(None) };
        let lent = if is_quiet { Ok(true) } else { self.order_behind(slot / 2, request.stream) };
        drop::<RecordPermission<'_>>(permission);
        if lent == Ok(true) {
            return Ok(Some(ptr));
        }
        // No work uses the block for the request.
        mapper.heaps.lock(slot).take_back(ptr);
        on.free(mapper.heaps.heap_ref(slot), ptr, None)?;
        match lent {
            // A capture that was not announced. The lender keeps the block.
            Err(error) if !error.is_of_capture() => Err(error),
            _ => Ok(None),
        }
    }

    /// Returns the address at which another stream would lend memory to a request that may use up
    /// to `allowed` bytes of new memory.
    pub(super) fn peek_loan(&self, request: &Request, allowed: u64) -> Result<Option<DevicePtr>, Error> {
        let lender = self.lender(request, allowed)?;
        Ok(lender.and_then(|slot| self.mapper().heaps.lock(slot).peek(request.size)))
    }

    /// Returns the heap that should lend to a request: the one with the smallest free block that is
    /// large enough.
    fn lender(&self, request: &Request, allowed: u64) -> Result<Option<u32>, Error> {
        let mapper = self.mapper();
        let stays = self.options.completed_pages_only || request.pool != 0 || !self.may_move(request);
        if stays || mapper.driver.flags.has(flags::CAPTURE) {
            return Ok(None);
        }
        // If the borrower may be gone by the free, it could not be waited for then.
        if !mapper.driver.device().can_order(request.stream) || !mapper.driver.may_use(request.stream, NO_STREAM) {
            return Ok(None);
        }
        let Some(missing) = self.new_bytes(request, u64::MAX)?.filter(|&bytes| bytes > allowed) else {
            return Ok(None);
        };
        let mut own = PageCounts::new(self.step());
        self.count_free(self.wanted(), request.slot / 2, &mut own);
        if missing <= allowed.saturating_add(own.bytes()) {
            return Ok(None);
        }
        let mut best: Option<(u64, u32)> = None;
        for other in self.others(request.into()) {
            for slot in slots_of(other.pair) {
                let (stream, fit) = {
                    let mut heap = mapper.heaps.lock(slot);
                    let stream = mapper.driver.usable_stream(&heap, request.stream);
                    (stream, PagedHeap(&mut heap).lendable(request.size))
                };
                let Some(bytes) = fit.filter(|&bytes| best.is_none_or(|(least, _)| bytes < least)) else { continue };
                if let Some(stream) = stream
                    && !mapper.driver.call(|memory| memory.is_capturing(stream))?
                {
                    best = Some((bytes, slot));
                }
            }
        }
        // The device is asked too, because some programs announce no capture.
        if best.is_none() || mapper.driver.call(|memory| memory.is_capturing(request.stream))? {
            return Ok(None);
        }
        Ok(best.map(|(_, slot)| slot))
    }

    /// Allocates a block of the heap in `slot` for a request of another stream, and notes the use.
    /// Also returns whether the lender's work in the block is known to be complete.
    fn take_loan(&self, request: &Request, slot: u32) -> Result<Option<(DevicePtr, bool)>, Error> {
        let mapper = self.mapper();
        let of = mapper.heaps.slot(slot);
        let mut heap = mapper.heaps.lock(slot);
        // Another thread may have taken the block since then, or emptied the heap.
        if heap.stream == request.stream || PagedHeap(&mut heap).lendable(request.size).is_none() {
            return Ok(None);
        }
        let (served, is_quiet) =
            PagedHeap(&mut heap).lend(request.size, request.bytes, request.stream, &of.counters)?;
        mapper.trace(|recorder| recorder.alloc(&mut heap, request.site, served.value, request.bytes));
        drop(heap);
        Ok(Some((mapper.reconcile(of, served), is_quiet)))
    }
}
