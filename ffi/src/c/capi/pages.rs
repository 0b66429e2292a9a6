//! The pages of virtual memory: upkeep at quiet moments, what the pages are used for, and the
//! memory under a block.

use crate::Tables;
use crate::c::abi::{
    CACHALOT_COLD, CACHALOT_EXTENT_SEGMENT, CACHALOT_HOT, cachalot_advice, cachalot_allocator, cachalot_calls,
    cachalot_extent, cachalot_page_statistics, cachalot_reclaim_statistics, cachalot_status,
};
use crate::c::boundary;
use crate::c::capi::memory::{self, address};
use crate::c::device::Device;
use crate::c::instance::Instance;
use crate::c::marshal::{Out, OutStruct, Versioned};
use crate::c::status::{CACHALOT_ERROR_BUFFER_TOO_SMALL, Outcome, Status};
use cachalot_core::{
    Advice, CallCount, Descriptor, DevicePtr, Error, Extent, MemoryCalls, Pages, Physical, ReclaimStats,
};
use cachalot_cuda::HeapLock;
use core::ffi::{c_int, c_void};
use core::time::Duration;

// SAFETY: `repr(C)` with its size first, and numbers without padding.
unsafe impl Versioned for cachalot_page_statistics {
    // Version 0.2: everything up to `longest_stall_us`.
    const FIRST_SIZE: usize = 192;
}

/// Converts the calls of one kind.
fn calls(CallCount { calls, us }: CallCount) -> cachalot_calls {
    cachalot_calls { calls, us }
}

/// Does what requests have put off. Writes 1 to `more` if something is left.
///
/// # Safety
/// `more` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_maintain(
    allocator: *const cachalot_allocator,
    device: c_int,
    max_us: u64,
    more: *mut c_int,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        // SAFETY: guaranteed by the caller.
        let more = (!more.is_null()).then(|| unsafe { Out::new(more, "more") }).transpose()?;
        let (device, _) = instance.device(device)?;
        let left = instance.allocator.pages(device)?.maintain(max_us)?;
        instance.idle.run(&instance.allocator, device)?;
        if let Some(more) = more {
            more.write(c_int::from(left));
        }
        Ok(())
    })
}

/// Starts, changes or ends upkeep by a thread of the library.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_maintain_every(
    allocator: *const cachalot_allocator,
    interval_us: u64,
    max_us: u64,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let interval = (interval_us > 0).then(|| Duration::from_micros(interval_us));
        // SAFETY: `cachalot_destroy` stops the thread before it drops the instance.
        unsafe { instance.upkeep.set(&instance.allocator, &instance.idle, interval, max_us) }
    })
}

// SAFETY: `repr(C)` with its size first, and numbers without padding.
unsafe impl Versioned for cachalot_reclaim_statistics {
    const FIRST_SIZE: usize = 120;
}

/// Reports what upkeep has given back under `reclaim:auto`, and what it has kept and why.
///
/// # Safety
/// `out` is NULL, or a structure as long as its first field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_get_reclaim_statistics(
    allocator: *const cachalot_allocator,
    device: c_int,
    out: *mut cachalot_reclaim_statistics,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { OutStruct::new(out, "out") }?;
        let (device, _) = instance.device(device)?;
        let stats = instance.allocator.pages(device)?.reclaim_stats();
        let ReclaimStats { looks, given_back, given_back_units, obtained_again, obtained_again_units, .. } = stats;
        let ReclaimStats { too_early_units, driver_us, observed_units, idle, needed_soon, busy, unpaid, .. } = stats;
        out.write(&cachalot_reclaim_statistics {
            struct_size: size_of::<cachalot_reclaim_statistics>(),
            looks,
            given_back_bytes: given_back,
            given_back_units,
            obtained_again_bytes: obtained_again,
            obtained_again_units,
            too_early_units,
            driver_us,
            observed_units,
            idle_bytes: idle,
            needed_soon_bytes: needed_soon,
            busy_bytes: busy,
            unpaid_bytes: unpaid,
            budget_us: stats.budget_us,
            caution: u64::from(stats.caution),
        });
        Ok(())
    })
}

/// Reports what the pages of a device are used for, and what they have cost.
///
/// # Safety
/// `out` is NULL, or a structure as long as its first field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_get_page_statistics(
    allocator: *const cachalot_allocator,
    device: c_int,
    out: *mut cachalot_page_statistics,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { OutStruct::new(out, "out") }?;
        let (device, _) = instance.device(device)?;
        let stats = instance.allocator.pages(device)?.stats();
        let MemoryCalls { reserve, unreserve, create, destroy, map, set_access, unmap, export } = stats.calls;
        out.write(&cachalot_page_statistics {
            struct_size: size_of::<cachalot_page_statistics>(),
            mapped_bytes: stats.mapped,
            spare_bytes: stats.spare,
            stale_bytes: stats.stale,
            pinned_bytes: stats.pinned,
            moved_bytes: stats.moved,
            reserve: calls(reserve),
            unreserve: calls(unreserve),
            create: calls(create),
            destroy: calls(destroy),
            map: calls(map),
            set_access: calls(set_access),
            unmap: calls(unmap),
            export_fd: calls(export),
            stalls: stats.stalls,
            longest_stall_us: stats.longest_stall_us,
            consolidated_bytes: stats.consolidated,
            parked_bytes: stats.parked,
        });
        Ok(())
    })
}

