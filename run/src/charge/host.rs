//! Memory of the host in the place of a device's (`spill`), bounded for each device.

use cachalot_cuda::CuResult;
use core::sync::atomic::{AtomicU64, Ordering};

/// The memory of the host that serves in the place of a device's, for the allocators and for what
/// the program maps by itself.
#[derive(Debug)]
pub(super) struct HostCharge {
    /// The most bytes. 0 without `spill`.
    most: u64,
    held: AtomicU64,
}

impl HostCharge {
    /// Returns the charge without any memory.
    pub(super) fn new(most: u64) -> Self {
        Self { most, held: AtomicU64::new(0) }
    }

    /// Returns whether there may be any memory.
    pub(super) fn has_any(&self) -> bool {
        self.most > 0
    }

    /// Reserves bytes, before the driver's call for the bytes.
    ///
    /// # Errors
    /// [`CuResult::OUT_OF_MEMORY`] beyond the most bytes.
    pub(super) fn reserve(&self, bytes: u64) -> Result<(), CuResult> {
        let more = |held: u64| held.checked_add(bytes).filter(|&held| held <= self.most);
        let reserved = self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        reserved.map(drop).map_err(|_| CuResult::OUT_OF_MEMORY)
    }

    /// Gives bytes back, after the driver has freed the bytes or failed to take the bytes.
    pub(super) fn give_back(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}
