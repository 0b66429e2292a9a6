//! The structures of NVML's header.

use crate::handle::Handle;
use crate::pointers::Text;

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Memory {
    pub(crate) total: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

/// `nvmlMemory_v2_t`, in which `used` does not contain `reserved`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Memory2 {
    pub(crate) version: u32,
    pub(crate) total: u64,
    pub(crate) reserved: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

/// `nvmlSetMemoryLimits_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SetLimits {
    /// The folder of the control group.
    pub(crate) namespace: Text,
    pub(crate) soft: u64,
    pub(crate) hard: u64,
}

/// `nvmlGetMemoryLimits_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct GetLimits {
    /// The folder of the control group.
    pub(crate) namespace: Text,
    pub(crate) soft: u64,
    pub(crate) hard: u64,
    pub(crate) used: u64,
}

/// `nvmlBAR1Memory_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Bar1Memory {
    pub(crate) total: u64,
    pub(crate) free: u64,
    pub(crate) used: u64,
}

/// `nvmlUtilization_t`: percents.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Rates {
    pub(crate) gpu: u32,
    pub(crate) memory: u32,
}

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ProcessInfo1 {
    pub(crate) pid: u32,
    pub(crate) used: u64,
}

/// `nvmlProcessInfo_v2_t`, which the functions with `_v2` and `_v3` have.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ProcessInfo2 {
    pub(crate) pid: u32,
    pub(crate) used: u64,
    pub(crate) gpu_instance: u32,
    pub(crate) compute_instance: u32,
}

/// `nvmlProcessUtilizationSample_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ProcessSample {
    pub(crate) pid: u32,
    pub(crate) time_us: u64,
    pub(crate) sm: u32,
    pub(crate) memory: u32,
    pub(crate) encoder: u32,
    pub(crate) decoder: u32,
}

/// `nvmlPciInfo_v2_t` of old headers, which ends with four reserved words.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Pci2 {
    pub(crate) bus_id: [u8; 16],
    pub(crate) domain: u32,
    pub(crate) bus: u32,
    pub(crate) device: u32,
    pub(crate) device_id: u32,
    pub(crate) subsystem_id: u32,
    pub(crate) reserved: [u32; 4],
}

/// `nvmlPciInfo_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Pci3 {
    pub(crate) legacy_bus_id: [u8; 16],
    pub(crate) domain: u32,
    pub(crate) bus: u32,
    pub(crate) device: u32,
    pub(crate) device_id: u32,
    pub(crate) subsystem_id: u32,
    pub(crate) bus_id: [u8; 32],
}

/// `nvmlDeviceAttributes_t` of an instance of MIG.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct InstanceAttributes {
    pub(crate) multiprocessors: u32,
    pub(crate) copy_engines: u32,
    pub(crate) decoders: u32,
    pub(crate) encoders: u32,
    pub(crate) jpegs: u32,
    pub(crate) optical_flows: u32,
    pub(crate) gpu_slices: u32,
    pub(crate) compute_slices: u32,
    pub(crate) memory_mib: u64,
}

/// `nvmlTemperature_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Temperature1 {
    pub(crate) version: u32,
    pub(crate) sensor: u32,
    pub(crate) degrees: i32,
}

/// `nvmlFieldValue_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Field {
    pub(crate) id: u32,
    pub(crate) scope: u32,
    pub(crate) time_us: i64,
    pub(crate) latency_us: i64,
    pub(crate) value_type: u32,
    pub(crate) code: u32,
    pub(crate) value: u64,
}

/// `nvmlEventData_t` before it had the instances.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Event1 {
    pub(crate) device: Handle,
    pub(crate) kind: u64,
    pub(crate) data: u64,
}

/// `nvmlEventData_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Event2 {
    pub(crate) event: Event1,
    pub(crate) gpu_instance: u32,
    pub(crate) compute_instance: u32,
}

/// Returns the number with which a caller names a version of a structure: the size, and the version
/// in the highest byte.
pub(crate) const fn version_of<T>(version: u32) -> u32 {
    size_of::<T>() as u32 | (version << 24)
}

const _: () = assert!(size_of::<Memory2>() == 40 && size_of::<ProcessInfo2>() == 24 && size_of::<Pci3>() == 68);
const _: () = assert!(size_of::<Pci2>() == 52 && size_of::<Field>() == 40 && size_of::<Event2>() == 32);
const _: () = assert!(size_of::<SetLimits>() == 24 && size_of::<GetLimits>() == 32);
const _: () = assert!(size_of::<InstanceAttributes>() == 40 && size_of::<ProcessSample>() == 32);
