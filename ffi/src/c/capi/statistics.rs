//! Statistics, as a structure and by name.

use crate::c::abi::{
    cachalot_allocator, cachalot_counter, cachalot_statistic_visitor, cachalot_statistics, cachalot_status,
    cachalot_writer,
};
use crate::c::boundary;
use crate::c::marshal::{self, Out, OutStruct, Versioned};
use crate::c::snapshot;
use crate::c::status::{CACHALOT_ERROR_STOPPED, CACHALOT_ERROR_UNKNOWN_KEY, Status};
use cachalot_core::config::nearest_of;
use cachalot_core::{Counter, Statistic, Stats};
use core::ffi::{c_char, c_int, c_void};
use std::ffi::CString;

// SAFETY: `repr(C)` with its size first, and numbers without padding.
unsafe impl Versioned for cachalot_statistics {
    // Version 0.1: everything up to `leaked_bytes`.
    const FIRST_SIZE: usize = 304;
}

/// Converts a counter to the C structure of present, peak, added and removed amounts.
fn counter(counter: Counter) -> cachalot_counter {
    let Counter { current, peak, allocated, freed } = counter;
    cachalot_counter { current, peak, allocated, freed }
}

/// Returns the counter of all blocks for a statistic.
fn named(stats: &Stats, name: &str) -> cachalot_counter {
    let mut found = cachalot_counter::default();
    stats.for_each(|key, value| {
        let Some(field) = key.strip_prefix(name).and_then(|rest| rest.strip_prefix(".all.")) else { return };
        match field {
            "current" => found.current = value,
            "peak" => found.peak = value,
            "allocated" => found.allocated = value,
            "freed" => found.freed = value,
            _ => {}
        }
    });
    found
}

/// Returns the statistics of a device.
///
/// # Safety
/// `out` is NULL, or a structure as long as its first field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_get_statistics(
    allocator: *const cachalot_allocator,
    device: c_int,
    out: *mut cachalot_statistics,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { OutStruct::new(out, "out") }?;
        let (device, _) = instance.device(device)?;
        let stats = instance.allocator.stats(device)?.totals();
        out.write(&cachalot_statistics {
            struct_size: size_of::<cachalot_statistics>(),
            allocations: counter(stats.allocations()),
            allocated_bytes: counter(stats.allocated_bytes()),
            active_blocks: named(&stats, "active"),
            active_bytes: counter(stats.active_bytes()),
            requested_bytes: counter(stats.requested_bytes()),
            inactive_split_bytes: named(&stats, "inactive_split_bytes"),
            segments: counter(stats.segments()),
            reserved_bytes: counter(stats.reserved_bytes()),
            device_allocs: stats.device_allocs(),
            device_frees: stats.device_frees(),
            alloc_retries: stats.alloc_retries(),
            ooms: stats.ooms(),
            leaked_bytes: instance.allocator.stats(device)?.leaked_bytes(),
        });
        Ok(())
    })
}

/// Writes the value of the statistic named `key` to `out`.
///
/// # Safety
/// `key` is NULL or NUL-terminated, and `out` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_find_statistic(
    allocator: *const cachalot_allocator,
    device: c_int,
    key: *const c_char,
    out: *mut i64,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        // SAFETY: guaranteed by the caller.
        let key = unsafe { marshal::text(key, "key", CACHALOT_ERROR_UNKNOWN_KEY) }?;
        // SAFETY: guaranteed by the caller.
        let out = unsafe { Out::new(out, "out") }?;
        let (device, _) = instance.device(device)?;
        let value = match Statistic::named(key) {
            Some(statistic) => Some(instance.allocator.stats(device)?.reading().value(statistic).cast_signed()),
            None => instance.allocator.stats(device)?.totals().get(key),
        };
        if let Some(value) = value {
            out.write(value);
            return Ok(());
        }
        let mut names: Vec<String> = Statistic::ALL.iter().map(|statistic| statistic.name.to_owned()).collect();
        instance.allocator.stats(device)?.totals().for_each(|name, _| names.push(name.to_owned()));
        let meant = nearest_of(names.iter().map(String::as_str), key);
        let meant = meant.map_or(String::new(), |name| format!(", did you mean `{name}`?"));
        Err(Status::new(CACHALOT_ERROR_UNKNOWN_KEY, format_args!("no statistic is called `{key}`{meant}")))
    })
}

/// Passes every statistic to a callback, with its name.
///
/// # Safety
/// The callback may be called with `userdata`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_visit_statistics(
    allocator: *const cachalot_allocator,
    device: c_int,
    visit: cachalot_statistic_visitor,
    userdata: *mut c_void,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let visit = visit.ok_or_else(|| Status::null("the callback"))?;
        let (device, _) = instance.device(device)?;
        let (stats, reading) =
            (instance.allocator.stats(device)?.totals(), instance.allocator.stats(device)?.reading());
        let _running = instance.callbacks.enter();
        let mut stopped = false;
        let mut pass = |key: &str, value: i64| {
            if !stopped && let Ok(key) = CString::new(key) {
                // SAFETY: guaranteed by the caller; the key outlives the call.
                stopped = unsafe { visit(userdata, key.as_ptr(), value) } != 0;
            }
        };
        stats.for_each(&mut pass);
        Statistic::ALL.iter().for_each(|statistic| pass(statistic.name, reading.value(statistic).cast_signed()));
        if stopped { Err(Status::new(CACHALOT_ERROR_STOPPED, "the callback asked to stop")) } else { Ok(()) }
    })
}

/// Resets every peak to the present value.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_reset_peaks(allocator: *const cachalot_allocator, device: c_int) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (device, _) = instance.device(device)?;
        instance.allocator.stats(device)?.reset_peaks();
        Ok(())
    })
}

/// Resets the accumulated statistics to 0.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_reset_accumulated(allocator: *const cachalot_allocator, device: c_int) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (device, _) = instance.device(device)?;
        instance.allocator.stats(device)?.reset_accumulated();
        Ok(())
    })
}

/// Passes the metrics of every device to a callback, as `OpenMetrics` text.
///
/// # Safety
/// The callback may be called with `userdata`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_write_metrics(
    allocator: *const cachalot_allocator,
    write: cachalot_writer,
    userdata: *mut c_void,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let write = write.ok_or_else(|| Status::null("the callback"))?;
        let _running = instance.callbacks.enter();
        snapshot::write_metrics(instance, |part| {
            // SAFETY: guaranteed by the caller; the text outlives the call.
            unsafe { write(userdata, part.as_ptr().cast(), part.len()) == 0 }
        })
    })
}
