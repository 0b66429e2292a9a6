//! MegEngine's push-down: first decides the order of the buffers by address, then lowers each
//! buffer onto those below it.
//!
//! Best fit decides only the order: if no free block is large enough, the largest one grows,
//! without regard to other addresses. In the second pass every buffer falls onto the buffers below
//! it, which removes the space that growing blocks have made. O(n log n).

use super::events::{self, Event};
use super::first_fit::PATIENCE;
use super::overwrites::NONE;
use super::problem::align_up;
use super::row::Row;
use super::{Algorithm, Chains, Plan, Problem, Watch};
use alloc::vec;
use alloc::vec::Vec;

/// Push-down: `StaticMemAllocPushdown` of MegEngine (2022).
pub struct Pushdown;

impl Algorithm for Pushdown {
    fn name(&self) -> &'static str {
        "pushdown"
    }

    fn plan(&self, problem: &Problem, watch: &mut dyn Watch) -> Option<Plan> {
        let chains = Chains::of(problem);
        events::best(&chains, watch, offsets)
    }
}

/// Computes the offset of each chain, or returns `None` if `watch` stopped this.
pub(super) fn offsets(chains: &Chains, events: &[Event], watch: &dyn Watch) -> Option<Vec<u64>> {
    order(chains, events, watch).map(|above| fall(chains, &above))
}

/// A constraint: member `upper` is above member `lower`. It is recorded when the later of the two
/// is placed.
struct Above {
    lower: u32,
    upper: u32,
}

/// Decides the order by address of all members with overlapping lives. Only neighbours are
/// recorded, because the rest follows by transitivity. Returns `None` if `watch` stopped this.
fn order(chains: &Chains, events: &[Event], watch: &dyn Watch) -> Option<Vec<Above>> {
    let members = chains.members();
    let mut row = Row::new();
    let mut blocks = vec![NONE; members.len()];
    // `blocks` has the block of each member in the row. A writer takes over the block of its
    // target.
    let mut above = Vec::with_capacity(2 * members.len());
    for (number, event) in events.iter().enumerate() {
        if number.is_multiple_of(PATIENCE) && watch.stop() {
            return None;
        }
        let (member, block) = match *event {
            Event::Free(member) => {
                row.release(blocks[member as usize]);
                continue;
            }
            Event::Allocate(member) => {
                let own = &members[member as usize];
                (member, row.allocate(member, own.size, own.end))
            }
            Event::Overwrite(member) => {
                let (own, target) = (&members[member as usize], &members[member as usize - 1]);
                let block = blocks[member as usize - 1];
                row.overwrite(block, own.offset - target.offset, own.size);
                row.hold(block, member, own.end);
                (member, block)
            }
        };
        blocks[member as usize] = block;
        // The order to all other members follows from the constraints recorded earlier.
        let (lower, upper) = row.neighbours(block);
        above.extend((lower != NONE).then_some(Above { lower, upper: member }));
        above.extend((upper != NONE).then_some(Above { lower: member, upper }));
    }
    Some(above)
}

/// Computes the lowest offset of each chain above all chains below it: longest paths in topological
/// order.
fn fall(chains: &Chains, above: &[Above]) -> Vec<u64> {
    let members = chains.members();
    let mut chain_of = vec![0_u32; members.len()];
    for (number, chain) in chains.all().iter().enumerate() {
        chain_of[chain.range()].fill(number as u32);
    }
    // The constraints are grouped by the chain of the lower member (a counting sort). `waits` has
    // the number of open constraints on each chain.
    let mut first = vec![0_u32; chains.len() + 1];
    let mut waits = vec![0_u32; chains.len()];
    for pair in above {
        first[chain_of[pair.lower as usize] as usize + 1] += 1;
        waits[chain_of[pair.upper as usize] as usize] += 1;
    }
    for chain in 0..chains.len() {
        first[chain + 1] += first[chain];
    }
    let mut filled = first.clone();
    let mut pairs = vec![0_u32; above.len()];
    for (number, pair) in above.iter().enumerate() {
        let place = &mut filled[chain_of[pair.lower as usize] as usize];
        pairs[*place as usize] = number as u32;
        *place += 1;
    }

    let mut offsets = vec![0_u64; chains.len()];
    // Blocks never change places in the row, so there is one order of all blocks over time. So the
    // constraints have no circle, and every chain becomes ready.
    let mut ready: Vec<u32> = (0..chains.len() as u32).filter(|&chain| waits[chain as usize] == 0).collect();
    while let Some(chain) = ready.pop() {
        let chain = chain as usize;
        // All chains below are final. The offset is aligned once, and then the chains above are
        // raised.
        offsets[chain] = align_up(offsets[chain], chains.all()[chain].alignment);
        for &pair in &pairs[first[chain] as usize..first[chain + 1] as usize] {
            let Above { lower, upper } = above[pair as usize];
            let (below, member) = (&members[lower as usize], &members[upper as usize]);
            let lowest = (offsets[chain] + below.offset + below.size).saturating_sub(member.offset);
            let upper = chain_of[upper as usize] as usize;
            offsets[upper] = offsets[upper].max(lowest);
            waits[upper] -= 1;
            if waits[upper] == 0 {
                ready.push(upper as u32);
            }
        }
    }
    offsets
}
