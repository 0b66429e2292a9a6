//! The library itself, the versions, and the ways to a device.

use super::is_known;
use crate::code::{Answer, Code};
use crate::entry::{of_system, on_state};
use crate::handle::Handle;
use crate::pointers::{Out, Text, write_text};
use crate::state::Live;
use crate::values::bus_id;
use std::ffi::{c_char, c_int};

/// The functions that do not begin as the others.
pub(crate) const BY_HAND: &[&str] =
    &["nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlShutdown", "nvmlErrorString"];

#[unsafe(no_mangle)]
extern "C" fn nvmlInit() -> u32 {
    on_state(|state| state.initialise("nvmlInit", is_known))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> u32 {
    on_state(|state| state.initialise("nvmlInit_v2", is_known))
}

/// The flags say whether a machine without devices is a failure and whether devices are attached
/// to. Neither has a meaning here.
#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: u32) -> u32 {
    on_state(|state| state.initialise("nvmlInitWithFlags", is_known))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> u32 {
    on_state(|state| {
        state.enter("nvmlShutdown", None)?;
        state.initialised -= 1;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(code: u32) -> *const c_char {
    Code(code).name().as_ptr()
}

of_system! {
    nvmlSystemGetDriverVersion(text: Out<u8>, bytes: u32) |live| write_text(&text, bytes, &live.machine.driver_version);
    nvmlSystemGetNVMLVersion(text: Out<u8>, bytes: u32) |live| {
        let cuda = live.machine.cuda_version / 1000;
        write_text(&text, bytes, &format!("{cuda}.{}", live.machine.driver_version))
    };
    nvmlSystemGetCudaDriverVersion(version: Out<c_int>) |live| version.write(live.machine.cuda_version as c_int);
    nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) |live| version.write(live.machine.cuda_version as c_int);
    nvmlSystemGetProcessName(pid: u32, text: Out<u8>, bytes: u32) |live| {
        let name = live.machine.name_of(pid).map_or_else(|| name_of_living(pid), |name| Ok(name.to_owned()))?;
        // As NVML does, a name that is too long is cut.
        let room = (bytes as usize).saturating_sub(1);
        let kept = (0..=room.min(name.len())).rev().find(|&end| name.is_char_boundary(end)).unwrap_or(0);
        write_text(&text, bytes, &name[..kept])
    };
    nvmlDeviceGetCount(count: Out<u32>) |live| count.write(live.machine.devices.len() as u32);
    nvmlDeviceGetCount_v2(count: Out<u32>) |live| count.write(live.machine.devices.len() as u32);
    nvmlUnitGetCount(count: Out<u32>) |_| count.write(0);
    nvmlDeviceGetHandleByIndex(index: u32, device: Out<Handle>) |live| device.write(by_index(live, index)?);
    nvmlDeviceGetHandleByIndex_v2(index: u32, device: Out<Handle>) |live| device.write(by_index(live, index)?);
    nvmlDeviceGetHandleByUUID(uuid: Text, device: Out<Handle>) |live| {
        let wanted = uuid.read()?;
        device.write(live.machine.find(|device, instance| instance.map_or(&device.uuid, |its| &its.uuid) == wanted)?)
    };
    nvmlDeviceGetHandleBySerial(serial: Text, device: Out<Handle>) |live| {
        let wanted = serial.read()?;
        device.write(live.machine.find(|device, _| device.serial.as_deref() == Some(wanted))?)
    };
    nvmlDeviceGetHandleByPciBusId(place: Text, device: Out<Handle>) |live| device.write(by_place(live, place.read()?)?);
    nvmlDeviceGetHandleByPciBusId_v2(place: Text, device: Out<Handle>) |live| device.write(by_place(live, place.read()?)?);
    nvmlDeviceGetTopologyCommonAncestor(first: Handle, second: Handle, level: Out<u32>) |live| {
        let (first, second) = (live.machine.device(first)?.0.index, live.machine.device(second)?.0.index);
        // The same board, or another bridge of the same processor: NVML_TOPOLOGY_INTERNAL and
        // NVML_TOPOLOGY_NODE.
        level.write(if first == second { 0 } else { 40 })
    };
    nvmlDeviceGetP2PStatus(first: Handle, second: Handle, _index: u32, status: Out<u32>) |live| {
        live.machine.device(first)?;
        live.machine.device(second)?;
        // NVML_P2P_STATUS_OK: the emulated driver's devices reach each other.
        status.write(0)
    };
    nvmlDeviceOnSameBoard(first: Handle, second: Handle, same: Out<c_int>) |live| {
        let (first, second) = (live.machine.device(first)?.0.index, live.machine.device(second)?.0.index);
        same.write(c_int::from(first == second))
    };
}

/// Returns the device of a number.
fn by_index(live: &Live, index: u32) -> Answer<Handle> {
    let index = index as usize;
    if index < live.machine.devices.len() { Ok(Handle::new(index, None)) } else { Err(Code::INVALID_ARGUMENT) }
}

/// Returns the device at a place on the bus.
fn by_place(live: &Live, place: &str) -> Answer<Handle> {
    let wanted = bus_id(place).ok_or(Code::INVALID_ARGUMENT)?;
    live.machine.find(|device, _| device.bus_id == wanted)
}

/// Returns the command line of a process of the system, up to its first argument.
fn name_of_living(pid: u32) -> Answer<String> {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| Code::NOT_FOUND)?;
    let first = line.split(|&byte| byte == 0).next().filter(|name| !name.is_empty()).ok_or(Code::NOT_FOUND)?;
    Ok(String::from_utf8_lossy(first).into_owned())
}