/// Converts an extent to the C structure.
fn describe(extent: Extent) -> cachalot_extent {
    let Extent { offset, bytes, memory, within, memory_bytes } = extent;
    let (memory, flags) = match memory {
        Physical::Page(number) => (u64::from(number), 0),
        Physical::Segment(base) => (base.0, CACHALOT_EXTENT_SEGMENT),
    };
    cachalot_extent { offset, bytes, memory, memory_offset: within, memory_bytes, flags, reserved: 0 }
}

/// Tells the physical parts of a block: writes them to `extents`, and their number to `count`,
/// which holds the room before.
///
/// # Safety
/// `count` is NULL or valid for a read and a write, and `extents` is NULL or writable for as many
/// entries as `count` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_get_extents(
    allocator: *const cachalot_allocator,
    block: *const c_void,
    extents: *mut cachalot_extent,
    count: *mut usize,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        if count.is_null() {
            return Err(Status::null("count"));
        }
        // SAFETY: not NULL; the rest is guaranteed by the caller.
        let room = unsafe { count.read() };
        let block = address(block);
        let mut found = Vec::new();
        if block != DevicePtr::NULL {
            let device = instance.allocator.base_of(block)?.device;
            instance.allocator.pages(device)?.extents(block, |extent| found.push(describe(extent)))?;
        }
        if !extents.is_null() {
            if room < found.len() {
                let text = format!("extents: there is room for {room}, and the block has {}", found.len());
                return Err(Status::new(CACHALOT_ERROR_BUFFER_TOO_SMALL, text));
            }
            // SAFETY: there is room for all, as the caller guarantees, and the vector is the
            // library's own.
            unsafe { core::ptr::copy_nonoverlapping(found.as_ptr(), extents, found.len()) };
        }
        // SAFETY: guaranteed by the caller.
        unsafe { count.write(found.len()) };
        Ok(())
    })
}

/// Holds the memory under a block in place.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_pin(allocator: *const cachalot_allocator, block: *const c_void) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let block = address(block);
        if block == DevicePtr::NULL {
            return Ok(());
        }
        let device = instance.allocator.base_of(block)?.device;
        Ok(instance.allocator.pages(device)?.pin(block)?)
    })
}

/// Undoes one pin of a block that is live or was freed.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_unpin(allocator: *const cachalot_allocator, block: *const c_void) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let block = address(block);
        on_device_of_pin(instance, block, |pages| pages.unpin(block))
    })
}

/// Moves the pages of a block to the host or back, and writes their bytes to `moved_bytes`.
///
/// # Safety
/// `moved_bytes` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_advise(
    allocator: *const cachalot_allocator,
    block: *const c_void,
    advice: cachalot_advice,
    moved_bytes: *mut u64,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        // SAFETY: guaranteed by the caller.
        let moved = (!moved_bytes.is_null()).then(|| unsafe { Out::new(moved_bytes, "moved_bytes") }).transpose()?;
        let advice = match advice {
            CACHALOT_COLD => Advice::Cold,
            CACHALOT_HOT => Advice::Hot,
            _ => return Err(Status::argument(format_args!("{advice} is no advice"))),
        };
        let block = address(block);
        let bytes = if block == DevicePtr::NULL {
            0
        } else {
            let device = instance.allocator.base_of(block)?.device;
            instance.allocator.pages(device)?.advise(block, advice)?
        };
        if let Some(moved) = moved {
            moved.write(bytes);
        }
        Ok(())
    })
}

/// Writes a descriptor of the page that contains `address` to `fd`, for another process.
///
/// # Safety
/// `fd` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_export_fd(
    allocator: *const cachalot_allocator,
    address: *const c_void,
    fd: *mut c_int,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        // SAFETY: guaranteed by the caller.
        let fd = unsafe { Out::new(fd, "fd") }?;
        let at = memory::address(address);
        let Descriptor(exported) = on_device_of_pin(instance, at, |pages| pages.export(at))?;
        fd.write(exported);
        Ok(())
    })
}

/// Calls `act` for the pages of each device, up to the device that has pinned memory at `at`. Once
/// a block is freed, only the pin knows its device.
fn on_device_of_pin<T>(
    instance: &Instance,
    at: DevicePtr,
    act: impl Fn(Pages<'_, Device, HeapLock, Tables>) -> Result<T, Error>,
) -> Outcome<T> {
    for device in instance.devices() {
        match act(instance.allocator.pages(device)?) {
            Err(Error::NotPinned(_)) => {}
            done => return Ok(done?),
        }
    }
    Err(Error::NotPinned(at).into())
}
