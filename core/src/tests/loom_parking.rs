//! Models of a heap parked and woken while other threads use the heap, explored by loom. The heap,
//! the pages and the state of the pair are the core's own; the steps between the locks follow
//! `arena/parking` and `arena/request.rs`, without a device.

use super::loom::explore;
use crate::arena::heaps::pair_state::PairState;
use crate::config::Config;
use crate::config::rounding::PoolKind;
use crate::device::PhysicalHandle;
use crate::heap::home_pages::HomePage;
use crate::heap::split_rules::{PageRules, Rules, Source};
use crate::heap::{FreeOutcome, Heap};
use crate::pages::{Page, PagePool};
use crate::stats::{HeapCounters, Stat};
use crate::sync::empty;
use crate::tables::Growable;
use crate::units::{DevicePtr, MIB};
use loom::sync::{Arc, Mutex};
use loom::thread;

/// Length of a page.
const STEP: u64 = 2 * MIB;
/// Address of the first page.
const BASE: u64 = 1 << 40;

/// A heap of two pages, the first page under a live block.
struct Parkable {
    heap: Mutex<Heap<Growable>>,
    counters: HeapCounters,
    pages: Mutex<PagePool<Growable>>,
    state: PairState,
}

impl Parkable {
    fn new() -> Arc<Self> {
        let counters = HeapCounters::default();
        let mut pages = PagePool::default();
        let mut rules = Rules::new(&Config::default(), PoolKind::Large, false, Source::Pages);
        rules.pages = PageRules::Move;
        let mut heap = Heap::<Growable>::default();
        heap.rules = rules;
        heap.make_room().unwrap();
        assert!(heap.make_room_for_range());
        heap.add_range(DevicePtr(BASE), 8 * STEP, STEP);
        let held = heap.hold_room(2 * STEP, 0).unwrap();
        let held = heap.trim_room(held, 2 * STEP);
        heap.sets.pages.make_room(2).unwrap();
        for at in [BASE, BASE + STEP] {
            pages.make_room().unwrap();
            let page = pages.add(Page::created(PhysicalHandle(1), STEP, false));
            pages.settle(page);
            heap.sets.pages.insert(HomePage::new(at, STEP, page));
        }
        let _free = heap.extend(held, &counters);
        let live = heap.malloc(STEP, STEP, &counters).unwrap().unwrap();
        assert_eq!(live.value, DevicePtr(BASE));
        let state: PairState = empty!();
        state.open();
        state.leave();
        Arc::new(Self { heap: Mutex::new(heap), counters, pages: Mutex::new(pages), state })
    }

    /// `Arena::with_request`: returns whether the request was served, by mapped memory.
    fn request(&self) -> bool {
        assert!(self.state.enter());
        let served = !self.heap.lock().unwrap().asleep && {
            let mut heap = self.heap.lock().unwrap();
            let served = heap.malloc(STEP, STEP, &self.counters).unwrap();
            served.is_some_and(|served| {
                let page = heap.sets.pages.containing(served.value.0).unwrap();
                assert!(!page.asleep, "a request is served by memory that is parked");
                true
            })
        };
        // The program has the block from here on, and a park may follow.
        self.state.leave();
        served
    }

    fn free(&self) {
        let mut heap = self.heap.lock().unwrap();
        let FreeOutcome::Unused(block) = heap.detach(DevicePtr(BASE), None, &self.counters) else {
            panic!("it is live");
        };
        heap.finish_free(block, &self.counters);
    }

    /// `Parker::park`, with all work complete and no contents kept.
    fn park(&self) {
        assert!(self.state.enter());
        self.heap.lock().unwrap().mark(false, true);
        while self.state.users() > 1 {
            thread::yield_now();
        }
        let mut at = 0;
        loop {
            let next = self.heap.lock().unwrap().sets.pages.from(at);
            let Some(page) = next else { break };
            at = page.end();
            // Here the device unmaps the page, with no lock held.
            let mut heap = self.heap.lock().unwrap();
            heap.sets.pages.change(page.at, |home| home.asleep = true);
            self.counters.down(Stat::ReservedBytes, page.bytes);
            self.pages.lock().unwrap().fall_asleep(page.page);
        }
        self.state.leave();
    }

    /// `Parker::wake_wait`, of a pool in use.
    fn wake(&self) {
        assert!(self.state.enter());
        let mut at = 0;
        loop {
            let next = self.heap.lock().unwrap().sets.pages.from(at);
            let Some(home) = next else { break };
            at = home.end();
            let mut pages = self.pages.lock().unwrap();
            pages.make_room().unwrap();
            // Here the device maps a new page, with no lock held.
            let replacement = pages.add(Page::created(PhysicalHandle(2), home.bytes, false));
            pages.begin_to_wake(home.page, replacement);
            drop(pages);
            let mut heap = self.heap.lock().unwrap();
            let (page, _) = self.pages.lock().unwrap().wake(home.page);
            heap.sets.pages.change(home.at, |home| (home.asleep, home.page) = (false, page));
            let _peaks = self.counters.up(Stat::ReservedBytes, home.bytes);
        }
        self.heap.lock().unwrap().mark(false, false);
        self.state.leave();
    }

    /// Checks the heap and its pages, all awake or all asleep.
    fn check(&self, asleep: u64) {
        let heap = self.heap.lock().unwrap();
        assert_eq!(heap.check_invariants(&self.counters).unwrap(), 2 * STEP - asleep);
        let pages = self.pages.lock().unwrap().check().unwrap();
        assert_eq!((pages.home, pages.asleep, pages.waking), (2 * STEP - asleep, asleep, 0));
    }
}

#[test]
fn loom_a_request_beside_a_park_is_served_before_or_refused() {
    explore(|| {
        let parkable = Parkable::new();
        let requester = thread::spawn({
            let parkable = parkable.clone();
            move || parkable.request()
        });
        parkable.park();
        parkable.check(2 * STEP);
        let _either = requester.join().unwrap();
        parkable.check(2 * STEP);
    });
}

#[test]
fn loom_a_request_beside_a_wake_is_refused_or_served_by_awake_memory() {
    explore(|| {
        let parkable = Parkable::new();
        parkable.park();
        let requester = thread::spawn({
            let parkable = parkable.clone();
            move || parkable.request()
        });
        parkable.wake();
        let _either = requester.join().unwrap();
        parkable.check(0);
    });
}

#[test]
fn loom_a_block_is_freed_while_its_memory_is_parked_and_wakes() {
    explore(|| {
        let parkable = Parkable::new();
        let freeing = thread::spawn({
            let parkable = parkable.clone();
            move || parkable.free()
        });
        parkable.park();
        parkable.wake();
        freeing.join().unwrap();
        parkable.check(0);
        assert!(parkable.request());
    });
}
