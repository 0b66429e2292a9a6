//! Names and attributes of the devices.

use super::driver::State;
use crate::values::code::{Answer, Code};
use cachalot_emulated_machine::identity;
use cachalot_emulated_machine::settings::{CAPABILITY_MAJOR, MAJOR};

/// The attributes of the emulated device that are not 0. They are those of a GPU of the Hopper
/// family that programs ask for.
const ATTRIBUTES: &[(i32, i32)] = &[
    (1, 1024),
    (2, 1024),
    (3, 1024),
    (4, 64),
    (5, i32::MAX),
    (6, 65_535),
    (7, 65_535),
    (8, 49_152),
    (9, 65_536),
    (10, 32),
    (11, i32::MAX),
    (12, 65_536),
    (13, 1_980_000),
    (14, 512),
    (MULTIPROCESSOR_COUNT, 4),
    (31, 1),
    (PCI_BUS_ID, 0),
    (36, 2_619_000),
    (37, 5120),
    (38, 50 << 20),
    (39, 2048),
    (40, 1),
    (41, 1),
    (51, 32),
    (78, 1),
    (81, 233_472),
    (82, 65_536),
    (95, 1),
    (97, 232_448),
    (106, 32),
    (111, 1024),
    (CAPABILITY_MAJOR, MAJOR),
    (MANAGED_MEMORY, 1),
    (CONCURRENT_MANAGED_ACCESS, 1),
    (HOST_REGISTER, 1),
    (VIRTUAL_MEMORY_MANAGEMENT, 1),
    (HANDLE_TYPE_POSIX_FD, 1),
    (MEMORY_POOLS, 1),
    (STREAM_NUMBERS_OF_8_BYTES, 1),
    (STREAM_WAIT_FREE_BIT, 1),
    (HOST_NUMA_MEMORY, 1),
    (HOST_MEMORY, 1),
];

/// `CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT`.
const MULTIPROCESSOR_COUNT: i32 = 16;
/// `CU_DEVICE_ATTRIBUTE_INTEGRATED`.
pub(crate) const INTEGRATED: i32 = 18;
/// `CU_DEVICE_ATTRIBUTE_PCI_BUS_ID`: the device's ordinal plus one.
const PCI_BUS_ID: i32 = 33;
/// `CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY`.
const MANAGED_MEMORY: i32 = 83;
/// `CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS`.
const CONCURRENT_MANAGED_ACCESS: i32 = 89;
/// `CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED`.
const HOST_REGISTER: i32 = 99;
/// `CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`.
pub(crate) const VIRTUAL_MEMORY_MANAGEMENT: i32 = 102;
/// `CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED`.
pub(crate) const HANDLE_TYPE_POSIX_FD: i32 = 103;
/// `CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED`.
pub(crate) const MEMORY_POOLS: i32 = 115;
/// `CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS`.
const STREAM_NUMBERS_OF_8_BYTES: i32 = 122;
/// `CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR`.
const STREAM_WAIT_FREE_BIT: i32 = 123;
/// `CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`.
pub(crate) const HOST_NUMA_MEMORY: i32 = 141;
/// `CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`.
pub(crate) const HOST_MEMORY: i32 = 145;
/// `CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED`.
const HANDLE_TYPE_FABRIC: i32 = 128;
/// `CU_DEVICE_ATTRIBUTE_LOCALITY_DOMAIN_COUNT`, of CUDA 13.4.
const LOCALITY_DOMAINS: i32 = 149;
/// The highest attribute in CUDA 13.0's header. A higher number is refused, unless a setting gives
/// it a value: then the driver is a later one.
const LAST_ATTRIBUTE: i32 = 148;

/// Returns the index of a `CUdevice`.
pub(crate) fn index(state: &State, device: i32) -> Answer<usize> {
    usize::try_from(device).ok().filter(|&index| index < state.devices.len()).ok_or(Code::INVALID_DEVICE)
}

/// Returns an attribute of a device.
pub(crate) fn attribute(state: &State, attribute: i32, device: i32) -> Answer<i32> {
    let ordinal = index(state, device)? as i32;
    if let Some(&changed) = state.config.attributes.get(&attribute) {
        return Ok(changed);
    }
    if !(1..=LAST_ATTRIBUTE).contains(&attribute) {
        return Err(Code::INVALID_VALUE);
    }
    if attribute == PCI_BUS_ID {
        return Ok(identity::bus(ordinal as usize) as i32);
    }
    Ok(ATTRIBUTES.iter().find(|entry| entry.0 == attribute).map_or(0, |entry| entry.1))
}

/// Returns whether every device has an attribute.
pub(crate) fn all_have(state: &State, wanted: i32) -> bool {
    state.config.attributes.get(&wanted).is_none_or(|&value| value != 0)
}

/// Returns whether the devices export memory to a fabric.
pub(crate) fn have_fabric(state: &State) -> bool {
    attribute(state, HANDLE_TYPE_FABRIC, 0) == Ok(1)
}

/// Returns the index of the device of a locality domain, which an identifier of a location names by
/// two bytes.
pub(crate) fn of_locality_domain(state: &State, id: i32) -> Answer<usize> {
    let [device, domain, ..] = id.to_ne_bytes();
    let domains = attribute(state, LOCALITY_DOMAINS, device.into()).unwrap_or(0);
    if i32::from(domain) < domains { index(state, device.into()) } else { Err(Code::INVALID_VALUE) }
}

/// Returns the device's name.
pub(crate) fn name(state: &State, device: i32) -> Answer<String> {
    index(state, device).map(identity::name)
}

/// Formats domain, bus and device number for `cuDeviceGetPCIBusId`.
pub(crate) fn bus_id(state: &State, device: i32) -> Answer<String> {
    index(state, device).map(|ordinal| format!("0000:{:02X}:00.0", identity::bus(ordinal)))
}

/// Returns a UUID, different for each device.
pub(crate) fn uuid(state: &State, device: i32) -> Answer<[u8; 16]> {
    index(state, device).map(identity::uuid)
}

/// Returns whether a device may get access to another device's memory.
pub(crate) fn can_access_peer(state: &State, device: i32, peer: i32) -> Answer<bool> {
    let (device, peer) = (index(state, device)?, index(state, peer)?);
    Ok(device != peer && state.answers.number("can_access_peer") != 0)
}
