//! The pages of a heap: physical memory that is mapped in its ranges of addresses, in the order of
//! addresses.
//!
//! ```text
//! range    | page 7 (4 MiB) | page 2 (2 MiB) | stale: page 9 | page 3 (16 MiB) | unmapped …… |
//! blocks   | allocated | free      | allocated | stale         | free | allocated | unmapped   |
//! ```
//!
//! A page has a single *home*: the addresses at which blocks use it. Blocks need not start or end
//! where pages do. A page that moves leaves its old mapping *stale*: the addresses remain mapped
//! until the work that uses them is complete, and no block is ever placed at stale addresses again.

use crate::heap::age::Idle;
use crate::heap::block::{BlockEntry, Blocks, State};
use crate::sync::impl_empty;
use crate::tables::radix_tree::{Key, Link, RadixTree};
use crate::tables::slot_table::{NONE, SlotTable, Vacant};
use crate::tables::{CapacityError, Storage};

/// Why a page that is neither pinned nor asleep must not move for now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stays {
    /// No reason: the page may move.
    No,
    /// The old place of the page has not been marked stale yet.
    Arriving,
    /// The contents are being copied to another page, which will be mapped in its place.
    Moving,
    /// The park in progress leaves the page mapped. The heap is asleep.
    Parking,
}

/// A page at home in a heap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HomePage {
    /// The device address of the first byte.
    pub at: u64,
    /// The length in bytes.
    pub bytes: u64,
    /// The number of the page in the device's pool of pages. In a vacant entry, the next vacant
    /// entry.
    pub page: u32,
    /// How often the program has pinned the page. A pinned page does not move, and is not released.
    pub pins: u32,
    /// Whether and why the page must not move for now.
    pub stays: Stays,
    /// Whether the page is parked: it keeps its addresses, but no memory is mapped there.
    pub asleep: bool,
    /// Whether the page is memory of the host. Of a page asleep, whether it was.
    pub of_host: bool,
    /// Since when the page of an expandable segment has been idle.
    pub idle: Idle,
    /// If the page is idle, a stamp of the heap's clock that is not earlier than the page's last
    /// free.
    pub freed_at: u64,
    /// Whether the look in progress has found the page in a free block.
    pub met: bool,
}

impl HomePage {
    /// Returns the entry of `page`, mapped at `at`.
    pub(crate) fn new(at: u64, bytes: u64, page: u32) -> Self {
        Self { at, bytes, page, ..Self::vacant(NONE) }
    }

    /// Returns the address just past the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.at + self.bytes
    }

    /// Returns whether the page may move, be released or be parked once it is free.
    pub(crate) fn is_movable(&self) -> bool {
        self.pins == 0 && self.stays == Stays::No && !self.asleep
    }
}

impl Vacant for HomePage {
    fn vacant(next: u32) -> Self {
        Self {
            at: 0,
            bytes: 0,
            page: next,
            pins: 0,
            stays: Stays::No,
            asleep: false,
            of_host: false,
            idle: Idle::NEW,
            freed_at: 0,
            met: false,
        }
    }

    fn vacate(&mut self, next: u32) {
        (self.page, self.bytes) = (next, 0);
    }

    fn next_vacant(&self) -> u32 {
        self.page
    }
}

/// The pages at home in a heap, sorted by address.
#[derive(Clone)]
pub(crate) struct HomePages<S: Storage> {
    entries: SlotTable<HomePage, S>,
    /// The root of the set of entries.
    root: Link,
    /// The nodes of the set.
    by_address: RadixTree<S>,
    /// Number of pages that are memory of the host.
    of_host: u32,
}

impl_empty! { [S: Storage] HomePages<S> { entries, root, by_address, of_host } }

/// Returns a function that sorts entries by address.
fn by_address<S: Storage>(entries: &SlotTable<HomePage, S>) -> impl Fn(u32) -> Key {
    |entry| Key { major: 0, minor: entries[entry].at }
}

impl<S: Storage> HomePages<S> {
    /// Makes room for `count` more pages.
    ///
    /// # Errors
    /// [`CapacityError`] if a table is full. Nothing has changed then.
    pub(crate) fn make_room(&mut self, count: u32) -> Result<(), CapacityError> {
        let room = self.entries.make_room(count) && self.by_address.make_room_for(self.entries.len() + count);
        if room { Ok(()) } else { Err(CapacityError) }
    }

    /// Adds a page. The caller has made room.
    pub(crate) fn insert(&mut self, page: HomePage) {
        self.of_host += u32::from(page.of_host);
        let entry = self.entries.insert(page);
        self.root = self.by_address.insert(self.root, entry, by_address(&self.entries));
    }

