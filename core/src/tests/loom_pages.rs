//! Models of moving pages during the use of heaps by other threads, explored by loom. The heaps and
//! the pool of pages are the core's own; the steps between the locks follow
//! `arena/paging/growth.rs`, without a device.

use super::loom::explore;
use crate::config::Config;
use crate::config::rounding::PoolKind;
use crate::device::PhysicalHandle;
use crate::heap::home_pages::{HomePage, Stays};
use crate::heap::moves::{PagedHeap, Wanted};
use crate::heap::split_rules::{PageRules, Rules, Source};
use crate::heap::{FreeOutcome, Heap};
use crate::pages::counts::PageCounts;
use crate::pages::{Batch, Page, PagePool};
use crate::stats::HeapCounters;
use crate::tables::Growable;
use crate::units::{DevicePtr, MIB};
use alloc::vec::Vec;
use loom::sync::{Arc, Mutex};
use loom::thread;

/// Length of a page.
const STEP: u64 = 2 * MIB;

/// Two heaps of the stitched policy, and the pages of their device.
struct Device {
    heaps: [Mutex<Heap<Growable>>; 2],
    counters: [HeapCounters; 2],
    pages: Mutex<PagePool<Growable>>,
}

impl Device {
    fn new() -> Arc<Self> {
        let heap = |base: u64| {
            let mut rules = Rules::new(&Config::default(), PoolKind::Large, false, Source::Pages);
            rules.pages = PageRules::Move;
            let mut heap = Heap::default();
            heap.rules = rules;
            heap.make_room().unwrap();
            assert!(heap.make_room_for_range());
            heap.add_range(DevicePtr(base), 32 * STEP, STEP);
            Mutex::new(heap)
        };
        Arc::new(Self {
            heaps: [heap(1 << 40), heap(2 << 40)],
            counters: Default::default(),
            pages: Mutex::new(PagePool::default()),
        })
    }

    /// A request served from a free block.
    fn search(&self, heap: usize, size: u64) -> Option<DevicePtr> {
        self.heaps[heap].lock().unwrap().malloc(size, size, &self.counters[heap]).unwrap().map(|served| served.value)
    }

    fn free(&self, heap: usize, ptr: DevicePtr) {
        let mut locked = self.heaps[heap].lock().unwrap();
        let FreeOutcome::Unused(block) = locked.detach(ptr, None, &self.counters[heap]) else { panic!("it is live") };
        locked.finish_free(block, &self.counters[heap]);
    }

    /// `PageGrowth::grow`: extends a heap by `room` bytes of pages of the other heap, and of new
    /// pages, and serves a request of `size` bytes.
    fn grow(&self, heap: usize, room: u64, size: u64) -> DevicePtr {
        let held = {
            let mut locked = self.heaps[heap].lock().unwrap();
            locked.make_room().unwrap();
            assert!(locked.make_room_for_range());
            locked.hold_room(room, STEP).unwrap()
        };
        let mut batch = Batch::EMPTY;
        self.take_from(1 - heap, held.needed, &mut batch);
        while batch.bytes < held.needed {
            let mut pages = self.pages.lock().unwrap();
            pages.make_room().unwrap();
            let page = pages.add(Page::created(PhysicalHandle(0), STEP, false));
            pages.append(&mut batch, page);
        }
        let held = {
            let mut locked = self.heaps[heap].lock().unwrap();
            locked.make_room().unwrap();
            assert!(locked.make_room_for_range());
            locked.trim_room(held, batch.bytes)
        };
        // Here the device maps the pages, with no lock held.
        let numbers = self.numbers(&batch);
        let (ptr, at) = {
            let mut locked = self.heaps[heap].lock().unwrap();
            locked.make_room().unwrap();
            assert!(locked.make_room_for_range());
            locked.sets.pages.make_room(batch.count).unwrap();
            let begin = locked.place_in(held, 0);
            let mut at = begin.0;
            for &(page, bytes) in &numbers {
                locked.sets.pages.insert(HomePage { stays: Stays::Arriving, ..HomePage::new(at, bytes, page) });
                at += bytes;
            }
            let extended = locked.extend(held, &self.counters[heap]);
            (locked.allocate_from(extended.value.0, size, size, &self.counters[heap]).value, begin)
        };
        self.finish_moves(heap, &numbers, at);
        ptr
    }

