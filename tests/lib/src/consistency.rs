//! External invariants of any allocator on a simulated device: the snapshot tiles the device's
//! memory, and adds up to the statistics.

use crate::claims;
use cachalot_core::config::Policy;
use cachalot_core::simulated::{Call, SimulatedDevice};
use cachalot_core::{
    Allocator, BlockState, DeviceIndex, DeviceMemory, GRAIN, Lock, PageStats, PoolKind, SnapshotBlock, SnapshotSegment,
    Storage, UNIT, is_planned,
};
use std::collections::BTreeMap;

/// A device with a simulated device inside.
pub trait Simulated: DeviceMemory {
    /// Returns the simulated device.
    fn simulated(&self) -> &SimulatedDevice;
}

impl Simulated for SimulatedDevice {
    fn simulated(&self) -> &SimulatedDevice {
        self
    }
}

/// Returns an error with a message if the condition is false.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}

/// Checks one device of an allocator. `oversize` is the smallest oversize size, if constant since
/// the start.
///
/// # Errors
/// A message with the violated invariant.
pub fn check<D: Simulated, R: Lock, S: Storage>(
    allocator: &Allocator<D, R, S>,
    device: DeviceIndex,
    oversize: Option<u64>,
) -> Result<(), String> {
    allocator.check_invariants().map_err(|violated| format!("invariant: {violated}"))?;
    let mut segments = allocator.snapshot();
    segments.retain(|segment| segment.device == device);
    let config = allocator.settings(device).map(|settings| settings.config()).map_err(|error| error.to_string())?;
    for segment in &segments {
        check_tiling(segment, config.policy())?;
    }
    check_apart(&segments)?;
    let simulated = allocator.device(device).ok_or("no such device")?.simulated();
    let leaked = allocator.stats(device).map(|stats| stats.leaked_bytes()).map_err(|error| error.to_string())?;
    let pages = allocator.pages(device).map(|pages| pages.stats()).map_err(|error| error.to_string())?;
    let mut backed = segments.clone();
    for segment in &mut backed {
        // The segment of a guarded block lies on pages, like a part of an expandable segment.
        segment.is_expandable |= allocator.explain(segment.address).is_ok_and(|block| block.guarded);
    }
    check_device(&backed, simulated, &pages, leaked)?;
    let stats = allocator.stats(device).map(|stats| stats.totals()).map_err(|error| error.to_string())?;
    let mut told = BTreeMap::new();
    stats.for_each(|key, value| {
        told.insert(key.to_owned(), value);
    });
    for ((name, pool), sum) in recomputed(&segments, oversize) {
        let key = if pool.is_empty() { format!("{name}.current") } else { format!("{name}.{pool}.current") };
        let value = told.get(&key).copied();
        ensure!(value == Some(sum), "{key} is {value:?}, the snapshot adds up to {sum}");
    }
    for (key, &current) in told.iter().filter(|(key, _)| key.ends_with(".current")) {
        let peak = told[&key.replace(".current", ".peak")];
        if key.starts_with("oversize") && oversize.is_none() {
            // A segment allocated under one configuration may be released under another.
            continue;
        }
        ensure!(0 <= current && current <= peak, "{key} is {current}, its peak {peak}");
    }
    Ok(())
}

/// Checks that blocks tile their segment, and that free neighbours exist only among blocks of fixed
/// sizes.
fn check_tiling(segment: &SnapshotSegment, policy: Policy) -> Result<(), String> {
    let unit = if matches!(policy, Policy::Bfc(_)) { GRAIN } else { UNIT };
    let cut = policy.traits().suballocated == Some(segment.kind);
    let mut at = segment.address;
    let mut free_before = false;
    for block in &segment.blocks {
        ensure!(block.address == at, "a block begins at {}, the one before it ends at {at}", block.address);
        ensure!(block.size > 0 && block.size.is_multiple_of(unit), "the block at {at} has {} bytes", block.size);
        let free = block.state == BlockState::Inactive;
        ensure!(free || block.requested_size <= block.size, "the block at {at} is smaller than its request");
        ensure!(cut || !(free && free_before), "two free blocks touch at {at}");
        (free_before, at) = (free, at.offset(block.size));
    }
    let end = segment.address.offset(segment.total_size);
    ensure!(at == end, "the blocks of a segment end at {at}, the segment at {end}");
    // Under the stitched policy each heap of a stream serves the requests of the other.
    let smallest = if segment.kind == PoolKind::Small && !policy.traits().moves_pages { 1 << 20 } else { u64::MAX };
    let too_large = segment.blocks.iter().find(|block| is_held(block) && block.requested_size > smallest);
    ensure!(too_large.is_none(), "a small pool serves {too_large:?}");
    Ok(())
}

fn is_held(block: &SnapshotBlock) -> bool {
    block.state == BlockState::ActiveAllocated
}

/// Checks that no two segments overlap.
fn check_apart(segments: &[SnapshotSegment]) -> Result<(), String> {
    for pair in segments.windows(2) {
        let (end, next) = (pair[0].address.offset(pair[0].total_size), pair[1].address);
        ensure!(end <= next, "one segment ends at {end}, the next begins at {next}");
    }
    Ok(())
}