    /// Removes the page at the address `at`.
    ///
    /// # Panics
    /// If no page starts at `at`.
    pub(crate) fn remove(&mut self, at: u64) -> HomePage {
        let entry = self.entry_from(at).filter(|&entry| self.entries[entry].at == at);
        let entry = entry.expect("a page at home is listed");
        self.root = self.by_address.remove(self.root, entry, by_address(&self.entries));
        let page = self.entries[entry];
        self.entries.remove(entry);
        self.of_host -= u32::from(page.of_host);
        page
    }

    /// Returns whether some pages are memory of the host.
    pub(crate) fn are_of_host(&self) -> bool {
        self.of_host > 0
    }

    /// Returns whether some pages are memory of the host, and others of the device.
    pub(crate) fn are_of_both_kinds(&self) -> bool {
        0 < self.of_host && self.of_host < self.entries.len()
    }

    /// Iterates over the pages that are memory of the host now and have a byte between the
    /// addresses `begin` and `end`.
    pub(crate) fn on_host(&self, begin: u64, end: u64) -> impl Iterator<Item = HomePage> {
        let first = self.containing(begin).or_else(|| self.from(begin));
        let pages = core::iter::successors(first, |page| self.from(page.end())).take_while(move |page| page.at < end);
        pages.filter(|page| page.of_host && !page.asleep)
    }

    /// Returns the first page with an address of at least `addr`.
    pub(crate) fn from(&self, addr: u64) -> Option<HomePage> {
        self.entry_from(addr).map(|entry| self.entries[entry])
    }

    /// Returns the entry of the first page with an address of at least `addr`, mutably.
    pub(super) fn page_from(&mut self, addr: u64) -> Option<&mut HomePage> {
        self.entry_from(addr).map(|entry| &mut self.entries[entry])
    }

    /// Calls `act` with every page, in no order.
    pub(super) fn for_each(&mut self, act: impl FnMut(&mut HomePage)) {
        // Vacant entries have length 0.
        self.entries.entries_mut().iter_mut().filter(|page| page.bytes > 0).for_each(act);
    }

    /// Returns the page that contains the byte at `addr`.
    pub(crate) fn containing(&self, addr: u64) -> Option<HomePage> {
        self.below(addr + 1).filter(|page| addr < page.end())
    }

    /// Returns the last page with an address below `addr`.
    fn below(&self, addr: u64) -> Option<HomePage> {
        let bound = Key { major: 0, minor: addr };
        self.by_address.below(self.root, bound, by_address(&self.entries)).map(|entry| self.entries[entry])
    }

    /// Calls `change` with the page at the address `at`. It must not change the address or the
    /// length. Does nothing if no page starts there.
    pub(crate) fn change(&mut self, at: u64, change: impl FnOnce(&mut HomePage)) {
        if let Some(home) = self.page_from(at).filter(|home| home.at == at) {
            let before = u32::from(home.of_host);
            change(home);
            let after = u32::from(home.of_host);
            self.of_host = self.of_host - before + after;
        }
    }

    /// Adds `change`, which may be negative, to the pins of the page at the address `at`.
    pub(crate) fn pin(&mut self, at: u64, change: i32) {
        self.change(at, |home| home.pins = home.pins.saturating_add_signed(change));
    }

    /// Marks the pages that have a byte between the addresses `begin` and `end`, so that the park
    /// leaves them mapped.
    pub(super) fn keep_mapped(&mut self, begin: u64, end: u64) {
        let mut at = self.containing(begin).map_or(begin, |page| page.at);
        while let Some(page) = self.page_from(at).filter(|page| page.at < end) {
            debug_assert!(page.stays != Stays::Arriving, "no request is in progress");
            page.stays = Stays::Parking;
            at = page.end();
        }
    }

    /// Returns the bytes of the parked pages that are completely between the addresses `begin` and
    /// `end`.
    pub(crate) fn asleep(&self, begin: u64, end: u64) -> u64 {
        self.within(begin, end).filter(|page| page.asleep).map(|page| page.bytes).sum()
    }

    /// Returns whether a page is parked.
    pub(crate) fn has_asleep(&self) -> bool {
        self.entries.entries().iter().any(|page| page.bytes > 0 && page.asleep)
    }

    /// Returns the bytes of the pinned pages.
    pub(crate) fn pinned(&self) -> u64 {
        self.within(0, u64::MAX).filter(|page| page.pins > 0).map(|page| page.bytes).sum()
    }

    /// Iterates over the pages that are completely between the addresses `begin` and `end`.
    pub(crate) fn within(&self, begin: u64, end: u64) -> impl Iterator<Item = HomePage> {
        let next = move |at: u64| self.from(at).filter(|page| page.end() <= end);
        core::iter::successors(next(begin), move |page| next(page.end()))
    }

    /// Iterates over the pages that are completely between the addresses `begin` and `end`, from
    /// the highest to the lowest.
    pub(crate) fn within_down(&self, begin: u64, end: u64) -> impl Iterator<Item = HomePage> {
        let below = move |at: u64| self.below(at).filter(|page| page.at >= begin);
        let highest = below(end).and_then(|page| if page.end() <= end { Some(page) } else { below(page.at) });
        core::iter::successors(highest, move |page| below(page.at))
    }

