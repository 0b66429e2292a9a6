//! Virtual memory.

use super::Out;
use crate::call::make;
use crate::calls::virtual_memory::{self, AccessDescriptor, MemAllocationProp};
use crate::values::code::Code;
use crate::values::functions::Function;
use std::ffi::{c_int, c_void};
use std::os::fd::{IntoRawFd, OwnedFd};

/// # Safety
/// As for the real function: `properties` is null or valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetAllocationGranularity(
    bytes: *mut usize,
    properties: *const MemAllocationProp,
    option: c_int,
) -> u32 {
    let out = Out(bytes);
    make(
        Function::cuMemGetAllocationGranularity,
        &[bytes as u64, properties as u64, option as u64],
        |call| {
            out.check()?;
            // SAFETY: guaranteed by the caller.
            let properties = unsafe { properties.as_ref() }.ok_or(Code::INVALID_VALUE)?;
            if !(0..=1).contains(&option) {
                return Err(Code::INVALID_VALUE);
            }
            virtual_memory::granularity(call, properties)
        },
        |value| out.write(value as usize),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAddressReserve(address: *mut u64, bytes: usize, alignment: usize, hint: u64, flags: u64) -> u32 {
    let out = Out(address);
    make(
        Function::cuMemAddressReserve,
        &[address as u64, bytes as u64, alignment as u64, hint, flags],
        |call| {
            out.check()?;
            virtual_memory::reserve(call, bytes as u64, alignment as u64, hint, flags)
        },
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemAddressFree(address: u64, bytes: usize) -> u32 {
    make(
        Function::cuMemAddressFree,
        &[address, bytes as u64],
        |call| virtual_memory::unreserve(call, address, bytes as u64),
        drop,
    )
}

/// # Safety
/// As for the real function: `properties` is null or valid.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemCreate(
    handle: *mut u64,
    bytes: usize,
    properties: *const MemAllocationProp,
    flags: u64,
) -> u32 {
    let out = Out(handle);
    make(
        Function::cuMemCreate,
        &[handle as u64, bytes as u64, properties as u64, flags],
        |call| {
            out.check()?;
            // SAFETY: guaranteed by the caller.
            let properties = unsafe { properties.as_ref() }.ok_or(Code::INVALID_VALUE)?;
            virtual_memory::create(call, bytes as u64, properties, flags)
        },
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemRelease(handle: u64) -> u32 {
    make(Function::cuMemRelease, &[handle], |call| virtual_memory::release(call, handle), drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64) -> u32 {
    make(
        Function::cuMemMap,
        &[address, bytes as u64, offset as u64, handle, flags],
        |call| virtual_memory::map(call, address, bytes as u64, offset as u64, handle, flags),
        drop,
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemUnmap(address: u64, bytes: usize) -> u32 {
    make(
        Function::cuMemUnmap,
        &[address, bytes as u64],
        |call| virtual_memory::unmap(call, address, bytes as u64),
        drop,
    )
}

/// # Safety
/// As for the real function: `descriptors` is null or points to `count` descriptors.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemSetAccess(
    address: u64,
    bytes: usize,
    descriptors: *const AccessDescriptor,
    count: usize,
) -> u32 {
    make(
        Function::cuMemSetAccess,
        &[address, bytes as u64, descriptors as u64, count as u64],
        |call| {
            if descriptors.is_null() {
                return Err(Code::INVALID_VALUE);
            }
            // SAFETY: not null, the rest is guaranteed by the caller.
            let wanted = unsafe { std::slice::from_raw_parts(descriptors, count) };
            virtual_memory::set_access(call, address, bytes as u64, wanted)
        },
        drop,
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemExportToShareableHandle(shareable: *mut c_void, handle: u64, kind: c_int, flags: u64) -> u32 {
    let out = Out(shareable.cast::<c_int>());
    make(
        Function::cuMemExportToShareableHandle,
        &[shareable as u64, handle, kind as u64, flags],
        |call| {
            out.check()?;
            virtual_memory::export(call, handle, kind, flags)
        },
        |descriptor: OwnedFd| out.write(descriptor.into_raw_fd()),
    )
}

/// The descriptor is a number in the shape of a pointer.
#[unsafe(no_mangle)]
extern "C" fn cuMemImportFromShareableHandle(handle: *mut u64, shareable: *mut c_void, kind: c_int) -> u32 {
    let out = Out(handle);
    make(
        Function::cuMemImportFromShareableHandle,
        &[handle as u64, shareable as u64, kind as u64],
        |call| {
            out.check()?;
            let descriptor = i32::try_from((shareable as u64).cast_signed()).map_err(|_| Code::INVALID_VALUE)?;
            virtual_memory::import(call, descriptor, kind)
        },
        |value| out.write(value),
    )
}
