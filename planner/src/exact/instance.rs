//! A problem as the search takes it: buffers as rectangles over sections, in units.
//!
//! ```text
//! steps     0  1  2  3  4  5  6        A section is a largest set of buffers that live at once. Here they are
//! a         ├────────┤                 {a, b}, {b, c} and {c, d}: what lives at step 3 (b, c) is all of the second,
//! b            ├────────┤              and what lives at step 0 (a) is a part of the first.
//! c                  ├────────┤
//! d                        ├──┤        No two buffers overlap in time without a section that has both.
//! ```
//!
//! The unit is the largest number of bytes of which every offset that can matter is a multiple. In most programs every alignment
//! divides it, and the search need not know of any.

use super::bits::Table;
use super::span::Span;
use crate::problem::align_up;
use crate::{Chain, Chains};
use alloc::vec;
use alloc::vec::Vec;

/// A chain, as a rectangle: as long as it lives, as high as its largest member.
pub(super) struct Item {
    pub(super) span: Span,
    /// In units.
    pub(super) size: u64,
    /// In units; 1 if every offset is a multiple of it.
    pub(super) alignment: u64,
    /// In units.
    pub(super) fixed: Option<u64>,
    /// The bytes from its offset to the peak that it causes.
    pub(super) bytes: u64,
    /// The next one that is equal in all of the above, in a circle; itself if there is none.
    pub(super) twin: u32,
    /// Equal in two items iff each is in the other's circle.
    pub(super) class: u32,
    /// How many steps it lives.
    pub(super) steps: u64,
}

/// A problem, prepared for any number of searches at once.
pub struct Instance {
    pub(super) chains: Chains,
    /// In the order of their first sections.
    pub(super) items: Vec<Item>,
    /// For each section, the sum of the sizes of its items in units.
    pub(super) load: Vec<u64>,
    /// For each item, those that share a section with it.
    pub(super) beside: Table,
    /// For each section, its items.
    pub(super) members: Table,
    /// For each section, the first item that begins there or later; and the number of items.
    pub(super) begin: Vec<u32>,
    /// Items whose place is settled.
    pub(super) fixed: Vec<u32>,
    /// In bytes.
    pub(super) unit: u64,
    /// Whether no offset is fixed, and every one is a multiple of every alignment.
    pub(super) plain: bool,
    /// Whether every chain is the rectangle that its item is, so that a proof about the items is one about the problem.
    pub(super) exact: bool,
}

/// How many pairs of buffers may overlap in time at most, and how many words the tables may have: some 200 MiB of memory
/// in all. What is larger is not for this search.
const LARGEST: u64 = 1 << 22;

impl Instance {
    /// The problem whose chains these are; `None` if it is too large to be searched, or if two of the offsets that are fixed clash.
    pub fn of(chains: Chains) -> Option<Self> {
        let unit = unit(chains.all());
        let (mut items, sections) = spread(chains.all(), unit);
        link_twins(&mut items);
        let begin: Vec<u32> =
            (0..=sections as u32).map(|at| items.partition_point(|item| item.span.first < at) as u32).collect();
        if pairs(&items, &begin) > LARGEST || words(&items, &begin) > LARGEST {
            return None;
        }
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

    /// The chains it was made from.
    pub fn chains(&self) -> &Chains {
        &self.chains
    }

    /// Whether "does not fit" is proven for the problem itself: chains of several buffers are searched as if each were one
    /// rectangle, which may ask for more than they need.
    pub fn proves(&self) -> bool {
        self.exact
    }

    /// The lowest peak in bytes above `capacity` that a plan may have.
    pub fn next_peak(&self, capacity: u64) -> u64 {
        let next = |item: &Item| match capacity.checked_sub(item.bytes) {
            Some(room) => (room / self.unit + 1).saturating_mul(self.unit).saturating_add(item.bytes),
            None => item.bytes,
        };
        self.items.iter().map(next).min().unwrap_or(0)
    }

    /// Whether two items are interchangeable.
    pub(super) fn twins(&self, one: usize, other: usize) -> bool {
        self.items[one].class == self.items[other].class
    }

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

/// What divides every offset that can matter.
pub(super) fn unit(chains: &[Chain]) -> u64 {
    let grain = grain(chains);
    let lengths = chains.iter().flat_map(|chain| [align_up(chain.size, grain), chain.fixed.unwrap_or(0)]);
    let common = lengths.fold(0, gcd).max(1);
    // A sum of sizes need not be a multiple of a coarser alignment, nor a multiple of that one a sum.
    chains
        .iter()
        .filter(|chain| !common.is_multiple_of(chain.alignment))
        .fold(common, |unit, chain| gcd(unit, chain.alignment))
}

/// The alignment that every offset has: sizes may be rounded up to it.
fn grain(chains: &[Chain]) -> u64 {
    let fixed = chains.iter().filter_map(|chain| chain.fixed).fold(0, |all, offset| all | offset);
    let coarsest = if fixed == 0 { u64::MAX } else { 1 << fixed.trailing_zeros() };
    chains.iter().map(|chain| chain.alignment).fold(coarsest, u64::min).max(1)
}

fn gcd(one: u64, other: u64) -> u64 {
    if other == 0 { one } else { gcd(other, one % other) }
}

/// The chains as items over sections, in the chains' own order, and how many sections there are.
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
        // A power of two already, in a problem that has been checked.
        alignment: (chain.alignment / unit).max(1).checked_next_power_of_two().unwrap_or(1),
        fixed: chain.fixed.map(|offset| offset / unit),
        bytes: align_up(chain.size, chain.alignment),
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
            // The set is largest just before the first end after a beginning.
            section += u32::from(grown);
            grown = false;
            span.last = section.saturating_sub(1);
        }
    }
    // A life that ends before it begins is none; in a problem that has been checked there are none of those.
    items.iter_mut().for_each(|item| item.span.last = item.span.last.max(item.span.first));
    let sections = items.iter().map(|item| item.span.last as usize + 1).max().unwrap_or(0);
    (items, sections)
}

/// Links those that are equal. Equal chains stand side by side; others may lie over the same sections too.
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

/// How many pairs share a section.
fn pairs(items: &[Item], begin: &[u32]) -> u64 {
    let later = |(number, item): (usize, &Item)| u64::from(begin[item.span.last as usize + 1]) - number as u64 - 1;
    items.iter().enumerate().map(later).sum()
}

/// For each section, the first item of those that begin no later and reach it.
fn reach(items: &[Item], sections: usize) -> Vec<u32> {
    let mut first = vec![u32::MAX; sections];
    let mut covered = 0;
    for (number, item) in items.iter().enumerate() {
        // Earlier items have settled everything before `covered`.
        covered = covered.max(item.span.first as usize);
        while covered <= item.span.last as usize {
            first[covered] = number as u32;
            covered += 1;
        }
    }
    first
}

/// How many words the tables would have.
fn words(items: &[Item], begin: &[u32]) -> u64 {
    let sections = begin.len() - 1;
    let first = reach(items, sections);
    let row = |first: u32, last: u32| u64::from(last / 64 - first / 64 + 1);
    let beside = items.iter().map(|item| row(first[item.span.first as usize], begin[item.span.last as usize + 1] - 1));
    beside.sum::<u64>() + (0..sections).map(|section| row(first[section], begin[section + 1] - 1)).sum::<u64>()
}

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
