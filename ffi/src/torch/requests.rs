//! Blocks for `PyTorch`.

use super::{diagnostics, plugin};
use crate::abi::{cachalot_status, cachalot_stream};
use crate::boundary;
use crate::instance::Instance;
use crate::marshal::Out;
use crate::status::{CACHALOT_ERROR_INVALID_POINTER, Outcome, Status};
use cachalot_core::DevicePtr;
use cachalot_cuda::driver::types::CuStream;
use core::ffi::{c_int, c_void};
use core::ptr::{null_mut, without_provenance_mut};

/// A block on one of the devices. For 0 bytes it is NULL, and the device need not be open.
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

/// Obtains a block; NULL if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_torch_malloc(bytes: usize, device: c_int, stream: cachalot_stream) -> *mut c_void {
    boundary::infallible(null_mut(), || {
        let mut block = null_mut();
        // What went wrong is the thread's last error.
        let _ = plugin::with_allocator(|instance| {
            block = serve(instance, bytes, device, stream)?;
            Ok(())
        });
        block
    })
}

/// The same, with a status.
///
/// # Safety
/// `out` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_torch_allocate(
    bytes: usize,
    device: c_int,
    stream: cachalot_stream,
    out: *mut *mut c_void,
) -> cachalot_status {
    plugin::with_allocator(|instance| {
        // SAFETY: the caller's promise.
        let out = unsafe { Out::new(out, "out") }?;
        out.write(serve(instance, bytes, device, stream)?);
        Ok(())
    })
}

/// Gives a block back. That the size, the device and the stream are right is `PyTorch`'s affair, which keeps them itself.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_torch_free(block: *mut c_void, bytes: usize, device: c_int, stream: cachalot_stream) {
    boundary::infallible((), || {
        let _ = (bytes, device, stream);
        if block.is_null() {
            return;
        }
        let freed = match plugin::present() {
            none if none.is_null() => {
                let text = format!("{:#x} is nobody's: no block was ever handed out", block.addr());
                Status::new(CACHALOT_ERROR_INVALID_POINTER, text).number()
            }
            allocator => boundary::with_instance(allocator, |instance| {
                Ok(instance.allocator.free(DevicePtr(block.addr() as u64))?)
            }),
        };
        diagnostics::tell_once("a block cannot be freed", freed);
    });
}
