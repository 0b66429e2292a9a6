//! Decides before planning which buffers are written in place over which others.
//!
//! [`Overwrite`](super::Overwrite) states the rules, which are those of `StaticMemAllocImplHelper`
//! in MegEngine (2022).

use super::{Overwrite, Problem};
use alloc::vec;
use alloc::vec::Vec;

/// The number that means no buffer, member or block.
pub(super) const NONE: u32 = u32::MAX;

/// The accepted overwrites.
pub(super) struct Overwrites {
    /// For each buffer, the buffer under it, or [`NONE`].
    pub(super) target: Vec<u32>,
    /// For each buffer, the buffer written over it, or [`NONE`].
    pub(super) writer: Vec<u32>,
    /// For each buffer, the distance in bytes from the start of its target, or 0 if it has none.
    pub(super) offset: Vec<u64>,
}

impl Overwrites {
    /// Decides every pair of the problem in order. Refuses a pair with an unknown buffer, and a
    /// writer that reaches beyond its target.
    pub(super) fn of(problem: &Problem) -> Self {
        let count = problem.buffers.len();
        let mut settled = Self { target: vec![NONE; count], writer: vec![NONE; count], offset: vec![0; count] };
        // A fixed or colocated buffer has its own offset, so it cannot follow a target.
        let mut placed: Vec<bool> = problem.buffers.iter().map(|buffer| buffer.fixed.is_some()).collect();
        for buffer in problem.colocations.iter().flat_map(|pair| [pair.first, pair.second]) {
            placed.get_mut(buffer as usize).into_iter().for_each(|placed| *placed = true);
        }
        // Writers with an unknown number have no entry in `placed`, so they are dropped here.
        let movable = |pair: &&Overwrite| placed.get(pair.writer as usize) == Some(&false);
        problem.overwrites.iter().filter(movable).for_each(|&pair| settled.consider(problem, pair));
        settled
    }

    /// Accepts or refuses one pair.
    fn consider(&mut self, problem: &Problem, Overwrite { writer, target, offset }: Overwrite) {
        let (Some(source), Some(dest)) = (problem.buffers.get(writer as usize), problem.buffers.get(target as usize))
        else {
            return;
        };
        // The writer starts in the last step of the target, is inside, and has no target yet.
        let in_time = source.start.checked_add(1) == Some(dest.end);
        let inside = offset.checked_add(source.size).is_some_and(|end| end <= dest.size);
        let free = self.target[writer as usize] == NONE;
        if !(in_time && inside && free) || self.is_below(problem, target, writer) {
            return;
        }
        let before = self.writer[target as usize];
        if before != NONE {
            // The larger writer wins. Of two writers with the same size, the first one keeps its
            // place.
            if source.size <= problem.buffers[before as usize].size {
                return;
            }
            self.target[before as usize] = NONE;
            self.offset[before as usize] = 0;
        }
        self.writer[target as usize] = writer;
        self.target[writer as usize] = target;
        self.offset[writer as usize] = offset;
    }

    /// Returns whether `buffer` is `root`, or is written over `root` through a chain of writers. A
    /// circle is possible among buffers of one step, because each may start in the last step of the
    /// next one.
    fn is_below(&self, problem: &Problem, buffer: u32, root: u32) -> bool {
        let step = problem.buffers[root as usize].start;
        let mut at = buffer;
        loop {
            if at == root {
                return true;
            }
            // Starts never decrease from target to writer. So below `step`, the walk down the
            // targets can no longer meet `root`.
            if problem.buffers[at as usize].start < step || self.target[at as usize] == NONE {
                return false;
            }
            at = self.target[at as usize];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{NONE, Overwrites};
    use crate::{Buffer, Overwrite, Problem};
    use alloc::vec::Vec;

    fn settle(buffers: &[(u64, u64, u64)], pairs: &[(u32, u32, u64)]) -> Overwrites {
        let buffers =
            buffers.iter().map(|&(start, end, size)| Buffer { start, end, size, alignment: 1, fixed: None }).collect();
        let overwrites =
            pairs.iter().map(|&(writer, target, offset)| Overwrite { writer, target, offset }).collect::<Vec<_>>();
        Overwrites::of(&Problem { buffers, overwrites, ..Problem::default() })
    }

    #[test]
    fn only_the_last_step_of_the_target_will_do() {
        let buffers = [(0, 4, 8), (2, 9, 8), (3, 9, 8), (4, 9, 8)];
        assert_eq!(settle(&buffers, &[(1, 0, 0), (3, 0, 0)]).target, [NONE; 4]);
        assert_eq!(settle(&buffers, &[(1, 0, 0), (2, 0, 0)]).target, [NONE, NONE, 0, NONE]);
    }

    #[test]
    fn the_larger_of_two_writers_is_kept() {
        let buffers = [(0, 4, 8), (3, 9, 2), (3, 9, 4), (3, 9, 4)];
        let settled = settle(&buffers, &[(1, 0, 5), (2, 0, 3), (3, 0, 1)]);
        assert_eq!(settled.target, [NONE, NONE, 0, NONE]);
        assert_eq!(settled.offset, [0, 0, 3, 0]);
        assert_eq!(settled.writer[0], 2);
    }

    #[test]
    fn a_writer_that_lost_its_place_may_take_another() {
        let buffers = [(0, 4, 8), (1, 4, 8), (3, 9, 2), (3, 9, 4)];
        let settled = settle(&buffers, &[(2, 0, 5), (3, 0, 3), (2, 1, 6)]);
        assert_eq!(settled.target, [NONE, NONE, 1, 0]);
        assert_eq!(settled.offset, [0, 0, 6, 3]);
    }

    #[test]
    fn buffers_of_one_step_do_not_overwrite_each_other_in_a_circle() {
        let settled = settle(&[(0, 1, 4), (0, 1, 4), (0, 1, 4)], &[(0, 1, 0), (1, 2, 0), (2, 0, 0)]);
        assert_eq!(settled.target, [1, 2, NONE]);
        assert_eq!(settle(&[(0, 1, 4)], &[(0, 0, 0)]).target, [NONE]);
    }

    #[test]
    fn what_does_not_fit_or_does_not_exist_is_refused() {
        let buffers = [(0, 4, 8), (3, 9, 4)];
        assert_eq!(settle(&buffers, &[(1, 0, 5), (1, 7, 0), (7, 0, 0), (1, 0, u64::MAX)]).target, [NONE, NONE]);
    }
}
