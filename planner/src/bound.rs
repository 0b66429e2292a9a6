//! A lower bound of the peak of every plan, from the bytes that are live at one step.

use super::problem::align_up;
use super::{Chains, Problem};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Returns a lower bound of the peak of every plan of the problem, in bytes.
///
/// If every size is a multiple of the only alignment, the bound is MegEngine's
/// `tot_alloc_lower_bound`: the largest sum of sizes at one step. While a writer and its target are
/// both live, only the target counts. If the sizes are not multiples, every buffer but the highest
/// takes whole multiples of the alignment, and the highest ends where its own bytes end.
///
/// With several alignments, buffers of a finer alignment may fill the gaps above coarser buffers.
/// So each alignment gives its own bound, over the buffers with at least this alignment. The result
/// is the largest bound.
pub fn lower_bound(problem: &Problem) -> u64 {
    let chains = Chains::of(problem);
    let mut alignments: Vec<u64> = chains.all().iter().map(|chain| chain.alignment).collect();
    // Alignment 1 always counts, because buffers written in place need not be aligned, so the sum
    // of plain bytes can exceed the bound of every alignment.
    alignments.push(1);
    alignments.sort_unstable();
    alignments.dedup();
    let changes = changes(&chains);
    let load = alignments.into_iter().map(|alignment| largest_load(&chains, &changes, alignment)).max().unwrap_or(0);
    // A chain with a fixed offset reaches up to its own end in every plan.
    let fixed = chains.all().iter().filter_map(|chain| Some(chain.fixed? + chain.size));
    fixed.fold(load, u64::max)
}

/// The start or the end of a life: the step, whether the life starts, the chain and the member.
type Change = (u64, bool, u32, u32);

/// Returns the changes in the order of time, once for all alignments.
fn changes(chains: &Chains) -> Vec<Change> {
    let mut changes = Vec::with_capacity(2 * chains.members().len());
    for (number, chain) in (0..).zip(chains.all()) {
        for (member, own) in chain.range().zip(chains.members_of(chain)).filter(|(_, own)| own.since < own.end) {
            changes.push((own.since, true, number, member as u32));
            changes.push((own.end, false, number, member as u32));
        }
    }
    // An end sorts before a start of the same step (`false < true`), so the two never add up.
    changes.sort_unstable();
    changes
}

/// Returns a lower bound from the bytes that are live at one step, over the chains with at least
/// `alignment`. Counts a buffer by the multiples of `alignment` inside it.
///
/// No two live buffers contain the same multiple. So if they contain `n` of them together, the
/// highest multiple is at `(n - 1) * alignment` or above. The buffer around it ends at least
/// `least` bytes above it, where `least` is the smallest distance of any live buffer from its last
/// multiple to its end.
fn largest_load(chains: &Chains, changes: &[Change], alignment: u64) -> u64 {
    let (mut load, mut largest) = (0_u64, 0);
    // For each distance from the last multiple to the end, the number of live buffers with it.
    let mut tails: BTreeMap<u64, u32> = BTreeMap::new();
    for &(_, begins, chain, member) in changes {
        if chains.all()[chain as usize].alignment < alignment {
            continue;
        }
        let member = &chains.members()[member as usize];
        let end = member.offset + member.size;
        let bytes = align_up(end, alignment) - align_up(member.offset, alignment);
        if bytes == 0 {
            continue;
        }
        let count = tails.entry((end - 1) % alignment + 1).or_default();
        if begins {
            *count += 1;
            load += bytes;
            // Entries without a live buffer are removed, until the smallest one is in use.
            while let Some(least) = tails.first_entry() {
                if *least.get() > 0 {
                    largest = u64::max(largest, load - alignment + *least.key());
                    break;
                }
                least.remove();
            }
        } else {
            *count -= 1;
            load -= bytes;
        }
    }
    largest
}
