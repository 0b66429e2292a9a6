//! Who uses a device's memory, as far as the driver tells.
//!
//! The driver interface itself tells what is free and what its own pool holds. What each process holds is told by the
//! driver's management library (NVML), which is installed beside it; both are asked only when a report is written.

use crate::device::CudaDevice;
use crate::driver::result::CuResult;
use crate::driver::types::{CuMemPoolAttribute, CuMemoryPool};
use cachalot_core::DeviceResult;
use core::ffi::{c_char, c_uint, c_void};
use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};
use std::sync::OnceLock;

/// Room for a bus id: `domain:bus:device.function` and the NUL.
const BUS_ID_BYTES: usize = 32;
/// How many processes are asked for. More than this many on one device are not listed.
const PROCESSES: usize = 256;
/// NVML's answer where it does not know (`NVML_VALUE_NOT_AVAILABLE`).
const NOT_AVAILABLE: u64 = u64::MAX;

/// The memory of one device that one process holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessMemory {
    /// The process's id, as the driver counts them: in a container not necessarily the id seen inside.
    pub process: u32,
    /// Bytes, or `None` where the driver does not tell.
    pub bytes: Option<u64>,
}

/// Who uses a device's memory, as far as the driver tells.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct MemoryUsers {
    /// Bytes that the driver's own stream-ordered pool holds for this process. `None`: there is none, or it is too old.
    pub pool_reserved: Option<u64>,
    /// The processes that compute on the device. Empty where the driver does not tell.
    pub processes: Vec<ProcessMemory>,
}

impl MemoryUsers {
    /// The bytes that this process holds, contexts and libraries included, if it is among those told of.
    #[must_use]
    pub fn own(&self) -> Option<u64> {
        let own = std::process::id();
        self.processes.iter().find(|process| process.process == own).and_then(|process| process.bytes)
    }
}

impl CudaDevice {
    /// Who uses the device's memory. For reports: loads the management library at first, and takes milliseconds.
    ///
    /// # Errors
    /// Those of [`health`](Self::health); what the driver does not tell is left out.
    pub fn memory_users(&self) -> DeviceResult<MemoryUsers> {
        let _scope = self.context.enter()?;
        Ok(MemoryUsers { pool_reserved: self.pool_reserved(), processes: self.processes() })
    }

    /// What the driver's own pool holds. The context is entered.
    fn pool_reserved(&self) -> Option<u64> {
        let mut pool = CuMemoryPool::NULL;
        // SAFETY: `pool` outlives the call, which writes one handle to it.
        self.told(unsafe { self.driver().device_get_default_mem_pool(&raw mut pool, self.device) })?;
        let mut bytes: u64 = 0;
        let value = (&raw mut bytes).cast::<c_void>();
        // SAFETY: `bytes` outlives the call, which writes a 64-bit integer to it for this attribute.
        let code =
            unsafe { self.driver().mem_pool_get_attribute(pool, CuMemPoolAttribute::RESERVED_MEM_CURRENT, value) };
        self.told(code)?;
        Some(bytes)
    }

    /// The processes on the device. The context is entered.
    fn processes(&self) -> Vec<ProcessMemory> {
        let mut bus_id: [c_char; BUS_ID_BYTES] = [0; BUS_ID_BYTES];
        // SAFETY: the buffer outlives the call, which writes at most as many bytes as it is told, NUL included.
        let code =
            unsafe { self.driver().device_get_pci_bus_id(bus_id.as_mut_ptr(), BUS_ID_BYTES as i32, self.device) };
        if self.told(code).is_none() {
            return Vec::new();
        }
        management().and_then(|library| library.processes(&bus_id)).unwrap_or_default()
    }

    /// Whether the driver told; a sticky code is remembered.
    fn told(&self, code: CuResult) -> Option<()> {
        self.context.check(code).ok()
    }
}

/// A device of the management library (`nvmlDevice_t`).
type NvmlDevice = *mut c_void;

/// `nvmlProcessInfo_t` as of `nvmlDeviceGetComputeRunningProcesses_v3`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct NvmlProcess {
    /// Process id.
    process: c_uint,
    /// Bytes, or [`NOT_AVAILABLE`].
    used_bytes: u64,
    /// Part of the device, where it is divided.
    instance: c_uint,
    /// Part of that.
    compute_instance: c_uint,
}

/// The functions of the management library that are used. Success is 0.
struct Management {
    /// `nvmlDeviceGetHandleByPciBusId_v2`.
    by_bus_id: unsafe extern "C" fn(*const c_char, *mut NvmlDevice) -> c_uint,
    /// `nvmlDeviceGetComputeRunningProcesses_v3`.
    running: unsafe extern "C" fn(NvmlDevice, *mut c_uint, *mut NvmlProcess) -> c_uint,
}

/// The management library, loaded and started once, never unloaded. `None` if that did not work.
fn management() -> Option<&'static Management> {
    static LIBRARY: OnceLock<Option<Management>> = OnceLock::new();
    LIBRARY.get_or_init(Management::load).as_ref()
}

impl Management {
    /// Loads and starts the library.
    fn load() -> Option<Self> {
        // SAFETY: loading runs the initialisers of the driver's own management library.
        let library = unsafe { Library::open(Some("libnvidia-ml.so.1"), RTLD_LAZY | RTLD_LOCAL) }.ok()?;
        let library: &'static Library = Box::leak(Box::new(library));
        // SAFETY: the signature is that of the versioned name in `nvml.h`.
        let start = unsafe { library.get::<unsafe extern "C" fn() -> c_uint>(c"nvmlInit_v2") }.ok()?;
        // SAFETY: the signature is that of the versioned name in `nvml.h`.
        let by_bus_id = unsafe { library.get(c"nvmlDeviceGetHandleByPciBusId_v2") }.ok()?;
        // SAFETY: the signature is that of the versioned name in `nvml.h`, the structure that of its third version.
        let running = unsafe { library.get(c"nvmlDeviceGetComputeRunningProcesses_v3") }.ok()?;
        // SAFETY: takes no arguments; may be called more than once.
        if unsafe { start() } != 0 {
            return None;
        }
        Some(Self { by_bus_id: *by_bus_id, running: *running })
    }

    /// The processes that compute on the device at this place on the bus.
    fn processes(&self, bus_id: &[c_char; BUS_ID_BYTES]) -> Option<Vec<ProcessMemory>> {
        let mut device: NvmlDevice = core::ptr::null_mut();
        debug_assert!(bus_id.contains(&0), "the driver ends the text");
        // SAFETY: the text is NUL-terminated, and `device` outlives the call, which writes one handle to it.
        if unsafe { (self.by_bus_id)(bus_id.as_ptr(), &raw mut device) } != 0 {
            return None;
        }
        let mut found = [NvmlProcess::default(); PROCESSES];
        let mut count = PROCESSES as c_uint;
        // SAFETY: both variables outlive the call, which writes at most `count` entries and their number.
        if unsafe { (self.running)(device, &raw mut count, found.as_mut_ptr()) } != 0 {
            return None;
        }
        let told = |entry: &NvmlProcess| ProcessMemory {
            process: entry.process,
            bytes: (entry.used_bytes != NOT_AVAILABLE).then_some(entry.used_bytes),
        };
        Some(found.iter().take(count as usize).map(told).collect())
    }
}
