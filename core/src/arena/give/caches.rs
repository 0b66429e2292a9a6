//! Cached memory given back: the whole cache, the cache of a heap, or down to a target.
//!
//! No two heaps are locked together, and none across a call to the device.

use crate::arena::give::rules;
use crate::arena::give::take::give;
use crate::arena::give::units::{Kind, Unit};
use crate::arena::{Arena, OnDevice, flags};
use crate::config::Policy;
use crate::config::rounding::PoolKind;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::stats::Event;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::{DevicePtr, NO_STREAM};

/// Gives every unit back.
///
/// # Errors
/// The first failure. The release goes on after a failure unless the context is lost.
fn give_each<D: DeviceMemory, R: Lock, S: Storage>(
    device: OnDevice<'_, D, R, S>,
    units: impl Iterator<Item = Unit>,
) -> Result<(), Error> {
    let mut result = Ok(());
    for unit in units {
        result = result.and(give(device, [unit]).map(|_bytes| ()));
        if device.flags.has(flags::LOST) {
            break;
        }
    }
    result
}

/// Releases the free segments of the heap in `slot`, after a block was freed in direct mode.
///
/// The free has succeeded, so a failed release is not reported here. The leaked bytes count the failure, and the health
/// of the context shows a lost device.
pub(in crate::arena) fn release_directly<D: DeviceMemory, R: Lock, S: Storage>(
    device: OnDevice<'_, D, R, S>,
    slot: u32,
) {
    // If the freed block was the pair's last, another stream may have the pair by now. In direct mode the free
    // segments of the other stream are to be released as well.
    if let Some(_used) = device.heaps.enter_pair(slot / 2) {
        let _counted = give_each(device, device.heaps.segments_of(slot));
    }
}

/// Releases every wholly free segment of the heap in `slot`, and unmaps the free granules of expandable segments.
/// The caller uses the pair.
///
/// # Errors
/// The first failure. The release goes on after a failure unless the context is lost.
pub(in crate::arena) fn release_heap<D: DeviceMemory, R: Lock, S: Storage>(
    device: OnDevice<'_, D, R, S>,
    slot: u32,
) -> Result<(), Error> {
    // The addresses that pages have left keep the pair from becoming vacant.
    let unmapped = device.stitcher().map_or(Ok(()), |stitcher| stitcher.unmap_stale_of(slot));
    let emptied = unmapped.and(empty_heap(device, slot));
    // Under the stitched policy, spare pages serve other heaps within the same budget.
    if matches!(device.settings.policy, Policy::Stitched(_)) { emptied } else { emptied.and(destroy_spares(device)) }
}

/// Releases every wholly free segment of the heap in `slot`. Pages of virtual memory become spare.
fn empty_heap<D: DeviceMemory, R: Lock, S: Storage>(device: OnDevice<'_, D, R, S>, slot: u32) -> Result<(), Error> {
    let segments = give_each(device, device.heaps.segments_of(slot));
    let released = segments.and(unmap_cached(device, slot));
    device.heaps.drop_tables(&mut device.heaps.lock(slot));
    released
}

/// Returns the address of the first segment or range in the way of [`release_heap`].
pub(in crate::arena) fn first_of_heap<D: DeviceMemory, R: Lock, S: Storage>(
    arena: &Arena<D, R, S>,
    slot: u32,
) -> Option<DevicePtr> {
    let goes = |unit: &Unit| {
        let stream = arena.heaps.lock(slot).stream;
        // The pages of a capturing stream stay mapped.
        unit.kind == Kind::Segment
            || !arena.driver.may_use(stream, NO_STREAM)
            || arena.call(|device| device.is_capturing(stream)) != Ok(true)
    };
    arena.heaps.units_of(slot).find(goes).map(|unit| unit.ptr())
}

/// Unmaps the free granules of the heap in `slot`, if the device has virtual memory. A heap asleep also gives up the
/// places of freed pages. The caller uses the pair, so no park begins.
pub(in crate::arena) fn unmap_cached<D: DeviceMemory, R: Lock, S: Storage>(
    device: OnDevice<'_, D, R, S>,
    slot: u32,
) -> Result<(), Error> {
    let Some(mapper) = device.mapper() else { return Ok(()) };
    if device.heaps.lock(slot).asleep { mapper.try_to_give_up_freed(slot) } else { mapper.unmap_cached(slot) }
}

