//! The hooks of `PyTorch`'s allocator interface with C signatures.

use super::{diagnostics, plugin};
use crate::c::abi::cachalot_stream;
use crate::c::boundary;
use crate::c::status::CACHALOT_OK;
use cachalot_core::{DevicePtr, Error};
use core::ffi::{c_int, c_void};
use core::ptr::{NonNull, without_provenance_mut};

/// Creates the allocator when CUDA is about to be used.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_torch_init(device_count: c_int) {
    boundary::infallible((), || {
        // With 0 devices, this is the call from the plug-in's constructor, before the program could
        // set a configuration.
        if device_count > 0 {
            // A failure is reported once here, and again by every request.
            let _ = plugin::with_allocator(|_| Ok(()));
        }
    });
}

/// Releases all cached memory on every device.
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
        diagnostics::report_once("the cache cannot be emptied", emptied);
    });
}

/// Limits the memory that the allocator may reserve on a device, as a fraction of the device's
/// memory.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_torch_memory_fraction(fraction: f64, device: c_int) {
    boundary::infallible((), || {
        let set = plugin::with_allocator(|instance| {
            let (device, _) = instance.device(device)?;
            Ok(instance.allocator.settings(device)?.set_memory_fraction(fraction)?)
        });
        diagnostics::report_once("the memory fraction cannot be set", set);
    });
}

/// Returns the base address of the segment that contains a block, and writes the size of the
/// segment.
///
/// # Safety
/// `bytes` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_torch_base_alloc(block: *mut c_void, bytes: *mut usize) -> *mut c_void {
    boundary::infallible(block, || {
        let mut base = block;
        let found = plugin::with_present(|instance| {
            let found = instance.allocator.base_of(DevicePtr(block.addr() as u64))?;
            base = without_provenance_mut(found.segment.0 as usize);
            if let Some(bytes) = NonNull::new(bytes) {
                // SAFETY: guaranteed by the caller.
                unsafe { bytes.write(found.segment_bytes as usize) };
            }
            Ok(())
        });
        // A pointer from another allocator is returned unchanged, as if the hook were not set.
        if found == CACHALOT_OK { base } else { block }
    })
}

/// Records the use of a block on another stream.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_torch_record_stream(block: *mut c_void, stream: cachalot_stream) {
    boundary::infallible((), || {
        let recorded = plugin::with_present(|instance| {
            match instance.allocator.record_stream(DevicePtr(block.addr() as u64), instance.stream_in_use(stream)?) {
                // PyTorch also passes pointers of other allocators. They are not this allocator's
                // concern.
                Err(Error::InvalidPointer { .. }) => Ok(()),
                recorded => Ok(recorded?),
            }
        });
        diagnostics::report_once("a stream cannot be recorded", recorded);
    });
}
