//! Copies a device's state onto another device, on which requests can be tried.
//!
//! The copy contains every heap, pool, plan, page and pending free of the original, and decides
//! with the same code. Nothing of the original changes, and its device is not called. The copy
//! shows one moment. Operations that other threads have in progress at that moment are never
//! finished in the copy, so the memory that they hold stays out of use.

use crate::arena::hosted::all_locks::AllLocks;
use crate::arena::idle::IdleMemory;
use crate::arena::plans::Plans;
use crate::arena::tracing::History;
use crate::arena::{Arena, Built, OnDevice, OwnerMap, Platform, flags};
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::sync::{Rank, Ranked};

/// A copy of a device's state, and the page map of the copy.
type DeviceCopy<T, P> = (Arena<Built<T, <P as Platform>::Lock, <P as Platform>::Storage>>, OwnerMap<P>);

/// Returns the state over `onto`, as device 0 of an allocator, and its page map. Events, physical
/// handles and addresses are those of the original. The copy records no trace.
///
/// # Errors
/// The loss of the context, and [`Error::TableFull`].
pub(crate) fn copy_onto<P: Platform, T: DeviceMemory>(
    device: OnDevice<'_, P>,
    onto: T,
) -> Result<DeviceCopy<T, P>, Error> {
    let arena = device.arena;
    arena.driver.health()?;
    let held = AllLocks::of(device);
    let pages = device.pages.copy_of(arena.number(), &held.page_map)?;
    let plans = arena.plans.server().zip(held.planner.as_ref());
    let copy = Arena {
        driver: arena.driver.for_device(onto, flags::TRACE),
        settings: arena.settings.duplicate::<P::Storage>(held.config.clone()),
        heaps: arena.heaps.copy_of(&held.heaps, &held.ended)?,
        plans: Plans::of(plans.map(|(server, planner)| server.copy_of(planner))),
        paging: held.paging.copy(),
        debug: arena.debug.copy(),
        waits: held.waits.copy(),
        idle: Ranked::new(Rank::Idle, IdleMemory::default()),
        peaks: arena.peaks.copy(*held.peaks),
        ledger: arena.ledger.copy(),
        tuning: Ranked::new(Rank::Tuning, held.tuning.clone()),
        history: History::default(),
        #[cfg(feature = "paranoid")]
        schedule: arena.schedule.of_copy(),
    };
    drop(held);
    copy.heaps.list_as_dirty();
    copy.waits.set_flags(&copy.driver.flags);
    // Counters and peaks were copied at different moments.
    copy.peaks.device.sum_leases(copy.counters().all());
    Ok((copy, pages))
}
