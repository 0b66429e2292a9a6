//! Events and segments as values, for an allocator of `PyTorch` that reports them in `PyTorch`'s
//! own form.

use super::plugin;
use crate::c::abi::{
    cachalot_pool, cachalot_status, cachalot_torch_block, cachalot_torch_event_callback, cachalot_torch_pool_visitor,
    cachalot_torch_segment, cachalot_torch_segment_visitor,
};
use crate::c::boundary;
use crate::c::marshal::Userdata;
use crate::c::status::{CACHALOT_ERROR_PANIC, CACHALOT_ERROR_STOPPED, Status};
use cachalot_core::{BlockState, DevicePtr, PoolId, PoolKind, SnapshotSegment};
use core::ffi::{c_int, c_void};
use core::ptr::without_provenance_mut;
use std::collections::BTreeMap;

/// Sets the callback that is told of each event as it happens.
///
/// # Safety
/// The callback may be called with `userdata`, from any thread, until another is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_torch_on_event(
    callback: cachalot_torch_event_callback,
    userdata: *mut c_void,
) -> cachalot_status {
    boundary::infallible(CACHALOT_ERROR_PANIC, || {
        plugin::with_allocator(|instance| {
            instance.callbacks.set_event(callback, Userdata(userdata));
            for device in instance.devices() {
                let (_, opened) = instance.device(device.0 as c_int)?;
                instance.allocator.trace(device)?.report(callback.is_some() || opened.announced.is_some());
            }
            Ok(())
        })
    })
}

/// Passes every segment of all devices to a callback, by address.
///
/// # Safety
/// The callback may be called with `userdata`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_torch_segments(
    visit: cachalot_torch_segment_visitor,
    userdata: *mut c_void,
) -> cachalot_status {
    boundary::infallible(CACHALOT_ERROR_PANIC, || {
        plugin::with_allocator(|instance| {
            let visit = visit.ok_or_else(|| Status::null("the callback"))?;
            let segments = instance.allocator.snapshot();
            let _running = instance.callbacks.enter();
            for segment in &segments {
                let blocks: Vec<_> = segment.blocks.iter().map(describe_block).collect();
                let number = instance.callbacks.births.number(segment.address);
                let described = describe(segment, number, &blocks);
                // SAFETY: guaranteed by the caller; the segment and its blocks outlive the call.
                if unsafe { visit(userdata, &raw const described) } != 0 {
                    return Err(Status::new(CACHALOT_ERROR_STOPPED, "the callback asked to stop"));
                }
            }
            Ok(())
        })
    })
}

/// Passes the reserved bytes of every private pool of a device to a callback, by the pool's name.
///
/// # Safety
/// The callback may be called with `userdata`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_torch_pools(
    device: c_int,
    visit: cachalot_torch_pool_visitor,
    userdata: *mut c_void,
) -> cachalot_status {
    boundary::infallible(CACHALOT_ERROR_PANIC, || {
        plugin::with_allocator(|instance| {
            let visit = visit.ok_or_else(|| Status::null("the callback"))?;
            let (index, _) = instance.device(device)?;
            let mut pools: BTreeMap<PoolId, [u64; 2]> = BTreeMap::new();
            instance.allocator.pools(index)?.reserved(|pool, kind, bytes| {
                pools.entry(pool).or_default()[usize::from(kind == PoolKind::Large)] += bytes;
            });
            let _running = instance.callbacks.enter();
            for (PoolId(first, second), [small, large]) in pools {
                // SAFETY: guaranteed by the caller.
                if unsafe { visit(userdata, cachalot_pool { first, second }, small, large) } != 0 {
                    return Err(Status::new(CACHALOT_ERROR_STOPPED, "the callback asked to stop"));
                }
            }
            Ok(())
        })
    })
}

/// Converts an address to C.
fn pointer(address: DevicePtr) -> *mut c_void {
    without_provenance_mut(address.0 as usize)
}

/// Converts a block to the C structure.
fn describe_block(block: &cachalot_core::SnapshotBlock) -> cachalot_torch_block {
    cachalot_torch_block {
        base: pointer(block.address),
        bytes: block.size as usize,
        requested_bytes: block.requested_size as usize,
        allocated: c_int::from(block.state == BlockState::ActiveAllocated),
        active: c_int::from(block.state != BlockState::Inactive),
    }
}

/// Converts a segment to the C structure, which refers to `blocks`.
fn describe(segment: &SnapshotSegment, number: u32, blocks: &[cachalot_torch_block]) -> cachalot_torch_segment {
    let PoolId(first, second) = segment.pool;
    cachalot_torch_segment {
        struct_size: size_of::<cachalot_torch_segment>(),
        base: pointer(segment.address),
        bytes: segment.total_size as usize,
        stream_id: segment.stream.0,
        pool: cachalot_pool { first, second },
        blocks: blocks.as_ptr(),
        block_count: blocks.len(),
        device: segment.device.0 as c_int,
        large: c_int::from(segment.kind == PoolKind::Large),
        expandable: c_int::from(segment.is_expandable),
        number,
    }
}
