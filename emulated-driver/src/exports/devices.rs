//! Devices.

use super::Out;
use crate::call::make;
use crate::calls::memory;
use crate::state::devices;
use crate::values::code::{Answer, Code};
use crate::values::functions::Function;
use std::ffi::{c_char, c_int};

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: *mut c_int) -> u32 {
    let out = Out(count);
    make(
        Function::cuDeviceGetCount,
        &[count as u64],
        |call| out.check().map(|()| call.state.devices.len() as c_int),
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> u32 {
    let out = Out(device);
    make(
        Function::cuDeviceGet,
        &[device as u64, ordinal as u64],
        |call| {
            out.check()?;
            devices::index(&call.state, ordinal).map(|index| index as c_int)
        },
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> u32 {
    let out = Out(value);
    make(
        Function::cuDeviceGetAttribute,
        &[value as u64, attribute as u64, device as u64],
        |call| {
            out.check()?;
            devices::attribute(&call.state, attribute, device)
        },
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetName(name: *mut c_char, bytes: c_int, device: c_int) -> u32 {
    make(
        Function::cuDeviceGetName,
        &[name as u64, bytes as u64, device as u64],
        |call| writable(name, bytes).and_then(|()| devices::name(&call.state, device)),
        |text| write_text(name, bytes, &text),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetPCIBusId(name: *mut c_char, bytes: c_int, device: c_int) -> u32 {
    make(
        Function::cuDeviceGetPCIBusId,
        &[name as u64, bytes as u64, device as u64],
        |call| writable(name, bytes).and_then(|()| devices::bus_id(&call.state, device)),
        |text| write_text(name, bytes, &text),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) -> u32 {
    let out = Out(uuid);
    make(
        Function::cuDeviceGetUuid_v2,
        &[uuid as u64, device as u64],
        |call| out.check().and_then(|()| devices::uuid(&call.state, device)),
        |value| out.write(value),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) -> u32 {
    let out = Out(bytes);
    make(
        Function::cuDeviceTotalMem_v2,
        &[bytes as u64, device as u64],
        |call| out.check().and_then(|()| memory::total(call, device)),
        |value| out.write(value as usize),
    )
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) -> u32 {
    let out = Out(can);
    make(
        Function::cuDeviceCanAccessPeer,
        &[can as u64, device as u64, peer as u64],
        |call| out.check().and_then(|()| devices::can_access_peer(&call.state, device, peer)),
        |value| out.write(value.into()),
    )
}

/// Refuses a text buffer that is null or has no room.
fn writable(text: *mut c_char, bytes: c_int) -> Answer<()> {
    if text.is_null() || bytes <= 0 { Err(Code::INVALID_VALUE) } else { Ok(()) }
}

/// Writes as much of a text as fits, with a final NUL.
fn write_text(target: *mut c_char, bytes: c_int, text: &str) {
    let room = bytes as usize - 1;
    let kept = &text.as_bytes()[..text.len().min(room)];
    // SAFETY: the caller of the exported function guarantees `bytes` writable bytes, with room
    // for the NUL.
    unsafe { std::ptr::copy_nonoverlapping(kept.as_ptr(), target.cast(), kept.len()) };
    // SAFETY: as above.
    unsafe { target.wrapping_add(kept.len()).write(0) };
}
