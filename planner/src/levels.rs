//! The highest level over a range of steps: a tree in which a range is raised and asked at O(log n).

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

/// A level for every step.
pub(super) struct Levels {
    /// How many steps there are; the nodes are numbered from 1, the children of `i` are `2i` and `2i+1`, the steps' follow the inner ones.
    leaves: usize,
    /// The level to which all steps of a node were raised.
    raised: Vec<u64>,
    /// The highest level of any step of a node, without what was raised above it.
    highest: Vec<u64>,
}

impl Levels {
    /// Level 0 at every step.
    pub(super) fn new(steps: usize) -> Self {
        let leaves = steps.next_power_of_two();
        Self { leaves, raised: vec![0; 2 * leaves], highest: vec![0; 2 * leaves] }
    }

    /// Level 0 at every step again.
    pub(super) fn clear(&mut self) {
        self.raised.fill(0);
        self.highest.fill(0);
    }

    /// Raises every step of a range to `level`, unless it is higher.
    pub(super) fn raise(&mut self, steps: &Range<u32>, level: u64) {
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

    fn raise_node(&mut self, node: usize, level: u64) {
        self.raised[node] = self.raised[node].max(level);
        let mut node = node;
        while node > 0 && self.highest[node] < level {
            self.highest[node] = level;
            node /= 2;
        }
    }

    /// The highest level of a range.
    pub(super) fn largest(&self, steps: &Range<u32>) -> u64 {
        let (mut left, mut right) = (steps.start as usize + self.leaves, steps.end as usize + self.leaves);
        let mut largest = 0;
        // What was raised above the range as a whole counts for it too: the nodes above its two ends.
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
