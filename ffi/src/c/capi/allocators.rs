//! Creation, configuration, description and destruction of allocators.

use crate::c::abi::{cachalot_allocator, cachalot_device_info, cachalot_options, cachalot_status};
use crate::c::boundary;
use crate::c::instance::{self, Instance, unknown_device};
use crate::c::marshal::{self, Out, OutStruct, Versioned};
use crate::c::status::{CACHALOT_ERROR_INVALID_CONFIG, Host};
use crate::c::{abi, handle};
use cachalot_core::Segments;
use cachalot_cuda::CudaDevice;
use cachalot_tuner::program::Simulates;
use core::ffi::{c_char, c_int};
use core::ptr::NonNull;
use std::ffi::CString;

// SAFETY: `repr(C)` with its size first, and numbers without padding.
unsafe impl Versioned for cachalot_device_info {
    // Version 0.1: everything up to `reserved`.
    const FIRST_SIZE: usize = 72;
}

/// Creates an allocator over the devices in `options`, or with default options for NULL.
///
/// # Safety
/// The pointers are NULL or satisfy the rules of the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_create(
    options: *const cachalot_options,
    out: *mut *mut cachalot_allocator,
) -> cachalot_status {
    boundary::without_instance(|| {
        if !handle::begin() {
            return Err(handle::forked());
        }
        // SAFETY: guaranteed by the caller.
        let out = unsafe { Out::new(out, "out") }?;
        let options = match NonNull::new(options.cast_mut()) {
            // SAFETY: guaranteed by the caller.
            Some(options) => unsafe { marshal::read_struct(options.as_ptr(), "options") }?,
            None => cachalot_options::INIT,
        };
        // SAFETY: guaranteed by the caller.
        let instance = unsafe { Instance::open(&options, Host::Program) }?;
        out.write(handle::insert(instance)?);
        Ok(())
    })
}

/// Destroys an allocator and releases its memory to the driver. Does nothing for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_destroy(allocator: *mut cachalot_allocator) -> cachalot_status {
    boundary::without_instance(|| {
        if allocator.is_null() {
            return Ok(());
        }
        if handle::in_child() {
            return Err(handle::forked());
        }
        if let Ok(instance) = handle::instance(allocator) {
            instance.check_idle()?;
            instance.upkeep.stop();
        }
        handle::remove(allocator)?.close()
    })
}

/// Changes the configuration of an allocator.
///
/// # Safety
/// `config` is NULL or NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_configure(
    allocator: *const cachalot_allocator,
    config: *const c_char,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        // SAFETY: guaranteed by the caller.
        let text = unsafe { marshal::text(config, "config", CACHALOT_ERROR_INVALID_CONFIG) }?;
        instance.configure(text)
    })
}

/// Copies the present configuration of a device as a text.
///
/// # Safety
/// `buffer` is NULL or has `capacity` writable bytes, and `length` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_get_config(
    allocator: *const cachalot_allocator,
    device: c_int,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (device, _) = instance.device(device)?;
        // Settings are written in ASCII, without NUL.
        let text = CString::new(instance::words(&instance.allocator.settings(device)?.config())).unwrap_or_default();
        // SAFETY: guaranteed by the caller.
        unsafe { marshal::hand_out(&text, buffer, capacity, length) }
    })
}

/// Writes the number of the allocator's devices to `out`.
///
/// # Safety
/// `out` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_get_device_count(
    allocator: *const cachalot_allocator,
    out: *mut c_int,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { Out::new(out, "out") }?;
        out.write(instance.allocator.device_count() as c_int);
        Ok(())
    })
}

/// Writes the memory, the limit and the abilities of a device to `out`.
///
/// # Safety
/// `out` is NULL, or a structure as long as its first field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_get_device_info(
    allocator: *const cachalot_allocator,
    device: c_int,
    out: *mut cachalot_device_info,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { OutStruct::new(out, "out") }?;
        let (index, device) = instance.device(device)?;
        device.open()?;
        let memory = device.memory_info()?;
        instance.allocator.forecast(index)?.note_memory(memory);
        out.write(&cachalot_device_info {
            struct_size: size_of::<cachalot_device_info>(),
            total_bytes: memory.total,
            free_bytes: memory.free,
            process_bytes: device.process_use().unwrap_or(0),
            reserved_bytes: instance.allocator.stats(index)?.totals().reserved_bytes().current as u64,
            limit_bytes: instance.allocator.settings(index)?.limit().unwrap_or(abi::CACHALOT_NO_LIMIT),
            leaked_bytes: instance.allocator.stats(index)?.leaked_bytes(),
            ordinal: device.ordinal,
            simulated: c_int::from(device.simulated().is_some()),
            virtual_memory: c_int::from(device.virtual_memory().is_some()),
            reserved: 0,
        });
        Ok(())
    })
}

/// Returns an error status if a failure has made the device unusable.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_check_health(allocator: *const cachalot_allocator, device: c_int) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (index, device) = instance.device(device)?;
        instance.allocator.health(index)?;
        let looked = device.cuda().map_or(Ok(()), CudaDevice::look);
        Ok(instance.allocator.note_result(index, looked)?)
    })
}

/// Makes the memory of a device accessible from another device.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_enable_peer_access(
    allocator: *const cachalot_allocator,
    device: c_int,
    peer: c_int,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (index, owner) = instance.device(device)?;
        let (peer_index, other) = instance.device(peer)?;
        if index == peer_index {
            return Ok(());
        }
        // Every device of the driver may use pinned memory of the host.
        if owner.is_host() {
            return Ok(());
        }
        owner.open()?;
        other.open()?;
        match (owner.cuda(), other.cuda()) {
            (Some(owner), Some(other)) => Ok(owner.allow_access_from(other)?),
            // The memory of a simulated device is accessible from everywhere.
            (None, None) => Ok(()),
            _ => Err(unknown_device(peer)),
        }
    })
}
