//! A lower bound on the peak of every plan, from the bytes live at one step.

use super::problem::align_up;
use super::{Chains, Problem};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Returns a lower bound, in bytes, on the peak of every plan of the problem.
///
/// If every size is a multiple of the only alignment, the bound is MegEngine's
/// `tot_alloc_lower_bound`: the largest sum of sizes at one step. While a writer and its target are
/// both live, only the target counts. Otherwise every buffer but the highest fills whole multiples
/// of the alignment, and the highest ends where its own bytes end.
///
/// With several alignments, buffers of a finer alignment may fill the gaps above coarser buffers.
/// Each alignment therefore gives a bound for itself, over the buffers with at least the alignment.
/// The result is the largest bound.
pub fn lower_bound(problem: &Problem) -> u64 {
    let chains = Chains::of(problem);
    let mut alignments: Vec<u64> = chains.all().iter().map(|chain| chain.alignment).collect();
    // Alignment 1 is its own candidate: buffers written in place need not be aligned, so the
    // sum of plain bytes can exceed the bound of every alignment.
    alignments.push(1);
    alignments.sort_unstable();
    alignments.dedup();
    let changes = changes(&chains);
    let load = alignments.into_iter().map(|alignment| largest_load(&chains, &changes, alignment)).max().unwrap_or(0);
    // A chain with a fixed offset reaches up to its own end in every plan.
    let fixed = chains.all().iter().filter_map(|chain| Some(chain.fixed? + chain.size));
    fixed.fold(load, u64::max)
}

/// The beginning or the end of a life: the step, whether the life starts, the chain and the member.
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

/// Returns a lower bound from the bytes live at one step, over the chains with at least
/// `alignment`. Counts a buffer by the multiples of `alignment` inside the buffer.
///
/// No two live buffers contain the same multiple. So if they contain `n` together, the highest is
/// at `(n - 1) * alignment` or above, and the buffer around it reaches at least as far above it as
/// the live buffer that reaches least far above its last multiple: `least` bytes.
fn largest_load(chains: &Chains, changes: &[Change], alignment: u64) -> u64 {
    let (mut load, mut largest) = (0_u64, 0);
    // How many live buffers reach how many bytes above their last multiple.
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
            // Until the smallest entry is in use: those without a live buffer go.
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
