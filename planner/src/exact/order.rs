//! In what order a run of the search takes the buffers: some runs find in a thousand nodes what others miss in a billion.
//!
//! How long a run needs has a heavy tail, so many short runs in different orders are worth more than a long one (Gomes,
//! Selman and Kautz 1998). The runs are numbered, and a run's number settles everything about it: its order, how it picks
//! the next buffer, and, by Luby, Sinclair and Zuckerman's sequence (1993), how long it may take.

use super::instance::Item;
use alloc::vec::Vec;

/// How the next buffer is picked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pick {
    /// The lowest, of those the first in the order.
    Lowest,
    /// The lowest, of those the one that has the section where most is left to place, of those the first in the order.
    LowestAndFullest,
    /// The lowest in the section that has the least to spare.
    Tightest,
}

/// What buffers are ordered by, largest first.
#[derive(Clone, Copy)]
enum Key {
    /// How long it lives (MiniMalloc's W).
    Width,
    /// Width times size (A).
    Area,
    /// The largest load of its sections (T).
    Load,
    /// The sum of the loads of its sections (U).
    Loads,
    /// How many sections it has (C).
    Sections,
}

use Key::{Area, Load, Loads, Sections, Width};

/// Orders that have proved themselves; the first three are MiniMalloc's.
const ORDERS: [&[Key]; 9] = [
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

/// Everything about a run.
pub(super) struct Order {
    /// For each item, its place.
    pub(super) rank: Vec<u32>,
    pub(super) pick: Pick,
}

/// What comes out of Luby's sequence is multiplied with this: a solution that a run finds at all, it mostly finds soon.
const NODES: u64 = 2000;

/// With more items than this only the cheapest way to pick is used.
const MANY: usize = 2000;

/// How many nodes a run may take.
pub(super) fn nodes(run: u64, items: usize) -> u64 {
    luby(run + 1) * NODES.max(4 * items as u64)
}

/// 1 1 2 1 1 2 4 1 1 2 1 1 2 4 8 …, from 1 on.
fn luby(index: u64) -> u64 {
    let mut index = index;
    loop {
        if (index + 1).is_power_of_two() {
            return index.div_ceil(2);
        }
        // The sequence up to `2^k - 1` begins anew there.
        index -= (1 << index.ilog2()) - 1;
    }
}

impl Order {
    /// The order of a run; `load` is that of each section.
    pub(super) fn of(run: u64, items: &[Item], load: &[u64]) -> Self {
        let mut random = Random::new(run);
        let many = items.len() > MANY;
        // The first runs are the orders as they are; later ones are drawn, and disturbed.
        let plain = run < ORDERS.len() as u64;
        let keys = ORDERS[(if plain { run } else { random.below(ORDERS.len() as u64) }) as usize];
        let pick = match (if plain { run } else { random.below(3) }, many) {
            (0, _) | (_, true) => Pick::Lowest,
            (2 | 3, _) => Pick::Tightest,
            _ => Pick::LowestAndFullest,
        };
        let noise = if plain { 0.0 } else { [0.02, 0.1, 0.3][random.below(3) as usize] };
        let mut order: Vec<(Vec<f64>, u32)> = Vec::with_capacity(items.len());
        for (number, item) in items.iter().enumerate() {
            let key = |key: &Key| key.of(item, load) * (1.0 + noise * (random.fraction() - 0.5));
            order.push((keys.iter().map(key).collect(), number as u32));
        }
        order.sort_by(|one, other| {
            let keys = one.0.iter().zip(&other.0).map(|(one, other)| other.total_cmp(one));
            keys.fold(core::cmp::Ordering::Equal, core::cmp::Ordering::then).then(one.1.cmp(&other.1))
        });
        let mut rank = alloc::vec![0; order.len()];
        for (place, (_, item)) in order.into_iter().enumerate() {
            rank[item as usize] = place as u32;
        }
        Self { rank, pick }
    }
}

impl Key {
    fn of(self, item: &Item, load: &[u64]) -> f64 {
        let loads = || load[item.span.indices()].iter();
        match self {
            Width => item.steps as f64,
            Area => item.steps as f64 * item.size as f64,
            Load => loads().copied().max().unwrap_or(0) as f64,
            Loads => loads().map(|&load| load as f64).sum(),
            Sections => f64::from(item.span.last - item.span.first + 1),
        }
    }
}

/// Numbers that look random, from a seed (Vigna's `SplitMix64`).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        ((self.next() >> 32) * bound) >> 32
    }

    /// From 0 to just below 1.
    fn fraction(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}
