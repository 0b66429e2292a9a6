//! Streams.

use crate::device::enter;
use crate::driver::HostFunction;
use crate::error::{told, write};
use std::ffi::{c_int, c_void};

#[unsafe(no_mangle)]
extern "C" fn cudaStreamCreate(stream: *mut u64) -> u32 {
    cudaStreamCreateWithPriority(stream, 0, 0)
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamCreateWithFlags(stream: *mut u64, flags: u32) -> u32 {
    cudaStreamCreateWithPriority(stream, flags, 0)
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamCreateWithPriority(stream: *mut u64, flags: u32, priority: c_int) -> u32 {
    told(|| {
        let mut made = 0;
        enter()?.cuStreamCreateWithPriority(&raw mut made, flags, priority)?;
        write(stream, made)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamDestroy(stream: u64) -> u32 {
    told(|| enter()?.cuStreamDestroy_v2(stream))
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamSynchronize(stream: u64) -> u32 {
    told(|| enter()?.cuStreamSynchronize(stream))
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamQuery(stream: u64) -> u32 {
    told(|| enter()?.cuStreamQuery(stream))
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamWaitEvent(stream: u64, event: u64, flags: u32) -> u32 {
    told(|| enter()?.cuStreamWaitEvent(stream, event, flags))
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamGetFlags(stream: u64, flags: *mut u32) -> u32 {
    told(|| {
        let mut found = 0;
        enter()?.cuStreamGetFlags(stream, &raw mut found)?;
        write(flags, found)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamGetPriority(stream: u64, priority: *mut c_int) -> u32 {
    told(|| {
        let mut found = 0;
        enter()?.cuStreamGetPriority(stream, &raw mut found)?;
        write(priority, found)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaStreamGetId(stream: u64, id: *mut u64) -> u32 {
    told(|| {
        let mut found = 0;
        enter()?.cuStreamGetId(stream, &raw mut found)?;
        write(id, found)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaLaunchHostFunc(stream: u64, function: Option<HostFunction>, argument: *mut c_void) -> u32 {
    told(|| enter()?.cuLaunchHostFunc(stream, function, argument))
}
