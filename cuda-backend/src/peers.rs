//! The peers of a device, and the mapped ranges that are open to them.

use crate::driver::types::CuDevice;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

/// The devices that may use mapped ranges, and the open ranges.
#[derive(Default, Debug)]
pub(crate) struct Peers {
    /// The peers. Locked for reading while a range is opened or closed, and for writing while a
    /// peer is added, so that no range misses a new peer.
    pub(crate) devices: RwLock<Vec<CuDevice>>,
    /// The base and the size in bytes of each open range.
    ranges: Mutex<BTreeMap<u64, u64>>,
}

impl Peers {
    /// Locks the ranges. Poison is ignored, because a thread that panicked under the lock has left
    /// only whole entries.
    pub(crate) fn ranges(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the ranges that start in the `bytes` bytes at `at`.
    pub(crate) fn forget(&self, at: u64, bytes: u64) {
        let mut ranges = self.ranges();
        let end = at.saturating_add(bytes);
        while let Some((base, _)) = ranges.range(at..end).next() {
            let base = *base;
            ranges.remove(&base);
        }
    }
}
