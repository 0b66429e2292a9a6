//! Contexts and peers.

use super::Out;
use crate::context;
use crate::functions::Function;
use crate::session::call;
use crate::thread;
use std::ffi::c_int;

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRetain(context: *mut u64, device: c_int) -> u32 {
    let out = Out(context);
    call(
        Function::cuDevicePrimaryCtxRetain,
        &[context as u64, device as u64],
        |session| out.check().and_then(|()| context::retain(session, device)),
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> u32 {
    call(Function::cuDevicePrimaryCtxRelease_v2, &[device as u64], |session| context::release(session, device), drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxCreate_v2(context: *mut u64, flags: u32, device: c_int) -> u32 {
    let out = Out(context);
    call(
        Function::cuCtxCreate_v2,
        &[context as u64, flags.into(), device as u64],
        |session| out.check().and_then(|()| context::create(session, device)),
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxDestroy_v2(context: u64) -> u32 {
    call(Function::cuCtxDestroy_v2, &[context], |session| context::destroy(session, context), drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetCurrent(context: *mut u64) -> u32 {
    let out = Out(context);
    call(
        Function::cuCtxGetCurrent,
        &[context as u64],
        |session| {
            out.check()?;
            session.out = Some(session.context);
            Ok(session.context)
        },
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: u64) -> u32 {
    call(Function::cuCtxSetCurrent, &[context], |session| context::set_current(session, context), drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(context: u64) -> u32 {
    call(Function::cuCtxPushCurrent_v2, &[context], |session| context::push(session, context), drop)
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPopCurrent_v2(context: *mut u64) -> u32 {
    let out = Out(context);
    call(
        Function::cuCtxPopCurrent_v2,
        &[context as u64],
        |session| {
            let popped = context::pop()?;
            session.out = Some(popped);
            Ok(popped)
        },
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxGetDevice(device: *mut c_int) -> u32 {
    let out = Out(device);
    call(
        Function::cuCtxGetDevice,
        &[device as u64],
        |session| {
            out.check()?;
            if thread::current() == 0 {
                return Err(crate::code::Code::INVALID_CONTEXT);
            }
            context::device_of(&session.state, session.context).map(|index| index as c_int)
        },
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> u32 {
    call(
        Function::cuCtxSynchronize,
        &[],
        |session| {
            let context = session.context;
            context::synchronize(session, context)
        },
        drop,
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxEnablePeerAccess(peer: u64, flags: u32) -> u32 {
    call(
        Function::cuCtxEnablePeerAccess,
        &[peer, flags.into()],
        |session| context::enable_peer(session, peer, flags),
        drop,
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxDisablePeerAccess(peer: u64) -> u32 {
    call(Function::cuCtxDisablePeerAccess, &[peer], |session| context::disable_peer(session, peer), drop)
}
