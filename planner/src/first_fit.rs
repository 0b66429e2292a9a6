//! First fit: places chains in a given order, each at the lowest possible offset.

use super::placer::Placer;
use super::{Chains, Watch};
use alloc::vec::Vec;

/// The number of chains that are placed between two calls of [`Watch::stop`]. Among a million
/// chains, it takes up to 0.6 ms to place one.
pub(super) const PATIENCE: usize = 1 << 6;

/// Returns the chains in the order of their offsets. Chains with the same offset keep the order of
/// the problem.
pub(super) fn by_offset(offsets: &[u64]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..offsets.len() as u32).collect();
    order.sort_by_key(|&chain| offsets[chain as usize]);
    order
}

/// Places the chains in `order` and returns the peak, or `None` if `watch` stopped the placement.
pub(super) fn fill(placer: &mut Placer<'_>, order: &[u32], watch: &dyn Watch) -> Option<u64> {
    placer.clear();
    for some in order.chunks(PATIENCE) {
        if watch.stop() {
            return None;
        }
        some.iter().for_each(|&chain| placer.first_fit(chain));
    }
    Some(placer.peak())
}

/// Turns the offsets of solid chains into those of chains with gaps and fixed offsets.
///
/// Without gaps and fixed offsets, returns `offsets` unchanged. Otherwise places the fixed chains
/// first, and the rest by first fit in the order of `offsets`. Returns `None` if `watch` stopped
/// the placement.
pub(super) fn refit(chains: &Chains, offsets: Vec<u64>, watch: &dyn Watch) -> Option<Vec<u64>> {
    if chains.all().iter().all(|chain| chain.fixed.is_none() && !chain.gaps) {
        return Some(offsets);
    }
    let mut placer = Placer::new(chains);
    fill(&mut placer, &by_offset(&offsets), watch)?;
    Some(placer.offsets().to_vec())
}