    fn take_from(&self, donor: usize, wanted: u64, batch: &mut Batch) {
        let mut locked = self.heaps[donor].lock().unwrap();
        let mut counts = PageCounts::new(STEP);
        PagedHeap(&mut locked).count_free_pages(Wanted::Free, &mut counts, STEP);
        let mut chosen = counts.choose(wanted, u64::MAX, 8);
        PagedHeap(&mut locked).take_pages(Wanted::Free, &mut chosen, STEP, |home, block| {
            let mut pages = self.pages.lock().unwrap();
            pages.begin_move(home.page, donor as u32, block);
            pages.append(batch, home.page);
        });
    }

    /// Numbers and lengths of the pages of a batch.
    fn numbers(&self, batch: &Batch) -> Vec<(u32, u64)> {
        let pages = self.pages.lock().unwrap();
        let numbers = std::iter::successors((batch.count > 0).then_some(batch.first), |&page| pages.next(page));
        numbers.map(|page| (page, pages[page].bytes)).collect()
    }

    /// `PageGrowth::finish_moves`.
    fn finish_moves(&self, heap: usize, numbers: &[(u32, u64)], at: DevicePtr) {
        for &(page, _) in numbers {
            let origin = self.pages.lock().unwrap().count_alias_of_origin(page);
            let Some((from, block)) = origin else { continue };
            PagedHeap(&mut self.heaps[from as usize].lock().unwrap()).leave_stale(block, &self.counters[from as usize]);
        }
        numbers.iter().for_each(|&(page, _)| self.pages.lock().unwrap().settle(page));
        let mut locked = self.heaps[heap].lock().unwrap();
        let mut at = at.0;
        for &(_, bytes) in numbers {
            locked.sets.pages.change(at, |home| home.stays = Stays::No);
            at += bytes;
        }
    }

    /// `Stitcher::unmap_all_stale`, with the work complete.
    fn unmap_stale(&self, heap: usize) {
        loop {
            let Some((block, _, _, page)) = PagedHeap(&mut self.heaps[heap].lock().unwrap()).take_stale(u64::MAX)
            else {
                break;
            };
            self.pages.lock().unwrap().remove_alias(page, false);
            // A range of which nothing is mapped any longer would go back to the device.
            let _emptied = PagedHeap(&mut self.heaps[heap].lock().unwrap()).finish_stale(block);
        }
    }

    /// `Stitcher::consolidate` for a single run, with all work complete. Returns whether a run was
    /// found.
    fn consolidate(&self, heap: usize) -> bool {
        let run = {
            let mut locked = self.heaps[heap].lock().unwrap();
            locked.sets.quiet = u64::MAX;
            PagedHeap(&mut locked).take_run(2 * STEP, |_, _| true).map(|(number, _)| {
                let block = &locked.blocks[number];
                (number, block.addr, block.end())
            })
        };
        let Some((block, from, end)) = run else { return false };
        let mut at = from;
        while at < end {
            let home = self.heaps[heap].lock().unwrap().sets.pages.remove(at);
            at = home.end();
            let mut pages = self.pages.lock().unwrap();
            pages.leave_home(home.page);
            pages.remove(home.page);
        }
        // Here the device maps the long page, with no lock held.
        let mut pages = self.pages.lock().unwrap();
        pages.make_room().unwrap();
        let long = pages.add(Page::created(PhysicalHandle(0), end - from, false));
        drop(pages);
        let mut locked = self.heaps[heap].lock().unwrap();
        locked.sets.pages.make_room(1).unwrap();
        self.pages.lock().unwrap().settle(long);
        locked.sets.pages.insert(HomePage::new(from, end - from, long));
        PagedHeap(&mut locked).return_block(block);
        true
    }

