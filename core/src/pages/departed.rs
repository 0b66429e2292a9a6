//! The pages that have departed: they were given up, but earlier work still uses them. They are
//! sorted by the work that has to come first.
//!
//! ```text
//!           by departure  │ complete        page ─▶ page
//!                         │ of stream 2     page ─▶ page ─▶ page        in each: by length, and then by rank
//!                         │ of stream 3     page
//!           all                             page ─▶ page ─▶ …
//! ```
//!
//! A departed page is still mapped at its old place, and a commit there takes it back without a
//! call to the device. The next user of a place starts at its begin, so the pages far from the
//! start of the part that was given up are missed least. A request takes a usable page of the
//! greatest length that fits, which saves calls to the device: of these the deepest one, and of one
//! depth the one that departed first. Depth is counted in units of 16 MiB, so that the pages of one
//! departure mostly come together: a stream is ordered after each departure anew.

use super::{Page, PagePool, Place};
use crate::sync::impl_empty;
use crate::tables::Storage;
use crate::tables::radix_tree::{Key, Link, RadixTree};
use crate::tables::slot_table::{NONE, SlotTable};
use crate::units::StreamId;

/// The group of the pages with complete departures. The pages of a queue of departures are in the
/// group with the number of the queue plus 1.
const COMPLETE: u32 = 0;

/// Which departed pages a request can use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Behind {
    /// Pages with a complete departure.
    Complete,
    /// Pages with a complete departure, and pages with a departure on the stream.
    Stream(StreamId),
    /// All departed pages.
    Any,
}

/// The sets of the departed pages that are not stuck.
#[derive(Clone)]
pub(super) struct Departed<S: Storage> {
    /// The root of the set by group, length and rank.
    by_group: Link,
    /// The root of the set by length and rank.
    by_length: Link,
    /// The nodes of both sets.
    nodes: RadixTree<S>,
    /// How many times a page has departed so far.
    count: u64,
}

impl_empty! { [S: Storage] Departed<S> { by_group, by_length, nodes, count } }

/// Returns the first word of the keys of pages with `bytes` in a group.
fn word_of(group: u32, bytes: u64) -> u64 {
    // A page is a multiple of 4 KiB, and shorter than 16 TiB.
    u64::from(group) << 32 | (bytes >> 12).min(u64::from(u32::MAX))
}

/// The bits of a rank that count departures.
const COUNT_BITS: u32 = 40;

/// The unit of depth in bytes, as a power of two.
const DEPTH_SHIFT: u32 = 24;

/// The greatest depth. All pages that are deeper have it.
const DEEPEST: u64 = (1 << (u64::BITS - COUNT_BITS)) - 1;

/// Returns a function that sorts pages by group, length and rank.
fn by_group<S: Storage>(table: &SlotTable<Page, S>) -> impl Fn(u32) -> Key {
    |page| Key { major: word_of(table[page].group, table[page].bytes), minor: table[page].rank }
}

/// Returns a function that sorts pages by length and rank.
fn by_length<S: Storage>(table: &SlotTable<Page, S>) -> impl Fn(u32) -> Key {
    |page| Key { major: word_of(0, table[page].bytes), minor: table[page].rank }
}

impl<S: Storage> PagePool<S> {
    /// Marks a moving page as departed. It may be used after `departure`, and is still mapped at
    /// `at`, `depth` bytes after the start of the part that was given up.
    pub(crate) fn depart(&mut self, page: u32, departure: u32, at: u64, depth: u64) {
        (self.table[page].behind, self.table[page].left_at) = (departure, at);
        let shallowness = DEEPEST - (depth >> DEPTH_SHIFT).min(DEEPEST);
        self.table[page].rank = shallowness << COUNT_BITS | self.departed.count;
        self.departed.count += 1;
        self.depart_again(page);
    }

    /// Marks a moving page that was taken as departed, as it was before.
    pub(crate) fn depart_again(&mut self, page: u32) {
        debug_assert!(self.table[page].place == Place::Moving, "a page in hand departs");
        self.put(page, Place::Departed);
        self.list_departed(page);
    }