/// Returns the memory of spare pages to the device.
///
/// # Errors
/// The first error of the device, after all pages were tried.
pub(in crate::arena) fn destroy_spares<D: DeviceMemory, R: Lock, S: Storage>(
    device: OnDevice<'_, D, R, S>,
) -> Result<(), Error> {
    // Asking a device for its virtual memory may open the device.
    if device.paging.bytes().spare == 0 {
        return Ok(());
    }
    device.mapper().map_or(Ok(()), |mapper| mapper.destroy_spares().map(|_any| ()))
}

/// Releases every wholly free segment and every spare page, as [`empty_heaps`] does.
pub(crate) fn release_cached<D: DeviceMemory, R: Lock, S: Storage>(
    device: OnDevice<'_, D, R, S>,
    only: Option<u32>,
) -> Result<(), Error> {
    // A page with a stale mapping cannot go back to the device.
    let unmapped = device.stitcher().map_or(Ok(()), |stitcher| stitcher.unmap_all_stale());
    let decommitted = if only.is_none() { device.wait_for_departures() } else { Ok(()) };
    unmapped.and(decommitted).and(empty_heaps(device, only)).and(destroy_spares(device))
}

/// Releases every wholly free segment for memory that could not be had before, and obtains the memory by `attempt`.
/// Returns the result of the attempt.
///
/// # Errors
/// Those of the attempt; without memory, the first failure of a release.
pub(in crate::arena) fn release_and_retry<D: DeviceMemory, R: Lock, S: Storage, T>(
    device: OnDevice<'_, D, R, S>,
    attempt: impl FnOnce() -> Result<Option<T>, Error>,
) -> Result<Option<T>, Error> {
    // A page with a stale mapping cannot go back to the device for a longer one.
    device.stitcher().map_or(Ok(()), |stitcher| stitcher.unmap_all_stale())?;
    empty_heaps(device, None)?;
    device.peaks.device.count(Event::AllocRetry);
    // Maps spare pages first; those that are left go back to the device.
    let served = attempt()?;
    let destroyed = destroy_spares(device);
    // A failed release is counted as leaked, and must not lose the memory obtained.
    if served.is_none() {
        destroyed?;
    }
    Ok(served)
}

/// Releases every wholly free segment: first of the default pool, then of the private pools without users. With
/// `only`, releases the segments of one private pool without users. Pages of virtual memory become spare.
///
/// # Errors
/// The first failure. The release goes on after a failure unless the context is lost.
pub(in crate::arena) fn empty_heaps<D: DeviceMemory, R: Lock, S: Storage>(
    device: OnDevice<'_, D, R, S>,
    only: Option<u32>,
) -> Result<(), Error> {
    let retired = if only.is_none() { device.release_retired(true) } else { Ok(()) };
    let pools = device.heaps.giving_pools().filter(|&pool| only.is_none_or(|only| only == pool));
    let heaps = device.heaps.heaps_of(pools, rules::by_pool);
    heaps.fold(retired, |result, (slot, _used)| result.and(empty_heap(device, slot)))
}

/// Returns the address of the first segment or range in the way of [`release_cached`].
pub(in crate::arena) fn first_releasable<D: DeviceMemory, R: Lock, S: Storage>(
    arena: &Arena<D, R, S>,
) -> Option<DevicePtr> {
    let heaps = || arena.heaps.heaps_of(arena.heaps.giving_pools(), rules::by_pool);
    arena.first_retired().or_else(|| heaps().find_map(|(slot, _used)| first_of_heap(arena, slot)))
}

/// Releases wholly free segments until at most `keep` bytes are held from the device, the largest first. Then unmaps
/// free granules of expandable segments. Does not wait for pending events.
///
/// # Errors
/// The first failure, which ends the trimming.
pub(crate) fn trim<D: DeviceMemory, R: Lock, S: Storage>(
    device: OnDevice<'_, D, R, S>,
    keep: u64,
) -> Result<(), Error> {
    let exceeds = || device.ledger.reserved() > keep;
    device.collect_departed(u32::MAX);
    if exceeds() {
        device.release_retired(true)?;
    }
    give(device, rules::largest(device.arena, keep))?;
    if exceeds()
        && let Some(stitcher) = device.stitcher()
    {
        stitcher.unmap_all_stale()?;
    }
    for (slot, _used) in device.heaps.heaps_of(device.heaps.giving_pools(), |_| [PoolKind::Large, PoolKind::Small]) {
        if exceeds() {
            unmap_cached(device, slot)?;
            destroy_spares(device)?;
            device.heaps.drop_tables(&mut device.heaps.lock(slot));
        }
    }
    if exceeds() { destroy_spares(device) } else { Ok(()) }
}
