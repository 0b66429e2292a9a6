//! A problem in the form that the search needs: buffers are rectangles over sections, with offsets
//! in units.
//!
//! ```text
//! steps     0  1  2  3  4  5  6        A section is a maximal set of buffers with a common step:
//! a         ├────────┤                 here {a, b}, {b, c} and {c, d}. The live set of step 3,
//! b            ├────────┤              {b, c}, is the whole second section; the live set of
//! c                  ├────────┤        step 0, {a}, is a part of the first.
//! d                        ├──┤        Buffers overlap in time iff they share a section.
//! ```
//!
//! The unit is the largest number of bytes that divides every relevant offset. In most programs
//! every alignment divides the unit, so the search can ignore alignments.

use super::bits::Table;
use super::span::Span;
use crate::problem::align_up;
use crate::{Chain, Chains};
use alloc::vec;
use alloc::vec::Vec;

/// A chain as a rectangle, which is as long as the life of the chain and as high as its largest
/// member.
pub(super) struct Item {
    pub(super) span: Span,
    /// The size in units, rounded up to the grain.
    pub(super) size: u64,
    /// The alignment in units; 1 if every offset is a multiple of the alignment anyway.
    pub(super) alignment: u64,
    /// The fixed offset in units, if the problem fixes the chain.
    pub(super) fixed: Option<u64>,
    /// The bytes from the offset of the item to its end: at most `size` units. The rest of them
    /// remains unused.
    pub(super) bytes: u64,
    /// The next twin in a circle: an item with the same values in all fields above. If there is no
    /// twin, the item itself.
    pub(super) twin: u32,
    /// The number of the circle. Two items are twins iff they have the same class.
    pub(super) class: u32,
    /// The number of steps in the life of the chain.
    pub(super) steps: u64,
}

/// A problem that is prepared for the search. Several searches may share an instance.
pub struct Instance {
    pub(super) chains: Chains,
    /// The items in the order of their first sections.
    pub(super) items: Vec<Item>,
    /// For each section, the sum of the sizes of its items in units.
    pub(super) load: Vec<u64>,
    /// For each item, its neighbours: the items that share a section with it.
    pub(super) beside: Table,
    /// For each section, the items in it.
    pub(super) members: Table,
    /// For each section, the first item that starts in it or later; at the end, the number of
    /// items.
    pub(super) begin: Vec<u32>,
    /// The items with a fixed offset.
    pub(super) fixed: Vec<u32>,
    /// The length of a unit in bytes.
    pub(super) unit: u64,
    /// Whether no offset is fixed and every alignment is 1 in units.
    pub(super) plain: bool,
    /// Whether every chain has exactly one member, so that a proof about the items is a proof about
    /// the problem.
    pub(super) exact: bool,
}

/// The upper bound of the number of pairs of neighbours, and of the number of words in the tables.
/// Together they keep an instance below some 200 MiB. [`Instance::of`] refuses larger problems.
const LARGEST: u64 = 1 << 22;

impl Instance {
    /// Prepares a problem. Returns `None` if the problem is too large for the search, or if fixed
    /// offsets clash.
    pub fn of(chains: Chains) -> Option<Self> {
        let unit = unit(chains.all());
        let (mut items, sections) = spread(chains.all(), unit);
        let begin: Vec<u32> =
            (0..=sections as u32).map(|at| items.partition_point(|item| item.span.first < at) as u32).collect();
        if pairs(&items, &begin) > LARGEST || words(&items, &begin) > LARGEST {
            return None;
        }
        link_twins(&mut items);
        let mut load = vec![0_u64; sections];
        for item in &items {
            for section in item.span.indices() {
                load[section] = load[section].checked_add(item.size)?;
            }
        }
        let (beside, members) = tables(&items, &begin);
        let fixed = (0..items.len() as u32).filter(|&item| items[item as usize].fixed.is_some()).collect();
        let plain = items.iter().all(|item| item.alignment == 1 && item.fixed.is_none());
        let exact = chains.members().len() == chains.len();
        let instance = Self { chains, items, load, beside, members, begin, fixed, unit, plain, exact };
        (!instance.fixed_clash()).then_some(instance)
    }

