//! What happens to the buffers of a problem, in the order of time.

use super::first_fit;
use super::{Chain, Chains, Plan, Watch};
use alloc::vec;
use alloc::vec::Vec;

/// What comes first at one step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Turn {
    Free,
    Take,
    Overwrite,
}

/// One event. The members are numbered as in [`Chains::members`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Event {
    /// A chain's last member gives its bytes back.
    Free(u32),
    /// A chain's first member takes bytes.
    Take(u32),
    /// A member takes its bytes out of those of the member before it; the others are given back.
    Overwrite(u32),
}

/// Which of the chains that begin in the same step comes first. The reference leaves that to the order in which buffers are
/// added; a plan that does not depend on the order of the input has to settle it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Arrival {
    /// The one that lives longer, not the one that ends sooner.
    pub(super) longest: bool,
    /// Of those that live equally long the larger one, not the smaller one.
    pub(super) largest: bool,
}

impl Arrival {
    /// Every order. None is always better than another, so whoever uses one tries all.
    pub(super) const ALL: [Self; 4] = [
        Self { longest: false, largest: false },
        Self { longest: false, largest: true },
        Self { longest: true, largest: true },
        Self { longest: true, largest: false },
    ];

    /// Where each chain stands in this order.
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

/// Every event of chains without gaps, as MegEngine orders them: at one step what is given back, then what is taken, then what is written in place,
/// so that the bytes which a writer leaves free around itself are not used in the step in which its target is still read.
pub(super) fn events(chains: &Chains, arrival: Arrival) -> Vec<Event> {
    let mut events = Vec::with_capacity(chains.members().len() + chains.len());
    for (chain, rank) in chains.all().iter().zip(arrival.ranks(chains)) {
        let range = chain.range();
        let (first, last) = (range.start as u32, range.end as u32 - 1);
        events.push((chain.start, Turn::Take, rank, Event::Take(first)));
        for later in first + 1..=last {
            events.push((chains.members()[later as usize].start, Turn::Overwrite, rank, Event::Overwrite(later)));
        }
        events.push((chain.end, Turn::Free, rank, Event::Free(last)));
    }
    events.sort_unstable();
    events.into_iter().map(|(.., event)| event).collect()
}

/// The best plan of those that `place`, given the chains and the events, makes of every order of arrival.
pub(super) fn best(
    chains: &Chains,
    watch: &mut dyn Watch,
    place: impl Fn(&Chains, &[Event]) -> Vec<u64>,
) -> Option<Plan> {
    let solid = chains.solid();
    let mut best: Option<Plan> = None;
    for arrival in Arrival::ALL {
        if watch.stop() {
            break;
        }
        let offsets = first_fit::refit(chains, place(&solid, &events(&solid, arrival)));
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
    use super::Event::{Free, Overwrite, Take};
    use super::{Arrival, events};
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
        let named = events(&chains, Arrival { longest: false, largest: false }).into_iter().map(|event| match event {
            Free(member) => Free(buffer_of(member)),
            Take(member) => Take(buffer_of(member)),
            Overwrite(member) => Overwrite(buffer_of(member)),
        });
        assert!(named.eq([Take(3), Take(0), Free(3), Take(2), Overwrite(1), Free(2), Free(1)]));
    }
}
