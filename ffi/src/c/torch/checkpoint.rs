//! Support for checkpoints of a pool: blocks at their earlier addresses.

use super::plugin;
use crate::c::abi::{cachalot_pool, cachalot_status};
use crate::c::boundary;
use crate::c::status::CACHALOT_ERROR_PANIC;
use cachalot_core::{DevicePtr, PoolId};
use core::ffi::c_void;

/// Allocates a block at a chosen address, from free memory of a pool.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_torch_allocate_at(
    pool: cachalot_pool,
    address: *mut c_void,
    bytes: usize,
    requested_bytes: usize,
) -> cachalot_status {
    boundary::infallible(CACHALOT_ERROR_PANIC, || {
        plugin::with_allocator(|instance| {
            let pool = PoolId(pool.first, pool.second);
            let address = DevicePtr(address.addr() as u64);
            Ok(instance.allocator.malloc_at(pool, address, bytes as u64, requested_bytes as u64)?)
        })
    })
}
