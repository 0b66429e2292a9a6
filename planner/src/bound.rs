//! A lower bound on the peak of every plan: the largest number of bytes live at one step.

use super::problem::align_up;
use super::{Chains, Problem};
use alloc::vec::Vec;

/// Returns a lower bound, in bytes, on the peak of every plan of the problem.
///
/// With a single alignment, the bound is MegEngine's `tot_alloc_lower_bound`: the largest sum of
/// aligned sizes at one step. While a writer and its target are both live, only the target counts.
///
/// With several alignments, buffers of a finer alignment may fill the gaps behind coarser buffers.
/// Each alignment therefore gives a bound of its own, over the buffers with at least the alignment.
/// The result is the largest bound.
pub fn lower_bound(problem: &Problem) -> u64 {
    let chains = Chains::of(problem);
    let mut alignments: Vec<u64> = chains.all().iter().map(|chain| chain.alignment).collect();
    // Alignment 1 is a candidate of its own: buffers written in place need not be aligned, so the
    // sum of plain bytes can exceed the bound of every alignment.
    alignments.push(1);
    alignments.sort_unstable();
    alignments.dedup();
    let changes = changes(&chains);
    let load = alignments.into_iter().map(|alignment| largest_load(&chains, &changes, alignment)).max().unwrap_or(0);
    // A chain with a fixed offset reaches up to its own end in every plan.
    let fixed = chains.all().iter().filter_map(|chain| Some(align_up(chain.fixed? + chain.size, chain.alignment)));
    fixed.fold(load, u64::max)
}

/// The beginning or the end of a life: the step, whether the life begins, the chain and the member.
type Change = (u64, bool, u32, u32);

/// Lists the changes in the order of time, once for all alignments.
fn changes(chains: &Chains) -> Vec<Change> {
    let mut changes = Vec::with_capacity(2 * chains.members().len());
    for (number, chain) in (0..).zip(chains.all()) {
        for (member, own) in chain.range().zip(chains.members_of(chain)).filter(|(_, own)| own.since < own.end) {
            changes.push((own.since, true, number, member as u32));
            changes.push((own.end, false, number, member as u32));
        }
    }
    // An end sorts before a beginning of the same step (`false < true`), so the two never add up.
    changes.sort_unstable();
    changes
}

/// Returns the largest number of bytes live at one step, over the chains with at least `alignment`.
/// Counts a buffer by the multiples of `alignment` inside the buffer.
///
/// The count is a lower bound: no two live buffers contain the same multiple, and the highest
/// multiple is below the peak.
fn largest_load(chains: &Chains, changes: &[Change], alignment: u64) -> u64 {
    let (mut load, mut largest) = (0, 0);
    for &(_, begins, chain, member) in changes {
        if chains.all()[chain as usize].alignment < alignment {
            continue;
        }
        let member = &chains.members()[member as usize];
        let bytes = align_up(member.offset + member.size, alignment) - align_up(member.offset, alignment);
        if begins {
            load += bytes;
            largest = u64::max(largest, load);
        } else {
            load -= bytes;
        }
    }
    largest
}
