//! Consolidation: a run of short pages that have often been mapped next to each other becomes one
//! longer page.
//!
//! ```text
//! | free: 2 MiB | 2 MiB | 2 MiB | 2 MiB |  ─▶  | free: 8 MiB |
//!
//! room for the long page ─▶ create it ─▶ unmap the short ones ─▶ map it ─▶ destroy the short ones
//!                              │ fails              │ fails        │ fails: map the short ones again
//!                              └─ as before         └─ in doubt    └─ as before
//! ```
//!
//! Each page of a run costs 24 µs to map and 15 µs to unmap when the run moves, while a longer page
//! has these costs only once. The pages of a run have been mapped next to each other [`MEETINGS`]
//! times in a row, so they will probably move together again.
//!
//! The long page is created while the short pages still exist, so free pages elsewhere first go
//! back to the device if the limit or the budget requires room. A run is in a free block with no
//! unfinished work, and is detached during the replacement. The memory of private pools and pinned
//! pages stay as they are.

use super::Stitcher;
use super::budget::CREATE_TENTHS_US;
use super::gather::slots_of;
use super::maintain::{RELEASE_TENTHS_US, TimeLeft};
use crate::arena::Platform;
use crate::arena::paging::mapper::Charge;
use crate::arena::paging::mapping::{Mapping, Row};
use crate::error::Error;
use crate::heap::addresses::AddressRange;
use crate::heap::home_pages::HomePage;
use crate::heap::moves::PagedHeap;
use crate::pages::Batch;
use crate::sync::Ordering;
use crate::units::DevicePtr;
use core::cell::Cell;

/// The number of times in a row that two pages must have been mapped next to each other before they
/// become one page.
const MEETINGS: u32 = 3;

/// A joined page is at most the memory held divided by this. Pages that move together may be longer
/// than new pages.
const JOINED_HELD: u64 = 512;

/// A detached run of short pages.
struct PageRun {
    /// The slot of the heap that contains the run.
    slot: u32,
    /// The block of the run.
    block: u32,
    /// The addresses of the block.
    range: AddressRange,
    /// The number of pages.
    count: u32,
}

/// The outcome of an attempt to replace a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Attempt {
    /// A page has replaced the run.
    Replaced,
    /// The time is not enough, so the run is left to a later call.
    NoTime,
    /// The limit, the budget or the device has no room for the page.
    NoRoom,
}

