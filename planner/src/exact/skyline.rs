//! The search's first dive by itself, for problems of any size: always the lowest buffer next, and nothing taken back.
//!
//! ```text
//!              ┌───┐            The skyline is how high each section is filled. A buffer lies on the highest roof below it;
//!        ┌─────┤   ├──┐         the one that would lie lowest is next, of several the first in the order.
//!   ─────┘     └───┘  └────
//! ```
//!
//! Real programs mostly come out at or near their lower bound. O(n log n) for each time that a buffer's offset rises.

use super::instance::{Item, spread, unit};
use super::order::Order;
use super::span::Span;
use crate::problem::align_up;
use crate::{Algorithm, Chains, Plan, Problem, Watch, first_fit};
use alloc::collections::BinaryHeap;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

/// A dive in the order of the search's run of this number.
pub struct Skyline(pub u64);

impl Algorithm for Skyline {
    fn name(&self) -> &'static str {
        "skyline"
    }

    fn plan(&self, problem: &Problem, watch: &mut dyn Watch) -> Option<Plan> {
        let chains = Chains::of(problem);
        let offsets = dive(&chains, self.0, watch)?;
        let plan = chains.plan(&first_fit::refit(&chains, offsets));
        watch.improved(&plan);
        Some(plan)
    }
}

/// Between two questions whether to stop, so many buffers are looked at.
const PATIENCE: u32 = 1 << 12;

/// The offset of each chain in bytes; `None` if it was stopped.
fn dive(chains: &Chains, run: u64, watch: &dyn Watch) -> Option<Vec<u64>> {
    let unit = unit(chains.all());
    let (items, sections) = spread(chains.all(), unit);
    let order = Order::of(run, &items, &loads(&items, sections));
    let mut skyline = Roofs::new(sections);
    let mut offsets = vec![0; items.len()];
    let lows = (0..items.len()).map(|item| Reverse((0, order.rank[item], item)));
    let mut next: BinaryHeap<_> = lows.collect();
    let mut looked_at: u32 = 0;
    while let Some(Reverse((known, rank, item))) = next.pop() {
        looked_at = looked_at.wrapping_add(1);
        if looked_at.is_multiple_of(PATIENCE) && watch.stop() {
            return None;
        }
        let Item { span, size, alignment, .. } = items[item];
        let low = align_up(skyline.highest(span), alignment);
        if low > known {
            next.push(Reverse((low, rank, item)));
        } else {
            skyline.raise(span, low.saturating_add(size));
            offsets[item] = low.saturating_mul(unit);
        }
    }
    Some(offsets)
}

/// The sum of the sizes of each section's items.
fn loads(items: &[Item], sections: usize) -> Vec<u64> {
    let mut changes = vec![0_u64; sections + 1];
    for item in items {
        let (first, behind) = (item.span.first as usize, item.span.last as usize + 1);
        changes[first] = changes[first].wrapping_add(item.size);
        changes[behind] = changes[behind].wrapping_sub(item.size);
    }
    let mut load = 0_u64;
    changes[..sections]
        .iter()
        .map(|&change| {
            load = load.wrapping_add(change);
            load
        })
        .collect()
}

/// How high each section is filled: a segment tree whose nodes are numbered from 1, the children of `i` being `2i` and `2i+1`.
struct Roofs {
    leaves: usize,
    /// All sections of a node are at least so high.
    all: Vec<u64>,
    /// The highest section of a node, from what its own nodes and those below them say.
    most: Vec<u64>,
}

impl Roofs {
    fn new(sections: usize) -> Self {
        let leaves = sections.next_power_of_two();
        Self { leaves, all: vec![0; 2 * leaves], most: vec![0; 2 * leaves] }
    }

    /// The highest of some sections.
    fn highest(&self, span: Span) -> u64 {
        let (mut left, mut right) = (span.first as usize + self.leaves, span.last as usize + self.leaves);
        let mut highest = self.most[left].max(self.most[right]);
        while left / 2 != right / 2 {
            if left.is_multiple_of(2) {
                highest = highest.max(self.most[left + 1]);
            }
            if !right.is_multiple_of(2) {
                highest = highest.max(self.most[right - 1]);
            }
            (left, right) = (left / 2, right / 2);
            highest = highest.max(self.all[left]).max(self.all[right]);
        }
        while left > 1 {
            left /= 2;
            highest = highest.max(self.all[left]);
        }
        highest
    }

    /// Makes some sections at least so high.
    fn raise(&mut self, span: Span, height: u64) {
        let (mut left, mut right) = (span.first as usize + self.leaves, span.last as usize + self.leaves);
        self.cover(left, height);
        self.cover(right, height);
        while left / 2 != right / 2 {
            if left.is_multiple_of(2) {
                self.cover(left + 1, height);
            }
            if !right.is_multiple_of(2) {
                self.cover(right - 1, height);
            }
            (left, right) = (left / 2, right / 2);
            self.most[left] = self.most[left].max(height);
            self.most[right] = self.most[right].max(height);
        }
        while left > 1 {
            left /= 2;
            self.most[left] = self.most[left].max(height);
        }
    }

    fn cover(&mut self, node: usize, height: u64) {
        self.all[node] = self.all[node].max(height);
        self.most[node] = self.most[node].max(height);
    }
}
