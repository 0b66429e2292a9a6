//! Addresses without memory. They are a separate resource, which may run out while memory is free.
//!
//! ```text
//! heap, range, guarded block ─▶ reserve ─▶ the device
//!                                  │ no addresses left
//!                                  ├─▶ addresses that nothing uses any longer go back, and once more
//!                                  └─▶ for a heap: a shorter reservation, down to what the request needs
//! ```
//!
//! A heap reserves more addresses than the device has memory, so that it can grow in place. When
//! such reservations no longer fit, a short one works as well, because a heap may have many of
//! them. If there are no addresses at all, the request tries an ordinary segment (obtain.rs) and
//! then goes down the ladder, where the cache goes back to the device together with its addresses.
//!
//! Every reservation is made and released here, and is counted.

use crate::arena::Platform;
use crate::arena::paging::mapper::Mapper;
use crate::device::{AddressLack, ErrorKind};
use crate::error::Error;
use crate::heap::Heap;
use crate::stats::MemoryCall;
use crate::sync::Ordering;
use crate::units::DevicePtr;

/// If the device refuses a reservation, the next attempt is this part of its length. What is left
/// at that point is less than the length of the first; halving it would use it up after a few
/// heaps, and the process needs addresses for other things.
const SHORTER: u64 = 256;

/// The addresses that a heap wants, in bytes. All lengths are multiples of the granule.
#[derive(Clone, Copy, Debug)]
pub(in crate::arena) struct AddressRequest {
    /// The length that leaves room to grow.
    pub bytes: u64,
    /// The length that the request needs, at most `bytes`.
    pub least: u64,
    pub granule: u64,
}

impl<P: Platform> Mapper<'_, P> {
    /// Reserves `bytes` of addresses. Returns `None` if the device has none of this length.
    ///
    /// # Errors
    /// The other errors of the device.
    pub(in crate::arena) fn reserve(&self, bytes: u64) -> Result<Option<DevicePtr>, Error> {
        match self.call(MemoryCall::Reserve, |memory| memory.reserve(bytes)) {
            Ok(base) => {
                self.paging.address_bytes.fetch_add(bytes, Ordering::Relaxed);
                self.note_lack(AddressLack::None);
                Ok(Some(base))
            }
            Err(error) if error.kind == ErrorKind::OutOfMemory => {
                self.note_lack(AddressLack::Refused);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Reserves `bytes` of addresses as [`reserve`](Self::reserve) does. If there are none, gives
    /// unused addresses back and tries once more. Does not wait for the device.
    pub(in crate::arena) fn reserve_again(&self, bytes: u64) -> Result<Option<DevicePtr>, Error> {
        let reserved = self.reserve(bytes)?;
        if reserved.is_none() && self.give_addresses_back() { self.reserve(bytes) } else { Ok(reserved) }
    }

    /// Reserves addresses for a heap, or fewer of them if the device has no more. Returns the first
    /// address and the length.
    fn reserve_for_heap(&self, wanted: AddressRequest) -> Result<Option<(DevicePtr, u64)>, Error> {
        let AddressRequest { mut bytes, least, granule } = wanted;
        let mut reserved = self.reserve_again(bytes)?;
        while reserved.is_none() && bytes > least {
            bytes = (bytes / SHORTER).next_multiple_of(granule).max(least);
            reserved = self.reserve(bytes)?;
        }
        Ok(reserved.map(|base| (base, bytes)))
    }

    /// Releases the addresses of a segment without mapped parts. If the device refuses, the
    /// addresses are never used again, but no memory is lost.
    pub(in crate::arena) fn unreserve(&self, segment: Option<(DevicePtr, u64)>) {
        if let Some((base, bytes)) = segment
            && self.driver.health().is_ok()
            && self.call(MemoryCall::Unreserve, |memory| memory.unreserve(base, bytes)).is_ok()
        {
            self.paging.address_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// Releases addresses that nothing uses any more: those of released ranges, as soon as the work
    /// with them is complete, and those of unmapped guarded blocks. Returns whether there were any.
    /// Does not wait for the device.
    fn give_addresses_back(&self) -> bool {
        // This asks the device about work and unmaps memory, which a capture might not survive.
        if self.driver.may_record().is_none() {
            return false;
        }
        let before = self.paging.address_bytes();
        if self.paging.pool.lock().departures.has_pages() {
            let _counted = self.collect_stale(u32::MAX, true);
        }
        self.end_quarantine();
        self.paging.address_bytes() < before
    }

    /// Notes why the request is short of addresses, for its report.
    pub(in crate::arena) fn note_lack(&self, lack: AddressLack) {
        if let Some(calls) = self.request {
            calls.lack.set(lack);
        }
    }

    /// Takes addresses of the heap in `slot` with `take`. If this returns `None`, reserves the
    /// addresses that `wanted` asks for, adds them to the heap and tries again. Returns `None` if
    /// there are not enough addresses. On success the heap has room for two blocks and a range.
    pub(in crate::arena) fn hold_addresses<T>(
        &self,
        slot: u32,
        wanted: impl Fn() -> Result<Option<AddressRequest>, Error>,
        take: impl Fn(&mut Heap<P::Storage>) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let mut reserved = None;
        let give_up = |reserved: Option<(DevicePtr, u64, u64)>| {
            self.unreserve(reserved.map(|(base, bytes, _)| (base, bytes)));
        };
        // At most two passes in the common case: search, reserve without the lock, search again.
        loop {
            let mut heap = self.heaps.lock(slot);
            if heap.make_room().is_err() || !heap.make_room_for_range() {
                drop(heap);
                give_up(reserved);
                return Err(Error::TableFull("blocks"));
            }
            // Another thread may have added a range while the lock was dropped. If that range is
            // enough for both threads, this one is not needed.
            let mut found = take(&mut heap);
            if found.is_none()
                && let Some((base, bytes, granule)) = reserved.take()
            {
                heap.add_range(base, bytes, granule);
                found = take(&mut heap);
            }
            drop(heap);
            if found.is_some() {
                // Still `Some` only if the reserved range was not needed.
                give_up(reserved);
                self.note_lack(AddressLack::None);
                return Ok(found);
            }
            let Some(wanted) = wanted()? else {
                self.note_lack(AddressLack::Setting);
                return Ok(None);
            };
            let Some((base, bytes)) = self.reserve_for_heap(wanted)? else { return Ok(None) };
            reserved = Some((base, bytes, wanted.granule));
        }
    }
}
