//! Tags with limits, and what their pools hold.

use crate::c::abi::{cachalot_allocator, cachalot_status, cachalot_tag_limits, cachalot_tag_report};
use crate::c::boundary;
use crate::c::capi::parking::tag_of;
use crate::c::marshal::{self, OutStruct, Versioned};
use crate::c::status::{Outcome, Status};
use cachalot_core::{TagLimits, TagUse};
use core::ffi::c_int;

// SAFETY: `repr(C)` with its size first, and numbers without padding.
unsafe impl Versioned for cachalot_tag_limits {
    const FIRST_SIZE: usize = 32;
}

// SAFETY: as above.
unsafe impl Versioned for cachalot_tag_report {
    const FIRST_SIZE: usize = 72;
}

/// Converts limits from C, where 0 leaves a limit out.
fn limits_of(limits: &cachalot_tag_limits) -> Outcome<TagLimits> {
    let &cachalot_tag_limits { max_bytes, low_bytes, weight, clear, .. } = limits;
    let clear = match clear {
        0 => false,
        1 => true,
        _ => return Err(Status::argument(format_args!("`clear` is {clear}, and must be 0 or 1"))),
    };
    Ok(TagLimits {
        max: Some(max_bytes).filter(|&max| max > 0),
        low: low_bytes,
        weight: if weight == 0 { TagLimits::WEIGHT } else { weight },
        clear,
    })
}

/// Sets or removes the limits of a tag.
///
/// # Safety
/// `limits` is NULL, or points to a structure as long as its first field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_tag_set_limits(
    allocator: *const cachalot_allocator,
    device: c_int,
    tag: u64,
    limits: *const cachalot_tag_limits,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let limits = if limits.is_null() {
            None
        } else {
            // SAFETY: guaranteed by the caller.
            let limits = unsafe { marshal::read_struct(limits, "limits") }?;
            Some(limits_of(&limits)?)
        };
        let (device, _) = instance.device(device)?;
        Ok(instance.allocator.tags(device)?.limit(tag_of(tag)?, limits)?)
    })
}

/// Releases free memory of the pools with a tag until they hold at most `keep_bytes`.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_tag_trim(
    allocator: *const cachalot_allocator,
    device: c_int,
    tag: u64,
    keep_bytes: usize,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (device, _) = instance.device(device)?;
        Ok(instance.allocator.tags(device)?.trim(tag_of(tag)?, keep_bytes as u64)?)
    })
}

/// Reports what the pools of a tag hold.
///
/// # Safety
/// `out` is NULL, or points to a structure as long as its first field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_get_tag_report(
    allocator: *const cachalot_allocator,
    device: c_int,
    tag: u64,
    out: *mut cachalot_tag_report,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { OutStruct::new(out, "out") }?;
        let (device, _) = instance.device(device)?;
        let TagUse { charge, live, cached, limits, refusals, given } =
            instance.allocator.tags(device)?.held(tag_of(tag)?)?;
        out.write(&cachalot_tag_report {
            struct_size: size_of::<cachalot_tag_report>(),
            charge_bytes: charge,
            live_bytes: live,
            cached_bytes: cached,
            max_bytes: limits.and_then(|limits| limits.max).unwrap_or(0),
            low_bytes: limits.map_or(0, |limits| limits.low),
            refusals,
            given_bytes: given,
            weight: limits.map_or(0, |limits| limits.weight),
            clear: limits.is_some_and(|limits| limits.clear).into(),
        });
        Ok(())
    })
}
