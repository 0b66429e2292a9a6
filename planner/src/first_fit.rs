//! Every chain as low as it can lie, in a given order.

use super::placer::Placer;
use super::{Chains, Watch};
use alloc::vec::Vec;

/// Between two questions whether to stop, so many chains are placed.
pub(super) const PATIENCE: usize = 1 << 10;

/// Chains in the order of their offsets; of two at one offset, the one that comes first in the problem's own order.
pub(super) fn by_offset(offsets: &[u64]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..offsets.len() as u32).collect();
    order.sort_by_key(|&chain| offsets[chain as usize]);
    order
}

/// Places the chains in `order`, and answers the peak; `None` if it was stopped.
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

/// The offsets themselves where nothing is fixed or has gaps; else what is fixed where it must lie, and the others around it and in
/// the gaps, in the order of `offsets`.
pub(super) fn refit(chains: &Chains, offsets: Vec<u64>) -> Vec<u64> {
    if chains.all().iter().all(|chain| chain.fixed.is_none() && !chain.gaps) {
        return offsets;
    }
    let mut placer = Placer::new(chains);
    by_offset(&offsets).into_iter().for_each(|chain| placer.first_fit(chain));
    placer.offsets().to_vec()
}
