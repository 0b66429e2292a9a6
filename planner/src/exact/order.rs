//! The order in which a run of the search takes the buffers. One order may find a plan in a
//! thousand nodes that another one does not find in a billion.
//!
//! The time of a run has a heavy tail, so many short runs in different orders are better than one
//! long run (Gomes, Selman and Kautz 1998). Runs are numbered. The number of a run determines its
//! order, the rule that picks the next buffer, and its length, by the sequence of Luby, Sinclair
//! and Zuckerman (1993).

use super::instance::Item;
use super::span::Span;
use crate::levels::Levels;
use crate::random::SplitMix64;
use alloc::vec::Vec;

/// The rule that picks the next buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pick {
    /// The lowest buffer, then the first in the order.
    Lowest,
    /// The lowest buffer, then the buffer in the section with the most unplaced bytes, then the
    /// first in the order.
    LowestAndFullest,
    /// The lowest buffer of the section with the least free space.
    Tightest,
}

/// The sort keys of buffers. Larger values come first.
#[derive(Clone, Copy)]
enum SortKey {
    /// The length of the life (MiniMalloc's W).
    Width,
    /// The length of the life times the size (A).
    Area,
    /// The largest load of a section in the buffer's span (T).
    Load,
    /// The sum of the loads of all sections in the span (U).
    Loads,
    /// The number of sections in the span (C).
    Sections,
}

use SortKey::{Area, Load, Loads, Sections, Width};

/// Lists of sort keys that have proved good in practice. The first three are MiniMalloc's.
const ORDERS: [&[SortKey]; 9] = [
    &[Load, Width, Area],
    &[Width, Area, Load],
    &[Load, Area, Width],
    &[Width, Load],
    &[Load, Loads, Width],
    &[Loads, Load, Width],
    &[Sections, Load, Width],
    &[Area, Width],
    &[Load, Sections],
];

/// The order and the picking rule of a run.
pub(super) struct Order {
    /// For each item, its rank in the order.
    pub(super) rank: Vec<u32>,
    pub(super) pick: Pick,
}

/// The number of nodes for a unit of Luby's sequence. It is small, because a run that finds a plan
/// at all usually finds it soon.
const NODES: u64 = 2000;

/// The number of items above which only the cheapest picking rule is used.
const MANY: usize = 2000;

/// Returns the number of nodes that a run may take.
pub(super) fn nodes(run: u64, items: usize) -> u64 {
    luby(run + 1) * NODES.max(4 * items as u64)
}

/// Returns a term of Luby's sequence 1 1 2 1 1 2 4 1 1 2 1 1 2 4 8 …, counted from 1.
fn luby(index: u64) -> u64 {
    let mut index = index;
    loop {
        if (index + 1).is_power_of_two() {
            return index.div_ceil(2);
        }
        // The sequence repeats its first `2^k - 1` terms from here.
        index -= (1 << index.ilog2()) - 1;
    }
}

impl Order {
    /// Builds the order of a run. `load` has the load of each section.
    pub(super) fn of(run: u64, items: &[Item], load: &[u64]) -> Self {
        let mut random = SplitMix64(run);
        let many = items.len() > MANY;
        // The first runs use the keys unchanged. Later runs draw a list of keys and add noise.
        let plain = run < ORDERS.len() as u64;
        let keys = ORDERS[(if plain { run } else { random.below(ORDERS.len() as u64) }) as usize];
        let pick = match (if plain { run } else { random.below(3) }, many) {
            (0, _) | (_, true) => Pick::Lowest,
            (2 | 3, _) => Pick::Tightest,
            _ => Pick::LowestAndFullest,
        };
        let noise = if plain { 0.0 } else { [0.02, 0.1, 0.3][random.below(3) as usize] };
        let loads = SpanLoads::new(load);
        let mut values = Vec::with_capacity(items.len() * keys.len());
        for item in items {
            values.extend(keys.iter().map(|key| key.of(item, &loads) * (1.0 + noise * (random.fraction() - 0.5))));
        }
        let of = |item: u32| &values[item as usize * keys.len()..][..keys.len()];
        let mut order: Vec<u32> = (0..items.len() as u32).collect();
        order.sort_by(|&one, &other| {
            let keys = of(one).iter().zip(of(other)).map(|(one, other)| other.total_cmp(one));
            keys.fold(core::cmp::Ordering::Equal, core::cmp::Ordering::then)
        });
        let mut rank = alloc::vec![0; order.len()];
        for (place, item) in order.into_iter().enumerate() {
            rank[item as usize] = place as u32;
        }
        Self { rank, pick }
    }
}

impl SortKey {
    fn of(self, item: &Item, loads: &SpanLoads) -> f64 {
        match self {
            Width => item.steps as f64,
            Area => item.steps as f64 * item.size as f64,
            Load => loads.largest(item.span) as f64,
            Loads => loads.sum(item.span) as f64,
            Sections => f64::from(item.span.last - item.span.first + 1),
        }
    }
}

/// The loads of all sections. It gives the largest load and the sum of the loads in a span, without
/// a walk over a life of a million sections.
struct SpanLoads {
    levels: Levels,
    /// For each section, the sum of the loads before it; at the end, the sum of all loads.
    before: Vec<u128>,
}

impl SpanLoads {
    fn new(load: &[u64]) -> Self {
        let mut levels = Levels::new(load.len());
        let mut before = alloc::vec![0];
        let mut sum = 0;
        for (section, &load) in (0..).zip(load) {
            levels.raise(&(section..section + 1), load);
            sum += u128::from(load);
            before.push(sum);
        }
        Self { levels, before }
    }

    fn largest(&self, span: Span) -> u64 {
        self.levels.largest(&(span.first..span.last + 1))
    }

    fn sum(&self, span: Span) -> u128 {
        self.before[span.last as usize + 1] - self.before[span.first as usize]
    }
}
