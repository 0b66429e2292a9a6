//! Picks the buffer for the next decision.

use super::bits::members;
use super::instance::Instance;
use super::order::{Order, Pick};
use super::span::Span;
use super::state::{NONE, State};

impl State {
    /// Finds the independent part inside `span` with the least free space. Returns `None` if `span`
    /// has no unplaced item.
    ///
    /// Parts are independent if no unplaced item spans both. A decision in one part changes nothing
    /// in another one, so the search completes one part after the other.
    pub(super) fn part(&self, span: Span) -> Option<Span> {
        let mut tightest: Option<(u64, Span)> = None;
        let mut section = span.first;
        while section <= span.last {
            let first = section;
            let mut rest = self.rest[section as usize];
            // `across` counts the unplaced items that continue into the next section. At 0, a part
            // ends.
            while section < span.last && self.across[section as usize] > 0 {
                section += 1;
                rest = rest.max(self.rest[section as usize]);
            }
            if rest > 0 && tightest.is_none_or(|(most, _)| rest > most) {
                tightest = Some((rest, Span { first, last: section }));
            }
            section += 1;
        }
        tightest.map(|(_, span)| span)
    }

    /// Picks the item of a part for the next decision, or `None` if all items are placed or
    /// postponed.
    pub(super) fn pick(&mut self, instance: &Instance, order: &Order, part: Span) -> Option<usize> {
        match order.pick {
            Pick::Lowest => self.lowest_of(instance, order, part, |_| 0),
            Pick::LowestAndFullest => self.lowest_of(instance, order, part, |item| {
                let rest = self.rest[instance.items[item].span.indices()].iter();
                u64::MAX - rest.copied().max().unwrap_or(0)
            }),
            Pick::Tightest => {
                self.tightest(instance, order, part).or_else(|| self.lowest_of(instance, order, part, |_| 0))
            }
        }
    }

    /// Finds the item with the lowest offset, then the lowest `key`, then the first in the order.
    fn lowest_of(&self, instance: &Instance, order: &Order, part: Span, key: impl Fn(usize) -> u64) -> Option<usize> {
        let (first, behind) =
            (instance.begin[part.first as usize] as usize, instance.begin[part.last as usize + 1] as usize);
        let mut best = (u64::MAX, u64::MAX, NONE, NONE);
        for index in first / 64..behind.div_ceil(64) {
            for item in members(index, self.unplaced.word(index) & !self.postponed.word(index)) {
                let low = self.slots[item].low;
                // The first and the last word also have items of other parts.
                if low > best.0 || item < first || item >= behind {
                    continue;
                }
                best = best.min((low, key(item), order.rank[item], item as u32));
            }
        }
        (best.3 != NONE).then_some(best.3 as usize)
    }

    /// Finds the lowest item of the section with the least free space above its lowest item. Skips
    /// a section if some item still fits below the candidate.
    fn tightest(&mut self, instance: &Instance, order: &Order, part: Span) -> Option<usize> {
        // The level that the tightest section so far reaches at least, and the lowest candidate in
        // that section.
        let (mut most, mut best) = (0, None);
        // The section that was found last time comes first, because it rules out most others with
        // one comparison.
        let hint = self.tightest.clamp(part.first as usize, part.last as usize);
        for section in core::iter::once(hint).chain(part.indices()) {
            // `bottom` is an upper bound of the lowest item, so the sum is an upper bound of the
            // level.
            let (rest, bottom) = (self.rest[section], self.bottom[section] as usize);
            if rest == 0 || rest + self.slots[bottom].bound <= most {
                continue;
            }
            let (mut floor, mut lowest) = ((self.slots[bottom].bound, bottom), (u64::MAX, NONE, NONE));
            for (index, word) in instance.members.row(section) {
                for item in members(index, word & self.unplaced.word(index)) {
                    let bound = self.slots[item].bound;
                    if bound < floor.0 {
                        floor = (bound, item);
                    }
                    if bound <= lowest.0 && !self.postponed.holds(item) {
                        lowest = lowest.min((bound, order.rank[item], item as u32));
                    }
                }
            }
            if floor.1 != bottom {
                self.set_bottom(section, floor.1);
            }
            if rest + floor.0 > most && lowest.2 != NONE && self.is_due(instance, lowest.2 as usize) {
                (most, best) = (rest + floor.0, Some(lowest.2 as usize));
                self.tightest = section;
            }
        }
        best
    }

    /// Returns whether `item` may be placed lowest in its part without losing every plan. This is
    /// true if `item` spans all sections of the part, every unplaced item has the same lowest
    /// offset, and none leaves less of its last unit unused. Then in any plan the items below
    /// `item` can change places with it, and end no higher than `item` did.
    pub(super) fn is_ground(&self, instance: &Instance, part: Span, item: usize) -> bool {
        let range = instance.begin[part.first as usize] as usize..instance.begin[part.last as usize + 1] as usize;
        let unused = |item: usize| instance.items[item].size * instance.unit - instance.items[item].bytes;
        let level = |other: usize| {
            let is_level = self.slots[other].low == self.slots[item].low && unused(other) >= unused(item);
            !self.unplaced.holds(other) || is_level
        };
        instance.plain && instance.items[item].span == part && range.into_iter().all(level)
    }
}
