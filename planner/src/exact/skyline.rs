//! Skyline placement: the first dive of the exact search, without backtracking, for problems of any
//! size. It always places the lowest buffer next.
//!
//! ```text
//!              ┌───┐         The skyline is the height of each section. A buffer is on
//!        ┌─────┤   ├──┐      the highest roof in its span. The lowest buffer is next; the
//!   ─────┘     └───┘  └──    order decides between equals.
//! ```
//!
//! Most real programs end at or near their lower bound. Each rise of a buffer's offset takes O(log
//! n).

use super::instance::{Item, spread, unit};
use super::order::Order;
use super::span::Span;
use crate::problem::align_up;
use crate::{Algorithm, Chains, Plan, Problem, Watch, first_fit};
use alloc::collections::BinaryHeap;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

/// Skyline placement in the order of the search run with this number.
#[derive(Clone, Copy)]
pub struct Skyline(pub u64);

impl Algorithm for Skyline {
    fn name(&self) -> &'static str {
        "skyline"
    }

    fn plan(&self, problem: &Problem, watch: &mut dyn Watch) -> Option<Plan> {
        let chains = Chains::of(problem);
        let offsets = dive(&chains, self.0, watch)?;
        let plan = chains.plan(&first_fit::refit(&chains, offsets, watch)?);
        watch.improved(&plan);
        Some(plan)
    }
}

/// The number of buffers that are examined between two calls of [`Watch::stop`].
const PATIENCE: u32 = 1 << 12;

/// Computes the offset of each chain in bytes, or `None` if `watch` stopped the placement.
fn dive(chains: &Chains, run: u64, watch: &dyn Watch) -> Option<Vec<u64>> {
    let unit = unit(chains.all());
    let (items, sections) = spread(chains.all(), unit);
    if watch.stop() {
        return None;
    }
    let order = Order::of(run, &items, &loads(&items, sections));
    let mut skyline = Roofs::new(sections);
    let mut offsets = vec![0; items.len()];
    let lows = (0..items.len()).map(|item| Reverse((0, order.rank[item], item)));
    let mut next: BinaryHeap<_> = lows.collect();
    let mut looked_at: u32 = 0;
    while let Some(Reverse((known, rank, item))) = next.pop() {
        if looked_at.is_multiple_of(PATIENCE) && watch.stop() {
            return None;
        }
        looked_at = looked_at.wrapping_add(1);
        let Item { span, size, alignment, .. } = items[item];
        let low = align_up(skyline.highest(span), alignment);
        // The update is lazy: the key of an entry may be out of date. Offsets only rise, so a stale
        // entry goes back into the heap with its true offset.
        if low > known {
            next.push(Reverse((low, rank, item)));
        } else {
            skyline.raise(span, low.saturating_add(size));
            offsets[item] = low.saturating_mul(unit);
        }
    }
    Some(offsets)
}

/// Sums the sizes of the items of each section, by prefix sums of the changes.
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

/// The height of each section: a segment tree with nodes numbered from 1; the children of `i` are
/// `2i` and `2i + 1`.
struct Roofs {
    leaves: usize,
    /// For each node, a height that all sections of the node reach.
    all: Vec<u64>,
    /// For each node, the highest section according to the node and its descendants.
    most: Vec<u64>,
}

impl Roofs {
    fn new(sections: usize) -> Self {
        let leaves = sections.next_power_of_two();
        Self { leaves, all: vec![0; 2 * leaves], most: vec![0; 2 * leaves] }
    }

    /// Returns the highest section of a span.
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

    /// Raises the sections of a span to at least `height`.
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
