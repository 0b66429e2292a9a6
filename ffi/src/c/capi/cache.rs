//! Control of the cache and of the limit on reserved memory.

use crate::c::abi::{CACHALOT_NO_LIMIT, cachalot_allocator, cachalot_status};
use crate::c::boundary;
use crate::c::status::{CACHALOT_ERROR_CAPTURING, CACHALOT_ERROR_INVALID_ARGUMENT, Status};
use core::ffi::c_int;

/// Frees the blocks whose events are complete.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_process_events(allocator: *const cachalot_allocator, device: c_int) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (device, _) = instance.device(device)?;
        Ok(instance.allocator.process_events(device)?)
    })
}

/// Releases all cached memory of a device. Says so if a capture keeps pending blocks from it.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_empty_cache(allocator: *const cachalot_allocator, device: c_int) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (device, _) = instance.device(device)?;
        instance.allocator.empty_cache(device)?;
        let stats = instance.allocator.stats(device)?.totals();
        let pending = stats.active_bytes().current - stats.allocated_bytes().current;
        if pending > 0 && instance.allocator.pools(device)?.are_capturing() {
            let text = format!(
                "{pending} bytes of freed blocks wait for streams, which are not polled while a graph is captured: a capture was \
                 started and not ended; the rest of the cache was released"
            );
            return Err(Status::new(CACHALOT_ERROR_CAPTURING, text));
        }
        Ok(())
    })
}

/// Releases cached memory until the reserved bytes are at most `keep_bytes`.
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

/// Holds the frees of the driver off.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_hold_begin(allocator: *const cachalot_allocator, device: c_int) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (device, _) = instance.device(device)?;
        Ok(instance.allocator.begin_hold(device)?)
    })
}

/// Ends a hold of the driver's frees.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_hold_end(allocator: *const cachalot_allocator, device: c_int) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (device, _) = instance.device(device)?;
        if instance.allocator.end_hold(device)? {
            return Ok(());
        }
        Err(Status::new(CACHALOT_ERROR_INVALID_ARGUMENT, "no hold of frees was begun on the device".to_owned()))
    })
}

/// Turns the cache on or off.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_set_caching(
    allocator: *const cachalot_allocator,
    device: c_int,
    on: c_int,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (device, _) = instance.device(device)?;
        instance.allocator.settings(device)?.set_caching(on != 0);
        Ok(())
    })
}

/// Limits the reserved bytes of a device.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_set_limit(
    allocator: *const cachalot_allocator,
    device: c_int,
    bytes: u64,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (device, _) = instance.device(device)?;
        instance.allocator.settings(device)?.set_limit((bytes != CACHALOT_NO_LIMIT).then_some(bytes));
        Ok(())
    })
}

/// Limits the reserved memory to a fraction of the device's memory.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_set_memory_fraction(
    allocator: *const cachalot_allocator,
    device: c_int,
    fraction: f64,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (device, _) = instance.device(device)?;
        Ok(instance.allocator.settings(device)?.set_memory_fraction(fraction)?)
    })
}
