//! Events.

use crate::code::NOT_SUPPORTED;
use crate::device::enter;
use crate::error::{told, write};

#[unsafe(no_mangle)]
extern "C" fn cudaEventCreate(event: *mut u64) -> u32 {
    cudaEventCreateWithFlags(event, 0)
}

#[unsafe(no_mangle)]
extern "C" fn cudaEventCreateWithFlags(event: *mut u64, flags: u32) -> u32 {
    told(|| {
        let mut made = 0;
        enter()?.cuEventCreate(&raw mut made, flags)?;
        write(event, made)
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaEventDestroy(event: u64) -> u32 {
    told(|| enter()?.cuEventDestroy_v2(event))
}

#[unsafe(no_mangle)]
extern "C" fn cudaEventRecord(event: u64, stream: u64) -> u32 {
    told(|| enter()?.cuEventRecord(event, stream))
}

/// Events outside a captured graph (`cudaEventRecordExternal`) are not emulated.
#[unsafe(no_mangle)]
extern "C" fn cudaEventRecordWithFlags(event: u64, stream: u64, flags: u32) -> u32 {
    told(|| if flags == 0 { enter()?.cuEventRecord(event, stream) } else { Err(NOT_SUPPORTED) })
}

#[unsafe(no_mangle)]
extern "C" fn cudaEventQuery(event: u64) -> u32 {
    told(|| enter()?.cuEventQuery(event))
}

#[unsafe(no_mangle)]
extern "C" fn cudaEventSynchronize(event: u64) -> u32 {
    told(|| enter()?.cuEventSynchronize(event))
}

#[unsafe(no_mangle)]
extern "C" fn cudaEventElapsedTime(milliseconds: *mut f32, from: u64, to: u64) -> u32 {
    told(|| {
        let mut time = 0.0;
        enter()?.cuEventElapsedTime(&raw mut time, from, to)?;
        write(milliseconds, time)
    })
}
