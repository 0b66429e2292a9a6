//! The moments that a page shows, and what lives at them.
//!
//! A page has a bounded number of moments and of blocks. Of a long history each moment stands for
//! `2^k` events: the state among them with the most memory in use, so that no peak is lost. A block
//! that is at no moment is left out. The exponent `k` is the smallest with which the page is within
//! the bounds: 0 for short histories with few enough blocks.

use super::begin::Begin;
use super::forward::{self, Block, Facts, ForwardMemory, FreeParts, Part, Share, Sums, Watch};
use super::history::{Event, Kind, Origin, Pages};
use cachalot_replay::memory::Action;

/// Approximate bounds of a page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Most moments, a power of two.
    pub(super) moments: u32,
    /// Most blocks.
    pub(super) blocks: u64,
}

/// Most failed requests with their own moments.
pub(super) const MOST_FAILURES: usize = 500;

/// A block or part that exists at some moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Life {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) stack: u32,
    pub(super) stream: u16,
    pub(super) pool: u16,
    pub(super) kind: Kind,
    /// The first moment.
    pub(super) birth: u32,
    /// The first moment after the end. The number of moments for no end.
    pub(super) death: u32,
    /// For a block the first moment at which it is pending, or `death`.
    pub(super) freed: u32,
    pub(super) expandable: bool,
}

/// A moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Moment {
    /// Number of events before.
    pub(super) state: u32,
    pub(super) sums: Sums,
    /// The most reserved memory since the previous moment.
    pub(super) most_reserved: u64,
}

/// Everything that a page shows of a history.
#[derive(Debug, Default)]
pub(super) struct Shown {
    pub(super) moments: Vec<Moment>,
    pub(super) blocks: Vec<Life>,
    pub(super) parts: Vec<Life>,
    /// The moment with the most reserved memory, and with the most memory in use.
    pub(super) peaks: [u32; 2],
    /// The parts with holes, and the idle memory, when the most was in use.
    pub(super) free_parts: FreeParts,
    /// Events for each moment.
    pub(super) step: u32,
}

/// Chooses the moments of a history, and finds all blocks at them.
pub(super) fn shown(events: &[Event], begin: &Begin, pages: Pages, limits: Limits) -> Shown {
    let mut survey = Survey::new(events.len() as u32, limits.moments);
    forward::run(events, begin, pages, &mut survey);
    let (states, step) = survey.choose(events, limits.blocks);
    let mut sampler = Sampler::new(&states, survey.reserved_peak(events));
    forward::run(events, begin, pages, &mut sampler);
    let mut shown = sampler.shown;
    let end = shown.moments.len() as u32;
    for life in shown.blocks.iter_mut().chain(&mut shown.parts) {
        life.death = life.death.min(end);
        life.freed = life.freed.min(life.death);
    }
    shown.blocks.sort_unstable_by_key(|life| (life.birth, life.address));
    shown.parts.sort_unstable_by_key(|life| (life.birth, life.address));
    shown.step = step;
    shown
}

/// The first pass: the highest states, and how many blocks each number of moments would show.
struct Survey {
    /// The finest exponent.
    exponent: u32,
    /// The most memory in use in each group of `2^exponent` states, and the first such state.
    highest: Vec<(u64, u32)>,
    /// Number of blocks by the highest bit in which first and last state differ.
    crossing: [u64; 33],
    /// The most reserved memory, and the first such state.
    most_reserved: (u64, u32),
    events: u32,
}

impl Survey {
    fn new(events: u32, moments: u32) -> Self {
        let exponent = (0..32).find(|exponent| events >> exponent < moments).unwrap_or(31);
        let groups = (events >> exponent) as usize + 1;
        Self { exponent, highest: vec![(0, u32::MAX); groups], crossing: [0; 33], most_reserved: (0, 0), events }
    }

