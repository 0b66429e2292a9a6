//! Devices: how many, names, attributes, memory, peers.

use crate::call::Call;
use crate::state::devices;
use crate::values::code::{Answer, Code};
use crate::values::pointers::Out;
use std::ffi::{c_char, c_int};

/// `cuDeviceGetCount`.
pub(crate) fn cuDeviceGetCount(call: &mut Call, count: Out<c_int>) -> Answer<()> {
    call.answer(count, |call| Ok(call.state.devices.len() as c_int))
}

/// `cuDeviceGet`.
pub(crate) fn cuDeviceGet(call: &mut Call, device: Out<c_int>, ordinal: c_int) -> Answer<()> {
    call.answer(device, |call| devices::index(&call.state, ordinal).map(|index| index as c_int))
}

/// `cuDeviceGetAttribute`.
pub(crate) fn cuDeviceGetAttribute(call: &mut Call, value: Out<c_int>, attribute: c_int, device: c_int) -> Answer<()> {
    call.answer(value, |call| devices::attribute(&call.state, attribute, device))
}

/// `cuDeviceGetName`.
pub(crate) fn cuDeviceGetName(call: &mut Call, name: Out<c_char>, bytes: c_int, device: c_int) -> Answer<()> {
    let text = writable(name, bytes).and_then(|()| devices::name(&call.state, device))?;
    call.later(move || write_text(name, bytes, &text));
    Ok(())
}

/// `cuDeviceGetPCIBusId`.
pub(crate) fn cuDeviceGetPCIBusId(call: &mut Call, name: Out<c_char>, bytes: c_int, device: c_int) -> Answer<()> {
    let text = writable(name, bytes).and_then(|()| devices::bus_id(&call.state, device))?;
    call.later(move || write_text(name, bytes, &text));
    Ok(())
}

/// `cuDeviceGetUuid_v2`.
pub(crate) fn cuDeviceGetUuid_v2(call: &mut Call, uuid: Out<[u8; 16]>, device: c_int) -> Answer<()> {
    call.answer(uuid, |call| devices::uuid(&call.state, device))
}

/// `cuDeviceTotalMem_v2`.
pub(crate) fn cuDeviceTotalMem_v2(call: &mut Call, bytes: Out<usize>, device: c_int) -> Answer<()> {
    call.answer(bytes, |call| {
        let index = devices::index(&call.state, device)?;
        Ok(call.state.devices[index].pages.total() as usize)
    })
}

/// `cuDeviceCanAccessPeer`.
pub(crate) fn cuDeviceCanAccessPeer(call: &mut Call, can: Out<c_int>, device: c_int, peer: c_int) -> Answer<()> {
    call.answer(can, |call| devices::can_access_peer(&call.state, device, peer).map(c_int::from))
}

/// Refuses a text buffer that is null or has no room.
fn writable(text: Out<c_char>, bytes: c_int) -> Answer<()> {
    text.check()?;
    if bytes <= 0 { Err(Code::INVALID_VALUE) } else { Ok(()) }
}

/// Writes as much of a text as fits, with a final NUL.
fn write_text(target: Out<c_char>, bytes: c_int, text: &str) {
    let room = bytes as usize - 1;
    let kept = &text.as_bytes()[..text.len().min(room)];
    for (index, byte) in kept.iter().chain(&[0]).enumerate() {
        target.nth(index).write(c_char::from_ne_bytes([*byte]));
    }
}
