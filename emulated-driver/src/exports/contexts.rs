//! Contexts and peers.

use super::Out;
use crate::call::make;
use crate::calls::context;
use crate::process::thread;
use crate::state::contexts;
use crate::values::code::Code;
use crate::values::functions::Function;
use std::ffi::c_int;

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(context: *mut u64, device: c_int) -> u32 {
    let out = Out(context);
    make(
        Function::cuDevicePrimaryCtxRetain,
        &[context as u64, device as u64],
        |call| out.check().and_then(|()| context::retain(call, device)),
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> u32 {
    make(Function::cuDevicePrimaryCtxRelease_v2, &[device as u64], |call| context::release(call, device), drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxCreate_v2(context: *mut u64, flags: u32, device: c_int) -> u32 {
    let out = Out(context);
    make(
        Function::cuCtxCreate_v2,
        &[context as u64, flags.into(), device as u64],
        |call| out.check().and_then(|()| context::create(call, device)),
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxDestroy_v2(context: u64) -> u32 {
    make(Function::cuCtxDestroy_v2, &[context], |call| context::destroy(call, context), drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(context: *mut u64) -> u32 {
    let out = Out(context);
    make(
        Function::cuCtxGetCurrent,
        &[context as u64],
        |call| {
            out.check()?;
            call.out = Some(call.context);
            Ok(call.context)
        },
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: u64) -> u32 {
    make(Function::cuCtxSetCurrent, &[context], |call| context::set_current(call, context), drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(context: u64) -> u32 {
    make(Function::cuCtxPushCurrent_v2, &[context], |call| context::push(call, context), drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPopCurrent_v2(context: *mut u64) -> u32 {
    let out = Out(context);
    make(
        Function::cuCtxPopCurrent_v2,
        &[context as u64],
        |call| {
            let popped = context::pop()?;
            call.out = Some(popped);
            Ok(popped)
        },
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetDevice(device: *mut c_int) -> u32 {
    let out = Out(device);
    make(
        Function::cuCtxGetDevice,
        &[device as u64],
        |call| {
            out.check()?;
            if thread::current() == 0 {
                return Err(Code::INVALID_CONTEXT);
            }
            contexts::device_of(&call.state, call.context).map(|index| index as c_int)
        },
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> u32 {
    make(
        Function::cuCtxSynchronize,
        &[],
        |call| {
            let context = call.context;
            context::synchronize(call, context)
        },
        drop,
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxEnablePeerAccess(peer: u64, flags: u32) -> u32 {
    make(Function::cuCtxEnablePeerAccess, &[peer, flags.into()], |call| context::enable_peer(call, peer, flags), drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxDisablePeerAccess(peer: u64) -> u32 {
    make(Function::cuCtxDisablePeerAccess, &[peer], |call| context::disable_peer(call, peer), drop)
}