    /// Returns the chains of the problem.
    pub fn chains(&self) -> &Chains {
        &self.chains
    }

    /// Returns whether a proof of "does not fit" is true for the problem itself. The search treats
    /// a chain of several buffers as one rectangle, which may need more bytes than the buffers.
    pub fn proves(&self) -> bool {
        self.exact
    }

    /// Returns the lowest peak above `capacity`, in bytes, that a plan can have.
    pub fn next_peak(&self, capacity: u64) -> u64 {
        let next = |item: &Item| match capacity.checked_sub(item.bytes) {
            Some(room) => (room / self.unit + 1).saturating_mul(self.unit).saturating_add(item.bytes),
            None => item.bytes,
        };
        self.items.iter().map(next).min().unwrap_or(0)
    }

    /// Returns whether two items are interchangeable.
    pub(super) fn twins(&self, one: usize, other: usize) -> bool {
        self.items[one].class == self.items[other].class
    }

    /// Returns whether two fixed items share bytes and a section.
    fn fixed_clash(&self) -> bool {
        let place = |item: &Item| item.fixed.map(|offset| (offset, offset.saturating_add(item.size)));
        let all = || self.fixed.iter().map(|&item| &self.items[item as usize]);
        all().enumerate().any(|(index, one)| {
            all().take(index).any(|other| match (place(one), place(other)) {
                (Some(one_at), Some(other_at)) => {
                    one.span.meets(other.span) && one_at.0 < other_at.1 && other_at.0 < one_at.1
                }
                _ => false,
            })
        })
    }
}

/// Computes the unit: the largest number of bytes that divides every relevant offset.
pub(super) fn unit(chains: &[Chain]) -> u64 {
    let grain = grain(chains);
    let lengths = chains.iter().flat_map(|chain| [align_up(chain.size, grain), chain.fixed.unwrap_or(0)]);
    let common = lengths.fold(0, gcd).max(1);
    // An alignment that does not divide the sizes limits the unit, too, because offsets are sums of
    // sizes, rounded up to alignments.
    chains
        .iter()
        .filter(|chain| !common.is_multiple_of(chain.alignment))
        .fold(common, |unit, chain| gcd(unit, chain.alignment))
}

/// Computes the grain: the alignment that all offsets have in common. Sizes may be rounded up to
/// it.
fn grain(chains: &[Chain]) -> u64 {
    let fixed = chains.iter().filter_map(|chain| chain.fixed).fold(0, |all, offset| all | offset);
    let coarsest = if fixed == 0 { u64::MAX } else { 1 << fixed.trailing_zeros() };
    chains.iter().map(|chain| chain.alignment).fold(coarsest, u64::min).max(1)
}

fn gcd(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { gcd(other, one % other) }
}

/// Converts chains to items over sections, in the order of the chains. Returns the items and the
/// number of sections.
pub(super) fn spread(chains: &[Chain], unit: u64) -> (Vec<Item>, usize) {
    let mut events: Vec<(u64, bool, u32)> = Vec::with_capacity(2 * chains.len());
    for (number, chain) in chains.iter().enumerate() {
        events.push((chain.start, true, number as u32));
        events.push((chain.end, false, number as u32));
    }
    events.sort_unstable();
    let forever = events.iter().map(|event| event.0).filter(|&step| step != u64::MAX).max().unwrap_or(0) + 1;
    let grain = grain(chains);
    let item = |chain: &Chain| Item {
        span: Span { first: 0, last: 0 },
        size: align_up(chain.size, grain) / unit,
        // This is a power of two already, if the problem passes `Problem::check`.
        alignment: (chain.alignment / unit).max(1).checked_next_power_of_two().unwrap_or(1),
        fixed: chain.fixed.map(|offset| offset / unit),
        bytes: chain.size,
        twin: 0,
        class: 0,
        steps: chain.end.min(forever).saturating_sub(chain.start),
    };
    let mut items: Vec<Item> = chains.iter().map(item).collect();
    let (mut section, mut grown) = (0, false);
    for (_, begins, number) in events {
        let span = &mut items[number as usize].span;
        if begins {
            span.first = section;
            grown = true;
        } else {
            // A live set is maximal just before the first end after a start.
            section += u32::from(grown);
            grown = false;
            span.last = section.saturating_sub(1);
        }
    }
    // An empty life gets one section. A problem that passes `Problem::check` has no empty life.
    items.iter_mut().for_each(|item| item.span.last = item.span.last.max(item.span.first));
    let sections = items.iter().map(|item| item.span.last as usize + 1).max().unwrap_or(0);
    (items, sections)
}

