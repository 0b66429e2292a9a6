//! The hooks of `PyTorch`'s allocator interface that C can be called through.

use super::{diagnostics, plugin};
use crate::abi::cachalot_stream;
use crate::boundary;
use crate::status::CACHALOT_OK;
use cachalot_core::{DevicePtr, Error};
use core::ffi::{c_int, c_void};
use core::ptr::{NonNull, without_provenance_mut};

/// CUDA is about to be used.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_torch_init(device_count: c_int) {
    boundary::infallible((), || {
        // Without devices it is the call from the constructor, before the program has said anything.
        if device_count > 0 {
            // What goes wrong is told once, and by every request.
            let _ = plugin::with_allocator(|_| Ok(()));
        }
    });
}

/// Gives what is cached back, on every device.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_torch_reset() {
    boundary::infallible((), || {
        let emptied = plugin::with_present(|instance| {
            let mut outcome = Ok(());
            for device in instance.devices() {
                let emptied = instance.allocator.empty_cache(device);
                outcome = outcome.and_then(|()| Ok(emptied?));
            }
            outcome
        });
        diagnostics::tell_once("the cache cannot be emptied", emptied);
    });
}

/// Limits what may be held of a device.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_torch_memory_fraction(fraction: f64, device: c_int) {
    boundary::infallible((), || {
        let set = plugin::with_allocator(|instance| {
            let (device, _) = instance.device(device)?;
            Ok(instance.allocator.set_memory_fraction(device, fraction)?)
        });
        diagnostics::tell_once("the memory fraction cannot be set", set);
    });
}

/// The segment that a block is part of.
///
/// # Safety
/// `bytes` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_torch_base_alloc(block: *mut c_void, bytes: *mut usize) -> *mut c_void {
    boundary::infallible(block, || {
        let mut base = block;
        let found = plugin::with_present(|instance| {
            let found = instance.allocator.base_of(DevicePtr(block.addr() as u64))?;
            base = without_provenance_mut(found.segment.0 as usize);
            if let Some(bytes) = NonNull::new(bytes) {
                // SAFETY: the caller's promise.
                unsafe { bytes.write(found.segment_bytes as usize) };
            }
            Ok(())
        });
        // What is not the allocator's stays as it is, as without this hook.
        if found == CACHALOT_OK { base } else { block }
    })
}

/// Announces another stream's use of a block.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_torch_record_stream(block: *mut c_void, stream: cachalot_stream) {
    boundary::infallible((), || {
        let recorded = plugin::with_present(|instance| {
            match instance.allocator.record_stream(DevicePtr(block.addr() as u64), instance.stream_in_use(stream)?) {
                // PyTorch passes memory of others on as well, which is theirs to look after.
                Err(Error::InvalidPointer(_)) => Ok(()),
                recorded => Ok(recorded?),
            }
        });
        diagnostics::tell_once("a stream cannot be recorded", recorded);
    });
}
