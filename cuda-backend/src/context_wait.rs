//! A wait for all work of a context, including the work of destroyed streams, that is possible
//! during captures.
//!
//! `cuCtxSynchronize` is unsuitable: while a stream of the context captures, in any mode and
//! thread, the call fails and breaks the capture, and so does an event of the context
//! (`cuCtxRecordEvent`). No driver call reports captures on streams that the crate does not know.
//! Freeing device memory of any size waits for the same work, and a thread in relaxed mode may do
//! so during captures. (Checked on an H100 with CUDA 13.0: for kernels of blocking and non-blocking
//! streams after `cuStreamDestroy`, during captures of each mode. `cuMemUnmap`, `cuMemRelease` and
//! `cuStreamDestroy` do not wait.)
//!
//! So a wait obtains a byte and frees it again. If the device is full, it frees a byte that was
//! kept for this. A device that asks the driver for the identity of streams keeps bytes from the
//! time it is opened. Any other device keeps bytes from the moment when a wait for a context
//! becomes possible. The driver cuts small allocations from a page of 2 MiB, which the other kept
//! bytes hold, so the place of a freed byte is free for the next one.

use crate::context::Context;
use crate::driver::types::CuDevicePtr;
use crate::kept_bytes::KeptBytes;
use cachalot_core::{DeviceResult, ErrorKind};

/// What a wait on a device without a byte may do to captures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Captures {
    /// It breaks none, and fails.
    Keep,
    /// It may break captures. The allocator knows of none.
    MayBreak,
}

/// Waits until all queued work of a context is complete, including the work of destroyed streams.
/// Returns false without a wait if the device has no byte left and no byte is kept, because no
/// other kind of wait is certain to break no capture.
///
/// # Errors
/// The errors of the driver. A free that fails has not waited.
pub(crate) fn wait_for_context(context: &Context, kept: &KeptBytes) -> DeviceResult<bool> {
    // The context is entered once for both calls.
    let _scope = context.enter()?;
    match obtain(context) {
        Ok(byte) => {
            free(context, byte)?;
            fill(context, kept)?;
        }
        Err(error) if error.kind == ErrorKind::OutOfMemory => {
            let Some(byte) = kept.take(context.handle()) else { return Ok(false) };
            let freed = free(context, byte);
            let unused = kept.give_back(context.handle(), obtain(context).ok());
            unused.map_or(freed, |byte| freed.and(free(context, byte)))?;
        }
        Err(error) => return Err(error),
    }
    Ok(true)
}

/// Notes a new open device in a context. Keeps bytes in the context if the device `wants` bytes.
///
/// # Errors
/// The error of the driver. In this case the device is not noted.
pub(crate) fn begin_bytes(context: &Context, kept: &KeptBytes, wants: bool) -> DeviceResult<()> {
    kept.begin(context.handle());
    let filled = if wants { keep_bytes(context, kept) } else { Ok(()) };
    if filled.is_err() {
        // The first error is the one to return.
        let _ = end_bytes(context, kept);
    }
    filled
}

/// Keeps bytes in a context from now on, if a device is open in the context. It is not an error if
/// the device has no free memory, because a later wait tries again.
///
/// # Errors
/// The driver's error.
pub(crate) fn keep_bytes(context: &Context, kept: &KeptBytes) -> DeviceResult<()> {
    if kept.want(context.handle()) { fill(context, kept) } else { Ok(()) }
}

/// Frees the bytes of a context, if the device that closes is the last open one in the context. The
/// first of these calls waits.
///
/// # Errors
/// The first error of the driver.
pub(crate) fn end_bytes(context: &Context, kept: &KeptBytes) -> DeviceResult<()> {
    let mut result = Ok(());
    for byte in kept.end(context.handle()) {
        result = result.and(free(context, byte));
    }
    result
}

/// Obtains the missing bytes of a context.
fn fill(context: &Context, kept: &KeptBytes) -> DeviceResult<()> {
    while kept.lacks(context.handle()) {
        match obtain(context) {
            Ok(byte) => {
                if let Some(unused) = kept.keep(context.handle(), byte) {
                    return free(context, unused);
                }
            }
            Err(error) if error.kind == ErrorKind::OutOfMemory => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Obtains a byte of device memory.
fn obtain(context: &Context) -> DeviceResult<CuDevicePtr> {
    let mut address = 0;
    context.call(|driver| {
        // SAFETY: `address` outlives the call, which writes one address to it.
        unsafe { driver.mem_alloc(&raw mut address, 1) }
    })?;
    Ok(address)
}

/// Frees a byte, which waits for all work of the context.
fn free(context: &Context, byte: CuDevicePtr) -> DeviceResult<()> {
    context.call(|driver| {
        // SAFETY: takes no host pointers; the byte is this crate's own, and no other code has its
        // address.
        unsafe { driver.mem_free(byte) }
    })
}
