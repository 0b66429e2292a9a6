//! Memory, fills and copies.

use crate::code::{Answer, INVALID_MEMCPY_DIRECTION, INVALID_VALUE, MEMORY_ALLOCATION};
use crate::device::enter;
use crate::error::{told, write};
use std::ffi::{c_int, c_void};

/// `cudaMemcpyKind`.
const HOST_TO_HOST: c_int = 0;
const TO_DEVICE: c_int = 1;
const TO_HOST: c_int = 2;
const ON_DEVICE: c_int = 3;
const BY_ADDRESS: c_int = 4;

/// Alignment of host memory: a page.
const HOST_ALIGNMENT: usize = 4096;

#[unsafe(no_mangle)]
extern "C" fn cudaMalloc(address: *mut u64, bytes: usize) -> u32 {
    told(|| {
        let driver = enter()?;
        let mut made = 0;
        // The runtime returns null for 0 bytes, where the driver refuses.
        if bytes > 0 {
            driver.cuMemAlloc_v2(&raw mut made, bytes)?;
        }
        write(address, made)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaFree(address: u64) -> u32 {
    told(|| enter()?.cuMemFree_v2(address))
}

#[unsafe(no_mangle)]
extern "C" fn cudaMallocAsync(address: *mut u64, bytes: usize, stream: u64) -> u32 {
    told(|| {
        let mut made = 0;
        enter()?.cuMemAllocAsync(&raw mut made, bytes, stream)?;
        write(address, made)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaMallocFromPoolAsync(address: *mut u64, bytes: usize, pool: u64, stream: u64) -> u32 {
    told(|| {
        let mut made = 0;
        enter()?.cuMemAllocFromPoolAsync(&raw mut made, bytes, pool, stream)?;
        write(address, made)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaFreeAsync(address: u64, stream: u64) -> u32 {
    told(|| enter()?.cuMemFreeAsync(address, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemGetInfo(free: *mut usize, total: *mut usize) -> u32 {
    told(|| {
        let (mut left, mut all) = (0, 0);
        enter()?.cuMemGetInfo_v2(&raw mut left, &raw mut all)?;
        write(free, left)?;
        write(total, all)
    })
}

/// Allocates host memory, which counts as pageable like all host memory in the emulated driver.
#[unsafe(no_mangle)]
extern "C" fn cudaHostAlloc(address: *mut *mut c_void, bytes: usize, _flags: u32) -> u32 {
    told(|| {
        enter()?;
        let mut made = std::ptr::null_mut();
        if bytes > 0 {
            // SAFETY: the result is written to a valid pointer; the alignment is a power of two.
            let failed = unsafe { libc::posix_memalign(&raw mut made, HOST_ALIGNMENT, bytes) };
            if failed != 0 {
                return Err(MEMORY_ALLOCATION);
            }
        }
        write(address, made)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaMallocHost(address: *mut *mut c_void, bytes: usize) -> u32 {
    cudaHostAlloc(address, bytes, 0)
}

/// # Safety
/// As for the real function: `address` is null or comes from `cudaMallocHost` or `cudaHostAlloc`.
#[unsafe(no_mangle)]
unsafe extern "C" fn cudaFreeHost(address: *mut c_void) -> u32 {
    // SAFETY: guaranteed by the caller. The memory comes from posix_memalign.
    unsafe { libc::free(address) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemset(address: u64, value: c_int, bytes: usize) -> u32 {
    cudaMemsetAsync(address, value, bytes, 0)
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemsetAsync(address: u64, value: c_int, bytes: usize, stream: u64) -> u32 {
    told(|| enter()?.cuMemsetD8Async(address, value as u8, bytes, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemcpy(to: u64, from: u64, bytes: usize, kind: c_int) -> u32 {
    told(|| {
        let driver = enter()?;
        match kind {
            TO_DEVICE => driver.cuMemcpyHtoD_v2(to, host(from), bytes),
            TO_HOST => driver.cuMemcpyDtoH_v2(host(to), from, bytes),
            // A copy inside the device does not make the host wait, as in the real runtime.
            ON_DEVICE => driver.cuMemcpyDtoDAsync_v2(to, from, bytes, 0),
            _ => {
                copy_async(to, from, bytes, kind, 0)?;
                driver.cuStreamSynchronize(0)
            }
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemcpyAsync(to: u64, from: u64, bytes: usize, kind: c_int, stream: u64) -> u32 {
    told(|| copy_async(to, from, bytes, kind, stream))
}

/// Returns an address of the host as a pointer.
fn host(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// Copies in the order of a stream.
fn copy_async(to: u64, from: u64, bytes: usize, kind: c_int, stream: u64) -> Answer<()> {
    let driver = enter()?;
    match kind {
        TO_DEVICE => driver.cuMemcpyHtoDAsync_v2(to, host(from), bytes, stream),
        TO_HOST => driver.cuMemcpyDtoHAsync_v2(host(to), from, bytes, stream),
        ON_DEVICE => driver.cuMemcpyDtoDAsync_v2(to, from, bytes, stream),
        HOST_TO_HOST | BY_ADDRESS if bytes > 0 && (to == 0 || from == 0) => Err(INVALID_VALUE),
        HOST_TO_HOST | BY_ADDRESS => driver.cuMemcpyAsync(to, from, bytes, stream),
        _ => Err(INVALID_MEMCPY_DIRECTION),
    }
}