    /// Adds a departed page to the sets, unless it is stuck. If the sets have no room, the page can
    /// be used again once the departure is complete and the old mapping is removed.
    fn list_departed(&mut self, page: u32) {
        let behind = self.departures[self.table[page].behind];
        if self.table[page].stuck || !self.departed.nodes.make_room(2) {
            return;
        }
        self.table[page].group = if behind.complete { COMPLETE } else { behind.queue() + 1 };
        let Departed { by_group: groups, by_length: lengths, nodes, .. } = &mut self.departed;
        *groups = nodes.insert(*groups, page, by_group(&self.table));
        *lengths = nodes.insert(*lengths, page, by_length(&self.table));
    }

    /// Removes a departed page from the sets.
    pub(super) fn unlist_departed(&mut self, page: u32) {
        if self.table[page].group == NONE {
            return;
        }
        let Departed { by_group: groups, by_length: lengths, nodes, .. } = &mut self.departed;
        *groups = nodes.remove(*groups, page, by_group(&self.table));
        *lengths = nodes.remove(*lengths, page, by_length(&self.table));
        self.table[page].group = NONE;
    }

    /// Moves `page` into the group of complete departures, if `departure` is complete and the page
    /// is still departed with it. Returns whether it is.
    pub(crate) fn follow_departure(&mut self, page: u32, departure: u32) -> bool {
        let is_departed = self.is_departed(page, departure);
        if is_departed && self.table[page].group != COMPLETE {
            self.unlist_departed(page);
            self.list_departed(page);
        }
        is_departed
    }

    /// Returns whether a page is departed with `departure`.
    fn is_departed(&self, page: u32, departure: u32) -> bool {
        let Page { place, behind, .. } = self.table[page];
        (place, behind) == (Place::Departed, departure)
    }

    /// Returns the old place in a range of a moving page that was departed.
    pub(crate) fn left_place(&self, page: u32) -> Option<u64> {
        let Page { behind, left_at, .. } = self.table[page];
        (behind != NONE).then_some(left_at)
    }

    /// Takes the longest page with at most `bytes` among those of `behind`, and of the longest the
    /// one with the lowest rank. The page is then moving.
    pub(crate) fn take_departed(&mut self, bytes: u64, behind: Behind) -> Option<u32> {
        let Departed { by_group: groups, by_length: lengths, .. } = self.departed;
        let of_group = |group: u32| self.first_departed(groups, word_of(group, 0), bytes, by_group(&self.table));
        let of_stream = |stream: StreamId| self.departures.queue_of(stream).and_then(|queue| of_group(queue + 1));
        let page = match behind {
            Behind::Complete => of_group(COMPLETE),
            Behind::Stream(stream) => {
                let either = of_group(COMPLETE).into_iter().chain(of_stream(stream));
                either.min_by_key(|&page| (core::cmp::Reverse(self.table[page].bytes), self.table[page].rank))
            }
            Behind::Any => self.first_departed(lengths, 0, bytes, by_length(&self.table)),
        }?;
        self.take_out(page);
        Some(page)
    }

    /// Takes a departed page of at most `bytes` without unfinished work, if it has any depth. It is
    /// then moving.
    pub(crate) fn take_deep(&mut self, bytes: u64) -> Option<u32> {
        let complete = word_of(COMPLETE, 0);
        let page = self.first_departed(self.departed.by_group, complete, bytes, by_group(&self.table))?;
        if self.table[page].rank >> COUNT_BITS == DEEPEST {
            return None;
        }
        self.take_out(page);
        Some(page)
    }

    /// Returns the first page to take among those in a set that have at most `bytes` and are in the
    /// group given by `word`.
    fn first_departed(&self, root: Link, word: u64, bytes: u64, key: impl Fn(u32) -> Key) -> Option<u32> {
        let last = word | word_of(0, bytes);
        let next = |major: u64| {
            let found = self.departed.nodes.at_least(root, Key { major, minor: 0 }, &key)?;
            (key(found).major <= last).then_some(found)
        };
        let lengths = core::iter::successors(next(word), |&page| next(key(page).major + 1));
        lengths.last()
    }

