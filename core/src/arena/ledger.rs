//! The ledger of one device: the bytes held from the device, and the limit on them.

use crate::arena::driver::Driver;
use crate::device::{DeviceMemory, DeviceResult, MemoryInfo};
use crate::error::Error;
use crate::sync::{AtomicU64, CachePadded, Ordering, impl_empty};
use crate::units::DevicePtr;

/// The numbers of bytes held from one device. All accesses are relaxed, because no other memory
/// depends on the order of a count.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// The bytes held from the device: all segments, mapped ranges and leaked bytes. `reserved ≥
    /// leaked`. `reserved ≤ limit`, unless the limit was lowered later or whole granules were
    /// mapped.
    reserved: CachePadded<AtomicU64>,
    /// The limit in bytes, or `u64::MAX` without a limit.
    limit: AtomicU64,
    /// The bytes for which a release failed. The device may still hold them, and the allocator
    /// never hands them out again.
    leaked: AtomicU64,
}

impl_empty! { Ledger { reserved, limit: AtomicU64::new(u64::MAX), leaked } }

impl Ledger {
    /// Returns a ledger with the same bytes and limit.
    pub(super) fn copy(&self) -> Self {
        let copy = Self::default();
        copy.add(self.reserved());
        copy.set_limit(self.limit());
        copy.leak(self.leaked());
        copy
    }

    /// Returns the number of bytes held from the device.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Relaxed)
    }

    /// Returns the limit in bytes, or `u64::MAX` without a limit.
    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Returns the limit in bytes, if a limit is set.
    #[inline]
    pub(crate) fn limit_if_set(&self) -> Option<u64> {
        Some(self.limit()).filter(|&limit| limit != u64::MAX)
    }

    /// Sets the limit in bytes; `u64::MAX` removes the limit.
    pub(crate) fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Sets the limit to a fraction of the device's total memory. A fraction of 1 removes the
    /// limit.
    ///
    /// # Errors
    /// [`Error::InvalidFraction`] unless `fraction` is from 0 to 1, and errors of the device.
    pub(crate) fn limit_to_fraction<D: DeviceMemory>(&self, driver: &Driver<D>, fraction: f64) -> Result<(), Error> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(Error::InvalidFraction(fraction));
        }
        let total = self.memory_info(driver)?.total;
        self.set_limit(if fraction < 1.0 { fraction_of(fraction, total) } else { u64::MAX });
        Ok(())
    }

    /// Returns the number of bytes for which a release failed.
    pub(crate) fn leaked(&self) -> u64 {
        self.leaked.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes held, without those for which a release failed.
    pub(crate) fn live(&self) -> u64 {
        self.reserved().saturating_sub(self.leaked())
    }

    /// Returns whether the limit allows `more` bytes. Charges nothing.
    pub(crate) fn has_room_for(&self, more: u64) -> bool {
        self.has_room_without(0, more)
    }

    /// Returns whether the limit allows `more` bytes once `spare` bytes have gone back to the
    /// device or no longer count. Charges nothing.
    pub(crate) fn has_room_without(&self, spare: u64, more: u64) -> bool {
        // Subtracted first, because whole granules may exceed the limit, and all of the excess may
        // be spare.
        self.reserved().saturating_sub(spare).checked_add(more).is_some_and(|sum| sum <= self.limit())
    }

    /// Charges `more` bytes against the limit, before they are allocated. Charges nothing and
    /// returns false if the sum would exceed the limit.
    pub(crate) fn charge(&self, more: u64) -> bool {
        // The test and the addition are one atomic step, so concurrent charges cannot exceed the
        // limit together.
        let limit = self.limit();
        let add = |reserved: u64| reserved.checked_add(more).filter(|&sum| sum <= limit);
        self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    /// Adds bytes that the device has already allocated, regardless of the limit.
    pub(super) fn add(&self, bytes: u64) {
        self.reserved.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts bytes that were released, or that were charged but not allocated.
    pub(in crate::arena) fn refund(&self, bytes: u64) {
        let reserved = self.reserved.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(reserved >= bytes, "refunded more bytes than charged");
    }

    /// Adds bytes to the leaked bytes, after a release with an uncertain outcome. The bytes stay
    /// charged.
    pub(in crate::arena) fn leak(&self, bytes: u64) {
        self.leaked.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Asks the device about its memory, and notes the answer.
    pub(crate) fn memory_info<D: DeviceMemory>(&self, driver: &Driver<D>) -> DeviceResult<MemoryInfo> {
        let memory = driver.call(D::memory_info)?;
        driver.note_memory(memory, self.reserved());
        Ok(memory)
    }

    /// Returns the number of bytes that can still be charged below both the limit and the device's
    /// total memory. Uses only the limit if the device does not report a total.
    pub(super) fn available_bytes<D: DeviceMemory>(&self, driver: &Driver<D>) -> u64 {
        let total = self.memory_info(driver).map_or(u64::MAX, |info| info.total);
        self.limit().min(total).saturating_sub(self.reserved())
    }

    /// Returns how many bytes must go back for `growth`: those that the limit or the device does
    /// not have, minus `spare` bytes. If both have enough, returns the whole growth, because the
    /// device does not have it in one piece, or does not report its free memory.
    pub(super) fn wanted<D: DeviceMemory>(&self, driver: &Driver<D>, growth: u64, spare: u64) -> u64 {
        let room = self.limit().saturating_sub(self.reserved());
        let free = self.memory_info(driver).map_or(0, |memory| memory.free);
        match growth.saturating_sub(room.min(free).saturating_add(spare)) {
            0 => growth,
            lacking => lacking,
        }
    }

    /// Releases a segment, which is in no heap and not in the page map, to the device.
    ///
    /// # Errors
    ///
    /// The device's error. The bytes then count as leaked.
    pub(super) fn release<D: DeviceMemory>(
        &self,
        driver: &Driver<D>,
        base: DevicePtr,
        bytes: u64,
    ) -> Result<(), Error> {
        match driver.call(|device| device.release(base, bytes)) {
            Ok(()) => {
                self.refund(bytes);
                Ok(())
            }
            Err(error) => {
                // The device may still hold the segment, so the bytes stay charged.
                self.leak(bytes);
                Err(error.into())
            }
        }
    }
}

/// Returns `fraction` of `bytes`, rounded to the nearest byte and halves up, as C++'s `std::round`
/// does for positive numbers.
pub(crate) fn fraction_of(fraction: f64, bytes: u64) -> u64 {
    (fraction * bytes as f64 + 0.5) as u64
}
