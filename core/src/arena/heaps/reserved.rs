//! The reserved bytes of private pools.

use super::Heaps;
use crate::arena::platform::Platform;
use crate::config::rounding::PoolKind;
use crate::pool::PoolId;
use crate::stats::Stat;

impl<P: Platform> Heaps<P> {
    /// Passes the reserved bytes of every heap of a private pool to `visit`. The registry is
    /// locked, but no heap is: a heap in use is read as `Allocator::stats` reads heaps.
    pub(crate) fn reserved_of_pools(&self, mut visit: impl FnMut(PoolId, PoolKind, u64)) {
        let registry = self.registry.lock();
        let pairs = registry.pairs.iter().zip(0..).filter(|(pair, _)| pair.exists && pair.pool != 0);
        for (pair, number) in pairs {
            for slot in [2 * number, 2 * number + 1].map(|slot| self.slot(slot)) {
                let bytes = slot.counters.current(Stat::ReservedBytes);
                // The value is made of two counts, and the heap may change between reading them.
                visit(registry.pools[pair.pool as usize].id, slot.kind(), bytes.max(0) as u64);
            }
        }
    }
}
