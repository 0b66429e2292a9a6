//! What is cached, and how much may be held.

use crate::abi::{CACHALOT_NO_LIMIT, cachalot_allocator, cachalot_status};
use crate::boundary;
use core::ffi::c_int;

/// Frees what other streams no longer use.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_process_events(allocator: *const cachalot_allocator, device: c_int) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (device, _) = instance.device(device)?;
        Ok(instance.allocator.process_events(device)?)
    })
}

/// Gives everything cached back.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_empty_cache(allocator: *const cachalot_allocator, device: c_int) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (device, _) = instance.device(device)?;
        Ok(instance.allocator.empty_cache(device)?)
    })
}

/// Gives what is cached back until so much is held.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_trim(
    allocator: *const cachalot_allocator,
    device: c_int,
    keep_bytes: usize,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (device, _) = instance.device(device)?;
        Ok(instance.allocator.trim(device, keep_bytes as u64)?)
    })
}

/// Turns the cache off or on.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_set_caching(
    allocator: *const cachalot_allocator,
    device: c_int,
    on: c_int,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (device, _) = instance.device(device)?;
        Ok(instance.allocator.set_caching(device, on != 0)?)
    })
}

/// Sets the most that may be held.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_set_limit(
    allocator: *const cachalot_allocator,
    device: c_int,
    bytes: u64,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (device, _) = instance.device(device)?;
        Ok(instance.allocator.set_limit(device, (bytes != CACHALOT_NO_LIMIT).then_some(bytes))?)
    })
}

/// Sets the limit to a part of the device's memory.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_set_memory_fraction(
    allocator: *const cachalot_allocator,
    device: c_int,
    fraction: f64,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (device, _) = instance.device(device)?;
        Ok(instance.allocator.set_memory_fraction(device, fraction)?)
    })
}
