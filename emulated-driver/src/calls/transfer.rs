//! Fills and copies: checks of arguments, and the order with the host as documented for pageable and for
//! pinned memory.

use super::stream::finish;
use super::submit::submit;
use crate::backing::space::DeviceAccess;
use crate::call::Call;
use crate::state::{captures, regions};
use crate::tables::work::{Place, Work};
use crate::values::code::{Answer, Code};
use std::sync::Arc;

/// `cuMemsetD8Async`.
pub(crate) fn cuMemsetD8Async(call: &mut Call, address: u64, value: u8, bytes: u64, stream: u64) -> Answer<()> {
    if bytes == 0 {
        return Ok(());
    }
    let device = resolve(call, address, bytes, stream, DeviceAccess::ReadWrite)?;
    submit(call, stream, Work::Fill { device, address, bytes, value })
}

/// `cuMemcpyHtoDAsync_v2`. Pageable host memory may be reused when the call returns, as on a real device.
/// Pinned host memory is read when the copy runs. In a capture the host memory is read at each replay.
pub(crate) fn cuMemcpyHtoDAsync_v2(call: &mut Call, to: u64, from: u64, bytes: u64, stream: u64) -> Answer<()> {
    if bytes == 0 {
        return Ok(());
    }
    if from == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let device = resolve(call, to, bytes, stream, DeviceAccess::ReadWrite)?;
    let queue = call.queue(stream)?;
    let pinned = call.state.host_memory.is_pinned(from, bytes)?;
    let from = if pinned || captures::of_queue(&mut call.state, queue)?.is_some() {
        Place::Host(from)
    } else {
        // SAFETY: the caller guarantees `bytes` readable bytes at `from`, as for the real
        // function.
        let data = unsafe { std::slice::from_raw_parts(from as *const u8, bytes as usize) };
        Place::Kept(Arc::from(data))
    };
    submit(call, stream, Work::Copy { to: Place::Device { device, address: to }, from, bytes })
}

/// `cuMemcpyDtoHAsync_v2`. Returns when the copy is done, as for pageable memory on a real device. A copy
/// to pinned memory is queued. In a capture the copy is recorded.
pub(crate) fn cuMemcpyDtoHAsync_v2(call: &mut Call, to: u64, from: u64, bytes: u64, stream: u64) -> Answer<()> {
    if bytes == 0 {
        return Ok(());
    }
    if to == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let device = resolve(call, from, bytes, stream, DeviceAccess::Read)?;
    let from = Place::Device { device, address: from };
    let pinned = call.state.host_memory.is_pinned(to, bytes)?;
    submit(call, stream, Work::Copy { to: Place::Host(to), from, bytes })?;
    let queue = call.queue(stream)?;
    if pinned || captures::of_queue(&mut call.state, queue)?.is_some() {
        return Ok(());
    }
    finish(call, queue)
}

/// `cuMemcpyDtoH_v2`: a copy on the legacy stream, complete on return.
pub(crate) fn cuMemcpyDtoH_v2(call: &mut Call, to: u64, from: u64, bytes: u64) -> Answer<()> {
    cuMemcpyDtoHAsync_v2(call, to, from, bytes, 0)?;
    let queue = call.queue(0)?;
    if captures::of_queue(&mut call.state, queue)?.is_some() { Ok(()) } else { finish(call, queue) }
}

/// `cuMemcpyDtoDAsync_v2`.
pub(crate) fn cuMemcpyDtoDAsync_v2(call: &mut Call, to: u64, from: u64, bytes: u64, stream: u64) -> Answer<()> {
    if bytes == 0 {
        return Ok(());
    }
    let to = Place::Device { device: resolve(call, to, bytes, stream, DeviceAccess::ReadWrite)?, address: to };
    let from = Place::Device { device: resolve(call, from, bytes, stream, DeviceAccess::Read)?, address: from };
    submit(call, stream, Work::Copy { to, from, bytes })
}

/// `cuMemcpyAsync`. The addresses tell which end is device memory, as with unified addressing.
pub(crate) fn cuMemcpyAsync(call: &mut Call, to: u64, from: u64, bytes: u64, stream: u64) -> Answer<()> {
    let is_device = |address| call.state.space.as_ref().is_some_and(|space| space.has(address));
    match (is_device(to), is_device(from)) {
        (true, true) => cuMemcpyDtoDAsync_v2(call, to, from, bytes, stream),
        (true, false) => cuMemcpyHtoDAsync_v2(call, to, from, bytes, stream),
        (false, true) => cuMemcpyDtoHAsync_v2(call, to, from, bytes, stream),
        (false, false) if bytes == 0 => Ok(()),
        (false, false) if to == 0 || from == 0 => Err(Code::INVALID_VALUE),
        (false, false) => {
            submit(call, stream, Work::Copy { to: Place::Host(to), from: Place::Host(from), bytes })?;
            let queue = call.queue(stream)?;
            if captures::of_queue(&mut call.state, queue)?.is_some() { Ok(()) } else { finish(call, queue) }
        }
    }
}

/// `cuMemcpyHtoD_v2`: a copy on the legacy stream, complete on return.
pub(crate) fn cuMemcpyHtoD_v2(call: &mut Call, to: u64, from: u64, bytes: u64) -> Answer<()> {
    cuMemcpyHtoDAsync_v2(call, to, from, bytes, 0)?;
    let queue = call.queue(0)?;
    finish(call, queue)
}

/// Returns the device in whose view work on a stream uses a range.
fn resolve(call: &mut Call, address: u64, bytes: u64, stream: u64, needed: DeviceAccess) -> Answer<usize> {
    let queue = call.queue(stream)?;
    let device = call.state.streams.queue(queue)?.device;
    regions::resolve(&call.state, address, bytes, device, needed)
}