    /// Checks both heaps, and that each page is at home at a single place.
    fn check(&self) {
        let (mut homes, mut bytes) = (Vec::new(), 0);
        for (heap, counters) in self.heaps.iter().zip(&self.counters) {
            let heap = heap.lock().unwrap();
            bytes += heap.check_invariants(counters).unwrap();
            homes.extend(
                heap.sets.pages.within(0, u64::MAX).inspect(|page| assert!(page.is_movable())).map(|it| it.page),
            );
        }
        homes.sort_unstable();
        assert!(homes.windows(2).all(|pair| pair[0] != pair[1]), "a page is at home at two places");
        let pages = self.pages.lock().unwrap().check().unwrap();
        assert_eq!((pages.home, pages.spare, pages.moving), (bytes, 0, 0));
    }
}

#[test]
fn loom_a_page_moves_while_another_thread_uses_its_heap() {
    explore(|| {
        let device = Device::new();
        // Between two live blocks: free pages.
        let blocks = [STEP, 2 * STEP, STEP].map(|size| device.grow(0, size, size));
        device.free(0, blocks[1]);
        let moving = device.clone();
        let other = thread::spawn(move || moving.grow(1, 2 * STEP, 2 * STEP));
        let served = device.search(0, STEP);
        device.free(0, blocks[2]);
        let moved = other.join().unwrap();
        device.check();
        device.unmap_stale(0);
        served.into_iter().chain([blocks[0]]).for_each(|ptr| device.free(0, ptr));
        device.free(1, moved);
        device.check();
    });
}

/// The rest of the moved pages is free before the old places are stale. A second request must not
/// move the pages again yet.
#[test]
fn loom_pages_that_have_just_moved_stay_until_their_old_places_are_stale() {
    explore(|| {
        let device = Device::new();
        let blocks = [2 * STEP, STEP].map(|size| device.grow(0, size, size));
        device.free(0, blocks[0]);
        let second = device.clone();
        let other = thread::spawn(move || second.grow(0, 2 * STEP, 2 * STEP));
        // Of two pages one is left.
        let first = device.grow(1, 2 * STEP, 512);
        device.free(1, first);
        let second = other.join().unwrap();
        device.check();
        device.unmap_stale(0);
        device.unmap_stale(1);
        device.free(0, second);
        device.check();
    });
}

/// The old place of a page may be unmapped as soon as the place is stale, before the page settles.
#[test]
fn loom_an_old_place_is_unmapped_before_its_page_settles() {
    explore(|| {
        let device = Device::new();
        let block = device.grow(0, STEP, STEP);
        device.free(0, block);
        let moving = device.clone();
        let other = thread::spawn(move || moving.grow(1, STEP, STEP));
        device.unmap_stale(0);
        let moved = other.join().unwrap();
        device.unmap_stale(0);
        device.free(1, moved);
        device.check();
    });
}

/// A second thread allocates from the heap, and moves pages of the heap, while two pages become a
/// single page.
#[test]
fn loom_pages_become_one_while_another_thread_uses_their_heap() {
    explore(|| {
        let device = Device::new();
        let blocks = [2 * STEP, STEP].map(|size| device.grow(0, size, size));
        device.free(0, blocks[0]);
        let consolidating = device.clone();
        let other = thread::spawn(move || consolidating.consolidate(0));
        let served = device.search(0, STEP);
        // One page is free, or the long one, or none while the run is detached.
        let moved = device.grow(1, STEP, STEP);
        other.join().unwrap();
        device.check();
        device.unmap_stale(0);
        served.into_iter().chain([blocks[1]]).for_each(|ptr| device.free(0, ptr));
        device.free(1, moved);
        device.check();
    });
}
