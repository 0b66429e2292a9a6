//! A copy of a device's state over another device, on which requests can be tried.
//!
//! The copy has every heap, pool, plan, page and pending free of the original, and makes the same
//! decisions by the same code. Nothing of the original changes, and its device is not called. While
//! other threads allocate and free, the parts of the copy belong to slightly different moments.

use crate::arena::{Arena, flags};
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::stats::MemoryCallCounters;
use crate::sync::{AtomicU32, AtomicU64, CachePadded, Lock, Ordering, Rank, Ranked};
use crate::tables::Storage;
use crate::trace::call_sites::CallSites;

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Returns the same state over `device`, as device 0 of an allocator. Events, physical handles and
    /// addresses are those of the original. The copy records no trace.
    ///
    /// # Errors
    /// The loss of the context, and [`Error::TableFull`].
    pub(crate) fn copy_onto<T: DeviceMemory>(&self, device: T) -> Result<Arena<T, R, S>, Error> {
        self.health()?;
        let count = |word: &AtomicU64| AtomicU64::new(word.load(Ordering::Relaxed));
        let page_pool = self.page_pool.lock().clone();
        let ranges = self.ranges.lock().clone();
        let deferred = self.deferred.lock().clone();
        let ordered = self.ordered.lock().clone();
        let epochs = self.epochs.lock().clone();
        let frontier = self.frontier.lock().clone();
        Ok(Arena {
            driver: self.driver.for_device(device),
            number: 0,
            settings: self.settings.duplicate(),
            flags: CachePadded(self.flags.copy(flags::TRACE)),
            heaps: self.heaps.copy()?,
            plans: self.plans.copy(),
            most_awake: count(&self.most_awake),
            moved_bytes: count(&self.moved_bytes),
            consolidated_bytes: count(&self.consolidated_bytes),
            memory_calls: MemoryCallCounters::new(),
            page_pool: Ranked::new(Rank::Pages, page_pool),
            ranges: Ranked::new(Rank::Ranges, ranges),
            range_counters: self.range_counters.copy(),
            event_queues: self.event_queues.copy(),
            deferred: Ranked::new(Rank::Deferred, deferred),
            ordered: Ranked::new(Rank::Ordered, ordered),
            epochs: Ranked::new(Rank::Epochs, epochs),
            frontier: Ranked::new(Rank::Frontier, frontier),
            peaks: CachePadded(Ranked::new(Rank::Peaks, *self.peaks.lock())),
            device_peaks: CachePadded(self.device_peaks.copy()),
            ledger: self.ledger.copy(),
            single_search: AtomicU32::new(self.single_search.load(Ordering::Relaxed)),
            sites: CallSites::default(),
            parking: AtomicU32::new(0),
            reports_events: AtomicU32::new(0),
            #[cfg(feature = "paranoid")]
            schedule: crate::arena::checks::Schedule::default(),
        })
    }
}
