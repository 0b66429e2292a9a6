//! Streams.

use crate::code::{CAPTURE_UNSUPPORTED, INVALID_VALUE};
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

/// A function of the host with the stream, the code of the work before it, and an argument.
type Callback = unsafe extern "C" fn(u64, u32, *mut c_void);

/// A call of a [`Callback`], for the driver's way of calling the host.
struct CallbackCall {
    callback: Callback,
    stream: u64,
    argument: *mut c_void,
}

/// Makes the call that `call` describes.
unsafe extern "C" fn call_back(call: *mut c_void) {
    // SAFETY: `cudaStreamAddCallback` has made the box, for this call alone.
    let CallbackCall { callback, stream, argument } = *unsafe { Box::from_raw(call.cast::<CallbackCall>()) };
    // SAFETY: the caller of `cudaStreamAddCallback` guarantees the function and its argument.
    unsafe { callback(stream, 0, argument) };
}

/// A capture refuses the call, as a graph could make it twice.
#[unsafe(no_mangle)]
extern "C" fn cudaStreamAddCallback(stream: u64, callback: Option<Callback>, argument: *mut c_void, flags: u32) -> u32 {
    told(|| {
        let callback = callback.filter(|_| flags == 0).ok_or(INVALID_VALUE)?;
        let mut capturing = 0;
        enter()?.cuStreamIsCapturing(stream, &raw mut capturing)?;
        if capturing != 0 {
            return Err(CAPTURE_UNSUPPORTED);
        }
        let call = Box::into_raw(Box::new(CallbackCall { callback, stream, argument }));
        let queued = enter()?.cuLaunchHostFunc(stream, Some(call_back), call.cast());
        if queued.is_err() {
            // SAFETY: nobody has taken the box.
            drop(unsafe { Box::from_raw(call) });
        }
        queued
    })
}

#[unsafe(no_mangle)]
extern "C" fn cudaLaunchHostFunc(stream: u64, function: Option<HostFunction>, argument: *mut c_void) -> u32 {
    told(|| enter()?.cuLaunchHostFunc(stream, function, argument))
}
