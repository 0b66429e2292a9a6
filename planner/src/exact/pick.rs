//! Which buffer is decided upon next.

use super::bits::members;
use super::instance::Instance;
use super::order::{Order, Pick};
use super::span::Span;
use super::state::{NONE, State};

impl State {
    /// The part inside `span` that has the least to spare and shares no unplaced item with the others; `None` if `span` has no
    /// unplaced items.
    ///
    /// What is decided in one part changes nothing in another, so they are completed one after the other.
    pub(super) fn part(&self, span: Span) -> Option<Span> {
        let mut tightest: Option<(u64, Span)> = None;
        let mut section = span.first;
        while section <= span.last {
            let first = section;
            let mut rest = self.rest[section as usize];
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

    /// The item of a part to decide upon; `None` if all of them are placed or postponed.
    pub(super) fn pick(&mut self, on: &Instance, order: &Order, part: Span) -> Option<usize> {
        match order.pick {
            Pick::Lowest => self.lowest_of(on, order, part, |_| 0),
            Pick::LowestAndFullest => self.lowest_of(on, order, part, |item| {
                let rest = self.rest[on.items[item].span.indices()].iter();
                u64::MAX - rest.copied().max().unwrap_or(0)
            }),
            Pick::Tightest => self.tightest(on, order, part).or_else(|| self.lowest_of(on, order, part, |_| 0)),
        }
    }

    fn lowest_of(&self, on: &Instance, order: &Order, part: Span, key: impl Fn(usize) -> u64) -> Option<usize> {
        let (first, behind) = (on.begin[part.first as usize] as usize, on.begin[part.last as usize + 1] as usize);
        let mut best = (u64::MAX, u64::MAX, NONE, NONE);
        for index in first / 64..behind.div_ceil(64) {
            for item in members(index, self.unplaced.word(index) & !self.postponed.word(index)) {
                let low = self.slots[item].low;
                // The words at both ends hold items of other parts as well.
                if low > best.0 || item < first || item >= behind {
                    continue;
                }
                best = best.min((low, key(item), order.rank[item], item as u32));
            }
        }
        (best.3 != NONE).then_some(best.3 as usize)
    }

    /// The lowest item of the section that has the least to spare above its lowest, if nothing fits below that one.
    fn tightest(&mut self, on: &Instance, order: &Order, part: Span) -> Option<usize> {
        // How far the rest of a section reaches at least, and its lowest item that may be decided upon.
        let (mut most, mut best) = (0, None);
        // The one of last time comes first: it rules out most others unseen.
        let hint = self.tightest.clamp(part.first as usize, part.last as usize);
        for section in core::iter::once(hint).chain(part.indices()) {
            // `bottom` is low enough, but need not be the lowest: no section reaches farther than with that one.
            let (rest, bottom) = (self.rest[section], self.bottom[section] as usize);
            if rest == 0 || rest + self.slots[bottom].bound <= most {
                continue;
            }
            let (mut floor, mut lowest) = ((self.slots[bottom].bound, bottom), (u64::MAX, NONE, NONE));
            for (index, word) in on.members.row(section) {
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
            if rest + floor.0 > most && lowest.2 != NONE && self.is_due(on, lowest.2 as usize) {
                (most, best) = (rest + floor.0, Some(lowest.2 as usize));
                self.tightest = section;
            }
        }
        best
    }

    /// Whether an item lies below everything else of its part in some plan, if there is one: it has all sections of the
    /// part, and everything could lie as low as it.
    pub(super) fn is_ground(&self, on: &Instance, part: Span, item: usize) -> bool {
        let range = on.begin[part.first as usize] as usize..on.begin[part.last as usize + 1] as usize;
        let level = |other: usize| !self.unplaced.holds(other) || self.slots[other].low == self.slots[item].low;
        on.plain && on.items[item].span == part && range.into_iter().all(level)
    }
}
