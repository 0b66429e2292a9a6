//! The pages that have departed: they were given up, but earlier work still uses them. They are
//! sorted by the work that has to come first.
//!
//! ```text
//!           by departure  │ complete        page ─▶ page
//!                         │ of stream 2     page ─▶ page ─▶ page        in each: by length, and then in the order
//!                         │ of stream 3     page                        in which the pages departed
//!           all                             page ─▶ page ─▶ …
//! ```
//!
//! A commit takes the usable page that departed first, out of all lengths that fit. It does one
//! look-up for each length.

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
    /// The root of the set by group, length and order.
    by_group: Link,
    /// The root of the set by length and order.
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

/// Returns a function that sorts pages by group, length and order.
fn by_group<S: Storage>(table: &SlotTable<Page, S>) -> impl Fn(u32) -> Key {
    |page| Key { major: word_of(table[page].group, table[page].bytes), minor: table[page].order }
}

/// Returns a function that sorts pages by length and order.
fn by_length<S: Storage>(table: &SlotTable<Page, S>) -> impl Fn(u32) -> Key {
    |page| Key { major: word_of(0, table[page].bytes), minor: table[page].order }
}

impl<S: Storage> PagePool<S> {
    /// Marks a moving page as departed. It may be used after `departure`.
    pub(crate) fn depart(&mut self, page: u32, departure: u32) {
        debug_assert!(self.table[page].place == Place::Moving, "a page in hand departs");
        self.put(page, Place::Departed);
        self.table[page].behind = departure;
        self.table[page].order = self.departed.count;
        self.departed.count += 1;
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

    /// Moves `page` into the group of complete departures, if it has departed and the departure is
    /// complete.
    pub(crate) fn follow_departure(&mut self, page: u32) {
        if self.table[page].place == Place::Departed && self.table[page].group != COMPLETE {
            self.unlist_departed(page);
            self.list_departed(page);
        }
    }

    /// Takes the page that departed first among the pages of `behind` with at most `bytes`. The
    /// page is then moving.
    pub(crate) fn take_departed(&mut self, bytes: u64, behind: Behind) -> Option<u32> {
        let Departed { by_group: groups, by_length: lengths, .. } = self.departed;
        let of_group = |group: u32| self.first_departed(groups, word_of(group, 0), bytes, by_group(&self.table));
        let of_stream = |stream: StreamId| self.departures.queue_of(stream).and_then(|queue| of_group(queue + 1));
        let page = match behind {
            Behind::Complete => of_group(COMPLETE),
            Behind::Stream(stream) => {
                let either = of_group(COMPLETE).into_iter().chain(of_stream(stream));
                either.min_by_key(|&page| self.table[page].order)
            }
            Behind::Any => self.first_departed(lengths, 0, bytes, by_length(&self.table)),
        }?;
        self.take_out(page);
        Some(page)
    }

    /// Returns the page with the lowest order among those in a set that have at most `bytes` and
    /// are in the group given by `word`.
    fn first_departed(&self, root: Link, word: u64, bytes: u64, key: impl Fn(u32) -> Key) -> Option<u32> {
        let last = word | word_of(0, bytes);
        let next = |major: u64| {
            let found = self.departed.nodes.at_least(root, Key { major, minor: 0 }, &key)?;
            (key(found).major <= last).then_some(found)
        };
        let lengths = core::iter::successors(next(word), |&page| next(key(page).major + 1));
        lengths.min_by_key(|&page| self.table[page].order)
    }

    /// Takes `wanted` if it is still departed with this `departure`. Returns whether it was taken.
    /// A page that was taken is then moving.
    pub(crate) fn take_back(&mut self, wanted: u32, departure: u32) -> bool {
        let Page { place, behind, .. } = self.table[wanted];
        let is_departed = (place, behind) == (Place::Departed, departure);
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
        /// Compares with a list of (page, bytes, departure, stream), in the order in which the
        /// pages departed.
        #[test]
        fn the_page_that_departed_first_is_taken(steps in prop::collection::vec((0_u8..4, 1_u64..4, 0_usize..3), 1..120)) {
            let mut pages = PagePool::<Growable>::default();
            let mut list: Vec<(u32, u64, u32, StreamId)> = Vec::new();
            let mut handles = 0;
            for (what, length, of) in steps {
                let (bytes, stream) = (length << 21, STREAMS[of]);
                match what {
                    0 | 1 => {
                        handles += 1;
                        pages.make_room().unwrap();
                        let page = pages.add(Page::created(PhysicalHandle(handles), bytes, false));
                        let departure = pages.departures.add(Some(Fence { stream, number: handles, event: Event(handles) }), Departing::Pages).unwrap();
                        pages.depart(page, departure);
                        list.push((page, bytes, departure, stream));
                    }
                    2 => {
                        // The oldest departure of a stream completes.
                        let oldest = list.iter().find(|(_, _, departure, on)| *on == stream && !pages.departures[*departure].complete);
                        if let Some(&(page, _, departure, _)) = oldest {
                            pages.departures.complete(departure);
                            pages.follow_departure(page);
                        }
                    }
                    _ => {
                        let scopes = [Behind::Complete, Behind::Stream(stream), Behind::Any];
                        for behind in scopes {
                            let may = |&(_, length, departure, on): &(u32, u64, u32, StreamId)| {
                                let complete = pages.departures[departure].complete;
                                length <= bytes && match behind {
                                    Behind::Complete => complete,
                                    Behind::Stream(stream) => complete || on == stream,
                                    Behind::Any => true,
                                }
                            };
                            let first = list.iter().position(may);
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
        pages.depart(page, departure);
        pages.remove_alias(page, true);
        assert_eq!(pages.take_departed(u64::MAX, Behind::Any), None);
        assert!(pages.take_back(page, departure));
    }
}