/// Links items with the same values to circles. Different chains may become such items, too.
fn link_twins(items: &mut [Item]) {
    let key = |item: &Item| (item.span.first, item.span.last, item.size, item.alignment, item.bytes);
    let mut order: Vec<u32> = (0..items.len() as u32).filter(|&item| items[item as usize].fixed.is_none()).collect();
    order.sort_by_key(|&item| (key(&items[item as usize]), item));
    for (index, item) in items.iter_mut().enumerate() {
        (item.twin, item.class) = (index as u32, index as u32);
    }
    let mut rest = &order[..];
    while let Some(&first) = rest.first() {
        let same = rest.iter().take_while(|&&item| key(&items[item as usize]) == key(&items[first as usize])).count();
        for place in 0..same {
            let item = &mut items[rest[place] as usize];
            (item.twin, item.class) = (rest[(place + 1) % same], first);
        }
        rest = &rest[same..];
    }
}

/// Counts the pairs of items with a common section.
fn pairs(items: &[Item], begin: &[u32]) -> u64 {
    let later = |(number, item): (usize, &Item)| u64::from(begin[item.span.last as usize + 1]) - number as u64 - 1;
    items.iter().enumerate().map(later).sum()
}

/// For each section, finds the first item that starts no later and reaches the section.
fn reach(items: &[Item], sections: usize) -> Vec<u32> {
    let mut first = vec![u32::MAX; sections];
    let mut covered = 0;
    for (number, item) in items.iter().enumerate() {
        // Earlier items have claimed every section before `covered`.
        covered = covered.max(item.span.first as usize);
        while covered <= item.span.last as usize {
            first[covered] = number as u32;
            covered += 1;
        }
    }
    first
}

/// Counts the words of the tables `beside` and `members` without building them.
fn words(items: &[Item], begin: &[u32]) -> u64 {
    let sections = begin.len() - 1;
    let first = reach(items, sections);
    let row = |first: u32, last: u32| u64::from(last / 64 - first / 64 + 1);
    let beside = items.iter().map(|item| row(first[item.span.first as usize], begin[item.span.last as usize + 1] - 1));
    beside.sum::<u64>() + (0..sections).map(|section| row(first[section], begin[section + 1] - 1)).sum::<u64>()
}

/// Builds the tables `beside` and `members`.
fn tables(items: &[Item], begin: &[u32]) -> (Table, Table) {
    let sections = begin.len() - 1;
    let first = reach(items, sections);
    let (mut beside, mut members) = (Table::new(), Table::new());
    for (number, item) in items.iter().enumerate() {
        let (low, high) = (first[item.span.first as usize], begin[item.span.last as usize + 1] - 1);
        beside.push(low as usize, high as usize, |other| other != number && items[other].span.meets(item.span));
    }
    for section in 0..sections {
        let here = Span { first: section as u32, last: section as u32 };
        let (low, high) = (first[section], begin[section + 1] - 1);
        members.push(low as usize, high as usize, |item| items[item].span.meets(here));
    }
    (beside, members)
}
