//! Pools that lend the pages of their free blocks, and have them back.

use super::parking::{parking_of, tag_of};
use crate::Tables;
use crate::c::abi::{cachalot_allocator, cachalot_pool, cachalot_status, cachalot_stream};
use crate::c::boundary;
use crate::c::device::Device;
use crate::c::status::Outcome;
use cachalot_core::{ParkTarget, Parking, PoolId};
use cachalot_cuda::HeapLock;
use cachalot_cuda::driver::types::CuStream;
use core::ffi::c_int;

/// Runs the body of a function with the operations that lend memory of a device.
fn with_parking(
    allocator: *const cachalot_allocator,
    device: c_int,
    body: impl FnOnce(Parking<'_, Device, HeapLock, Tables>, &Device) -> Outcome,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (parking, device) = parking_of(instance, device)?;
        body(parking, device)
    })
}

/// Returns the memory of a pool.
fn pool_of(pool: cachalot_pool) -> ParkTarget {
    ParkTarget::Pool(PoolId(pool.first, pool.second))
}

/// Lends the pages of a pool's free blocks.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_pool_lend(
    allocator: *const cachalot_allocator,
    device: c_int,
    pool: cachalot_pool,
) -> cachalot_status {
    with_parking(allocator, device, |parking, _| Ok(parking.lend(pool_of(pool))?))
}

/// Brings a pool's lent pages back, for work of a stream.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_pool_reclaim(
    allocator: *const cachalot_allocator,
    device: c_int,
    pool: cachalot_pool,
    stream: cachalot_stream,
) -> cachalot_status {
    with_parking(allocator, device, |parking, device| {
        Ok(parking.reclaim(pool_of(pool), device.stream_id(CuStream(stream.addr()))?)?)
    })
}

/// Lends the pages of the free blocks of all pools with a tag.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_tag_lend(allocator: *const cachalot_allocator, device: c_int, tag: u64) -> cachalot_status {
    with_parking(allocator, device, |parking, _| Ok(parking.lend(ParkTarget::Tag(tag_of(tag)?))?))
}

/// Brings the lent pages of all pools with a tag back, for work of a stream.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_tag_reclaim(
    allocator: *const cachalot_allocator,
    device: c_int,
    tag: u64,
    stream: cachalot_stream,
) -> cachalot_status {
    with_parking(allocator, device, |parking, device| {
        let target = ParkTarget::Tag(tag_of(tag)?);
        Ok(parking.reclaim(target, device.stream_id(CuStream(stream.addr()))?)?)
    })
}
