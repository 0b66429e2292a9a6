//! Copies of a line of bytes, and managed memory moved ahead of its use.

use super::copy::{End, copy, copy_at_once};
use super::submit::submit;
use crate::call::Call;
use crate::state::contexts;
use crate::tables::memory::Source;
use crate::tables::work::Work;
use crate::values::code::{Answer, Code};
use crate::values::structs::Location;
use std::ffi::c_int;

/// `CU_DEVICE_CPU`.
const HOST: c_int = -1;

/// `cuMemcpy`. The addresses tell which end is device memory, as with unified addressing.
pub(crate) fn cuMemcpy(call: &mut Call, to: u64, from: u64, bytes: u64) -> Answer<()> {
    let (to, from) = (End::anywhere(call, to), End::anywhere(call, from));
    copy_at_once(call, to, from, [bytes, 1, 1])
}

/// `cuMemcpyHtoD_v2`: a copy on stream 0, done on return.
pub(crate) fn cuMemcpyHtoD_v2(call: &mut Call, to: u64, from: u64, bytes: u64) -> Answer<()> {
    copy_at_once(call, End::device(to), End::host(from), [bytes, 1, 1])
}

/// `cuMemcpyDtoH_v2`: a copy on stream 0, done on return.
pub(crate) fn cuMemcpyDtoH_v2(call: &mut Call, to: u64, from: u64, bytes: u64) -> Answer<()> {
    copy_at_once(call, End::host(to), End::device(from), [bytes, 1, 1])
}

/// `cuMemcpyDtoD_v2`: a copy on stream 0, for which the host does not wait.
pub(crate) fn cuMemcpyDtoD_v2(call: &mut Call, to: u64, from: u64, bytes: u64) -> Answer<()> {
    copy_at_once(call, End::device(to), End::device(from), [bytes, 1, 1])
}

/// `cuMemcpyPeer`: a copy on stream 0 of the current context, for which the host does not wait.
pub(crate) fn cuMemcpyPeer(
    call: &mut Call,
    to: u64,
    to_context: u64,
    from: u64,
    from_context: u64,
    bytes: u64,
) -> Answer<()> {
    cuMemcpyPeerAsync(call, to, to_context, from, from_context, bytes, 0)
}

/// `cuMemcpyAsync`. The addresses tell which end is device memory, as with unified addressing.
pub(crate) fn cuMemcpyAsync(call: &mut Call, to: u64, from: u64, bytes: u64, stream: u64) -> Answer<()> {
    let (to, from) = (End::anywhere(call, to), End::anywhere(call, from));
    copy(call, to, from, [bytes, 1, 1], stream)
}

/// `cuMemcpyHtoDAsync_v2`.
pub(crate) fn cuMemcpyHtoDAsync_v2(call: &mut Call, to: u64, from: u64, bytes: u64, stream: u64) -> Answer<()> {
    copy(call, End::device(to), End::host(from), [bytes, 1, 1], stream)
}

/// `cuMemcpyDtoHAsync_v2`.
pub(crate) fn cuMemcpyDtoHAsync_v2(call: &mut Call, to: u64, from: u64, bytes: u64, stream: u64) -> Answer<()> {
    copy(call, End::host(to), End::device(from), [bytes, 1, 1], stream)
}

/// `cuMemcpyDtoDAsync_v2`.
pub(crate) fn cuMemcpyDtoDAsync_v2(call: &mut Call, to: u64, from: u64, bytes: u64, stream: u64) -> Answer<()> {
    copy(call, End::device(to), End::device(from), [bytes, 1, 1], stream)
}

/// `cuMemcpyPeerAsync`. No access between the devices is needed.
pub(crate) fn cuMemcpyPeerAsync(
    call: &mut Call,
    to: u64,
    to_context: u64,
    from: u64,
    from_context: u64,
    bytes: u64,
    stream: u64,
) -> Answer<()> {
    contexts::check(&call.state, to_context)?;
    contexts::check(&call.state, from_context)?;
    copy(call, End::device(to), End::device(from), [bytes, 1, 1], stream)
}

/// `cuMemPrefetchAsync`. Managed memory of the emulated driver is everywhere at once, so only the
/// order of the stream is kept.
pub(crate) fn cuMemPrefetchAsync(call: &mut Call, address: u64, bytes: u64, device: c_int, stream: u64) -> Answer<()> {
    let is_known = device == HOST || usize::try_from(device).is_ok_and(|index| index < call.state.devices.len());
    if !is_known {
        return Err(Code::INVALID_DEVICE);
    }
    prefetch(call, address, bytes, stream)
}

/// `cuMemPrefetchAsync_v2`, as [`cuMemPrefetchAsync`] for the host and for devices.
pub(crate) fn cuMemPrefetchAsync_v2(
    call: &mut Call,
    address: u64,
    bytes: u64,
    location: Location,
    flags: u32,
    stream: u64,
) -> Answer<()> {
    match location.kind {
        _ if flags != 0 => Err(Code::INVALID_VALUE),
        1 => cuMemPrefetchAsync(call, address, bytes, location.id, stream),
        // The host, and its nodes.
        2..=4 => prefetch(call, address, bytes, stream),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// Queues a move of managed memory, which moves nothing.
fn prefetch(call: &mut Call, address: u64, bytes: u64, stream: u64) -> Answer<()> {
    let found = call.state.memory.containing(address);
    let end = address.checked_add(bytes).filter(|_| bytes != 0).ok_or(Code::INVALID_VALUE)?;
    let managed = found
        .is_some_and(|(start, allocation)| allocation.source == Source::Managed && end <= start + allocation.bytes);
    if managed { submit(call, stream, Work::Nothing) } else { Err(Code::INVALID_VALUE) }
}
