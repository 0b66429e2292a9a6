//! What is held from the device, and the limit on it.

use crate::arena::Arena;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::sync::{Lock, Ordering};
use crate::tables::Storage;
use crate::units::DevicePtr;

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// The bytes that are left of the limit, and of the device as far as it tells.
    pub(super) fn left(&self) -> u64 {
        let total = self.call(|| self.memory.memory_info()).map_or(u64::MAX, |info| info.total);
        self.limit.load(Ordering::Relaxed).min(total).saturating_sub(self.reserved.load(Ordering::Relaxed))
    }

    /// Whether `more` bytes may be held by the limit.
    pub(crate) fn is_within_limit(&self, more: u64) -> bool {
        let held = self.reserved.load(Ordering::Relaxed);
        held.checked_add(more).is_some_and(|sum| sum <= self.limit.load(Ordering::Relaxed))
    }

    /// Counts `more` bytes as held, unless that would exceed the limit.
    pub(crate) fn hold(&self, more: u64) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let add = |held: u64| held.checked_add(more).filter(|&sum| sum <= limit);
        self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    /// Gives a segment that is in no heap and not in the directory back to the device.
    pub(crate) fn give_back(&self, base: DevicePtr, bytes: u64) -> Result<(), Error> {
        match self.call(|| self.memory.release(base, bytes)) {
            Ok(()) => {
                self.reserved.fetch_sub(bytes, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => {
                // Whether the device still holds it is in doubt: it keeps counting as held.
                self.leaked.fetch_add(bytes, Ordering::Relaxed);
                Err(error.into())
            }
        }
    }
}