    /// Returns the states to show in order, and the number of events for each.
    fn choose(&self, events: &[Event], most: u64) -> (Vec<u32>, u32) {
        let blocks = |exponent: u32| self.crossing[exponent as usize..].iter().sum::<u64>();
        let exponent = (self.exponent..31).find(|&exponent| blocks(exponent) <= most).unwrap_or(31);
        let groups = self.highest.chunks(1 << (exponent - self.exponent).min(20));
        // `max_by_key` returns the last of equal states, so the states are reversed.
        let highest = groups.filter_map(|group| {
            group.iter().rev().filter(|(_, state)| *state != u32::MAX).max_by_key(|(bytes, _)| *bytes)
        });
        let failures = events.iter().zip(1..).filter(|(event, _)| event.action == Action::OutOfMemory);
        let failures = failures.map(|(_, state)| state).take(MOST_FAILURES);
        let mut states: Vec<u32> = highest.map(|&(_, state)| state).chain(failures).collect();
        states.extend([0, self.reserved_peak(events), self.events]);
        states.sort_unstable();
        states.dedup();
        (states, 1 << exponent)
    }

    /// Returns the state with the most reserved memory, with the block for which memory was
    /// obtained.
    fn reserved_peak(&self, events: &[Event]) -> u32 {
        let mut state = self.most_reserved.1;
        let is = |state: u32, wanted: fn(Action) -> bool| {
            events.get(state as usize).is_some_and(|event| wanted(event.action))
        };
        while state > 0 && is(state, Action::obtains) {
            state += 1;
        }
        if state > 0 && is(state, |action| action == Action::Alloc) { state + 1 } else { state }
    }
}

impl Watch for Survey {
    fn time(&self, state: u32) -> u32 {
        state
    }

    fn block(&mut self, _: u64, block: &Block, state: u32) {
        let (born, group) = (block.of.born, |state: u32| state.wrapping_sub(1));
        let differ = group(born) ^ group(state.min(self.events + 1));
        self.crossing[if born == 0 { 32 } else { 31_u32.saturating_sub(differ.leading_zeros()) as usize }] += 1;
    }

    fn part(&mut self, _: u64, _: &Part, _: u32) {}

    fn state(&mut self, state: u32, memory: &ForwardMemory<'_>) {
        let Sums { reserved, active, .. } = memory.sums();
        if reserved > self.most_reserved.0 {
            self.most_reserved = (reserved, state);
        }
        // State 0 is always shown.
        let Some(group) = state.checked_sub(1) else { return };
        let highest = &mut self.highest[(group >> self.exponent) as usize];
        if highest.1 == u32::MAX || active > highest.0 {
            *highest = (active, state);
        }
    }
}

/// The second pass: the moments, and all that exists at them.
struct Sampler<'s> {
    states: &'s [u32],
    reserved_peak: u32,
    most_reserved: u64,
    most_active: u64,
    shown: Shown,
}

impl<'s> Sampler<'s> {
    fn new(states: &'s [u32], reserved_peak: u32) -> Self {
        Self { states, reserved_peak, most_reserved: 0, most_active: 0, shown: Shown::default() }
    }

    /// Returns the next moment.
    fn next(&self) -> u32 {
        self.shown.moments.len() as u32
    }

    fn death(&self, state: u32) -> u32 {
        if state == u32::MAX { u32::MAX } else { self.next() }
    }
}

impl Watch for Sampler<'_> {
    fn time(&self, _: u32) -> u32 {
        self.next()
    }

    fn block(&mut self, address: u64, block: &Block, state: u32) {
        let &Block { size: bytes, of: Facts { stack, stream, pool, kind, born: birth, freed }, .. } = block;
        let death = self.death(state);
        if birth < death {
            let life = Life { address, bytes, stack, stream, pool, kind, birth, death, freed, expandable: false };
            self.shown.blocks.push(life);
        }
    }

    fn part(&mut self, address: u64, part: &Part, state: u32) {
        let &Part { end, of: Share { origin, born: birth, .. }, .. } = part;
        let Origin { stream, pool, expandable, kind, stack } = origin;
        let death = self.death(state);
        if birth < death {
            let bytes = end - address;
            let life = Life { address, bytes, stack, stream, pool, kind, birth, death, freed: death, expandable };
            self.shown.parts.push(life);
        }
    }

    fn state(&mut self, state: u32, memory: &ForwardMemory<'_>) {
        let sums = memory.sums();
        self.most_reserved = self.most_reserved.max(sums.reserved);
        if self.states.get(self.shown.moments.len()) != Some(&state) {
            return;
        }
        if state == self.reserved_peak {
            self.shown.peaks[0] = self.next();
        }
        if sums.active > self.most_active || self.shown.moments.is_empty() {
            self.most_active = sums.active;
            self.shown.peaks[1] = self.next();
            self.shown.free_parts = memory.free_parts();
        }
        self.shown.moments.push(Moment { state, sums, most_reserved: self.most_reserved });
        self.most_reserved = sums.reserved;
    }
}

