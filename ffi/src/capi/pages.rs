//! The pages of virtual memory: upkeep at quiet moments, and what the pages are used for.

use crate::abi::{cachalot_allocator, cachalot_pages, cachalot_status};
use crate::boundary;
use crate::marshal::{Out, OutStruct, Versioned};
use cachalot_core::PageStats;
use core::ffi::c_int;
use core::time::Duration;

// SAFETY: `repr(C)` with its size first, and numbers without padding.
unsafe impl Versioned for cachalot_pages {
    // Version 0.2: everything up to `moved_bytes`.
    const FIRST_SIZE: usize = 48;
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

/// Tells what the pages of a device are used for.
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
        let PageStats { mapped, spare, stale, pinned, moved } = instance.allocator.pages(device)?.stats()?;
        out.write(&cachalot_pages {
            struct_size: size_of::<cachalot_pages>(),
            mapped_bytes: mapped,
            spare_bytes: spare,
            stale_bytes: stale,
            pinned_bytes: pinned,
            moved_bytes: moved,
        });
        Ok(())
    })
}
