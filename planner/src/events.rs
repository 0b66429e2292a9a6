//! The events of a problem in the order of time, which are the input of best fit and of push-down.

use super::first_fit;
use super::{Chain, Chains, Plan, Watch};
use alloc::vec;
use alloc::vec::Vec;

/// The order of events within one step: frees first, then new buffers, then writes in place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    Free,
    Allocate,
    Overwrite,
}

/// An event in the life of a chain. Members are numbered as in [`Chains::members`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Event {
    /// The last member of a chain frees its bytes.
    Free(u32),
    /// The first member of a chain allocates bytes.
    Allocate(u32),
    /// A member keeps a part of the bytes of the member before it, and frees the rest.
    Overwrite(u32),
}

/// The order of chains that start at the same step.
///
/// MegEngine keeps the order in which the buffers were added. For a plan that does not depend on
/// the order of the input, a rule is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Arrival {
    /// Whether the longest-lived chain comes first. If false, the shortest-lived comes first.
    longest: bool,
    /// Whether the largest of several chains with the same life comes first. If false, the smallest
    /// comes first.
    largest: bool,
}

impl Arrival {
    /// All four orders.
    const ALL: [Self; 4] = [
        Self { longest: false, largest: false },
        Self { longest: false, largest: true },
        Self { longest: true, largest: true },
        Self { longest: true, largest: false },
    ];

    /// Returns the rank of each chain in this order.
    fn ranks(self, chains: &Chains) -> Vec<u32> {
        let key = |chain: &Chain| {
            let turned = |value: u64, turn: bool| if turn { u64::MAX - value } else { value };
            (chain.start, turned(chain.end, self.longest), turned(chain.size, self.largest))
        };
        let mut order: Vec<u32> = (0..chains.len() as u32).collect();
        order.sort_by_key(|&chain| key(&chains.all()[chain as usize]));
        let mut ranks = vec![0; order.len()];
        for (rank, &chain) in order.iter().enumerate() {
            ranks[chain as usize] = rank as u32;
        }
        ranks
    }
}

/// Returns the ranks of the chains in every order of arrival, each different order once. If no two
/// chains start at the same step, all four are the same. No order is better for every problem.
pub(super) fn orders(chains: &Chains) -> Vec<Vec<u32>> {
    let mut orders = Vec::new();
    for arrival in Arrival::ALL {
        let ranks = arrival.ranks(chains);
        if !orders.contains(&ranks) {
            orders.push(ranks);
        }
    }
    orders
}

/// Returns the events of chains without gaps, in MegEngine's order: within one step frees come
/// first, then new buffers, then writes in place.
///
/// A writer frees the bytes of its target around itself. New buffers of the step come before it, so
/// that they cannot use these bytes while the target is still read.
pub(super) fn events(chains: &Chains, ranks: &[u32]) -> Vec<Event> {
    let mut events = Vec::with_capacity(chains.members().len() + chains.len());
    for (chain, &rank) in chains.all().iter().zip(ranks) {
        let range = chain.range();
        let (first, last) = (range.start as u32, range.end as u32 - 1);
        events.push((chain.start, Turn::Allocate, rank, Event::Allocate(first)));
        for later in first + 1..=last {
            events.push((chains.members()[later as usize].start, Turn::Overwrite, rank, Event::Overwrite(later)));
        }
        events.push((chain.end, Turn::Free, rank, Event::Free(last)));
    }
    events.sort_unstable();
    events.into_iter().map(|(.., event)| event).collect()
}

/// Runs `place` with every order of arrival and returns the best plan. `place` returns the offset
/// of each chain for chains and events, or `None` if the watch stops it.
pub(super) fn best(
    chains: &Chains,
    watch: &mut dyn Watch,
    place: impl Fn(&Chains, &[Event], &dyn Watch) -> Option<Vec<u64>>,
) -> Option<Plan> {
    let solid = chains.solid();
    let mut best: Option<Plan> = None;
    for ranks in orders(&solid) {
        if watch.stop() {
            break;
        }
        let offsets = place(&solid, &events(&solid, &ranks), watch);
        let Some(offsets) = offsets.and_then(|offsets| first_fit::refit(chains, offsets, watch)) else { break };
        if best.as_ref().is_none_or(|best| chains.peak(&offsets) < best.peak) {
            let plan = chains.plan(&offsets);
            watch.improved(&plan);
            best = Some(plan);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::Event::{Allocate, Free, Overwrite};
    use super::{Arrival, events, orders};
    use crate::{Buffer, Chains, Overwrite as Overwriting, Problem};
    use alloc::vec;

    #[test]
    fn what_ends_goes_before_what_begins_and_that_before_what_is_written_in_place() {
        let buffer = |start, end| Buffer { start, end, size: 4, alignment: 1, fixed: None };
        let problem = Problem {
            buffers: vec![buffer(0, 3), buffer(2, 5), buffer(2, 3), buffer(0, 2)],
            overwrites: vec![Overwriting { writer: 1, target: 0, offset: 0 }],
            ..Problem::default()
        };
        let chains = Chains::of(&problem);
        let buffer_of = |member: u32| chains.members()[member as usize].buffer;
        let ranks = Arrival { longest: false, largest: false }.ranks(&chains);
        let named = events(&chains, &ranks).into_iter().map(|event| match event {
            Free(member) => Free(buffer_of(member)),
            Allocate(member) => Allocate(buffer_of(member)),
            Overwrite(member) => Overwrite(buffer_of(member)),
        });
        assert!(named.eq([Allocate(3), Allocate(0), Free(3), Allocate(2), Overwrite(1), Free(2), Free(1)]));
    }

    #[test]
    fn orders_of_arrival_that_are_one_come_once() {
        let count = |lives: &[(u64, u64, u64)]| {
            let buffer = |&(start, end, size)| Buffer { start, end, size, alignment: 1, fixed: None };
            orders(&Chains::of(&Problem { buffers: lives.iter().map(buffer).collect(), ..Problem::default() })).len()
        };
        assert_eq!(count(&[(0, 3, 4), (1, 3, 4), (2, 5, 4)]), 1);
        assert_eq!(count(&[(0, 3, 4), (0, 4, 4), (2, 5, 4)]), 2);
        assert_eq!(count(&[(0, 3, 4), (0, 3, 5), (0, 4, 4)]), 4);
    }
}
