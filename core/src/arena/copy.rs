//! A copy of a device's state over another device, on which requests can be tried.
//!
//! The copy has every heap, pool, plan, page and pending free of the original, and makes the same
//! decisions by the same code. Nothing of the original changes, and its device is not called. The copy is the state of one
//! moment. What other threads were doing then is never finished there: what they held stays out of use.

use crate::arena::idle::IdleMemory;
use crate::arena::plans::Plans;
use crate::arena::standstill::Standstill;
use crate::arena::{Arena, OnDevice, flags};
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::page_map::PageMap;
use crate::stats::MemoryCallCounters;
use crate::streams::groups::Groups;
use crate::sync::{AtomicU32, AtomicU64, CachePadded, Lock, Ordering, Rank, Ranked, Turn};
use crate::tables::Storage;
use crate::trace::call_sites::CallSites;

/// A copy of a device's state, and the page map for it.
type Copied<T, R, S> = (Arena<T, R, S>, PageMap<R, S>);

/// Returns the same state over `onto`, as device 0 of an allocator, and the page map for it. Events, physical handles and
/// addresses are those of the original. The copy records no trace.
///
/// # Errors
/// The loss of the context, and [`Error::TableFull`].
pub(crate) fn copy_onto<D: DeviceMemory, T: DeviceMemory, R: Lock, S: Storage>(
    device: OnDevice<'_, D, R, S>,
    onto: T,
) -> Result<Copied<T, R, S>, Error> {
    let arena = device.arena;
    arena.health()?;
    let count = |word: &AtomicU64| AtomicU64::new(word.load(Ordering::Relaxed));
    let held = Standstill::of(device);
    let pages = device.pages.copy_of(arena.number, &held.page_map)?;
    let plans = arena.plans.server().zip(held.planner.as_ref());
    let copy = Arena {
        driver: arena.driver.for_device(onto),
        number: 0,
        settings: arena.settings.duplicate(held.config.clone()),
        flags: CachePadded(arena.flags.copy(flags::TRACE)),
        heaps: arena.heaps.copy_of(&held.heaps, &held.ended)?,
        plans: Plans::of(plans.map(|(server, planner)| server.copy_of(&held.lanes, planner))),
        most_awake: count(&arena.most_awake),
        most_pending: count(&arena.most_pending),
        moved_bytes: count(&arena.moved_bytes),
        stale_mappings: AtomicU32::new(arena.stale_mappings.load(Ordering::Relaxed)),
        consolidated_bytes: count(&arena.consolidated_bytes),
        memory_calls: MemoryCallCounters::new(),
        page_pool: Ranked::new(Rank::Pages, held.page_pool.clone()),
        ranges: Ranked::new(Rank::Ranges, held.ranges.clone()),
        range_counters: arena.range_counters.copy(),
        event_queues: Groups::copy_of(&held.event_queues),
        deferred: Ranked::new(Rank::Deferred, held.deferred.clone()),
        ordered: Ranked::new(Rank::Ordered, held.ordered.clone()),
        epochs: Ranked::new(Rank::Epochs, held.epochs.clone()),
        frontier: Ranked::new(Rank::Frontier, held.frontier.clone()),
        idle: Ranked::new(Rank::Idle, IdleMemory::new()),
        peaks: CachePadded(Ranked::new(Rank::Peaks, *held.peaks)),
        device_peaks: CachePadded(arena.device_peaks.copy()),
        ledger: arena.ledger.copy(),
        single_search: AtomicU32::new(arena.single_search.load(Ordering::Relaxed)),
        tuning: Ranked::new(Rank::Tuning, held.tuning.clone()),
        sites: CallSites::default(),
        parking: Turn::default(),
        reports_events: AtomicU32::new(0),
        #[cfg(feature = "paranoid")]
        schedule: arena.schedule.of_copy(),
    };
    drop(held);
    copy.heaps.list_as_loose();
    copy.flags.follow_deferred(&copy.deferred.lock());
    // Counters and peaks were copied at different moments.
    copy.device_peaks.sum_leases(copy.all_counters());
    Ok((copy, pages))
}