/// Checks that the device's memory is exactly the memory in the snapshot and the spare pages, apart
/// from leaked memory.
fn check_device(
    segments: &[SnapshotSegment],
    device: &SimulatedDevice,
    pages: &PageStats,
    leaked: u64,
) -> Result<(), String> {
    let counted = pages.calls;
    for (call, count) in [
        (Call::Reserve, counted.reserve),
        (Call::Unreserve, counted.unreserve),
        (Call::Destroy, counted.destroy),
        (Call::Map, counted.map),
        (Call::SetAccess, counted.set_access),
        (Call::Unmap, counted.unmap),
        (Call::Export, counted.export),
    ] {
        let made = device.calls(call);
        ensure!(count.calls == made, "{made} calls of {call:?}, of which {} are counted", count.calls);
    }
    let (made, created) = (device.calls(Call::Create) + device.calls(Call::CreateAtHost), counted.create.calls);
    ensure!(created == made, "{made} calls that create memory, of which {created} are counted");
    let held: u64 = segments.iter().map(|segment| segment.total_size - segment.parked).sum();
    let (used, spare) = (device.used() + device.used_of_host(), pages.spare + pages.spare_of_host);
    ensure!(used == held + spare + leaked, "{used} bytes are in use: {held} + {spare} spare + {leaked} leaked");
    for segment in segments.iter().filter(|segment| segment.parked == 0) {
        ensure!(device.is_accessible(segment.address, segment.total_size), "{} cannot be accessed", segment.address);
    }
    check_exclusive(segments, device)?;
    let outstanding = device.outstanding();
    if leaked == 0 {
        let ordinary = segments.iter().filter(|segment| !segment.is_expandable).count();
        ensure!(outstanding.segments == ordinary, "{outstanding:?}, the snapshot has {ordinary} ordinary segments");
        let parts = segments.iter().filter(|segment| segment.is_expandable);
        let mapped: u64 = parts.map(|part| part.total_size - part.parked).sum();
        ensure!(mapped == pages.mapped, "{pages:?}, the snapshot has {mapped} mapped bytes");
        ensure!((outstanding.handles == 0) == (mapped + spare == 0), "{outstanding:?}, {pages:?}");
        ensure!((outstanding.mappings == 0) == (mapped + pages.stale == 0), "{outstanding:?}, {pages:?}");
        // Without mappings there may be addresses left that the device would not take back.
        ensure!(mapped + pages.stale == 0 || outstanding.reservations > 0, "{outstanding:?}");
    }
    Ok(())
}

/// Checks that no byte of physical memory lies under two addresses of the snapshot.
fn check_exclusive(segments: &[SnapshotSegment], device: &SimulatedDevice) -> Result<(), String> {
    let pieces = segments.iter().filter_map(|segment| claims::pieces(device, segment.address, segment.total_size));
    let shared = claims::shared(pieces.flatten().collect());
    ensure!(shared.is_none(), "physical memory lies under two blocks: {shared:?}");
    Ok(())
}

/// Adds up every statistic of the present state from a snapshot, by name and pool.
fn recomputed(segments: &[SnapshotSegment], oversize: Option<u64>) -> BTreeMap<(&'static str, &'static str), i64> {
    let mut sums = BTreeMap::new();
    let names = ["allocation", "segment", "active", "inactive_split"];
    let bytes = ["allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes"];
    for name in names.into_iter().chain(bytes) {
        sums.extend(["all", "small_pool", "large_pool"].map(|pool| ((name, pool), 0)));
    }
    let (mut oversize_segments, mut oversize_allocations) = (0, 0);
    let is_oversize = |size: u64| oversize.is_some_and(|least| size >= least);
    for segment in segments {
        let pool = if segment.kind == PoolKind::Small { "small_pool" } else { "large_pool" };
        let mut add = |name: &'static str, amount: u64| {
            for pool in ["all", pool] {
                *sums.get_mut(&(name, pool)).expect("every name is listed") += amount.cast_signed();
            }
        };
        add("reserved_bytes", segment.total_size - segment.parked);
        if !segment.is_expandable {
            add("segment", 1);
            oversize_segments += i64::from(is_oversize(segment.total_size));
        }
        // Free memory of a plan belongs to no stream, and does not count.
        let counts = !segment.is_expandable && !is_planned(segment.pool);
        let in_use = segment.blocks.iter().any(|block| block.state != BlockState::Inactive);
        for block in &segment.blocks {
            if block.state != BlockState::Inactive {
                add("active", 1);
                add("active_bytes", block.size);
                add("requested_bytes", block.requested_size);
            } else if counts && in_use {
                add("inactive_split", 1);
                add("inactive_split_bytes", block.size);
            }
            if is_held(block) {
                add("allocation", 1);
                add("allocated_bytes", block.size);
                oversize_allocations += i64::from(is_oversize(block.size));
            }
        }
    }
    if oversize.is_some() {
        sums.insert(("oversize_segments", ""), oversize_segments);
        sums.insert(("oversize_allocations", ""), oversize_allocations);
    }
    sums
}
