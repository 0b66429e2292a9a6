//! Stream-ordered memory and pools.

use super::Out;
use crate::call::make;
use crate::calls::pool::{self, MemPoolProps};
use crate::values::code::Code;
use crate::values::functions::Function;
use std::ffi::c_int;

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetDefaultMemPool(handle: *mut u64, device: c_int) -> u32 {
    let out = Out(handle);
    make(
        Function::cuDeviceGetDefaultMemPool,
        &[handle as u64, device as u64],
        |call| out.check().and_then(|()| pool::default_of(call, device)),
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetMemPool(handle: *mut u64, device: c_int) -> u32 {
    let out = Out(handle);
    make(
        Function::cuDeviceGetMemPool,
        &[handle as u64, device as u64],
        |call| out.check().and_then(|()| pool::current_of(call, device)),
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceSetMemPool(device: c_int, handle: u64) -> u32 {
    make(Function::cuDeviceSetMemPool, &[device as u64, handle], |call| pool::set_current(call, device, handle), drop)
}

/// # Safety
/// As for the real function: `properties` is null or valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemPoolCreate(handle: *mut u64, properties: *const MemPoolProps) -> u32 {
    let out = Out(handle);
    make(
        Function::cuMemPoolCreate,
        &[handle as u64, properties as u64],
        |call| {
            out.check()?;
            // SAFETY: guaranteed by the caller.
            let properties = unsafe { properties.as_ref() }.ok_or(Code::INVALID_VALUE)?;
            pool::create(call, properties)
        },
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolDestroy(handle: u64) -> u32 {
    make(Function::cuMemPoolDestroy, &[handle], |call| pool::destroy(call, handle), drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolGetAttribute(handle: u64, attribute: c_int, value: *mut u64) -> u32 {
    let (switch_out, out) = (Out(value.cast::<u32>()), Out(value));
    make(
        Function::cuMemPoolGetAttribute,
        &[handle, attribute as u64, value as u64],
        |call| out.check().and_then(|()| pool::attribute(call, handle, attribute)),
        |value| {
            if pool::is_switch(attribute) {
                switch_out.write(value as u32);
            } else {
                out.write(value);
            }
        },
    )
}

/// # Safety
/// As for the real function: `value` is null or points to a value of the attribute's size.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemPoolSetAttribute(handle: u64, attribute: c_int, value: *const u64) -> u32 {
    make(
        Function::cuMemPoolSetAttribute,
        &[handle, attribute as u64, value as u64],
        |call| {
            if value.is_null() {
                return Err(Code::INVALID_VALUE);
            }
            let wanted = if pool::is_switch(attribute) {
                // SAFETY: not null, the rest is guaranteed by the caller. A switch has 4 bytes.
                u64::from(unsafe { *value.cast::<u32>() })
            } else {
                // SAFETY: not null, the rest is guaranteed by the caller. Every attribute
                // besides the switches has 8 bytes.
                unsafe { *value }
            };
            pool::set_attribute(call, handle, attribute, wanted)
        },
        drop,
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemPoolTrimTo(handle: u64, kept_bytes: usize) -> u32 {
    make(
        Function::cuMemPoolTrimTo,
        &[handle, kept_bytes as u64],
        |call| pool::trim_to(call, handle, kept_bytes as u64),
        drop,
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocAsync(address: *mut u64, bytes: usize, stream: u64) -> u32 {
    let out = Out(address);
    make(
        Function::cuMemAllocAsync,
        &[address as u64, bytes as u64, stream],
        |call| out.check().and_then(|()| pool::allocate(call, bytes as u64, None, stream)),
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAllocFromPoolAsync(address: *mut u64, bytes: usize, handle: u64, stream: u64) -> u32 {
    let out = Out(address);
    make(
        Function::cuMemAllocFromPoolAsync,
        &[address as u64, bytes as u64, handle, stream],
        |call| out.check().and_then(|()| pool::allocate(call, bytes as u64, Some(handle), stream)),
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync(address: u64, stream: u64) -> u32 {
    make(Function::cuMemFreeAsync, &[address, stream], |call| pool::free(call, address, stream), drop)
}
