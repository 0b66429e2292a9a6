//! What a device is: its names, its place, and its modes.

use crate::code::{Answer, Code};
use crate::entry::{Subject, of_device};
use crate::machine::Device;
use crate::pointers::{Out, write_text};
use crate::structs::{Pci2, Pci3};
use crate::values::BusId;
use std::ffi::c_int;

/// Vendor and product as in a GPU's configuration space: NVIDIA's vendor, and no product of theirs.
const PCI_IDS: u32 = 0xffff_10de;

of_device! {
    nvmlDeviceGetName(text: Out<u8>, bytes: u32) |its| write_text(&text, bytes, &name(&its));
    nvmlDeviceGetUUID(text: Out<u8>, bytes: u32) |its| {
        write_text(&text, bytes, its.instance().map_or(&its.device.uuid, |instance| &instance.uuid))
    };
    nvmlDeviceGetSerial(text: Out<u8>, bytes: u32) |its| {
        write_text(&text, bytes, its.whole()?.serial.as_deref().ok_or(Code::NOT_SUPPORTED)?)
    };
    nvmlDeviceGetIndex(index: Out<u32>) |its| index.write(its.place.unwrap_or(its.device.index) as u32);
    nvmlDeviceGetMinorNumber(minor: Out<u32>) |its| minor.write(its.device.index as u32);
    nvmlDeviceGetModuleId(module: Out<u32>) |its| module.write(its.whole()?.index as u32);
    nvmlDeviceGetBoardId(board: Out<u32>) |its| board.write(its.device.bus_id.1 << 8);
    nvmlDeviceGetMultiGpuBoard(several: Out<u32>) |its| its.whole().and_then(|_| several.write(0));
    // NVML_BRAND_TESLA, the first one for servers: old bindings know no later one.
    nvmlDeviceGetBrand(brand: Out<u32>) |its| its.whole().and_then(|_| brand.write(2));
    nvmlDeviceGetArchitecture(architecture: Out<u32>) |its| architecture.write(architecture_of(its.device.capability));
    nvmlDeviceGetCudaComputeCapability(major: Out<c_int>, minor: Out<c_int>) |its| {
        major.write(its.device.capability.0)?;
        minor.write(its.device.capability.1)
    };
    // As many as four multiprocessors of the Hopper family have.
    nvmlDeviceGetNumGpuCores(cores: Out<u32>) |its| its.whole().and_then(|_| cores.write(512));
    nvmlDeviceGetMemoryBusWidth(bits: Out<u32>) |its| its.whole().and_then(|_| bits.write(5120));
    nvmlDeviceGetPciInfo(place: Out<Pci2>) |its| place.write(pci2(its.device));
    nvmlDeviceGetPciInfo_v2(place: Out<Pci2>) |its| place.write(pci2(its.device));
    nvmlDeviceGetPciInfo_v3(place: Out<Pci3>) |its| place.write(pci3(its.device));
    nvmlDeviceGetPersistenceMode(mode: Out<u32>) |its| mode.write(its.whole()?.persistence.into());
    nvmlDeviceGetComputeMode(mode: Out<u32>) |its| mode.write(its.whole()?.compute_mode);
    nvmlDeviceGetDisplayMode(on: Out<u32>) |its| its.whole().and_then(|_| on.write(0));
    nvmlDeviceGetDisplayActive(on: Out<u32>) |its| its.whole().and_then(|_| on.write(0));
    nvmlDeviceGetEccMode(current: Out<u32>, pending: Out<u32>) |its| {
        let on = its.whole()?.ecc.ok_or(Code::NOT_SUPPORTED)?;
        current.write(on.into())?;
        pending.write(on.into())
    };
    nvmlDeviceGetTotalEccErrors(kind: u32, _counter: u32, errors: Out<u64>) |its| {
        let device = its.whole()?;
        device.ecc.filter(|&on| on).ok_or(Code::NOT_SUPPORTED)?;
        match kind {
            0 => errors.write(0),
            1 => errors.write(device.ecc_errors),
            _ => Err(Code::INVALID_ARGUMENT),
        }
    };
    nvmlDeviceGetVbiosVersion(text: Out<u8>, bytes: u32) |its| {
        its.whole().and_then(|_| write_text(&text, bytes, "00.00.00.00.00"))
    };
    nvmlDeviceGetCpuAffinity(words: u32, mask: Out<u64>) |its| its.whole().and_then(|_| affinity(words, &mask));
    nvmlDeviceGetNumaNodeId(node: Out<u32>) |its| its.whole().and_then(|_| node.write(0));
    nvmlDeviceGetCurrPcieLinkGeneration(generation: Out<u32>) |its| its.whole().and_then(|_| generation.write(5));
    nvmlDeviceGetMaxPcieLinkGeneration(generation: Out<u32>) |its| its.whole().and_then(|_| generation.write(5));
    nvmlDeviceGetCurrPcieLinkWidth(lanes: Out<u32>) |its| its.whole().and_then(|_| lanes.write(16));
    nvmlDeviceGetMaxPcieLinkWidth(lanes: Out<u32>) |its| its.whole().and_then(|_| lanes.write(16));
}

/// Returns the name of a device, or of an instance: the device's with its profile.
fn name(its: &Subject<'_>) -> String {
    let device = &its.device.name;
    its.instance().map_or_else(|| device.clone(), |instance| format!("{device} MIG {}", instance.profile))
}

/// Returns the family of a compute capability, as `nvmlDeviceArchitecture_t`.
fn architecture_of(capability: (i32, i32)) -> u32 {
    match capability {
        (3, _) => 2,
        (5, _) => 3,
        (6, _) => 4,
        (7, 5) => 6,
        (7, _) => 5,
        (8, 9) => 8,
        (8, _) => 7,
        (9, _) => 9,
        (10.., _) => 10,
        _ => u32::MAX,
    }
}

/// Returns a text in an array, with NUL to its end.
fn padded<const BYTES: usize>(text: &str) -> [u8; BYTES] {
    let mut array = [0; BYTES];
    let kept = text.len().min(BYTES - 1);
    array[..kept].copy_from_slice(&text.as_bytes()[..kept]);
    array
}

/// Returns a device's place on the bus for old headers.
fn pci2(device: &Device) -> Pci2 {
    let BusId(domain, bus, slot) = device.bus_id;
    let bus_id = padded(&format!("{domain:04X}:{bus:02X}:{slot:02X}.0"));
    Pci2 { bus_id, domain, bus, device: slot, device_id: PCI_IDS, subsystem_id: PCI_IDS, reserved: [0; 4] }
}

/// Returns a device's place on the bus.
fn pci3(device: &Device) -> Pci3 {
    let Pci2 { bus_id, domain, bus, device, device_id, subsystem_id, .. } = pci2(device);
    let long = padded(&format!("{domain:08X}:{bus:02X}:{device:02X}.0"));
    Pci3 { legacy_bus_id: bus_id, domain, bus, device, device_id, subsystem_id, bus_id: long }
}

/// Writes the processors near a device: all of them.
fn affinity(words: u32, mask: &Out<u64>) -> Answer<()> {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let word = |index: usize| match processors.saturating_sub(index * 64) {
        0 => 0,
        left @ 1..64 => (1 << left) - 1,
        _ => u64::MAX,
    };
    // A bound for the loop: a mask of 65,536 processors.
    let all: Vec<u64> = (0..words.min(1024) as usize).map(word).collect();
    if all.is_empty() { Err(Code::INVALID_ARGUMENT) } else { mask.write_list(words, &all) }
}
