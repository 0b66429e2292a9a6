//! The hooks of `PyTorch`'s allocator interface that C can be called through.

use super::{complaint, plugin};
use crate::abi::cachalot_stream;
use crate::status::CACHALOT_OK;
use crate::wall;
use cachalot_core::Error;
use cachalot_core::units::DevicePtr;
use core::ffi::{c_int, c_void};
use core::ptr::{NonNull, without_provenance_mut};

/// CUDA is about to be used.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_torch_init(device_count: c_int) {
    wall::infallible((), || {
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
    wall::infallible((), || {
        let emptied = plugin::with_present(|host| {
            let mut outcome = Ok(());
            for device in host.devices() {
                let emptied = host.allocator.empty_cache(device);
                outcome = outcome.and_then(|()| Ok(emptied?));
            }
            outcome
        });
        complaint::tell_once("the cache cannot be emptied", emptied);
    });
}

/// Limits what may be held of a device.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_torch_memory_fraction(fraction: f64, device: c_int) {
    wall::infallible((), || {
        let set = plugin::with_allocator(|host| {
            let (device, _) = host.device(device)?;
            Ok(host.allocator.set_memory_fraction(device, fraction)?)
        });
        complaint::tell_once("the memory fraction cannot be set", set);
    });
}

/// The segment that a block is part of.
///
/// # Safety
/// `bytes` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_torch_base_alloc(block: *mut c_void, bytes: *mut usize) -> *mut c_void {
    wall::infallible(block, || {
        let mut base = block;
        let found = plugin::with_present(|host| {
            let found = host.allocator.base_of(DevicePtr(block.addr() as u64))?;
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
    wall::infallible((), || {
        let recorded = plugin::with_present(|host| {
            match host.allocator.record_stream(DevicePtr(block.addr() as u64), host.stream(stream)?) {
                // PyTorch passes memory of others on as well, which is theirs to look after.
                Err(Error::InvalidPointer(_)) => Ok(()),
                recorded => Ok(recorded?),
            }
        });
        complaint::tell_once("a stream cannot be recorded", recorded);
    });
}
