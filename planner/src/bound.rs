//! How many bytes every plan needs: the most that lives at once.

use super::problem::align_up;
use super::{Chains, Problem};
use alloc::vec::Vec;

/// No plan of the problem has a lower peak.
///
/// With one alignment it is MegEngine's `tot_alloc_lower_bound`: the largest sum of aligned sizes at one step, where a
/// buffer that is being overwritten counts and its writer does not. With several, buffers of a finer one may fill the
/// gaps behind coarser ones; each alignment then bounds by itself those buffers that have it or a coarser one.
pub fn lower_bound(problem: &Problem) -> u64 {
    let chains = Chains::of(problem);
    let mut alignments: Vec<u64> = chains.all().iter().map(|chain| chain.alignment).collect();
    // Buffers that are written in place need not be aligned, so plain bytes can bound higher than every alignment.
    alignments.push(1);
    alignments.sort_unstable();
    alignments.dedup();
    let load = alignments.into_iter().map(|alignment| largest_load(&chains, alignment)).max().unwrap_or(0);
    let fixed = chains.all().iter().filter_map(|chain| Some(align_up(chain.fixed? + chain.size, chain.alignment)));
    fixed.fold(load, u64::max)
}

/// The most bytes that live at once, counted by their multiples of `alignment`, of the chains that lie at one.
///
/// Two buffers never hold the same multiple, and the highest one is below the peak.
fn largest_load(chains: &Chains, alignment: u64) -> u64 {
    let mut changes = Vec::with_capacity(2 * chains.members().len());
    for chain in chains.all().iter().filter(|chain| chain.alignment >= alignment) {
        for member in chains.members_of(chain).iter().filter(|member| member.since < member.end) {
            let bytes = align_up(member.offset + member.size, alignment) - align_up(member.offset, alignment);
            changes.push((member.since, true, bytes));
            changes.push((member.end, false, bytes));
        }
    }
    changes.sort_unstable();
    let (mut load, mut largest) = (0, 0);
    for (_, begins, bytes) in changes {
        if begins {
            load += bytes;
            largest = u64::max(largest, load);
        } else {
            load -= bytes;
        }
    }
    largest
}