    /// Checks the order of the pages, and returns the bytes of all of them.
    ///
    /// # Errors
    /// A description of the broken invariant.
    pub(crate) fn check(&self) -> Result<u64, &'static str> {
        let (mut bytes, mut seen, mut of_host, mut at) = (0, 0, 0, 0);
        while let Some(page) = self.from(at) {
            (bytes, seen, at) = (bytes + page.bytes, seen + 1, page.end());
            of_host += u32::from(page.of_host);
        }
        if of_host != self.of_host {
            return Err("the pages of the host are not as many as counted");
        }
        if seen == self.entries.len() { Ok(bytes) } else { Err("two pages of a heap overlap, or one is not listed") }
    }

    /// Returns the entry of the first page with an address of at least `addr`.
    fn entry_from(&self, addr: u64) -> Option<u32> {
        self.by_address.at_least(self.root, Key { major: 0, minor: addr }, by_address(&self.entries))
    }
}

/// The stale mappings of a heap, oldest first: a list linked through [`BlockEntry::chain`].
#[derive(Clone, Copy)]
pub(crate) struct StaleList {
    first: u32,
    last: u32,
    /// Number of stale mappings.
    pub count: u32,
    /// Bytes of the stale mappings.
    pub bytes: u64,
}

impl_empty! { StaleList { first: NONE, last: NONE, count, bytes } }

impl StaleList {
    /// Marks a detached block, the old mapping of `page`, as stale since `stamp`, and appends it.
    pub(crate) fn push<S: Storage>(&mut self, block: u32, page: u32, stamp: u64, blocks: &mut Blocks<S>) {
        let entry = &mut blocks[block];
        debug_assert!(entry.state == State::Detached, "a page is detached before it moves");
        (entry.state, entry.requested, entry.freed_at, entry.chain) = (State::Stale, u64::from(page), stamp, NONE);
        self.bytes += entry.size;
        self.count += 1;
        if self.last == NONE {
            self.first = block;
        } else {
            blocks[self.last].chain = block;
        }
        self.last = block;
    }

    /// Removes the oldest mapping if it became stale before `stamp`. It is then a detached block.
    /// Returns the block and the number of the page.
    pub(crate) fn pop<S: Storage>(&mut self, stamp: u64, blocks: &mut Blocks<S>) -> Option<(u32, u32)> {
        let block = self.first;
        let entry: &mut BlockEntry = if block == NONE { return None } else { &mut blocks[block] };
        if entry.freed_at >= stamp {
            return None;
        }
        entry.state = State::Detached;
        let page = core::mem::take(&mut entry.requested) as u32;
        (self.first, self.count, self.bytes) = (entry.chain, self.count - 1, self.bytes - entry.size);
        entry.chain = NONE;
        if self.first == NONE {
            self.last = NONE;
        }
        Some((block, page))
    }
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests {
    use super::*;
    use crate::tables::Growable;
    use std::vec::Vec;

    /// Returns pages at 10 to 13, 14 and 15, and 20 to 23.
    fn pages() -> HomePages<Growable> {
        let mut pages = HomePages::default();
        pages.make_room(3).unwrap();
        [(10, 4), (14, 2), (20, 4)].into_iter().for_each(|(at, bytes)| pages.insert(HomePage::new(at, bytes, 0)));
        pages
    }

    #[test]
    fn an_address_is_on_the_page_around_it_or_on_none() {
        let pages = pages();
        let on = [9, 10, 13, 14, 15, 16, 19, 20, 23, 24].map(|address| pages.containing(address).map(|page| page.at));
        let none = None;
        assert_eq!(on, [none, Some(10), Some(10), Some(14), Some(14), none, none, Some(20), Some(20), none]);
    }

    #[test]
    fn every_page_is_visited_and_no_removed_one() {
        let mut pages = pages();
        pages.remove(14);
        let mut visited = Vec::new();
        pages.for_each(|page| visited.push((page.at, page.bytes)));
        visited.sort_unstable();
        assert_eq!(visited, [(10, 4), (20, 4)]);
    }

    #[test]
    fn pages_with_a_byte_in_the_range_stay_mapped_and_no_others() {
        for (begin, end, stay) in [(13, 14, 1..2), (14, 20, 2..3), (11, 21, 1..4), (16, 20, 0..0), (15, 16, 2..3)] {
            let mut pages = pages();
            pages.keep_mapped(begin, end);
            let stays = [10, 14, 20].map(|at| pages.from(at).unwrap().stays == Stays::Parking);
            let expected = [1, 2, 3].map(|number| stay.contains(&number));
            assert_eq!(stays, expected, "from {begin} to {end}");
        }
    }
}
