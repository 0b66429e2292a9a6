//! Allocation and freeing of blocks for `PyTorch`.

use super::{diagnostics, plugin};
use crate::c::abi::{cachalot_status, cachalot_stream};
use crate::c::instance::Instance;
use crate::c::marshal::Out;
use crate::c::status::{CACHALOT_ERROR_INVALID_POINTER, InWordsOfPyTorch, Outcome, Status};
use crate::c::{boundary, handle};
use cachalot_core::DevicePtr;
use core::ffi::{c_int, c_void};
use core::ptr::{null_mut, without_provenance_mut};

/// Allocates a block on a device. For 0 bytes returns NULL without opening the device.
fn serve(instance: &Instance, bytes: usize, device: c_int, stream: cachalot_stream) -> Outcome<*mut c_void> {
    serve_inlined(instance, bytes, device, stream)
}

/// Allocates a block as [`serve`] does, inlined into the caller.
#[inline(always)]
fn serve_inlined(instance: &Instance, bytes: usize, device: c_int, stream: cachalot_stream) -> Outcome<*mut c_void> {
    if bytes == 0 {
        instance.device(device)?;
        return Ok(null_mut());
    }
    let block = instance.malloc_inlined::<InWordsOfPyTorch>(device, bytes, stream)?;
    Ok(without_provenance_mut(block.0 as usize))
}

/// Allocates a block, or returns NULL with a last error.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_torch_malloc(bytes: usize, device: c_int, stream: cachalot_stream) -> *mut c_void {
    boundary::infallible(null_mut(), || {
        let mut block = null_mut();
        let out = &mut block;
        let allocator = plugin::present();
        // A failure is recorded as the thread's last error.
        let _ = boundary::hot!(allocator, plugin::rare, |instance, serve = serve_inlined, or serve| {
            *out = serve(instance, bytes, device, stream)?;
            Ok(())
        });
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
    let allocator = plugin::present();
    boundary::hot!(allocator, plugin::rare, |instance, serve = serve_inlined, or serve| {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { Out::new(out, "out") }?;
        out.write(serve(instance, bytes, device, stream)?);
        Ok(())
    })
}

/// Frees a block. Size, device and stream are ignored: the allocator has its own record, and
/// `PyTorch` keeps another.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_torch_free(block: *mut c_void, bytes: usize, device: c_int, stream: cachalot_stream) {
    boundary::infallible((), || {
        let _ = (bytes, device, stream);
        if block.is_null() {
            return;
        }
        let allocator = plugin::present();
        let freed = match handle::undoubted(allocator) {
            Some(instance) => boundary::guarded(allocator, || instance.free_inlined(address(block), None)),
            None => free_in_doubt(block),
        };
        diagnostics::report_once("a block cannot be freed", freed);
    });
}

/// Frees a block if the allocator exists, and if the complete check of its handle passes.
#[cold]
#[inline(never)]
fn free_in_doubt(block: *mut c_void) -> cachalot_status {
    let allocator = plugin::present();
    if allocator.is_null() {
        let text = format!("{:#x} is no block of the allocator, which does not exist yet", block.addr());
        return Status::new(CACHALOT_ERROR_INVALID_POINTER, text).number();
    }
    boundary::with_instance(allocator, |instance| instance.free(address(block), None))
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
