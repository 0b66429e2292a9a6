//! Allocation and freeing of blocks for `PyTorch`.

use super::{diagnostics, plugin};
use crate::c::abi::{cachalot_status, cachalot_stream};
use crate::c::boundary;
use crate::c::instance::Instance;
use crate::c::marshal::Out;
use crate::c::status::{CACHALOT_ERROR_INVALID_POINTER, Outcome, Status};
use cachalot_core::DevicePtr;
use cachalot_cuda::driver::types::CuStream;
use core::ffi::{c_int, c_void};
use core::ptr::{null_mut, without_provenance_mut};

/// Allocates a block on a device. For 0 bytes returns NULL without opening the device.
#[inline]
fn serve(instance: &Instance, bytes: usize, device: c_int, stream: cachalot_stream) -> Outcome<*mut c_void> {
    let (index, device) = instance.device(device)?;
    if bytes == 0 {
        return Ok(null_mut());
    }
    device.open()?;
    let stream = device.stream_id(CuStream(stream.addr()))?;
    let block = instance.allocator.malloc(index, bytes as u64, stream).map_err(Status::in_words_of_pytorch)?;
    Ok(without_provenance_mut(block.0 as usize))
}

/// Allocates a block, or returns NULL with a last error.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_torch_malloc(bytes: usize, device: c_int, stream: cachalot_stream) -> *mut c_void {
    boundary::infallible(null_mut(), || {
        let mut block = null_mut();
        // A failure is recorded as the thread's last error.
        let _ = plugin::with_allocator(|instance| {
            block = serve(instance, bytes, device, stream)?;
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
    plugin::with_allocator(|instance| {
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
        let freed = match plugin::present() {
            none if none.is_null() => {
                let text = format!("{:#x} is no block of the allocator, which does not exist yet", block.addr());
                Status::new(CACHALOT_ERROR_INVALID_POINTER, text).number()
            }
            allocator => boundary::with_instance(allocator, |instance| {
                Ok(instance.allocator.free(DevicePtr(block.addr() as u64))?)
            }),
        };
        diagnostics::report_once("a block cannot be freed", freed);
    });
}
