//! Memory, fills and copies.

use super::Out;
use crate::functions::Function;
use crate::session::call;
use crate::{memory, transfer};

#[unsafe(no_mangle)]
extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> u32 {
    let out = Out(address);
    call(
        Function::cuMemAlloc_v2,
        &[address as u64, bytes as u64],
        |session| out.check().and_then(|()| memory::allocate(session, bytes as u64)),
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: u64) -> u32 {
    call(Function::cuMemFree_v2, &[address], |session| memory::free(session, address), drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> u32 {
    // Either may be null.
    let (free_out, total_out) = (Out(free), Out(total));
    call(
        Function::cuMemGetInfo_v2,
        &[free as u64, total as u64],
        |session| memory::info(session),
        |(free, total)| {
            free_out.write(free as usize);
            total_out.write(total as usize);
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, address: u64) -> u32 {
    // Either may be null.
    let (base_out, bytes_out) = (Out(base), Out(bytes));
    call(
        Function::cuMemGetAddressRange_v2,
        &[base as u64, bytes as u64, address],
        |session| memory::range_of(session, address),
        |(base, bytes)| {
            base_out.write(base);
            bytes_out.write(bytes as usize);
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(address: u64, value: u8, bytes: usize, stream: u64) -> u32 {
    call(
        Function::cuMemsetD8Async,
        &[address, value.into(), bytes as u64, stream],
        |session| transfer::fill(session, address, value, bytes as u64, stream),
        drop,
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoD_v2(to: u64, from: u64, bytes: usize) -> u32 {
    call(
        Function::cuMemcpyHtoD_v2,
        &[to, from, bytes as u64],
        |session| transfer::to_device_now(session, to, from, bytes as u64),
        drop,
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoH_v2(to: u64, from: u64, bytes: usize) -> u32 {
    call(
        Function::cuMemcpyDtoH_v2,
        &[to, from, bytes as u64],
        |session| transfer::to_host(session, to, from, bytes as u64, 0),
        drop,
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) -> u32 {
    call(
        Function::cuMemcpyHtoDAsync_v2,
        &[to, from, bytes as u64, stream],
        |session| transfer::to_device(session, to, from, bytes as u64, stream),
        drop,
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) -> u32 {
    call(
        Function::cuMemcpyDtoHAsync_v2,
        &[to, from, bytes as u64, stream],
        |session| transfer::to_host(session, to, from, bytes as u64, stream),
        drop,
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) -> u32 {
    call(
        Function::cuMemcpyDtoDAsync_v2,
        &[to, from, bytes as u64, stream],
        |session| transfer::on_device(session, to, from, bytes as u64, stream),
        drop,
    )
}
