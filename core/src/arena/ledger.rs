//! The bytes that are held from the device, and the limit on them.

use crate::arena::Arena;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::sync::{AtomicU64, CachePadded, Lock, Ordering};
use crate::tables::Storage;
use crate::units::DevicePtr;

/// The bytes of one device that the allocator answers for. Relaxed throughout: each figure stands alone.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// Bytes held from the device: those of all segments, and `leaked`. At most `limit`, unless the limit was lowered since.
    reserved: CachePadded<AtomicU64>,
    /// The most bytes that may be held; `u64::MAX` for no limit.
    limit: AtomicU64,
    /// Bytes whose release failed. They may still be the device's, and are never handed out again.
    leaked: AtomicU64,
}

impl Ledger {
    pub(super) fn new() -> Self {
        Self { reserved: CachePadded(AtomicU64::new(0)), limit: AtomicU64::new(u64::MAX), leaked: AtomicU64::new(0) }
    }

    /// Bytes held from the device.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }

    /// The most bytes that may be held; `u64::MAX` for no limit.
    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets the most bytes that may be held.
    pub(crate) fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Bytes whose release failed.
    pub(crate) fn leaked(&self) -> u64 {
        self.leaked.load(Ordering::Relaxed)
    }

    /// Whether `more` bytes may be held within the limit.
    pub(crate) fn has_room_for(&self, more: u64) -> bool {
        self.reserved().checked_add(more).is_some_and(|sum| sum <= self.limit())
    }

    /// Charges `more` bytes against the limit before they are obtained. False, and nothing is charged, if that would exceed it.
    pub(crate) fn charge(&self, more: u64) -> bool {
        let limit = self.limit();
        let add = |held: u64| held.checked_add(more).filter(|&sum| sum <= limit);
        self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    /// Counts bytes as held that were obtained already, whatever the limit.
    pub(super) fn add(&self, bytes: u64) {
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts bytes as held no longer: they were released, or charged and not obtained.
    pub(super) fn refund(&self, bytes: u64) {
        self.reserved.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counts bytes that are held as leaked: whether the device still has them is in doubt. They stay charged.
    pub(super) fn leak(&self, bytes: u64) {
        self.leaked.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// The bytes that are left of the limit, and of the device if the device tells its size.
    pub(super) fn available_bytes(&self) -> u64 {
        let total = self.call(D::memory_info).map_or(u64::MAX, |info| info.total);
        self.ledger.limit().min(total).saturating_sub(self.ledger.reserved())
    }

    /// Gives a segment that is in no heap and not in the directory back to the device.
    pub(crate) fn give_back(&self, base: DevicePtr, bytes: u64) -> Result<(), Error> {
        match self.call(|device| device.release(base, bytes)) {
            Ok(()) => {
                self.ledger.refund(bytes);
                Ok(())
            }
            Err(error) => {
                // Whether the device still holds it is in doubt: it keeps counting as held.
                self.ledger.leak(bytes);
                Err(error.into())
            }
        }
    }
}
