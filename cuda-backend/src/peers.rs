//! The devices that may use a device's mapped ranges, and those ranges.

use crate::driver::types::CuDevice;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

/// Which devices may use mapped ranges, and which ranges there are.
#[derive(Default, Debug)]
pub(crate) struct Peers {
    /// The peers. Read while a range is opened or closed, written while a peer is added, so that no range misses it.
    pub(crate) devices: RwLock<Vec<CuDevice>>,
    /// Base and bytes of the ranges that are open.
    ranges: Mutex<BTreeMap<u64, u64>>,
}

impl Peers {
    /// The ranges. A thread that panicked while it held the lock left whole entries only.
    pub(crate) fn ranges(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the ranges that begin in these `bytes` bytes.
    pub(crate) fn forget(&self, at: u64, bytes: u64) {
        let mut ranges = self.ranges();
        let end = at.saturating_add(bytes);
        while let Some((base, _)) = ranges.range(at..end).next() {
            let base = *base;
            ranges.remove(&base);
        }
    }
}
