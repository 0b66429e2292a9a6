//! Which buffers share one place.

use super::{Colocation, Problem};
use alloc::vec::Vec;

/// The groups that the pairs join.
pub(super) struct Colocations {
    /// For each buffer the lowest number in its group: its own, if it shares its place with nobody.
    pub(super) leader: Vec<u32>,
    /// For each buffer the strictest alignment in its group.
    pub(super) alignment: Vec<u64>,
}

impl Colocations {
    /// The groups of the problem. A pair that names no buffer joins nobody.
    pub(super) fn of(problem: &Problem) -> Self {
        let count = problem.buffers.len();
        let mut leader: Vec<u32> = (0..count as u32).collect();
        for &Colocation { first, second } in &problem.colocations {
            if (first.max(second) as usize) < count {
                let (one, other) = (find(&mut leader, first), find(&mut leader, second));
                leader[one.max(other) as usize] = one.min(other);
            }
        }
        let mut alignment: Vec<u64> = problem.buffers.iter().map(|buffer| buffer.alignment).collect();
        for buffer in 0..count {
            // Everybody on the way to the leader has a lower number, and knows it by now.
            leader[buffer] = leader[leader[buffer] as usize];
            let leader = leader[buffer] as usize;
            alignment[leader] = alignment[leader].max(alignment[buffer]);
        }
        for buffer in 0..count {
            alignment[buffer] = alignment[leader[buffer] as usize];
        }
        Self { leader, alignment }
    }
}

/// The leader of a group that may still grow; halves the way there.
fn find(leader: &mut [u32], buffer: u32) -> u32 {
    let mut at = buffer as usize;
    while leader[at] as usize != at {
        leader[at] = leader[leader[at] as usize];
        at = leader[at] as usize;
    }
    at as u32
}

#[cfg(test)]
mod tests {
    use super::Colocations;
    use crate::{Buffer, Colocation, Problem};

    #[test]
    fn pairs_join_groups_in_any_order() {
        let buffer = |log2: u32| Buffer { start: 0, end: 1, size: 1, alignment: 1_u64 << log2, fixed: None };
        let pairs = [(6, 4), (3, 5), (1, 4), (5, 6), (2, 2), (0, 9)];
        let colocations = pairs.map(|(first, second)| Colocation { first, second }).to_vec();
        let problem = Problem { buffers: (0..7).map(buffer).collect(), colocations, ..Problem::default() };
        let groups = Colocations::of(&problem);
        assert_eq!(groups.leader, [0, 1, 2, 1, 1, 1, 1]);
        assert_eq!(groups.alignment, [1, 64, 4, 64, 64, 64, 64]);
    }
}
