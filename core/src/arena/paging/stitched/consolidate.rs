//! Consolidation: a run of short pages with repeated meetings becomes a single longer page.
//!
//! ```text
//! | free: 2 MiB | 2 MiB | 2 MiB | 2 MiB |  ─▶  | free: 8 MiB |
//!
//! room for the long page ─▶ create it ─▶ unmap the short ones ─▶ map it ─▶ destroy the short ones
//!                              │ fails              │ fails        │ fails: map the short ones again
//!                              └─ as before         └─ in doubt    └─ as before
//! ```
//!
//! Each page of a run costs 24 µs to map and 15 µs to unmap when the run moves; a longer page has these costs once.
//! The pages of a run have been mapped beside each other [`MEETINGS`] times in a row, so the pages will probably move
//! together again.
//!
//! The long page is created while the short pages still exist, so free pages elsewhere go back to the device first if
//! the limit or the budget requires room. A run lies in a free block whose work is complete, and is detached during
//! the replacement. The memory of private pools, and pinned pages, stay.

use super::Stitcher;
use super::budget::CREATE_TENTHS_US;
use super::gather::slots_of;
use super::maintain::{RELEASE_TENTHS_US, TimeLeft};
use crate::arena::paging::mapper::Charge;
use crate::arena::paging::mapping::{Mapping, Row};
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::heap::expandable::Range;
use crate::heap::home_pages::HomePage;
use crate::heap::stitched::PagedHeap;
use crate::pages::Batch;
use crate::sync::{Lock, Ordering};
use crate::tables::Storage;
use crate::units::DevicePtr;
use core::cell::Cell;

/// How often in a row two pages must have been mapped beside each other to become a single page.
const MEETINGS: u32 = 3;

/// Divisor of the memory held for the largest length of a joined page. Pages with common moves may be longer than new
/// pages.
const JOINED_HELD: u64 = 512;

/// A detached run of short pages.
struct Run {
    /// The slot of the heap.
    slot: u32,
    /// The block of the run.
    block: u32,
    /// The addresses of the block.
    range: Range,
    /// The number of pages.
    count: u32,
}

/// The outcome of an attempt to replace a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Attempt {
    /// A page has replaced the run.
    Replaced,
    /// The time does not suffice: the run is left to a later call.
    NoTime,
    /// The limit, the budget or the device has no room for the page.
    NoRoom,
}

