//! Pools of stream-ordered memory.

use crate::device::enter;
use crate::driver::driver;
use crate::error::{told, write};
use std::ffi::{c_int, c_void};

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceGetDefaultMemPool(pool: *mut u64, device: c_int) -> u32 {
    told(|| {
        let mut found = 0;
        driver()?.cuDeviceGetDefaultMemPool(&raw mut found, device)?;
        write(pool, found)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceGetMemPool(pool: *mut u64, device: c_int) -> u32 {
    told(|| {
        let mut found = 0;
        driver()?.cuDeviceGetMemPool(&raw mut found, device)?;
        write(pool, found)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceSetMemPool(device: c_int, pool: u64) -> u32 {
    told(|| driver()?.cuDeviceSetMemPool(device, pool))
}

/// `cudaMemPoolProps` is laid out as the driver's `CUmemPoolProps`.
#[unsafe(no_mangle)]
extern "C" fn cudaMemPoolCreate(pool: *mut u64, properties: *const c_void) -> u32 {
    told(|| {
        let mut made = 0;
        enter()?.cuMemPoolCreate(&raw mut made, properties)?;
        write(pool, made)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemPoolDestroy(pool: u64) -> u32 {
    told(|| driver()?.cuMemPoolDestroy(pool))
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemPoolGetAttribute(pool: u64, attribute: c_int, value: *mut c_void) -> u32 {
    told(|| driver()?.cuMemPoolGetAttribute(pool, attribute, value))
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemPoolSetAttribute(pool: u64, attribute: c_int, value: *mut c_void) -> u32 {
    told(|| driver()?.cuMemPoolSetAttribute(pool, attribute, value))
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemPoolTrimTo(pool: u64, kept_bytes: usize) -> u32 {
    told(|| driver()?.cuMemPoolTrimTo(pool, kept_bytes))
}