#[cfg(test)]
mod tests {
    use super::super::begin::Begin;
    use super::super::history::{Event, Pages, Seen, UNKNOWN};
    use super::{FreeParts, Limits, Shown};
    use cachalot_replay::memory::{Action, SMALL_PAGE, free_between, rounded};
    use std::collections::BTreeMap;

    /// Chooses the moments of a program with pages of 1 MiB or 20 MiB.
    fn shown(events: &[Event], begin: &Begin, limits: Limits) -> Shown {
        super::shown(events, begin, Pages::of(""), limits)
    }

    const ALL: Limits = Limits { moments: 1 << 17, blocks: u64::MAX };

    fn event(action: Action, addr: u64, size: u64) -> Event {
        Event { addr, size, of: Seen { time: 0, stack: 0, stream: 0, pool: UNKNOWN }, action }
    }

    /// Makes a program of two expandable segments, with blocks of up to 8 KiB.
    fn program(count: usize) -> Vec<Event> {
        let mut number = 7_u64;
        let mut random = move |below: u64| {
            // Knuth's MMIX generator.
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (number >> 33) % below
        };
        let (mut events, mut held) = (Vec::new(), Vec::new());
        for part in 0..4 {
            events.push(event(Action::SegmentMap, (1 << 30) + (part << 20), 1 << 20));
        }
        while events.len() < count {
            let place = (1 << 30) + random(512) * 8192;
            let is_held = held.iter().any(|&(address, _)| address == place);
            if random(2) == 0 && !is_held {
                held.push((place, 1 + random(8192)));
                events.push(event(Action::Alloc, place, held[held.len() - 1].1));
            } else if !held.is_empty() {
                let (address, size) = held.swap_remove(random(held.len() as u64) as usize);
                events.push(event(Action::FreeRequested, address, size));
                events.push(event(Action::FreeCompleted, address, size));
            }
        }
        events
    }

    /// Returns the blocks after the first `state` events: address and size.
    fn blocks_after(events: &[Event], state: u32) -> BTreeMap<u64, u64> {
        let mut blocks = BTreeMap::new();
        for event in &events[..state as usize] {
            match event.action {
                Action::Alloc => _ = blocks.insert(event.addr, rounded(event.size)),
                Action::FreeCompleted => _ = blocks.remove(&event.addr),
                _ => {}
            }
        }
        blocks
    }

    fn check(events: &[Event], shown: &Shown) {
        for (moment, at) in (0..).zip(&shown.moments) {
            let expected = blocks_after(events, at.state);
            let lives = shown.blocks.iter().filter(|life| life.birth <= moment && moment < life.death);
            let found: BTreeMap<u64, u64> = lives.map(|life| (life.address, life.bytes)).collect();
            assert_eq!(found, expected, "moment {moment}, after {} events", at.state);
            assert_eq!(at.sums.active, expected.values().sum::<u64>());
            let parts = shown.parts.iter().filter(|life| life.birth <= moment && moment < life.death);
            let reserved: u64 = parts.map(|life| life.bytes).sum();
            assert_eq!(at.sums.reserved, reserved);
            // All parts are joined into one, with pages of 2 MiB.
            let free = free_between(1 << 30, (1 << 30) + reserved, SMALL_PAGE, expected.into_iter());
            assert_eq!(at.sums.holes, free.holes);
        }
    }

