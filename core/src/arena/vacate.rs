//! Releases the memory of ended and idle streams.
//!
//! A stream ends when the program says so. A stream is idle if the program has no block of its
//! pair, and the pair has served no request for a while.

use crate::arena::driver::Driver;
use crate::arena::heaps::Heaps;
use crate::arena::heaps::pairs::PairUse;
use crate::arena::holdings::Holdings;
use crate::arena::platform::Platform;
use crate::arena::waits::{DeviceWaits, Outside};
use crate::config::rounding::PoolKind;
use crate::error::Error;
use crate::sync::Ordering;
use crate::units::{DevicePtr, StreamId};

impl<P: Platform> Holdings<'_, P> {
    /// Releases the free segments of marked heaps of ended streams. Also releases the caches of
    /// idle streams, if a sweep of the pairs has requested this.
    pub(crate) fn release_ended(&self) {
        // Heaps that are marked again wait for the next call.
        let mut from = 0;
        while let Some(slot) = self.heaps.pop_ended(from) {
            from = slot + 1;
            let Some(used) = self.heaps.enter_pair(slot / 2) else { continue };
            // The pair may serve a live stream again since the heap was marked.
            if self.heaps.lock(slot).ended {
                // A failure is ignored, because the request may succeed.
                let _failed = self.release_of_ended(slot);
            }
            drop(used);
        }
        // `swap` gives the sweep to only one thread.
        if self.heaps.idle_due.swap(0, Ordering::Relaxed) != 0 {
            self.release_idle();
        }
    }

    /// Releases the cache of a heap with an ended stream. If something is left, as while the stream
    /// captures a graph, the heap is marked, and a later request tries again.
    fn release_of_ended(&self, slot: u32) -> Result<(), Error> {
        let released = self.release_heap(slot);
        if self.heaps.units_of(slot).next().is_some() {
            self.heaps.queue_if_ended(self.heaps.slot(slot));
        }
        released
    }

    /// Releases the caches of idle pairs, and makes the pairs vacant. A pair is idle if the program
    /// has no block of it, and it has served no request since the previous sweep.
    ///
    /// The sweep also finds streams that ended without a report, because a driver does not report
    /// the end of a stream.
    #[cold]
    fn release_idle(&self) {
        let mut next = 0;
        while let Some((pair, idle)) = self.heaps.sweep_pair(next) {
            next = pair + 1;
            if let Some(used) = idle.then(|| self.heaps.enter_pair(pair)).flatten() {
                self.release_pair(used);
            }
        }
        // Set the threshold of the next sweep from the pairs that are left after the release.
        self.heaps.registry.lock().finish_sweep();
    }

    /// Releases the cache of one idle pair, and makes it vacant. Returns false if no pair is idle,
    /// or if the pair could not be emptied.
    #[cold]
    pub(crate) fn release_one_idle(&self) -> bool {
        let Some(used) = self.heaps.idle_pair() else { return false };
        let pair = used.pair;
        self.release_pair(used);
        !self.heaps.registry.lock().pairs[pair as usize].exists
    }

    /// Releases the caches of both heaps of a pair, and makes the pair vacant if nothing is left.
    fn release_pair(&self, used: PairUse<'_, P>) {
        for kind in [PoolKind::Small, PoolKind::Large] {
            // A failure is ignored: `Ledger::leak` counts the bytes, and the request may succeed.
            let _counted = self.release_heap(used.slot(kind));
        }
        let pair = used.pair;
        // A pair in use cannot become vacant, so the guard is dropped first.
        drop(used);
        self.heaps.vacate_if_empty(pair);
    }

    /// Releases the cache of a stream that has ended, in every pool. Afterwards the stream's number
    /// may be used for another stream.
    ///
    /// Live blocks of the stream stay valid, and so do the segments of pools in use. Captures that
    /// were started on the stream end. Each pair of the stream becomes vacant when its last segment
    /// is released.
    ///
    /// # Errors
    ///
    /// The first failure. The release continues after it.
    pub(crate) fn stream_destroyed<'w>(
        &self,
        waits: DeviceWaits<'w, P, impl Outside<'w, P>>,
        stream: StreamId,
    ) -> Result<(), Error> {
        self.heaps.end_captures_on(self.driver, stream);
        // Gathered frees wait for an event that must be recorded while the stream exists.
        let mut result = waits.record_all_open();
        let mut next = 0;
        // `end_next_pair` marks each pair before the release, so that a block freed after the
        // release finds the mark of the pair, and marks its heap.
        while let Some((pool, ended)) = self.heaps.end_next_pair(next, stream) {
            next = pool + 1;
            for kind in [PoolKind::Small, PoolKind::Large] {
                result = result.and(self.release_of_ended(ended.slot(kind)));
            }
        }
        result
    }
}

impl<P: Platform> Heaps<P> {
    /// Returns the address of the first segment or range that
    /// [`release_ended`](Holdings::release_ended) would release for a request of `pair`. Skips the
    /// heaps of `pair`, because the request would revive its stream.
    pub(crate) fn first_ended(&self, driver: &Driver<P::Device>, pair: u32) -> Option<DevicePtr> {
        let mut from = 0;
        // The lock of the marked heaps is dropped before the heap's lock is taken.
        while let Some(slot) = self.next_ended(from) {
            from = slot + 1;
            let first = self.enter_pair(slot / 2).and_then(|_used| {
                let ended = slot / 2 != pair && self.lock(slot).ended;
                if ended { self.first_of_heap(driver, slot) } else { None }
            });
            if first.is_some() {
                return first;
            }
        }
        None
    }

    /// Returns the address of the first segment or range that
    /// [`release_one_idle`](Holdings::release_one_idle) would release.
    pub(crate) fn first_idle(&self, driver: &Driver<P::Device>) -> Option<DevicePtr> {
        let used = self.idle_pair()?;
        [PoolKind::Small, PoolKind::Large].into_iter().find_map(|kind| self.first_of_heap(driver, used.slot(kind)))
    }
}
