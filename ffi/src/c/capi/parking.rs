//! Memory that goes back to the driver for a while, and returns at the same addresses.

use crate::Tables;
use crate::c::abi::{
    CACHALOT_ASLEEP, CACHALOT_AWAKE, CACHALOT_LENT, CACHALOT_PARK_AFTER_DEVICE, CACHALOT_PARK_AFTER_STREAMS,
    CACHALOT_PARK_DROP, CACHALOT_PARK_KEEP, CACHALOT_PARK_STREAM, CACHALOT_PARK_TAG, CACHALOT_PARK_ZERO,
    CACHALOT_WAKING, cachalot_allocator, cachalot_park_options, cachalot_park_report, cachalot_park_target,
    cachalot_pool, cachalot_remaining_memory, cachalot_status,
};
use crate::c::boundary;
use crate::c::device::Device;
use crate::c::instance::Instance;
use crate::c::marshal::{self, OutStruct, Versioned};
use crate::c::status::{Outcome, Status};
use cachalot_core::{
    ParkMode, ParkOrder, ParkReport, ParkState, ParkTarget, Parking, PoolId, Remaining, StreamId, Tag,
};
use cachalot_cuda::CudaDevice;
use cachalot_cuda::HeapLock;
use cachalot_cuda::driver::types::CuStream;
use cachalot_cuda::log::{self, Level};
use core::ffi::c_int;
use core::num::NonZeroU64;

// SAFETY: `repr(C)` with its size first, and numbers without padding.
unsafe impl Versioned for cachalot_park_report {
    const FIRST_SIZE: usize = 72;
}

// SAFETY: as above.
unsafe impl Versioned for cachalot_park_target {
    const FIRST_SIZE: usize = 32;
}

// SAFETY: as above.
unsafe impl Versioned for cachalot_park_options {
    const FIRST_SIZE: usize = 16;
}

// SAFETY: as above.
unsafe impl Versioned for cachalot_remaining_memory {
    const FIRST_SIZE: usize = 80;
}

/// Converts a tag from C.
pub(super) fn tag_of(tag: u64) -> Outcome<Tag> {
    NonZeroU64::new(tag).map(Tag).ok_or_else(|| Status::argument(format_args!("0 is no tag")))
}

/// Converts the mode and the order of a park from C. NULL means the defaults.
///
/// # Safety
/// `options` is NULL, or points to a structure as long as its first field says.
unsafe fn options_of(options: *const cachalot_park_options) -> Outcome<(ParkMode, ParkOrder)> {
    if options.is_null() {
        return Ok((ParkMode::Keep, ParkOrder::Device));
    }
    // SAFETY: guaranteed by the caller.
    let cachalot_park_options { mode, order, .. } = unsafe { marshal::read_struct(options, "options") }?;
    let mode = match mode {
        CACHALOT_PARK_KEEP => ParkMode::Keep,
        CACHALOT_PARK_DROP => ParkMode::Drop,
        CACHALOT_PARK_ZERO => ParkMode::Zero,
        _ => return Err(Status::argument(format_args!("{mode} is no mode of parking"))),
    };
    let order = match order {
        CACHALOT_PARK_AFTER_DEVICE => ParkOrder::Device,
        CACHALOT_PARK_AFTER_STREAMS => ParkOrder::Streams,
        _ => return Err(Status::argument(format_args!("{order} is no order of parking"))),
    };
    Ok((mode, order))
}

/// Converts a target from C.
///
/// # Safety
/// `target` is NULL, or points to a structure as long as its first field says.
unsafe fn target_of(target: *const cachalot_park_target, device: &Device) -> Outcome<ParkTarget> {
    // SAFETY: guaranteed by the caller.
    let cachalot_park_target { kind, tag, stream, reserved, .. } = unsafe { marshal::read_struct(target, "target") }?;
    // A later version may give the field a meaning, and programs that do not know it pass 0.
    if reserved != 0 {
        return Err(Status::argument(format_args!("`reserved` of the target is {reserved}, and must be 0")));
    }
    match kind {
        CACHALOT_PARK_TAG => Ok(ParkTarget::Tag(tag_of(tag)?)),
        CACHALOT_PARK_STREAM => Ok(ParkTarget::Stream(device.stream_id(CuStream(stream.addr()))?)),
        _ => Err(Status::argument(format_args!("{kind} is no kind of memory to park"))),
    }
}

/// Returns the operations that park memory of a device, which is opened first if necessary: asking
/// for its memory for contents does not open it.
pub(super) fn parking_of(
    instance: &Instance,
    device: c_int,
) -> Outcome<(Parking<'_, Device, HeapLock, Tables>, &Device)> {
    let (index, device) = instance.device(device)?;
    device.open()?;
    Ok((instance.allocator.parking(index)?, device))
}

/// Tells the log the state of a target.
fn tell(device: c_int, parking: &Parking<'_, Device, HeapLock, Tables>, target: ParkTarget, state: &str) {
    if log::has(Level::Info)
        && let Ok(ParkReport { mapped, parked, kept, .. }) = parking.report(target)
    {
        let name = match target {
            ParkTarget::Tag(Tag(tag)) => format!("tag {tag}"),
            ParkTarget::Pool(PoolId(first, second)) => format!("pool ({first}, {second})"),
            ParkTarget::Stream(StreamId(stream)) => format!("stream {stream:#x}"),
            ParkTarget::Streams | ParkTarget::LargeOfStreams => "the default pool".to_owned(),
        };
        log::info(format_args!(
            "device {device}: {name} is {state}: {parked} bytes parked, {kept} of them kept by the host, {mapped} bytes mapped"
        ));
    }
}

