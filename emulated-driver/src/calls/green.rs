//! Green contexts: other contexts over the memory of a device's primary context. They have all
//! multiprocessors here.

use super::context::{cuDevicePrimaryCtxRelease_v2, end, retain};
use crate::call::Call;
use crate::process::thread;
use crate::state::contexts::STRIDE;
use crate::tables::context::Context;
use crate::values::code::{Answer, Code};
use crate::values::pointers::Out;
use std::ffi::c_int;

/// The first green context's handle as a context.
const GREEN_BASE: u64 = 0x5c80_0000_0000;
/// One past the last such handle.
const GREEN_END: u64 = 0x5d00_0000_0000;
/// Bytes from the handle as a context to the handle as a green context.
const AS_GREEN: u64 = 0x40;
/// `CU_GREEN_CTX_DEFAULT_STREAM`, which is required.
const DEFAULT_STREAM: u32 = 1;

/// `cuGreenCtxCreate`. The green context retains the primary context, and is not made current.
pub(crate) fn cuGreenCtxCreate(
    call: &mut Call,
    green: Out<u64>,
    descriptor: u64,
    device: c_int,
    flags: u32,
) -> Answer<()> {
    call.answer(green, |call| {
        if descriptor == 0 || flags != DEFAULT_STREAM {
            return Err(Code::INVALID_VALUE);
        }
        let primary = retain(call, device)?;
        let last = call.state.contexts.range(GREEN_BASE..GREEN_END).next_back();
        let handle = last.map_or(GREEN_BASE, |(&handle, _)| handle + STRIDE);
        let context = Context { green_of: Some(primary), ..Context::new(device as usize, Vec::new()) };
        call.state.contexts.insert(handle, context);
        call.made("green context", handle + AS_GREEN);
        Ok(handle + AS_GREEN)
    })
}

/// `cuGreenCtxDestroy`: ends the green context's work, and releases the primary context.
pub(crate) fn cuGreenCtxDestroy(call: &mut Call, green: u64) -> Answer<()> {
    let handle = context_of(call, green)?;
    let device = call.state.contexts[&handle].device;
    if call.context == handle {
        thread::pop();
    }
    end(call, handle);
    cuDevicePrimaryCtxRelease_v2(call, device as c_int)
}

/// `cuCtxFromGreenCtx`: the green context as a context.
pub(crate) fn cuCtxFromGreenCtx(call: &mut Call, context: Out<u64>, green: u64) -> Answer<()> {
    call.answer(context, |call| context_of(call, green))
}

/// Returns a green context's handle as a context.
fn context_of(call: &Call, green: u64) -> Answer<u64> {
    let handle = green.checked_sub(AS_GREEN).filter(|handle| (GREEN_BASE..GREEN_END).contains(handle));
    handle.filter(|handle| call.state.contexts.contains_key(handle)).ok_or(Code::INVALID_CONTEXT)
}
