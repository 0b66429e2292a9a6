//! A segment tree over steps: raises a range of steps to a level, or finds the highest level of a
//! range, in O(log n).

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

/// A level for every step, all 0 at first.
pub(super) struct Levels {
    /// The number of leaves: the number of steps, rounded up to a power of two. Nodes are numbered
    /// from 1, the children of `i` are `2i` and `2i + 1`, and the leaves come after the inner
    /// nodes.
    leaves: usize,
    /// For each node, the level to which all steps below it were raised at once.
    raised: Vec<u64>,
    /// For each node, the highest level of a step below it, without the raises that are recorded in
    /// its ancestors.
    highest: Vec<u64>,
}

impl Levels {
    /// Creates levels of 0 for `steps` steps.
    pub(super) fn new(steps: usize) -> Self {
        let leaves = steps.next_power_of_two();
        Self { leaves, raised: vec![0; 2 * leaves], highest: vec![0; 2 * leaves] }
    }

    /// Resets every level to 0.
    pub(super) fn clear(&mut self) {
        self.raised.fill(0);
        self.highest.fill(0);
    }

    /// Raises every step of a range to `level`. Steps with a higher level do not change.
    pub(super) fn raise(&mut self, steps: &Range<u32>, level: u64) {
        // This is the usual bottom-up walk. A left end that is a right child, and a right end that
        // is a left child, have parents that reach out of the range.
        let (mut left, mut right) = (steps.start as usize + self.leaves, steps.end as usize + self.leaves);
        while left < right {
            if left % 2 == 1 {
                self.raise_node(left, level);
                left += 1;
            }
            if right % 2 == 1 {
                right -= 1;
                self.raise_node(right, level);
            }
            (left, right) = (left / 2, right / 2);
        }
    }

    /// Raises a whole node, and the `highest` of its ancestors.
    fn raise_node(&mut self, node: usize, level: u64) {
        self.raised[node] = self.raised[node].max(level);
        let mut node = node;
        // If an ancestor is this high already, so are its ancestors.
        while node > 0 && self.highest[node] < level {
            self.highest[node] = level;
            node /= 2;
        }
    }

    /// Returns the highest level of a step in the range.
    pub(super) fn largest(&self, steps: &Range<u32>) -> u64 {
        let (mut left, mut right) = (steps.start as usize + self.leaves, steps.end as usize + self.leaves);
        let mut largest = 0;
        // A raise of an ancestor covers steps of the range, too. Every ancestor of a node in the
        // range is an ancestor of the first or of the last leaf.
        for end in [left, right - 1] {
            let mut node = end;
            while node > 0 {
                largest = largest.max(self.raised[node]);
                node /= 2;
            }
        }
        while left < right {
            if left % 2 == 1 {
                largest = largest.max(self.highest[left]);
                left += 1;
            }
            if right % 2 == 1 {
                right -= 1;
                largest = largest.max(self.highest[right]);
            }
            (left, right) = (left / 2, right / 2);
        }
        largest
    }
}

#[cfg(test)]
mod tests {
    use super::Levels;
    use proptest::prelude::*;

    const STEPS: u32 = 11;

    proptest! {
        #[test]
        fn the_largest_level_of_each_range(
            raised in prop::collection::vec((0..STEPS, 1..STEPS, 1..50_u64), 0..20),
        ) {
            let mut levels = Levels::new(STEPS as usize);
            levels.raise(&(0..STEPS), 99);
            levels.clear();
            let mut naive = [0; STEPS as usize];
            for (first, count, level) in raised {
                let end = STEPS.min(first + count);
                levels.raise(&(first..end), level);
                naive[first as usize..end as usize].iter_mut().for_each(|old| *old = level.max(*old));
            }
            for first in 0..STEPS {
                for end in first + 1..=STEPS {
                    let largest = naive[first as usize..end as usize].iter().max().copied();
                    prop_assert_eq!(Some(levels.largest(&(first..end))), largest);
                }
            }
        }
    }
}
