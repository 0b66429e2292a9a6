//! The list of the loose heaps, and peaks found by reading only the loose heaps, explored by
//! `loom`: every order of threads.

use super::loom::explore;
use crate::arena::heaps::loose::{LooseLink, LooseList};
use crate::config::rounding::PoolKind;
use crate::stats::{DevicePeaks, HeapCounters, KindCounters, Stat};
use crate::sync::empty;
use loom::sync::{Arc, Mutex};
use loom::thread;

/// Heaps and their peaks, as in the arena. A heap is a flag: whether the heap is tight. The heap's
/// lock also guards the counters.
struct Heaps {
    heaps: [Mutex<bool>; 2],
    counters: [HeapCounters; 2],
    links: [LooseLink; 2],
    loose: LooseList,
    peaks: Mutex<DevicePeaks>,
}

impl Heaps {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            heaps: [Mutex::new(true), Mutex::new(true)],
            counters: Default::default(),
            links: empty!(),
            loose: LooseList::default(),
            peaks: Mutex::new(DevicePeaks::default()),
        })
    }

    fn of(&self, heap: usize) -> KindCounters<'_> {
        (PoolKind::Small, &self.counters[heap])
    }

    fn loosen(&self, heap: usize, tight: &mut bool) {
        if core::mem::take(tight) {
            self.loose.add(heap as u32, &self.links[heap]);
        }
    }

    fn loose(&self) -> impl Iterator<Item = KindCounters<'_>> + Clone {
        let next = |&heap: &u32| self.links[heap as usize].next();
        core::iter::successors(self.loose.first(), next).map(|heap| self.of(heap as usize))
    }

    /// Allocates bytes in a heap, like the fast path: the heap becomes loose once the heap's lock
    /// is free.
    fn allocate(&self, heap: usize, bytes: u64) {
        let tight = self.heaps[heap].lock().unwrap();
        let stale = self.counters[heap].up(Stat::AllocatedBytes, bytes);
        drop(tight);
        if stale {
            if self.links[heap].is_tight() {
                self.loosen(heap, &mut self.heaps[heap].lock().unwrap());
            }
            self.peaks.lock().unwrap().reconcile(&self.loose(), self.of(heap), &core::iter::empty());
        }
    }

    /// Frees bytes of a heap.
    fn free(&self, heap: usize, bytes: u64) {
        let mut tight = self.heaps[heap].lock().unwrap();
        self.counters[heap].down(Stat::AllocatedBytes, bytes);
        self.loosen(heap, &mut tight);
    }

    /// Makes a heap tight.
    fn tighten(&self, heap: usize) {
        let mut tight = self.heaps[heap].lock().unwrap();
        if !*tight {
            let peaks = self.peaks.lock().unwrap();
            peaks.cut_leases(self.of(heap));
            self.loose.remove(heap as u32, |heap| &self.links[heap as usize]);
            *tight = true;
        }
    }

    fn peak(&self) -> i64 {
        let all = (0..2).map(|heap| self.of(heap));
        self.peaks.lock().unwrap().stats(all).allocated_bytes().peak
    }
}

#[test]
fn loom_what_tight_heaps_hold_is_in_a_peak_and_what_they_have_freed_is_not() {
    explore(|| {
        let heaps = Heaps::new();
        heaps.allocate(0, 100);
        heaps.tighten(0);
        let freeing = heaps.clone();
        let other = thread::spawn(move || freeing.free(0, 60));
        heaps.allocate(1, 30);
        other.join().unwrap();
        assert!([100, 130].contains(&heaps.peak()), "before the free or behind it: {}", heaps.peak());
        // From here on calls follow one another.
        heaps.allocate(1, 50);
        assert!(heaps.peak() <= 130, "40 and 80: {}", heaps.peak());
        heaps.allocate(1, 200);
        assert_eq!(heaps.peak(), 40 + 280);
    });
}

#[test]
fn loom_heaps_become_loose_while_others_become_tight() {
    explore(|| {
        let heaps = Heaps::new();
        heaps.allocate(0, 100);
        let other = heaps.clone();
        let other = thread::spawn(move || {
            other.tighten(0);
            other.free(0, 10);
        });
        heaps.allocate(1, 20);
        heaps.tighten(1);
        heaps.free(1, 5);
        other.join().unwrap();
        assert_eq!(heaps.loose().count(), 2, "each is in the list once");
        heaps.tighten(0);
        heaps.tighten(1);
        assert_eq!((heaps.loose().count(), heaps.loose.first()), (0, None));
        heaps.allocate(0, 900);
        assert_eq!(heaps.peak(), 990 + 15);
    });
}
