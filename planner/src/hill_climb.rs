//! Hill climbing over placement orders: first fit in many orders, each a small change of the
//! present one.
//!
//! The change is that of TVM's `hill_climb`. Take a buffer at the peak. Choose two buffers that
//! were placed earlier: two neighbours, or a neighbour and a neighbour of that one. Swap the two in
//! the order. Two buffers are neighbours if their lives overlap. TVM stores all pairs of
//! neighbours. Here a pair is drawn by a scan when it is needed, so the memory is O(n).

use super::first_fit::fill;
use super::greedy::Greedy;
use super::placer::Placer;
use super::random::SplitMix64;
use super::{Algorithm, Chain, Chains, Plan, Problem, Watch, lower_bound};
use alloc::vec::Vec;

/// TVM's hill climbing. The random numbers have a fixed seed, so the same problem gives the same
/// plan.
pub struct HillClimb {
    /// The number of orders to try.
    pub attempts: u32,
}

impl HillClimb {
    /// TVM's number of attempts.
    pub const TVM: Self = Self { attempts: 500 };
}

/// The probability, in per cent, that both buffers are drawn from the neighbours of the highest
/// buffer. Otherwise the second one is drawn from the neighbours of the first.
const NEAR: u64 = 25;

/// The scale of the probability that a worse order is kept, in per cent. The probability is this
/// scale times the relative rise of the peak, divided by the number of the attempt.
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
            // The order is accepted with probability FORGIVING % · (worse / new) / attempt. This is
            // computed in whole numbers, with both sides multiplied by `new · attempt · 100`.
            // `u128` has room for 6 + 64 + 32 bits.
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

/// The state of the search.
struct Climb<'a> {
    chains: &'a Chains,
    placer: Placer<'a>,
    order: Vec<u32>,
    /// For each chain, the position in `order`.
    position: Vec<u32>,
    random: SplitMix64,
}

impl<'a> Climb<'a> {
    fn new(chains: &'a Chains) -> Self {
        let order = Greedy::Size.order(chains);
        let mut position = alloc::vec![0; order.len()];
        for (at, &chain) in order.iter().enumerate() {
            position[chain as usize] = at as u32;
        }
        Self { chains, placer: Placer::new(chains), order, position, random: SplitMix64(0) }
    }

    /// Swaps the chains at two positions of the order.
    fn swap(&mut self, one: u32, other: u32) {
        self.order.swap(one as usize, other as usize);
        for at in [one, other] {
            self.position[self.order[at as usize] as usize] = at;
        }
    }

    /// Draws two positions of the order to swap, or `None` if a buffer has too few neighbours.
    fn choose(&mut self) -> Option<(u32, u32)> {
        let (all, offsets, peak) = (self.chains.all(), self.placer.offsets(), self.placer.peak());
        let ends = all.iter().zip(offsets).map(|(own, offset)| offset + own.size);
        let highest = (0..).zip(ends).filter(|&(_, end)| end == peak).map(|(chain, _)| chain);
        let highest: u32 = self.random.one_of(highest)?;
        let before = self.position[highest as usize];
        let one = self.neighbour(highest, before, highest)?;
        let from = if self.random.below(100) < NEAR { highest } else { one };
        let other = self.neighbour(from, before, one)?;
        Some((self.position[one as usize], self.position[other as usize]))
    }

    /// Draws a neighbour of `chain` from the first `before` positions, but not `except`.
    fn neighbour(&mut self, chain: u32, before: u32, except: u32) -> Option<u32> {
        let all = self.chains.all();
        let own = &all[chain as usize];
        let lives_with = |other: &Chain| other.start < own.end && own.start < other.end;
        let earlier = self.order[..before as usize].iter().copied();
        let near = earlier.filter(|&other| other != chain && other != except && lives_with(&all[other as usize]));
        self.random.one_of(near)
    }
}
