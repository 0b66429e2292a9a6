//! What the devices are: names, properties, places on the bus, and what an address is.

use crate::code::{Answer, INVALID_VALUE};
use crate::device::enter;
use crate::driver::{Driver, driver};
use crate::error::{told, write};
use std::ffi::{c_char, c_int, c_void};

/// `cudaDeviceProp` of CUDA 13: texts first, then numbers at the places of [`SIZES`] and
/// [`NUMBERS`].
#[repr(C, align(8))]
struct Properties {
    name: [c_char; 256],
    uuid: [u8; 16],
    others: [u8; 736],
}

/// `cudaPointerAttributes`.
#[repr(C)]
struct PointerAttributes {
    kind: c_int,
    device: c_int,
    device_address: u64,
    host_address: u64,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<Properties>() == 1008 && size_of::<PointerAttributes>() == 88);

/// Where `others` begins.
const OTHERS: usize = 272;

/// The places of the numbers of 4 bytes, with the driver's attribute for each.
const NUMBERS: [(usize, c_int); 29] = [
    (304, 12),
    (308, 10),
    (320, 1),
    (324, 2),
    (328, 3),
    (332, 4),
    (336, 5),
    (340, 6),
    (344, 7),
    (360, 75),
    (364, 76),
    (384, 16),
    (392, 19),
    (560, 31),
    (564, 32),
    (568, 33),
    (584, 40),
    (588, 41),
    (592, 37),
    (596, 38),
    (604, 39),
    (608, 78),
    (632, 82),
    (636, 83),
    (656, 89),
    (668, 95),
    (688, 106),
    (704, 99),
    (720, 115),
];

/// The places of the numbers of 8 bytes that the driver's attributes have.
const SIZES: [(usize, c_int); 8] =
    [(296, 8), (312, 11), (352, 9), (368, 14), (376, 51), (624, 81), (672, 97), (696, 111)];

/// The place of the memory's size.
const TOTAL: usize = 288;

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`, `_DEVICE_POINTER`, `_HOST_POINTER`, `_IS_MANAGED` and
/// `_DEVICE_ORDINAL`.
const MEMORY_TYPE: c_int = 2;
const DEVICE_ADDRESS: c_int = 3;
const HOST_ADDRESS: c_int = 4;
const IS_MANAGED: c_int = 8;
const ORDINAL: c_int = 9;

/// Writes a number to its place.
fn put(others: &mut [u8], place: usize, number: &[u8]) {
    others[place - OTHERS..][..number.len()].copy_from_slice(number);
}

#[unsafe(no_mangle)]
extern "C" fn cudaGetDeviceProperties(properties: *mut Properties, device: c_int) -> u32 {
    told(|| {
        let driver = driver()?;
        let mut all = Properties { name: [0; 256], uuid: [0; 16], others: [0; 736] };
        driver.cuDeviceGetName(all.name.as_mut_ptr(), 256, device)?;
        driver.cuDeviceGetUuid_v2(&raw mut all.uuid, device)?;
        let mut total = 0;
        driver.cuDeviceTotalMem_v2(&raw mut total, device)?;
        put(&mut all.others, TOTAL, &total.to_ne_bytes());
        for (place, attribute) in NUMBERS {
            put(&mut all.others, place, &number(driver, attribute, device)?.to_ne_bytes());
        }
        for (place, attribute) in SIZES {
            put(&mut all.others, place, &i64::from(number(driver, attribute, device)?).to_ne_bytes());
        }
        write(properties, all)
    })
}

/// Returns an attribute of a device.
fn number(driver: &Driver, attribute: c_int, device: c_int) -> Answer<c_int> {
    let mut found = 0;
    driver.cuDeviceGetAttribute(&raw mut found, attribute, device)?;
    Ok(found)
}

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceGetPCIBusId(text: *mut c_char, bytes: c_int, device: c_int) -> u32 {
    told(|| driver()?.cuDeviceGetPCIBusId(text, bytes, device))
}

#[unsafe(no_mangle)]
extern "C" fn cudaDeviceGetP2PAttribute(value: *mut c_int, attribute: c_int, from: c_int, to: c_int) -> u32 {
    told(|| {
        let mut can = 0;
        driver()?.cuDeviceCanAccessPeer(&raw mut can, from, to)?;
        match attribute {
            // Access is supported. Ranks, atomics and arrays are not told apart.
            2 => write(value, can),
            1 | 3 | 4 => write(value, 0),
            _ => Err(INVALID_VALUE),
        }
    })
}

/// An address that the driver does not know is ordinary memory of the host.
#[unsafe(no_mangle)]
extern "C" fn cudaPointerGetAttributes(attributes: *mut PointerAttributes, address: u64) -> u32 {
    told(|| {
        let driver = enter()?;
        let asked = |attribute: c_int| {
            let mut found = 0_u64;
            let known = driver.cuPointerGetAttribute((&raw mut found).cast::<c_void>(), attribute, address);
            known.map(|()| found)
        };
        let mut all =
            PointerAttributes { kind: 0, device: -2, device_address: 0, host_address: address, reserved: [0; 8] };
        if let Ok(kind) = asked(MEMORY_TYPE) {
            // Numbers of 4 bytes are written to the lower half.
            let is_managed = asked(IS_MANAGED).is_ok_and(|managed| managed as u8 != 0);
            all.kind = if is_managed { 3 } else { kind as c_int };
            all.device = asked(ORDINAL).unwrap_or(0) as c_int;
            all.device_address = asked(DEVICE_ADDRESS).unwrap_or(0);
            all.host_address = asked(HOST_ADDRESS).unwrap_or(0);
        }
        write(attributes, all)
    })
}