impl<P: Platform> Stitcher<'_, P> {
    /// Replaces runs of short pages by longer pages in the time `left`. Returns true if some runs
    /// are left for a later call.
    ///
    /// # Errors
    /// The first error of the device. The rest is left to the next call.
    pub(super) fn consolidate(&self, left: &mut TimeLeft) -> Result<bool, Error> {
        for used in self.mapper().heaps.pairs_of(0) {
            for slot in slots_of(used.pair) {
                while let Some(run) = self.take_run(slot) {
                    match self.replace(&run, left)? {
                        Attempt::Replaced => {}
                        Attempt::NoTime => return Ok(true),
                        Attempt::NoRoom => return Ok(false),
                    }
                }
            }
        }
        Ok(false)
    }

    /// Detaches a run of short pages of the heap in `slot`, if there is one.
    fn take_run(&self, slot: u32) -> Option<PageRun> {
        let mapper = self.mapper();
        let longest = self.page_of(JOINED_HELD);
        let mut heap = mapper.heaps.lock(slot);
        let pages = mapper.paging.pool.lock();
        let joins = |page: &HomePage, next: &HomePage| {
            // Its pages go back to the device in exchange, so they are the device's.
            let is_exchanged = |page: u32| pages.has_one_mapping(page) && !pages[page].is_host;
            let exchanged = is_exchanged(page.page) && is_exchanged(next.page);
            exchanged && pages.meetings(page.page, next.page) >= MEETINGS
        };
        let (block, count) = PagedHeap(&mut heap).take_run(longest, joins)?;
        let entry = &heap.blocks[block];
        let range = AddressRange { at: DevicePtr(entry.addr), bytes: entry.size, granule: entry.size };
        Some(PageRun { slot, block, range, count })
    }

    /// Replaces the pages of a detached run by a single page, and makes the run free again.
    fn replace(&self, run: &PageRun, left: &mut TimeLeft) -> Result<Attempt, Error> {
        let mut long = Batch::EMPTY;
        let created = self.create_for(run, left, &mut long);
        if created != Ok(Attempt::Replaced) {
            PagedHeap(&mut self.mapper().heaps.lock(run.slot)).return_block(run.block);
            return created;
        }
        let mut short = Batch::EMPTY;
        let unmapped = self.mapper().unmap_each(run.slot, run.range, |pages, page| pages.append(&mut short, page));
        if let Err(error) = unmapped {
            self.vacate(run, true);
            self.discard(&short).and(self.discard(&long))?;
            return Err(error);
        }
        let lost = Cell::new(None);
        let map = |batch: &Batch| self.mapper().map(batch, Row { at: run.range.at, lost: &lost });
        let (kept, rest, attempt, mapping) = match map(&long) {
            Ok(Some(mapping)) => (long, short, Ok(Attempt::Replaced), Some(mapping)),
            failed => {
                // The short pages come back, unless one of the addresses is lost.
                let again = if lost.get().is_some() { None } else { map(&short).ok().flatten() };
                (short, long, failed.map(|_none| Attempt::NoRoom), again)
            }
        };
        if !mapping.is_some_and(|mapping| self.list_run(run, &kept, mapping)) {
            self.vacate(run, lost.get().is_some());
            self.discard(&kept).and(self.discard(&rest))?;
            return attempt.and(Ok(Attempt::NoRoom));
        }
        if attempt == Ok(Attempt::Replaced) {
            self.mapper().paging.consolidated_bytes.fetch_add(kept.bytes, Ordering::Relaxed);
        }
        self.discard(&rest)?;
        attempt
    }

    /// Creates the page that replaces a run, within the limit and the budget.
    fn create_for(&self, run: &PageRun, left: &mut TimeLeft, long: &mut Batch) -> Result<Attempt, Error> {
        let bytes = run.range.bytes;
        let needed = u64::from(run.count) * RELEASE_TENTHS_US + u64::from(CREATE_TENTHS_US);
        if !left.take(needed) {
            return Ok(Attempt::NoTime);
        }
        let ledger = self.mapper().ledger;
        let most = ledger.limit_if_set().unwrap_or_else(|| self.most_held(0));
        let short_of_room = self.give_back(left, || ledger.reserved().saturating_add(bytes).saturating_sub(most))?;
        if short_of_room && left.is_over() {
            return Ok(Attempt::NoTime);
        }
        if short_of_room || !self.mapper().new_page(bytes, Charge::WithinLimit, long)? {
            return Ok(Attempt::NoRoom);
        }
        Ok(Attempt::Replaced)
    }

    /// Adds the pages of `batch`, mapped in the place of a detached run, to the heap, and makes the
    /// run free. Returns false if a table is full. The pages are then unmapped.
    fn list_run(&self, run: &PageRun, batch: &Batch, mapping: Mapping<'_, Row<'_>, P>) -> bool {
        let mapper = self.mapper();
        let mut heap = mapper.heaps.lock(run.slot);
        if heap.sets.pages.make_room(batch.count).is_err() {
            return false;
        }
        mapping.keep();
        // Home before they are listed, because another thread may move a listed page at once.
        self.mapper().paging.settle_batch(batch);
        self.mapper().paging.list_batch(&mut heap, batch, run.range.at);
        PagedHeap(&mut heap).return_block(run.block);
        true
    }

    /// Gives up the addresses of a detached run without pages. `lost` is true if a page may still
    /// be mapped there.
    fn vacate(&self, run: &PageRun, lost: bool) {
        let unmapped = if lost { Err(()) } else { Ok(()) };
        let _as_before = self.mapper().give_up_detached(run.slot, run.block, |_range| unmapped);
    }

    /// Destroys unmapped pages.
    fn discard(&self, batch: &Batch) -> Result<(), Error> {
        self.mapper().paging.numbers_of(batch).for_each(|page| self.mapper().spare_page(page));
        self.mapper().destroy_spares().map(|_| ())
    }
}