impl<D: DeviceMemory, R: Lock, S: Storage> Stitcher<'_, D, R, S> {
    /// Replaces runs of short pages by longer pages in the time `left`. Returns true if runs are left for a later
    /// call.
    ///
    /// # Errors
    /// The first error of the device. The rest is left to the next call.
    pub(super) fn consolidate(&self, left: &mut TimeLeft) -> Result<bool, Error> {
        for used in self.device().arena.heaps.pairs_of(0) {
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

    /// Detaches a run of short pages of the heap in `slot`, if the heap has any.
    fn take_run(&self, slot: u32) -> Option<Run> {
        let device = self.device();
        let longest = self.page_of(JOINED_HELD);
        let mut heap = device.heaps.lock(slot);
        let pages = device.paging.pool.lock();
        let joins = |page: &HomePage, next: &HomePage| {
            let destroyable = pages.has_one_mapping(page.page) && pages.has_one_mapping(next.page);
            destroyable && pages.meetings(page.page, next.page) >= MEETINGS
        };
        let (block, count) = PagedHeap(&mut heap).take_run(longest, joins)?;
        let entry = &heap.blocks[block];
        let range = Range { at: DevicePtr(entry.addr), bytes: entry.size, granule: entry.size };
        Some(Run { slot, block, range, count })
    }

    /// Replaces the pages of a detached run by a single page, and makes the run free again.
    fn replace(&self, run: &Run, left: &mut TimeLeft) -> Result<Attempt, Error> {
        let mut long = Batch::EMPTY;
        let created = self.create_for(run, left, &mut long);
        if created != Ok(Attempt::Replaced) {
            PagedHeap(&mut self.device().heaps.lock(run.slot)).return_block(run.block);
            return created;
        }
        let mut short = Batch::EMPTY;
        let unmapped = self.mapper.unmap_each(run.slot, run.range, |pages, page| pages.append(&mut short, page));
        if let Err(error) = unmapped {
            self.vacate(run, true);
            self.discard(&short).and(self.discard(&long))?;
            return Err(error);
        }
        let lost = Cell::new(false);
        let map = |batch: &Batch| self.mapper.map(batch, Row { at: run.range.at, lost: &lost });
        let (kept, rest, attempt, mapping) = match map(&long) {
            Ok(Some(mapping)) => (long, short, Ok(Attempt::Replaced), Some(mapping)),
            failed => {
                // The short pages come back, unless one of the addresses is lost.
                let again = if lost.get() { None } else { map(&short).ok().flatten() };
                (short, long, failed.map(|_none| Attempt::NoRoom), again)
            }
        };
        if !mapping.is_some_and(|mapping| self.list_run(run, &kept, mapping)) {
            self.vacate(run, lost.get());
            self.discard(&kept).and(self.discard(&rest))?;
            return attempt.and(Ok(Attempt::NoRoom));
        }
        if attempt == Ok(Attempt::Replaced) {
            self.device().paging.consolidated_bytes.fetch_add(kept.bytes, Ordering::Relaxed);
        }
        self.discard(&rest)?;
        attempt
    }

    /// Creates the page for the place of a run, within the limit and the budget.
    fn create_for(&self, run: &Run, left: &mut TimeLeft, long: &mut Batch) -> Result<Attempt, Error> {
        let bytes = run.range.bytes;
        let needed = u64::from(run.count) * RELEASE_TENTHS_US + u64::from(CREATE_TENTHS_US);
        if !left.take(needed) {
            return Ok(Attempt::NoTime);
        }
        let ledger = &self.device().ledger;
        let most = ledger.limit_if_set().unwrap_or_else(|| self.most_held(0));
        let short_of_room = self.give_back(left, || ledger.reserved().saturating_add(bytes).saturating_sub(most))?;
        if short_of_room && left.is_over() {
            return Ok(Attempt::NoTime);
        }
        if short_of_room || !self.mapper.new_page(bytes, Charge::WithinLimit, long)? {
            return Ok(Attempt::NoRoom);
        }
        Ok(Attempt::Replaced)
    }

    /// Lists the pages of `batch`, mapped in the place of a detached run, and makes the run free. Returns false if a table is
    /// full: the pages are unmapped then.
    fn list_run(&self, run: &Run, batch: &Batch, mapping: Mapping<'_, Row<'_>, D, R, S>) -> bool {
        let device = self.device();
        let mut heap = device.heaps.lock(run.slot);
        if heap.sets.pages.make_room(batch.count).is_err() {
            return false;
        }
        mapping.keep();
        // At home before they are listed: another thread may move a listed page at once.
        self.mapper.settle_batch(batch);
        self.mapper.list_batch(&mut heap, batch, run.range.at, false);
        PagedHeap(&mut heap).return_block(run.block);
        true
    }

    /// Gives up the addresses of a detached run without a listed page. `lost` tells whether a page is still mapped at
    /// the addresses.
    fn vacate(&self, run: &Run, lost: bool) {
        let unmapped = if lost { Err(()) } else { Ok(()) };
        let _as_before = self.mapper.give_up_detached(run.slot, run.block, |_range| unmapped);
    }

    /// Destroys unmapped pages.
    fn discard(&self, batch: &Batch) -> Result<(), Error> {
        self.mapper.numbers_of(batch).for_each(|page| self.mapper.spare_page(page));
        self.mapper.destroy_spares().map(|_| ())
    }
}

#[cfg(all(test, feature = "alloc", not(loom)))]
mod tests {
    use crate::allocator::Allocator;
    use crate::config::Config;
    use crate::device::simulated::{Call, Failure, SimulatedDevice};
    use crate::device::{DeviceError, ErrorKind};
    use crate::tables::Growable;
    use crate::units::{DeviceIndex, DevicePtr, MIB, StreamId};
    use std::vec::Vec;

    const DEVICE: DeviceIndex = DeviceIndex(0);
    const ONE: StreamId = StreamId(1);
    const TWO: StreamId = StreamId(2);

    type Simulated = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

    fn malloc(allocator: &Simulated, mib: u64, stream: StreamId) -> DevicePtr {
        allocator.malloc(DEVICE, mib * MIB, stream).unwrap()
    }

    fn maintain(allocator: &Simulated) -> Result<bool, crate::error::Error> {
        allocator.pages(DEVICE).unwrap().maintain(100_000)
    }

    /// How often the device was called.
    fn calls(allocator: &Simulated, call: Call) -> u64 {
        allocator.device(DEVICE).unwrap().calls(call)
    }

    /// Bytes of the pages mapped in place of shorter pages, in MiB.
    fn consolidated(allocator: &Simulated) -> u64 {
        allocator.pages(DEVICE).unwrap().stats().unwrap().consolidated / MIB
    }

    /// An allocator with more than 2 GiB held and a block of 64 MiB on stream 2. The pages of the block have 2 MiB,
    /// have lain side by side in fours since their creation, and have moved twice.
    fn with_block() -> (Simulated, DevicePtr) {
        let device = SimulatedDevice::new(1 << 40).with_work_done_at_once();
        // Where only pages of complete work move, no stream lends the block to another instead.
        let config = Config::parse("policy:stitched,slack:0,completed_pages_only:True").unwrap();
        let allocator = Simulated::new([device], &config).unwrap();
        let blocks: Vec<_> = (0..16).map(|_| malloc(&allocator, 8, ONE)).collect();
        malloc(&allocator, 2048, ONE);
        blocks.iter().step_by(2).for_each(|&block| allocator.free(block).unwrap());
        let mapped = calls(&allocator, Call::Map);
        let moved = malloc(&allocator, 64, ONE);
        allocator.free(moved).unwrap();
        // Begins an epoch, and removes nothing.
        allocator.pages(DEVICE).unwrap().maintain(0).unwrap();
        let moved = malloc(&allocator, 64, TWO);
        assert_eq!(calls(&allocator, Call::Map) - mapped, 2 * 32, "all pages have moved, and moved again");
        (allocator, moved)
    }

    /// The allocator of `with_block`, with the block free and without stale mappings.
    fn with_run() -> Simulated {
        let (allocator, block) = with_block();
        allocator.free(block).unwrap();
        let pages = allocator.pages(DEVICE).unwrap();
        // The first call begins an epoch. Each further call removes an old mapping, and has no time for more.
        pages.maintain(0).unwrap();
        while pages.stats().unwrap().stale > 0 {
            pages.maintain(15).unwrap();
        }
        assert_eq!(consolidated(&allocator), 0);
        allocator
    }

    #[test]
    fn pages_that_keep_meeting_become_one_within_the_budget() {
        let allocator = with_run();
        let device = allocator.device(DEVICE).unwrap();
        let (peak, used) = (device.peak_used(), device.used());
        assert_eq!(maintain(&allocator), Ok(false));
        // Two pages of 2 MiB for one of 4 MiB, the longest page while 2.1 GiB are held. The first is
        // created in the room of two pages that went back to the device.
        assert_eq!(consolidated(&allocator), 60);
        assert_eq!((device.peak_used(), device.used()), (peak, used - 4 * MIB));
        assert_eq!(maintain(&allocator), Ok(false));
        assert_eq!(consolidated(&allocator), 60, "nothing is left to replace");
        allocator.check_invariants().unwrap();
        let mapped = calls(&allocator, Call::Map);
        malloc(&allocator, 60, TWO);
        assert_eq!(calls(&allocator, Call::Map), mapped, "the run serves a request in place");
        allocator.check_invariants().unwrap();
    }

    #[test]
    fn a_limit_holds_for_the_longer_page() {
        let allocator = with_run();
        let device = allocator.device(DEVICE).unwrap();
        let used = device.used();
        allocator.set_limit(DEVICE, Some(used)).unwrap();
        let peak = device.peak_used();
        assert_eq!(maintain(&allocator), Ok(false));
        assert_eq!((consolidated(&allocator), device.peak_used()), (60, peak));
        allocator.check_invariants().unwrap();
    }

    #[test]
    fn pages_in_use_or_pinned_or_of_unfinished_work_stay() {
        let (allocator, block) = with_block();
        for _ in 0..2 {
            maintain(&allocator).unwrap();
        }
        assert_eq!(consolidated(&allocator), 0, "the block is live");
        let pages = allocator.pages(DEVICE).unwrap();
        pages.pin(block).unwrap();
        allocator.free(block).unwrap();
        for _ in 0..2 {
            maintain(&allocator).unwrap();
        }
        assert_eq!(consolidated(&allocator), 0, "the pages are pinned");
        pages.unpin(block).unwrap();
        let again = malloc(&allocator, 64, TWO);
        allocator.free(again).unwrap();
        maintain(&allocator).unwrap();
        assert_eq!(consolidated(&allocator), 0, "no event follows the last use");
        maintain(&allocator).unwrap();
        assert_eq!(consolidated(&allocator), 60);
    }

    #[test]
    fn without_time_nothing_is_replaced_and_some_is_left() {
        let allocator = with_run();
        let pages = allocator.pages(DEVICE).unwrap();
        assert_eq!((pages.maintain(90), consolidated(&allocator)), (Ok(true), 0));
        // 91.1 µs for each page, and before the first 116 µs for two pages that go back.
        assert_eq!((pages.maintain(205), consolidated(&allocator)), (Ok(true), 0));
        assert_eq!((pages.maintain(121), consolidated(&allocator)), (Ok(true), 4));
        assert_eq!((pages.maintain(190), consolidated(&allocator)), (Ok(true), 12));
        allocator.check_invariants().unwrap();
    }

    /// Sweeps failures over the calls of a consolidation. Until the next call without failures all memory in use is
    /// counted, and only memory possibly still held by the device is lost.
    fn fail_at_every_call(kind: ErrorKind, persistent: bool) {
        let error = DeviceError::new(kind, 7);
        for call in [Call::Unmap, Call::Destroy, Call::Create, Call::Map, Call::SetAccess] {
            let made = {
                let allocator = with_run();
                let before = calls(&allocator, call);
                maintain(&allocator).unwrap();
                calls(&allocator, call) - before
            };
            assert!(made >= 15, "{call:?}: {made}");
            for nth in 1..=made {
                let allocator = with_run();
                let device = allocator.device(DEVICE).unwrap();
                device.fail(Failure { call, nth: device.calls(call) + nth, persistent, error });
                let failed = maintain(&allocator).is_err();
                assert!(failed || kind == ErrorKind::OutOfMemory, "{call:?} {nth}");
                allocator.check_invariants().unwrap();
                device.clear_failures();
                let in_doubt = matches!(call, Call::Unmap | Call::Destroy);
                assert!(in_doubt || allocator.leaked_bytes(DEVICE) == Ok(0), "{call:?} {nth}");
                // Once alone the run is as before: it serves a request in place.
                if !in_doubt && !persistent {
                    let mapped = device.calls(Call::Map);
                    malloc(&allocator, 60, TWO);
                    assert_eq!(device.calls(Call::Map), mapped, "{call:?} {nth}");
                } else {
                    maintain(&allocator).unwrap();
                }
                allocator.check_invariants().unwrap();
            }
        }
    }

    #[test]
    fn a_failure_leaves_the_run_as_it_was_or_counts_what_is_in_doubt() {
        for persistent in [false, true] {
            fail_at_every_call(ErrorKind::Other, persistent);
            fail_at_every_call(ErrorKind::OutOfMemory, persistent);
        }
    }
}
