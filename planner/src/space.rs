//! The occupied bytes of each step: a segment tree over the steps, with sorted runs of bytes in the
//! nodes.
//!
//! ```text
//! steps      0 1 2 3 4 5 6 7     a buffer of steps 1..6 covers the nodes 1, 2–3 and 4–5:
//!            └┬┘ └┬┘ └┬┘ └┬┘     their `covering` and `within` get the bytes;
//!             └─┬─┘   └─┬─┘      their ancestors' `within` gets the bytes, too
//!               └───┬───┘
//! ```
//!
//! A query for the steps of a new buffer reads `within` of the nodes that cover the steps, and
//! `covering` of their ancestors. Together these lists contain every byte that is occupied at any
//! of the steps.
//!
//! Runs that touch or overlap are merged, so a list is short if little is free. No pair of buffers
//! is compared or stored. A buffer adds O(log n) runs.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use smallvec::SmallVec;

/// Runs of bytes in ascending order. Two runs never touch.
///
/// Most lists have one run, which is stored in the list itself. A million buffers have millions of
/// lists, and it took a second to free as many small pieces of memory.
#[derive(Clone, Default)]
pub(super) struct Runs(SmallVec<[(u64, u64); 1]>);

impl Runs {
    /// Returns every run as (first byte, byte after the last).
    pub(super) fn all(&self) -> &[(u64, u64)] {
        &self.0
    }

    /// Adds a run, and merges it with all runs that it touches. Returns whether some of its bytes
    /// were not in the list before.
    fn add(&mut self, low: u64, high: u64) -> bool {
        let first = self.0.partition_point(|run| run.1 < low);
        // Each run is counted here only once, because it is merged afterwards.
        let last = first + self.0[first..].iter().take_while(|run| run.0 <= high).count();
        if first == last {
            self.0.insert(first, (low, high));
            return true;
        }
        let joined = (self.0[first].0.min(low), self.0[last - 1].1.max(high));
        let grows = self.0[first] != joined;
        self.0[first] = joined;
        self.0.drain(first + 1..last);
        grows
    }
}

/// The segment tree over the steps.
pub(super) struct Space {
    /// The number of leaves: the number of steps, rounded up to a power of two. Nodes are numbered
    /// from 1, and the children of `i` are `2i` and `2i + 1`.
    leaves: usize,
    /// A leaf has no entry, because only the lists of ancestors are read.
    covering: Vec<Runs>,
    within: Vec<Runs>,
}

impl Space {
    /// Creates a tree of `steps` steps without occupied bytes.
    pub(super) fn new(steps: usize) -> Self {
        let leaves = steps.next_power_of_two();
        Self { leaves, covering: vec![Runs::default(); leaves], within: vec![Runs::default(); 2 * leaves] }
    }

    /// Frees all bytes at all steps.
    pub(super) fn clear(&mut self) {
        self.covering.iter_mut().chain(&mut self.within).for_each(|runs| runs.0.clear());
    }

    /// Occupies the bytes `low..high` at `steps`.
    pub(super) fn occupy(&mut self, steps: &Range<u32>, low: u64, high: u64) {
        for node in self.covered(steps) {
            if let Some(runs) = self.covering.get_mut(node) {
                runs.add(low, high);
            }
            self.within[node].add(low, high);
        }
        // The list of a node has all bytes of the lists below it. So if the bytes are not new in a
        // list, they are not new higher up.
        let (left, right) = self.above(steps);
        let mut is_news = |&node: &usize| self.within[node].add(low, high);
        left.take_while(&mut is_news).for_each(drop);
        right.take_while(&mut is_news).for_each(drop);
    }

    /// Returns lists of the runs that are occupied at any of `steps`. A byte may be in several
    /// lists.
    pub(super) fn taken(&self, steps: &Range<u32>) -> impl Iterator<Item = &Runs> {
        let (left, right) = self.above(steps);
        self.covered(steps).map(|node| &self.within[node]).chain(left.chain(right).map(|node| &self.covering[node]))
    }

    /// Returns the nodes that cover `steps` exactly.
    fn covered(&self, steps: &Range<u32>) -> impl Iterator<Item = usize> + use<> {
        let (mut left, mut right) = (steps.start as usize + self.leaves, steps.end as usize + self.leaves);
        // On each level the range loses a left end that is a right child, and a right end that is a
        // left child.
        core::iter::from_fn(move || {
            while left < right {
                if left % 2 == 1 {
                    left += 1;
                    return Some(left - 1);
                }
                if right % 2 == 1 {
                    right -= 1;
                    return Some(right);
                }
                (left, right) = (left / 2, right / 2);
            }
            None
        })
    }

    /// Returns the ancestors of the nodes that cover `steps`, on each side from the lowest up.
    /// Those above both ends of the range are on the left.
    fn above(&self, steps: &Range<u32>) -> (impl Iterator<Item = usize> + use<>, impl Iterator<Item = usize> + use<>) {
        let (low, high) = (steps.start as usize + self.leaves, steps.end as usize + self.leaves);
        let levels = 1..=self.leaves.trailing_zeros();
        // A node is an ancestor iff it meets the range and also reaches out of it. On each level,
        // this is possible only at the two ends.
        let left = levels.clone().filter_map(move |level| {
            let node = low >> level;
            (node << level < low || (node + 1) << level > high).then_some(node)
        });
        let right = levels.filter_map(move |level| {
            let node = (high - 1) >> level;
            (node != low >> level && (node + 1) << level > high).then_some(node)
        });
        (left, right)
    }
}

#[cfg(test)]
mod tests {
    use super::Space;
    use proptest::prelude::*;
    use std::vec::Vec;

    const STEPS: u32 = 13;
    const BYTES: u64 = 40;

    proptest! {
        #[test]
        fn what_is_taken_is_what_was_occupied(
            occupied in prop::collection::vec((0..STEPS, 1..STEPS, 0..BYTES, 1..9_u64), 0..20),
            (first, count) in (0..STEPS, 1..STEPS),
        ) {
            let mut space = Space::new(STEPS as usize);
            space.occupy(&(0..STEPS), 0, BYTES);
            space.clear();
            for &(first, count, low, size) in &occupied {
                space.occupy(&(first..STEPS.min(first + count)), low, low + size);
            }
            let asked = first..STEPS.min(first + count);
            let meets = |first: u32, count: u32| first < asked.end && asked.start < STEPS.min(first + count);
            let naive: Vec<bool> = (0..BYTES + 9)
                .map(|byte| {
                    let holds = |&(first, count, low, size): &(u32, u32, u64, u64)| {
                        meets(first, count) && (low..low + size).contains(&byte)
                    };
                    occupied.iter().any(holds)
                })
                .collect();
            let lists: Vec<&[(u64, u64)]> = space.taken(&asked).map(super::Runs::all).collect();
            let taken = |byte: u64| lists.iter().any(|runs| runs.iter().any(|run| (run.0..run.1).contains(&byte)));
            prop_assert_eq!((0..BYTES + 9).map(taken).collect::<Vec<_>>(), naive);
            // No two runs of a list touch.
            prop_assert!(lists.iter().all(|runs| runs.windows(2).all(|pair| pair[0].1 < pair[1].0)));
        }
    }
}
