//! A copy of a device's state over another device, on which requests can be tried.
//!
//! The copy has every heap, pool, plan, page and pending free of the original, and makes the same
//! decisions by the same code. Nothing of the original changes, and its device is not called. While
//! other threads allocate and free, the parts of the copy belong to slightly different moments.

use crate::arena::idle::IdleMemory;
use crate::arena::{Arena, flags};
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::stats::MemoryCallCounters;
use crate::sync::{AtomicU32, AtomicU64, CachePadded, Lock, Ordering, Rank, Ranked, Turn};
use crate::tables::Storage;
use crate::trace::call_sites::CallSites;

/// Returns the same state over `device`, as device 0 of an allocator. Events, physical handles and
/// addresses are those of the original. The copy records no trace.
///
/// # Errors
/// The loss of the context, and [`Error::TableFull`].
pub(crate) fn copy_onto<D: DeviceMemory, T: DeviceMemory, R: Lock, S: Storage>(
    arena: &Arena<D, R, S>,
    device: T,
) -> Result<Arena<T, R, S>, Error> {
    arena.health()?;
    let count = |word: &AtomicU64| AtomicU64::new(word.load(Ordering::Relaxed));
    let page_pool = arena.page_pool.lock().clone();
    let ranges = arena.ranges.lock().clone();
    let deferred = arena.deferred.lock().clone();
    let ordered = arena.ordered.lock().clone();
    let epochs = arena.epochs.lock().clone();
    let frontier = arena.frontier.lock().clone();
    let tuning = arena.tuning.lock().clone();
    Ok(Arena {
        driver: arena.driver.for_device(device),
        number: 0,
        settings: arena.settings.duplicate(),
        flags: CachePadded(arena.flags.copy(flags::TRACE)),
        heaps: arena.heaps.copy()?,
        plans: arena.plans.copy(),
        most_awake: count(&arena.most_awake),
        most_pending: count(&arena.most_pending),
        moved_bytes: count(&arena.moved_bytes),
        consolidated_bytes: count(&arena.consolidated_bytes),
        memory_calls: MemoryCallCounters::new(),
        page_pool: Ranked::new(Rank::Pages, page_pool),
        ranges: Ranked::new(Rank::Ranges, ranges),
        range_counters: arena.range_counters.copy(),
        event_queues: arena.event_queues.copy(),
        deferred: Ranked::new(Rank::Deferred, deferred),
        ordered: Ranked::new(Rank::Ordered, ordered),
        epochs: Ranked::new(Rank::Epochs, epochs),
        frontier: Ranked::new(Rank::Frontier, frontier),
        idle: Ranked::new(Rank::Idle, IdleMemory::new()),
        peaks: CachePadded(Ranked::new(Rank::Peaks, *arena.peaks.lock())),
        device_peaks: CachePadded(arena.device_peaks.copy()),
        ledger: arena.ledger.copy(),
        single_search: AtomicU32::new(arena.single_search.load(Ordering::Relaxed)),
        tuning: Ranked::new(Rank::Tuning, tuning),
        sites: CallSites::default(),
        parking: Turn::default(),
        reports_events: AtomicU32::new(0),
        #[cfg(feature = "paranoid")]
        schedule: crate::arena::checks::Schedule::default(),
    })
}
