//! Obtaining segments from the device: how much, within which limit, and what becomes of them.
//!
//! Heaps are locked one at a time and never across a call to the device: bytes are counted as held first, then obtained, then
//! added to the heap.

use crate::arena::request::Request;
use crate::arena::{Arena, OnDevice, flags};
use crate::config::{Bfc, Policy};
use crate::device::{DeviceMemory, ErrorKind};
use crate::error::Error;
use crate::page_map::Owner;
use crate::stats::Event;
use crate::sync::{Lock, Ordering};
use crate::tables::Storage;
use crate::units::{DevicePtr, GRAIN, MAX_REQUEST};

impl<D: DeviceMemory, R: Lock, S: Storage> OnDevice<'_, D, R, S> {
    /// Obtains a segment, or expands one, and serves the request from it. `None` if the device or the limit does not allow it.
    pub(crate) fn obtain(self, request: &Request) -> Result<Option<DevicePtr>, Error> {
        let mut bytes = self.segment_bytes(request);
        if self.expands(request) {
            // Whole granules may exceed the limit by less than one each, as they do in PyTorch.
            return if self.ledger.has_room_for(bytes) { self.expand(request) } else { Ok(None) };
        }
        if bytes > self.policy.most_bytes() {
            return Ok(None);
        }
        loop {
            let obtained = self.obtain_segment(request, bytes)?;
            if obtained.is_some() {
                return Ok(obtained);
            }
            match self.policy.less(bytes, request.size) {
                Some(less) => bytes = less,
                None => return Ok(None),
            }
        }
    }

    /// A segment of its own for every request, of its exact size.
    pub(crate) fn obtain_directly(self, request: &Request) -> Result<DevicePtr, Error> {
        if let Some(ptr) = self.obtain_segment(request, request.size)? {
            return Ok(ptr);
        }
        Err(self.run_out_of_memory(request))
    }

    /// Obtains an ordinary segment of `bytes`, and serves the request from it. `None` if the device or the limit does not allow it.
    pub(crate) fn obtain_segment(self, request: &Request, bytes: u64) -> Result<Option<DevicePtr>, Error> {
        // The request uses the pair, so the heap stays its stream's while the lock is given up.
        self.lock(request.slot).make_room_for_segment(bytes, request.size)?;
        if !self.ledger.charge(bytes) {
            return Ok(None);
        }
        let obtaining = &self.slot(request.slot).obtaining;
        obtaining.fetch_add(1, Ordering::Relaxed);
        let obtained = self.obtain_held_segment(request, bytes);
        obtaining.fetch_sub(1, Ordering::Release);
        obtained
    }

    /// The same, with its bytes counted as held.
    fn obtain_held_segment(self, request: &Request, bytes: u64) -> Result<Option<DevicePtr>, Error> {
        let base = match self.call(|device| device.obtain(bytes)) {
            Ok(base) => base,
            Err(error) => {
                self.ledger.refund(bytes);
                return if error.kind == ErrorKind::OutOfMemory { Ok(None) } else { Err(error.into()) };
            }
        };
        if let Err(error) = self.pages.insert(base, bytes, Owner::Heap(self.heap_ref(request.slot))) {
            self.give_back(base, bytes)?;
            return Err(error);
        }
        let slot = self.slot(request.slot);
        let mut heap = self.lock(request.slot);
        // Room was made before the lock was given up; other calls may have used it.
        if heap.make_room_for_segment(bytes, request.size).is_err() {
            drop(heap);
            self.pages.remove(base, bytes);
            self.give_back(base, bytes)?;
            return Err(Error::TableFull("segments"));
        }
        self.totals.count(Event::DeviceAlloc);
        self.trace_segment(&mut heap, crate::trace::Action::SegmentAlloc, request.site, base, bytes);
        let segment = heap.add_segment(base, bytes, request.size, &slot.tally);
        if matches!(self.policy, Policy::Bfc(_)) && !self.flags.has(flags::DIRECT) {
            heap.region = next_region(heap.region, request.size);
        }
        let served = heap.allocate_from_new(segment.value, request.size, request.bytes, &slot.tally);
        if let Some(served) = &served {
            self.trace_alloc(&mut heap, request, served.value);
        }
        drop(heap);
        let Some(mut served) = served else { return Err(Error::TableFull("pieces")) };
        served.peaks_stale |= segment.peaks_stale;
        Ok(Some(self.settle(slot, served)))
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// The bytes that would be obtained for a request.
    pub(crate) fn segment_bytes(&self, request: &Request) -> u64 {
        if self.flags.has(flags::DIRECT) {
            return request.size;
        }
        match self.policy {
            Policy::Bfc(bfc) => self.region_bytes(&bfc, request),
            policy => {
                let of_suballocator = self
                    .lock(request.slot)
                    .suballocator
                    .as_ref()
                    .map(|suballocator| suballocator.segment_bytes(request.size));
                let bytes = of_suballocator.unwrap_or_else(|| policy.segment_bytes(request.size, &self.config.lock()));
                match policy {
                    Policy::SizeClass(_) | Policy::Buddy(_) => self.clamped(bytes, request.size),
                    _ => bytes,
                }
            }
        }
    }

    /// `bytes`, or as much less of them as the policy tries that it fits within the limit and the device.
    fn clamped(&self, mut bytes: u64, needed: u64) -> u64 {
        let left = self.left();
        while bytes > left
            && let Some(less) = self.policy.less(bytes, needed)
        {
            bytes = less;
        }
        bytes
    }

    /// The size of a stream's first region; 0 if segments do not grow.
    pub(crate) fn first_region(&self) -> u64 {
        let Policy::Bfc(Bfc { first_region, .. }) = self.policy else { return 0 };
        first_region.clamp(GRAIN, MAX_REQUEST).next_multiple_of(GRAIN)
    }

    /// The bytes of the next region: twice those of the last one or more, so that the request fits, or everything; within the
    /// limit and the device. Where blocks are not split a larger region would serve nobody else.
    fn region_bytes(&self, bfc: &Bfc, request: &Request) -> u64 {
        let (region, no_split) = {
            let heap = self.lock(request.slot);
            (heap.region, heap.rules.no_split)
        };
        if no_split {
            return request.size;
        }
        let left = self.left() / GRAIN * GRAIN;
        let region = if bfc.allow_growth { grown(region, request.size) } else { left };
        region.min(left).max(request.size)
    }

    /// Whether a request's heap expands segments instead of obtaining them.
    pub(crate) fn expands(&self, request: &Request) -> bool {
        self.lock(request.slot).rules.expandable
    }
}

/// A region at least as large as `needed`: `region` doubled as often as it takes.
fn grown(mut region: u64, needed: u64) -> u64 {
    while region < needed {
        region = region.max(GRAIN).saturating_mul(2);
    }
    region
}

/// The size of the region after one that was obtained for `needed` bytes: regions double, and those that had to grow for their
/// request have done so.
fn next_region(region: u64, needed: u64) -> u64 {
    if region < needed { grown(region, needed) } else { region.saturating_mul(2) }
}
