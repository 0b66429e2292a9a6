//! The list of the dirty heaps, and peaks found by reading only the dirty heaps, explored by
//! `loom`: every order of threads.

use super::loom::explore;
use crate::arena::heaps::dirty::{DirtyLink, DirtyList};
use crate::config::rounding::PoolKind;
use crate::stats::{DevicePeaks, HeapCounters, KindCounters, Stat};
use crate::sync::empty;
use loom::sync::{Arc, Mutex};
use loom::thread;

/// Heaps and their peaks, as in the arena. A heap is a flag: whether the heap is clean. The heap's
/// lock also guards the counters.
struct Heaps {
    heaps: [Mutex<bool>; 2],
    counters: [HeapCounters; 2],
    links: [DirtyLink; 2],
    dirty: DirtyList,
    peaks: Mutex<DevicePeaks>,
}

impl Heaps {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            heaps: [Mutex::new(true), Mutex::new(true)],
            counters: Default::default(),
            links: empty!(),
            dirty: DirtyList::default(),
            peaks: Mutex::new(DevicePeaks::default()),
        })
    }

    fn of(&self, heap: usize) -> KindCounters<'_> {
        (PoolKind::Small, &self.counters[heap])
    }

    fn mark_dirty(&self, heap: usize, clean: &mut bool) {
        if core::mem::take(clean) {
            self.dirty.add(heap as u32, &self.links[heap]);
        }
    }

    fn dirty(&self) -> impl Iterator<Item = KindCounters<'_>> + Clone {
        let next = |&heap: &u32| self.links[heap as usize].next();
        core::iter::successors(self.dirty.first(), next).map(|heap| self.of(heap as usize))
    }

    /// Allocates bytes in a heap, like the fast path: the heap becomes dirty once the heap's lock
    /// is free.
    fn allocate(&self, heap: usize, bytes: u64) {
        let clean = self.heaps[heap].lock().unwrap();
        let stale = self.counters[heap].up(Stat::AllocatedBytes, bytes);
        drop(clean);
        if stale {
            if self.links[heap].is_clean() {
                self.mark_dirty(heap, &mut self.heaps[heap].lock().unwrap());
            }
            self.peaks.lock().unwrap().reconcile(&self.dirty(), self.of(heap), &core::iter::empty());
        }
    }

    /// Frees bytes of a heap.
    fn free(&self, heap: usize, bytes: u64) {
        let mut clean = self.heaps[heap].lock().unwrap();
        self.counters[heap].down(Stat::AllocatedBytes, bytes);
        self.mark_dirty(heap, &mut clean);
    }

    /// Makes a heap clean.
    fn mark_clean(&self, heap: usize) {
        let mut clean = self.heaps[heap].lock().unwrap();
        if !*clean {
            let peaks = self.peaks.lock().unwrap();
            peaks.cut_leases(self.of(heap));
            self.dirty.remove(heap as u32, |heap| &self.links[heap as usize]);
            *clean = true;
        }
    }

    fn peak(&self) -> i64 {
        let all = (0..2).map(|heap| self.of(heap));
        self.peaks.lock().unwrap().stats(all).allocated_bytes().peak
    }
}

#[test]
fn loom_what_clean_heaps_hold_is_in_a_peak_and_what_they_have_freed_is_not() {
    explore(|| {
        let heaps = Heaps::new();
        heaps.allocate(0, 100);
        heaps.mark_clean(0);
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
fn loom_heaps_become_dirty_while_others_become_clean() {
    explore(|| {
        let heaps = Heaps::new();
        heaps.allocate(0, 100);
        let other = heaps.clone();
        let other = thread::spawn(move || {
            other.mark_clean(0);
            other.free(0, 10);
        });
        heaps.allocate(1, 20);
        heaps.mark_clean(1);
        heaps.free(1, 5);
        other.join().unwrap();
        assert_eq!(heaps.dirty().count(), 2, "each is in the list once");
        heaps.mark_clean(0);
        heaps.mark_clean(1);
        assert_eq!((heaps.dirty().count(), heaps.dirty.first()), (0, None));
        heaps.allocate(0, 900);
        assert_eq!(heaps.peak(), 990 + 15);
    });
}
