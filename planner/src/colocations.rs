//! The groups of colocated buffers, by union-find over the pairs of the problem.

use super::{Colocation, Problem};
use alloc::vec::Vec;

/// The groups into which the colocations join the buffers.
pub(super) struct Colocations {
    /// For each buffer, the lowest number in its group. This is its own number if no other buffer
    /// shares its offset.
    pub(super) leader: Vec<u32>,
    /// For each buffer, the strictest alignment in its group.
    pub(super) alignment: Vec<u64>,
}

impl Colocations {
    /// Joins the pairs of a problem to groups. Ignores a pair with a number that no buffer has.
    pub(super) fn of(problem: &Problem) -> Self {
        let count = problem.buffers.len();
        let mut leader: Vec<u32> = (0..count as u32).collect();
        for &Colocation { first, second } in &problem.colocations {
            if (first.max(second) as usize) < count {
                let (one, other) = (find(&mut leader, first), find(&mut leader, second));
                // The lower number becomes the leader, so a leader is the smallest number of its
                // group.
                leader[one.max(other) as usize] = one.min(other);
            }
        }
        let mut alignment: Vec<u64> = problem.buffers.iter().map(|buffer| buffer.alignment).collect();
        for buffer in 0..count {
            // Leaders have lower numbers than their followers, so the entry of the parent is final
            // already.
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

/// Finds the leader of a buffer while groups still grow. Halves the path on the way.
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