    #[test]
    fn a_short_program_has_every_moment() {
        let events = program(600);
        let shown = shown(&events, &Begin::default(), ALL);
        assert_eq!((shown.moments.len(), shown.step), (events.len() + 1, 1));
        check(&events, &shown);
    }

    #[test]
    fn a_long_program_keeps_the_highest_state_of_each_group() {
        let events = program(3000);
        let all = shown(&events, &Begin::default(), ALL);
        for (moments, blocks) in [(1 << 7, u64::MAX), (1 << 17, 300)] {
            let few = shown(&events, &Begin::default(), Limits { moments, blocks });
            assert!(few.step >= 8 && few.moments.len() < 500, "{} moments", few.moments.len());
            assert!(few.blocks.len() < 800, "{} blocks", few.blocks.len());
            check(&events, &few);
            for group in all.moments[1..].chunks(few.step as usize) {
                let most = group.iter().map(|moment| moment.sums.active).max();
                let (first, last) = (group[0].state, group[group.len() - 1].state);
                let shown = few.moments.iter().filter(|moment| (first..=last).contains(&moment.state));
                assert_eq!(shown.map(|moment| moment.sums.active).max(), most, "events {first} to {last}");
            }
            let peak = |shown: &Shown, which: usize| shown.moments[shown.peaks[which] as usize].state;
            assert_eq!([peak(&few, 0), peak(&few, 1)], [peak(&all, 0), peak(&all, 1)]);
        }
    }

    #[test]
    fn contradictory_events_are_no_reason_to_stop() {
        let mut number = 3_u64;
        let mut random = move |below: u64| {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (number >> 33) % below
        };
        let actions = [
            Action::Alloc,
            Action::FreeRequested,
            Action::FreeCompleted,
            Action::SegmentMap,
            Action::SegmentAlloc,
            Action::SegmentUnmap,
            Action::OutOfMemory,
        ];
        let events: Vec<Event> = (0..20_000)
            .map(|_| {
                let addresses = [0, 512, 1 << 20, u64::MAX - 512, u64::MAX];
                let addr = addresses[random(5) as usize].wrapping_add(random(3) * 512);
                let sizes = [0, 1, 512, 4096, 1 << 62, u64::MAX];
                event(actions[random(7) as usize], addr, sizes[random(6) as usize])
            })
            .collect();
        for limits in [ALL, Limits { moments: 1 << 5, blocks: 10 }] {
            let shown = shown(&events, &Begin::default(), limits);
            assert!(shown.blocks.iter().chain(&shown.parts).all(|life| {
                life.birth < life.death && life.freed <= life.death && life.death as usize <= shown.moments.len()
            }));
        }
    }

    #[test]
    fn the_peak_of_reserved_memory_includes_the_request_and_counts_segments_in_use() {
        let mib = 1 << 20;
        let obtain = |addr: u64| event(Action::SegmentAlloc, addr, 2 * mib);
        let events = [
            obtain(16 * mib),
            event(Action::Alloc, 16 * mib, mib),
            obtain(32 * mib),
            event(Action::Alloc, 32 * mib, 512),
            event(Action::FreeRequested, 32 * mib, 512),
            event(Action::FreeCompleted, 32 * mib, 512),
            event(Action::SegmentFree, 32 * mib, 2 * mib),
        ];
        let shown = shown(&events, &Begin::default(), ALL);
        let peak = shown.moments[shown.peaks[0] as usize];
        assert_eq!((peak.state, peak.sums.reserved, peak.sums.active), (4, 4 * mib, mib + 512));
        assert_eq!(
            (peak.sums.holes, &shown.free_parts),
            (3 * mib - 512, &FreeParts { with_holes: 2, idle: Vec::new() })
        );
        let last = shown.moments[7];
        assert_eq!((last.sums.reserved, last.sums.holes, last.most_reserved), (2 * mib, mib, 4 * mib));
        let pending = shown.blocks.iter().find(|life| life.address == 32 * mib).expect("the block");
        assert_eq!((pending.birth, pending.freed, pending.death), (4, 5, 6));
    }
}
