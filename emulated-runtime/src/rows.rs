//! Rows of memory with a pitch, and memory that the host and the devices share.

use crate::code::{Answer, INVALID_MEMCPY_DIRECTION};
use crate::device::enter;
use crate::driver::{Copy2D, End2D};
use crate::error::{told, write};
use std::ffi::{c_int, c_void};

/// `CUmemorytype` of an address that tells by itself what it is.
const ANY: u32 = 4;
/// `CUmemorytype` of the host and of a device.
const HOST: u32 = 1;
const DEVICE: u32 = 2;

#[unsafe(no_mangle)]
extern "C" fn cudaMallocPitch(address: *mut u64, pitch: *mut usize, width: usize, height: usize) -> u32 {
    told(|| {
        let (mut made, mut line) = (0, 0);
        enter()?.cuMemAllocPitch_v2(&raw mut made, &raw mut line, width, height, 4)?;
        write(pitch, line)?;
        write(address, made)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaMallocManaged(address: *mut u64, bytes: usize, flags: u32) -> u32 {
    told(|| {
        let mut made = 0;
        enter()?.cuMemAllocManaged(&raw mut made, bytes, flags)?;
        write(address, made)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaHostRegister(memory: *mut c_void, bytes: usize, flags: u32) -> u32 {
    told(|| enter()?.cuMemHostRegister_v2(memory, bytes, flags))
}

#[unsafe(no_mangle)]
extern "C" fn cudaHostUnregister(memory: *mut c_void) -> u32 {
    told(|| enter()?.cuMemHostUnregister(memory))
}

#[unsafe(no_mangle)]
extern "C" fn cudaHostGetDevicePointer(address: *mut u64, memory: *mut c_void, flags: u32) -> u32 {
    told(|| {
        let mut found = 0;
        enter()?.cuMemHostGetDevicePointer_v2(&raw mut found, memory, flags)?;
        write(address, found)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemset2D(address: u64, pitch: usize, value: c_int, width: usize, height: usize) -> u32 {
    cudaMemset2DAsync(address, pitch, value, width, height, 0)
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemset2DAsync(
    address: u64,
    pitch: usize,
    value: c_int,
    width: usize,
    height: usize,
    stream: u64,
) -> u32 {
    told(|| enter()?.cuMemsetD2D8Async(address, pitch, value as u8, width, height, stream))
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemcpy2D(
    to: u64,
    to_pitch: usize,
    from: u64,
    from_pitch: usize,
    width: usize,
    height: usize,
    kind: c_int,
) -> u32 {
    told(|| {
        let copy = copy(kind, (to, to_pitch), (from, from_pitch), width, height)?;
        enter()?.cuMemcpy2DUnaligned_v2(&raw const copy)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaMemcpy2DAsync(
    to: u64,
    to_pitch: usize,
    from: u64,
    from_pitch: usize,
    width: usize,
    height: usize,
    kind: c_int,
    stream: u64,
) -> u32 {
    told(|| {
        let copy = copy(kind, (to, to_pitch), (from, from_pitch), width, height)?;
        enter()?.cuMemcpy2DAsync_v2(&raw const copy, stream)
    })
}

/// Returns the description of a copy by `cudaMemcpyKind`, for addresses with their pitches.
fn copy(kind: c_int, to: (u64, usize), from: (u64, usize), width: usize, height: usize) -> Answer<Copy2D> {
    let (to_kind, from_kind) = match kind {
        0 => (HOST, HOST),
        1 => (DEVICE, HOST),
        2 => (HOST, DEVICE),
        3 => (DEVICE, DEVICE),
        4 => (ANY, ANY),
        _ => return Err(INVALID_MEMCPY_DIRECTION),
    };
    let end = |kind: u32, (address, pitch): (u64, usize)| End2D {
        kind,
        host: if kind == HOST { address } else { 0 },
        device: if kind == HOST { 0 } else { address },
        pitch,
        ..End2D::default()
    };
    Ok(Copy2D { from: end(from_kind, from), to: end(to_kind, to), width, height })
}