    /// Takes `wanted` if it is still departed with this `departure`. Returns whether it was taken.
    /// A page that was taken is then moving.
    pub(crate) fn take_back(&mut self, wanted: u32, departure: u32) -> bool {
        let is_departed = self.is_departed(wanted, departure);
        if is_departed {
            self.take_out(wanted);
        }
        is_departed
    }

    /// Takes a departed page. It is then moving.
    fn take_out(&mut self, page: u32) {
        self.unlist_departed(page);
        self.put(page, Place::Moving);
    }
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests {
    use super::*;
    use crate::device::{Event, PhysicalHandle};
    use crate::pages::departures::Departing;
    use crate::streams::fences::Fence;
    use crate::tables::Growable;
    use proptest::prelude::*;
    use std::vec::Vec;

    const STREAMS: [StreamId; 3] = [StreamId(5), StreamId(6), StreamId(7)];

    proptest! {
        /// Compares with a list of (page, bytes, departure, stream, depth), in the order in which
        /// the pages departed.
        #[test]
        fn the_longest_then_deepest_page_that_departed_first_is_taken(
            steps in prop::collection::vec((0_u8..4, 1_u64..4, 0_usize..3, 0_u64..4), 1..120),
        ) {
            let mut pages = PagePool::<Growable>::default();
            let mut list: Vec<(u32, u64, u32, StreamId, u64)> = Vec::new();
            let mut handles = 0;
            for (what, length, of, depth) in steps {
                let (bytes, stream) = (length << 21, STREAMS[of]);
                match what {
                    0 | 1 => {
                        handles += 1;
                        pages.make_room().unwrap();
                        let page = pages.add(Page::created(PhysicalHandle(handles), bytes, false));
                        let departure = pages.departures.add(Some(Fence { stream, number: handles, event: Event(handles) }), Departing::Pages).unwrap();
                        pages.depart(page, departure, 0, depth << DEPTH_SHIFT);
                        list.push((page, bytes, departure, stream, depth));
                    }
                    2 => {
                        // The oldest departure of a stream completes.
                        let oldest = list.iter().find(|(_, _, departure, on, _)| *on == stream && !pages.departures[*departure].complete);
                        if let Some(&(page, _, departure, ..)) = oldest {
                            pages.departures.complete(departure);
                            pages.follow_departure(page, departure);
                        }
                    }
                    _ => {
                        let scopes = [Behind::Complete, Behind::Stream(stream), Behind::Any];
                        for behind in scopes {
                            let may = |&(_, length, departure, on, _): &(u32, u64, u32, StreamId, u64)| {
                                let complete = pages.departures[departure].complete;
                                length <= bytes && match behind {
                                    Behind::Complete => complete,
                                    Behind::Stream(stream) => complete || on == stream,
                                    Behind::Any => true,
                                }
                            };
                            let best = list.iter().filter(|&of| may(of)).map(|of| (of.1, of.4)).max();
                            let first = list.iter().position(|of| may(of) && Some((of.1, of.4)) == best);
                            let expected = first.map(|at| list.remove(at).0);
                            let taken = pages.take_departed(bytes, behind);
                            prop_assert_eq!(taken, expected);
                            if let Some(page) = taken {
                                pages.make_spare(page);
                            }
                        }
                    }
                }
                pages.check().unwrap();
            }
        }
    }

    #[test]
    fn a_stuck_page_is_not_taken() {
        let mut pages = PagePool::<Growable>::default();
        let departure = pages
            .departures
            .add(Some(Fence { stream: STREAMS[0], number: 1, event: Event(1) }), Departing::Pages)
            .unwrap();
        pages.make_room().unwrap();
        let page = pages.add(Page::created(PhysicalHandle(1), 2 << 20, false));
        pages.add_alias(page);
        pages.depart(page, departure, 0, 0);
        pages.remove_alias(page, true);
        assert_eq!(pages.take_departed(u64::MAX, Behind::Any), None);
        assert!(pages.take_back(page, departure));
    }
}
