//! Allocation and freeing of blocks for `PyTorch`.

use super::{diagnostics, plugin};
use crate::c::abi::{cachalot_status, cachalot_stream};
use crate::c::boundary;
use crate::c::marshal::Out;
use crate::c::status::{CACHALOT_ERROR_INVALID_POINTER, CACHALOT_OK, InWordsOfPyTorch, Status};
use cachalot_core::DevicePtr;
use core::ffi::{c_int, c_void};
use core::ptr::{null_mut, without_provenance_mut};

/// Allocates a block, or returns NULL with a last error.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_torch_malloc(bytes: usize, device: c_int, stream: cachalot_stream) -> *mut c_void {
    boundary::straight(
        plugin::present(),
        move |instance| instance.malloc_straight(device, bytes, stream).map(pointer),
        |_| null_mut(),
        move || malloc_anew(bytes, device, stream),
    )
}

/// Allocates a block as [`cachalot_torch_malloc`] does, under any conditions.
#[cold]
#[inline(never)]
extern "C" fn malloc_anew(bytes: usize, device: c_int, stream: cachalot_stream) -> *mut c_void {
    boundary::infallible(null_mut(), || {
        let mut block = null_mut();
        // SAFETY: the variable outlives the call. A failure is recorded as the thread's last error.
        let _ = unsafe { allocate_anew(bytes, device, stream, &raw mut block) };
        block
    })
}

/// Allocates a block and returns a status.
///
/// # Safety
/// `out` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_torch_allocate(
    bytes: usize,
    device: c_int,
    stream: cachalot_stream,
    out: *mut *mut c_void,
) -> cachalot_status {
    boundary::straight(
        plugin::present(),
        move |instance| {
            // SAFETY: guaranteed by the caller.
            let out = unsafe { Out::of(out) }?;
            out.write(pointer(instance.malloc_straight(device, bytes, stream)?));
            Some(CACHALOT_OK)
        },
        |failed| failed,
        // SAFETY: guaranteed by the caller.
        move || unsafe { allocate_anew(bytes, device, stream, out) },
    )
}

/// Allocates a block as [`cachalot_torch_allocate`] does, under any conditions. For 0 bytes writes
/// NULL without opening the device.
///
/// # Safety
/// `out` is NULL or valid for a write.
#[cold]
#[inline(never)]
unsafe extern "C" fn allocate_anew(
    bytes: usize,
    device: c_int,
    stream: cachalot_stream,
    out: *mut *mut c_void,
) -> cachalot_status {
    plugin::with_allocator(|instance| {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { Out::new(out, "out") }?;
        if bytes == 0 {
            instance.device(device)?;
            out.write(null_mut());
            return Ok(());
        }
        out.write(pointer(instance.malloc::<InWordsOfPyTorch>(device, bytes, stream)?));
        Ok(())
    })
}

/// Frees a block. Size, device and stream are ignored: the allocator has its own record, and
/// `PyTorch` keeps another.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_torch_free(block: *mut c_void, bytes: usize, device: c_int, stream: cachalot_stream) {
    boundary::straight(
        plugin::present(),
        move |instance| instance.free_straight(address(block), None).then_some(()),
        report,
        move || {
            let _ = (bytes, device, stream);
            free_anew(block);
        },
    );
}

/// Frees a block under any conditions.
#[cold]
#[inline(never)]
extern "C" fn free_anew(block: *mut c_void) {
    boundary::infallible((), || {
        if !block.is_null() {
            report(free_in_doubt(block));
        }
    });
}

/// Reports a failure of a free.
#[cold]
fn report(freed: cachalot_status) {
    diagnostics::report_once("a block cannot be freed", freed);
}

/// Frees a block if the allocator exists.
fn free_in_doubt(block: *mut c_void) -> cachalot_status {
    let allocator = plugin::present();
    if allocator.is_null() {
        let text = format!("{:#x} is no block of the allocator, which does not exist yet", block.addr());
        return Status::new(CACHALOT_ERROR_INVALID_POINTER, text).number();
    }
    boundary::with_instance(allocator, |instance| instance.free(address(block), None))
}

/// Converts a device address to C.
fn pointer(address: DevicePtr) -> *mut c_void {
    without_provenance_mut(address.0 as usize)
}

/// Converts a device address from C.
fn address(block: *mut c_void) -> DevicePtr {
    DevicePtr(block.addr() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr::dangling_mut;

    /// No test of this program creates the plug-in's allocator.
    #[test]
    fn before_the_allocator_exists_nothing_is_a_block() {
        assert_eq!(free_in_doubt(dangling_mut::<c_void>()), CACHALOT_ERROR_INVALID_POINTER);
    }
}