/// Sets or removes the tag of a private pool.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_pool_set_tag(
    allocator: *const cachalot_allocator,
    device: c_int,
    pool: cachalot_pool,
    tag: u64,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (device, _) = instance.device(device)?;
        let pool = PoolId(pool.first, pool.second);
        Ok(instance.allocator.parking(device)?.tag_pool(pool, NonZeroU64::new(tag).map(Tag))?)
    })
}

/// Parks the memory of a target, and tells the log how much.
///
/// # Safety
/// `target` and `options` are each NULL, or point to a structure as long as its first field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_park(
    allocator: *const cachalot_allocator,
    device: c_int,
    target: *const cachalot_park_target,
    options: *const cachalot_park_options,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (parking, on) = parking_of(instance, device)?;
        // SAFETY: guaranteed by the caller.
        let (mode, order) = unsafe { options_of(options) }?;
        // SAFETY: guaranteed by the caller.
        let target = unsafe { target_of(target, on) }?;
        parking.park(target, mode, order)?;
        tell(device, &parking, target, "parked");
        Ok(())
    })
}

/// Wakes the memory of a target, and tells the log how much.
///
/// # Safety
/// `target` is NULL, or points to a structure as long as its first field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_wake(
    allocator: *const cachalot_allocator,
    device: c_int,
    target: *const cachalot_park_target,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (parking, on) = parking_of(instance, device)?;
        // SAFETY: guaranteed by the caller.
        let target = unsafe { target_of(target, on) }?;
        parking.wake(target)?;
        tell(device, &parking, target, "awake");
        Ok(())
    })
}

/// Starts to wake the memory of a target.
///
/// # Safety
/// As for `cachalot_wake`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_wake_start(
    allocator: *const cachalot_allocator,
    device: c_int,
    target: *const cachalot_park_target,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (parking, on) = parking_of(instance, device)?;
        // SAFETY: guaranteed by the caller.
        Ok(parking.wake_start(unsafe { target_of(target, on) }?)?)
    })
}

/// Waits until the memory of a target is awake.
///
/// # Safety
/// As for `cachalot_wake`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_wake_wait(
    allocator: *const cachalot_allocator,
    device: c_int,
    target: *const cachalot_park_target,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (parking, on) = parking_of(instance, device)?;
        // SAFETY: guaranteed by the caller.
        Ok(parking.wake_wait(unsafe { target_of(target, on) }?)?)
    })
}

/// Reports where the memory of a target is.
///
/// # Safety
/// `target` and `out` are each NULL, or point to a structure as long as its first field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_get_park_report(
    allocator: *const cachalot_allocator,
    device: c_int,
    target: *const cachalot_park_target,
    out: *mut cachalot_park_report,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (parking, on) = parking_of(instance, device)?;
        // SAFETY: guaranteed by the caller.
        let out = unsafe { OutStruct::new(out, "out") }?;
        // SAFETY: guaranteed by the caller.
        let target = unsafe { target_of(target, on) }?;
        out.write(&describe(parking.report(target)?, on));
        Ok(())
    })
}

/// Sets whether requests for parked pools are served by the default pool.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_tag_set_fallback(
    allocator: *const cachalot_allocator,
    device: c_int,
    tag: u64,
    on: c_int,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (parking, _) = parking_of(instance, device)?;
        Ok(parking.serve_elsewhere(tag_of(tag)?, on != 0)?)
    })
}

/// Sets how much host memory stays for the next park.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_retain_host_memory(
    allocator: *const cachalot_allocator,
    device: c_int,
    host_bytes: u64,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (_, device) = parking_of(instance, device)?;
        // A simulated device keeps no bytes.
        device.cuda().map_or(Ok(()), |cuda| Ok(cuda.retain_host_memory(host_bytes)?))
    })
}

/// Reports what is on a device, by name.
///
/// # Safety
/// `out` is NULL, or a structure as long as its first field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_get_remaining_memory(
    allocator: *const cachalot_allocator,
    device: c_int,
    out: *mut cachalot_remaining_memory,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (parking, _) = parking_of(instance, device)?;
        // SAFETY: guaranteed by the caller.
        let out = unsafe { OutStruct::new(out, "out") }?;
        let memory = parking.remaining()?;
        let Remaining { used, blocks, pending, cached, spare, leaked, other, pinned, parked, spilled } = memory;
        out.write(&cachalot_remaining_memory {
            struct_size: size_of::<cachalot_remaining_memory>(),
            used_bytes: used,
            block_bytes: blocks,
            pending_bytes: pending,
            cached_bytes: cached,
            spare_bytes: spare,
            leaked_bytes: leaked,
            other_bytes: other,
            pinned_bytes: pinned,
            parked_bytes: parked,
            spilled_bytes: spilled,
        });
        Ok(())
    })
}

/// Converts a report for C.
fn describe(report: ParkReport, device: &Device) -> cachalot_park_report {
    let ParkReport { state, mapped, parked, kept, pinned, ordinary } = report;
    let (host_bytes, idle_host_bytes) = device.cuda().map_or((kept, 0), CudaDevice::host_memory_for_contents);
    cachalot_park_report {
        struct_size: size_of::<cachalot_park_report>(),
        mapped_bytes: mapped,
        parked_bytes: parked,
        kept_bytes: kept,
        pinned_bytes: pinned,
        ordinary_bytes: ordinary,
        host_bytes,
        idle_host_bytes,
        state: match state {
            ParkState::Awake => CACHALOT_AWAKE,
            ParkState::Asleep => CACHALOT_ASLEEP,
            ParkState::Waking => CACHALOT_WAKING,
            ParkState::Lent => CACHALOT_LENT,
        },
        reserved: 0,
    }
}
