//! Hill climbing: first fit in ever other orders, changed where the highest buffers are.
//!
//! In the manner of TVM's `hill_climb`: of a buffer that reaches the peak, two that were placed before it and live at once with it
//! (or with one of those) change places in the order. Without a list of who lives at once with whom: two are drawn when they are wanted.

use super::first_fit::fill;
use super::greedy::Greedy;
use super::placer::Placer;
use super::problem::align_up;
use super::{Algorithm, Chain, Chains, Plan, Problem, Watch, lower_bound};
use alloc::vec::Vec;

/// TVM's hill climbing, with a random sequence of its own that is the same every time.
pub struct HillClimb {
    /// How many orders are tried.
    pub attempts: u32,
}

impl HillClimb {
    /// As many attempts as TVM makes.
    pub const TVM: Self = Self { attempts: 500 };
}

/// In per cent, how often both buffers are neighbours of the highest one; else one of them is a neighbour of a neighbour.
const NEAR: u64 = 25;

/// A worse order is kept with this probability in per cent, times the part by which it is worse, divided by the attempt's number.
const FORGIVING: u64 = 50;

impl Algorithm for HillClimb {
    fn name(&self) -> &'static str {
        "hill-climb"
    }

    fn plan(&self, problem: &Problem, watch: &mut dyn Watch) -> Option<Plan> {
        let chains = Chains::of(problem);
        let target = lower_bound(problem);
        let mut climb = Climb::new(&chains);
        let mut peak = fill(&mut climb.placer, &climb.order, watch)?;
        let mut lowest = peak;
        let mut best = chains.plan(climb.placer.offsets());
        watch.improved(&best);
        for attempt in 1..=u64::from(self.attempts) {
            if lowest <= target {
                break;
            }
            let Some((one, other)) = climb.choose() else { continue };
            climb.swap(one, other);
            let Some(new) = fill(&mut climb.placer, &climb.order, watch) else { break };
            if new < lowest {
                lowest = new;
                best = chains.plan(climb.placer.offsets());
                watch.improved(&best);
            }
            let worse = new.saturating_sub(peak);
            let chance = u128::from(FORGIVING) * u128::from(worse) * u128::from(u32::MAX);
            let bar = u128::from(new) * u128::from(attempt) * 100;
            if new < peak || u128::from(climb.random.below(u64::from(u32::MAX))) * bar < chance {
                peak = new;
            } else {
                climb.swap(one, other);
            }
        }
        Some(best)
    }
}

/// A state of the search.
struct Climb<'a> {
    chains: &'a Chains,
    placer: Placer<'a>,
    order: Vec<u32>,
    /// Where in the order each chain stands.
    position: Vec<u32>,
    random: Random,
}

impl<'a> Climb<'a> {
    fn new(chains: &'a Chains) -> Self {
        let order = Greedy::Size.order(chains);
        let mut position = alloc::vec![0; order.len()];
        for (at, &chain) in order.iter().enumerate() {
            position[chain as usize] = at as u32;
        }
        Self { chains, placer: Placer::new(chains), order, position, random: Random(0) }
    }

    fn swap(&mut self, one: u32, other: u32) {
        self.order.swap(one as usize, other as usize);
        for at in [one, other] {
            self.position[self.order[at as usize] as usize] = at;
        }
    }

    /// Two places in the order whose chains are to change; `None` if the draw has no two.
    fn choose(&mut self) -> Option<(u32, u32)> {
        let (all, offsets, peak) = (self.chains.all(), self.placer.offsets(), self.placer.peak());
        let ends = all.iter().zip(offsets).map(|(own, offset)| align_up(offset + own.size, own.alignment));
        let highest = (0..).zip(ends).filter(|&(_, end)| end == peak).map(|(chain, _)| chain);
        let highest: u32 = self.random.one_of(highest)?;
        let before = self.position[highest as usize];
        let one = self.neighbour(highest, before, highest)?;
        let from = if self.random.below(100) < NEAR { highest } else { one };
        let other = self.neighbour(from, before, one)?;
        Some((self.position[one as usize], self.position[other as usize]))
    }

    /// One of those that live at once with `chain` and stand before the place `before`, but not `except`.
    fn neighbour(&mut self, chain: u32, before: u32, except: u32) -> Option<u32> {
        let all = self.chains.all();
        let own = &all[chain as usize];
        let lives_with = |other: &Chain| other.start < own.end && own.start < other.end;
        let earlier = self.order[..before as usize].iter().copied();
        let near = earlier.filter(|&other| other != chain && other != except && lives_with(&all[other as usize]));
        self.random.one_of(near)
    }
}

/// Numbers that look random and are the same every time: `SplitMix64` (Steele, Lea, Flood: Fast splittable pseudorandom number
/// generators, 2014) from 0.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// One of the numbers below `bound`, which is not 0.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    fn one_of(&mut self, mut some: impl Iterator<Item = u32> + Clone) -> Option<u32> {
        let count = some.clone().count() as u64;
        if count == 0 {
            return None;
        }
        some.nth(self.below(count) as usize)
    }
}
