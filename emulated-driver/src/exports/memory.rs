//! Memory, fills and copies.

use super::Out;
use crate::call::make;
use crate::calls::{host, memory, transfer};
use crate::values::functions::Function;

#[unsafe(no_mangle)]
extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> u32 {
    let out = Out(address);
    make(
        Function::cuMemAlloc_v2,
        &[address as u64, bytes as u64],
        |call| out.check().and_then(|()| memory::allocate(call, bytes as u64)),
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: u64) -> u32 {
    make(Function::cuMemFree_v2, &[address], |call| memory::free(call, address), drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> u32 {
    // Either may be null.
    let (free_out, total_out) = (Out(free), Out(total));
    make(Function::cuMemGetInfo_v2, &[free as u64, total as u64], memory::info, |(free, total)| {
        free_out.write(free as usize);
        total_out.write(total as usize);
    })
}

#[unsafe(no_mangle)]
extern "C" fn cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, address: u64) -> u32 {
    // Either may be null.
    let (base_out, bytes_out) = (Out(base), Out(bytes));
    make(
        Function::cuMemGetAddressRange_v2,
        &[base as u64, bytes as u64, address],
        |call| memory::range_of(call, address),
        |(base, bytes)| {
            base_out.write(base);
            bytes_out.write(bytes as usize);
        },
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostAlloc(memory: *mut u64, bytes: usize, flags: u32) -> u32 {
    let out = Out(memory);
    make(
        Function::cuMemHostAlloc,
        &[memory as u64, bytes as u64, flags.into()],
        |call| out.check().and_then(|()| host::allocate(call, bytes as u64, flags)),
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(memory: u64) -> u32 {
    make(Function::cuMemFreeHost, &[memory], |call| host::free(call, memory), drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(memory: u64, bytes: usize, flags: u32) -> u32 {
    make(
        Function::cuMemHostRegister_v2,
        &[memory, bytes as u64, flags.into()],
        |call| host::register(call, memory, bytes as u64, flags),
        drop,
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(memory: u64) -> u32 {
    make(Function::cuMemHostUnregister, &[memory], |call| host::unregister(call, memory), drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuMemHostGetDevicePointer_v2(address: *mut u64, memory: u64, flags: u32) -> u32 {
    let out = Out(address);
    make(
        Function::cuMemHostGetDevicePointer_v2,
        &[address as u64, memory, flags.into()],
        |call| out.check().and_then(|()| host::device_address(call, memory, flags)),
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemsetD8Async(address: u64, value: u8, bytes: usize, stream: u64) -> u32 {
    make(
        Function::cuMemsetD8Async,
        &[address, value.into(), bytes as u64, stream],
        |call| transfer::fill(call, address, value, bytes as u64, stream),
        drop,
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoD_v2(to: u64, from: u64, bytes: usize) -> u32 {
    make(
        Function::cuMemcpyHtoD_v2,
        &[to, from, bytes as u64],
        |call| transfer::to_device_now(call, to, from, bytes as u64),
        drop,
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoH_v2(to: u64, from: u64, bytes: usize) -> u32 {
    make(
        Function::cuMemcpyDtoH_v2,
        &[to, from, bytes as u64],
        |call| transfer::to_host_now(call, to, from, bytes as u64),
        drop,
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) -> u32 {
    make(
        Function::cuMemcpyHtoDAsync_v2,
        &[to, from, bytes as u64, stream],
        |call| transfer::to_device(call, to, from, bytes as u64, stream),
        drop,
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoHAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) -> u32 {
    make(
        Function::cuMemcpyDtoHAsync_v2,
        &[to, from, bytes as u64, stream],
        |call| transfer::to_host(call, to, from, bytes as u64, stream),
        drop,
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) -> u32 {
    make(
        Function::cuMemcpyDtoDAsync_v2,
        &[to, from, bytes as u64, stream],
        |call| transfer::on_device(call, to, from, bytes as u64, stream),
        drop,
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: u64) -> u32 {
    make(
        Function::cuMemcpyAsync,
        &[to, from, bytes as u64, stream],
        |call| transfer::between(call, to, from, bytes as u64, stream),
        drop,
    )
}
