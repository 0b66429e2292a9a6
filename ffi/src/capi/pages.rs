//! The pages of virtual memory: upkeep at quiet moments, and what the pages are used for.

use crate::abi::{cachalot_allocator, cachalot_calls, cachalot_pages, cachalot_status};
use crate::boundary;
use crate::marshal::{Out, OutStruct, Versioned};
use cachalot_core::{CallCount, MemoryCalls, PageStats};
use core::ffi::c_int;
use core::time::Duration;

// SAFETY: `repr(C)` with its size first, and numbers without padding.
unsafe impl Versioned for cachalot_pages {
    // Version 0.2: everything up to `longest_stall_us`.
    const FIRST_SIZE: usize = 176;
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
        unsafe { instance.upkeep.set(&instance.allocator, interval, max_us) }
    })
}

/// Tells what the pages of a device are used for, and what they have cost.
///
/// # Safety
/// `out` is NULL, or a structure as long as its first field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_page_stats(
    allocator: *const cachalot_allocator,
    device: c_int,
    out: *mut cachalot_pages,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { OutStruct::new(out, "out") }?;
        let (device, _) = instance.device(device)?;
        let stats = instance.allocator.pages(device)?.stats()?;
        let PageStats { mapped, spare, stale, pinned, moved, calls: made, stalls, longest_stall_us } = stats;
        let MemoryCalls { reserve, unreserve, create, destroy, map, set_access, unmap } = made;
        out.write(&cachalot_pages {
            struct_size: size_of::<cachalot_pages>(),
            mapped_bytes: mapped,
            spare_bytes: spare,
            stale_bytes: stale,
            pinned_bytes: pinned,
            moved_bytes: moved,
            reserve: calls(reserve),
            unreserve: calls(unreserve),
            create: calls(create),
            destroy: calls(destroy),
            map: calls(map),
            set_access: calls(set_access),
            unmap: calls(unmap),
            stalls,
            longest_stall_us,
        });
        Ok(())
    })
}
