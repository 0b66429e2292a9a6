//! The driver's management library (NVML), which is installed next to the driver. It is loaded when
//! it is first needed.

use core::ffi::{CStr, c_char, c_uint, c_void};
use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

/// The greatest number of processes that are listed for one device.
const PROCESSES: usize = 256;
/// The value of NVML for an unknown size (`NVML_VALUE_NOT_AVAILABLE`).
const NOT_AVAILABLE: u64 = u64::MAX;

/// The memory of one device that one process uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessMemory {
    /// The id by which the driver knows the process. Inside a container the process may see another
    /// id.
    pub process: u32,
    /// The bytes used, or `None` if the driver does not report the size.
    pub bytes: Option<u64>,
}

/// The limits of a control group on a device, and what the group uses of it, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct GroupLimits {
    /// Used by the group.
    pub(crate) used: u64,
    /// Protected from others. `None`: nothing is.
    pub(crate) share: Option<u64>,
    /// The most that the group may use. `None`: no limit.
    pub(crate) most: Option<u64>,
}

/// Returns the limits of a control group, by its folder, on the device at a place on the bus, as
/// the driver's management library reports them. Returns `None` if there are none, or the library
/// is too old for them.
pub(crate) fn limits_of_group(bus_id: &str, folder: &Path) -> Option<GroupLimits> {
    management()?.limits(&CString::new(bus_id).ok()?, &CString::new(folder.as_os_str().as_bytes()).ok()?)
}

/// Sets the most bytes that a control group, by its folder, may use of each device, through the
/// driver's management library. A device with fewer bytes gets no limit.
///
/// # Errors
/// The library's first code, or `None` if the library is missing or too old.
pub fn set_limit_of_group(folder: &Path, bytes: u64) -> Result<(), Option<u32>> {
    let folder = CString::new(folder.as_os_str().as_bytes()).map_err(|_| None)?;
    management().and_then(|library| library.setter.as_ref()).ok_or(None)?.set(&folder, bytes).map_err(Some)
}

/// A device handle of the management library (`nvmlDevice_t`).
type NvmlDevice = *mut c_void;

/// The memory use of a process: `nvmlProcessInfo_t` as of
/// `nvmlDeviceGetComputeRunningProcesses_v3`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct NvmlProcess {
    /// The id of the process.
    process: c_uint,
    /// The bytes used, or [`NOT_AVAILABLE`].
    used_bytes: u64,
    /// The GPU instance, on a partitioned device.
    instance: c_uint,
    /// The compute instance within the GPU instance.
    compute_instance: c_uint,
}

/// The functions of the management library. Each returns 0 on success.
pub(crate) struct Management {
    /// `nvmlDeviceGetHandleByPciBusId_v2`.
    by_bus_id: unsafe extern "C" fn(*const c_char, *mut NvmlDevice) -> c_uint,
    /// `nvmlDeviceGetComputeRunningProcesses_v3`.
    running: unsafe extern "C" fn(NvmlDevice, *mut c_uint, *mut NvmlProcess) -> c_uint,
    /// `nvmlDeviceGetMemoryInfo`, which a library may not have.
    memory: Option<unsafe extern "C" fn(NvmlDevice, *mut NvmlMemory) -> c_uint>,
    /// `nvmlDeviceGetMemoryLimits_v1`, which a library may not have.
    get_limits: Option<unsafe extern "C" fn(NvmlDevice, *mut NvmlLimits) -> c_uint>,
    /// What a limit is set with, which a library may not have.
    setter: Option<LimitSetter>,
}

/// The functions of the management library that a limit is set with. Each returns 0 on success.
struct LimitSetter {
    /// `nvmlDeviceGetCount_v2`.
    count: unsafe extern "C" fn(*mut c_uint) -> c_uint,
    /// `nvmlDeviceGetHandleByIndex_v2`.
    by_index: unsafe extern "C" fn(c_uint, *mut NvmlDevice) -> c_uint,
    /// `nvmlDeviceGetMemoryInfo`.
    memory: unsafe extern "C" fn(NvmlDevice, *mut NvmlMemory) -> c_uint,
    /// `nvmlDeviceSetMemoryLimits_v1`.
    set: unsafe extern "C" fn(NvmlDevice, *mut NvmlLimits) -> c_uint,
}

/// The limits of a control group on a device, in bytes: `nvmlGetMemoryLimits_v1_t`. The structure
/// for setting them is the same without its end.
#[repr(C)]
struct NvmlLimits {
    /// The group's folder.
    namespace: *const c_char,
    /// The protected share. 0: none.
    soft: u64,
    /// The most to use, or [`NO_LIMIT`].
    hard: u64,
    used: u64,
}

/// `NVML_DEVICE_MEMORY_LIMIT_MAX`.
const NO_LIMIT: u64 = u64::MAX;

/// The memory of a device, in bytes: `nvmlMemory_t`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct NvmlMemory {
    total: u64,
    free: u64,
    used: u64,
}

/// Returns the management library, which is loaded and started once and never unloaded. Returns
/// `None` if it cannot be loaded or started.
pub(crate) fn management() -> Option<&'static Management> {
    static LIBRARY: OnceLock<Option<Management>> = OnceLock::new();
    LIBRARY.get_or_init(Management::load).as_ref()
}

impl Management {
    /// Loads and starts the library.
    fn load() -> Option<Self> {
        // SAFETY: loading runs the initialisers of the driver's own management library.
        let library = unsafe { Library::open(Some("libnvidia-ml.so.1"), RTLD_LAZY | RTLD_LOCAL) }.ok()?;
        let library: &'static Library = Box::leak(Box::new(library));
        // SAFETY: the versioned name has this signature in `nvml.h`.
        let start = unsafe { library.get::<unsafe extern "C" fn() -> c_uint>(c"nvmlInit_v2") }.ok()?;
        // SAFETY: the versioned name has this signature in `nvml.h`.
        let by_bus_id = unsafe { library.get(c"nvmlDeviceGetHandleByPciBusId_v2") }.ok()?;
        // SAFETY: the versioned name has this signature in `nvml.h`; `NvmlProcess` is the
        // structure's third version.
        let running = unsafe { library.get(c"nvmlDeviceGetComputeRunningProcesses_v3") }.ok()?;
        // SAFETY: the name has this signature in `nvml.h`.
        let memory = unsafe { library.get(c"nvmlDeviceGetMemoryInfo") }.ok();
        // SAFETY: the versioned name has this signature in `nvml.h`.
        let get_limits = unsafe { library.get(c"nvmlDeviceGetMemoryLimits_v1") }.ok();
        let setter = LimitSetter::of(library);
        // SAFETY: takes no arguments; may be called more than once.
        if unsafe { start() } != 0 {
            return None;
        }
        Some(Self {
            by_bus_id: *by_bus_id,
            running: *running,
            memory: memory.map(|function| *function),
            get_limits: get_limits.map(|function| *function),
            setter,
        })
    }

    /// Returns the device with the given bus id.
    fn device(&self, bus_id: &CStr) -> Option<NvmlDevice> {
        let mut device: NvmlDevice = core::ptr::null_mut();
        // SAFETY: the text is NUL-terminated, and `device` outlives the call, which writes one
        // handle to it.
        let code = unsafe { (self.by_bus_id)(bus_id.as_ptr(), &raw mut device) };
        (code == 0).then_some(device)
    }

    /// Returns the used bytes of the device with the given bus id.
    pub(crate) fn used(&self, bus_id: &CStr) -> Option<u64> {
        let (device, mut memory) = (self.device(bus_id)?, NvmlMemory::default());
        // SAFETY: `memory` outlives the call, which writes one structure to it.
        let code = unsafe { (self.memory?)(device, &raw mut memory) };
        (code == 0).then_some(memory.used)
    }

    /// Returns the limits of the control group with the given folder.
    fn limits(&self, bus_id: &CStr, folder: &CStr) -> Option<GroupLimits> {
        let mut found = NvmlLimits { namespace: folder.as_ptr(), soft: 0, hard: NO_LIMIT, used: 0 };
        let (ask, device) = (self.get_limits?, self.device(bus_id)?);
        // SAFETY: the folder's text and `found` outlive the call, which reads the text and writes
        // the numbers.
        let code = unsafe { ask(device, &raw mut found) };
        let NvmlLimits { soft, hard, used, .. } = found;
        let set = |bytes: u64, none: u64| (bytes != none).then_some(bytes);
        (code == 0).then_some(GroupLimits { used, share: set(soft, 0), most: set(hard, NO_LIMIT) })
    }

    /// Lists the processes that compute on the device with the given bus id.
    pub(crate) fn processes(&self, bus_id: &CStr) -> Option<Vec<ProcessMemory>> {
        let device = self.device(bus_id)?;
        let mut found = [NvmlProcess::default(); PROCESSES];
        let mut count = PROCESSES as c_uint;
        // SAFETY: both variables outlive the call, which writes at most `count` entries and the
        // number of entries.
        if unsafe { (self.running)(device, &raw mut count, found.as_mut_ptr()) } != 0 {
            return None;
        }
        let memory_of = |entry: &NvmlProcess| ProcessMemory {
            process: entry.process,
            bytes: (entry.used_bytes != NOT_AVAILABLE).then_some(entry.used_bytes),
        };
        Some(found.iter().take(count as usize).map(memory_of).collect())
    }
}

impl LimitSetter {
    /// Finds the functions in a library.
    fn of(library: &'static Library) -> Option<Self> {
        // SAFETY: the versioned name has this signature in `nvml.h`.
        let count = unsafe { library.get(c"nvmlDeviceGetCount_v2") }.ok()?;
        // SAFETY: the versioned name has this signature in `nvml.h`.
        let by_index = unsafe { library.get(c"nvmlDeviceGetHandleByIndex_v2") }.ok()?;
        // SAFETY: the name has this signature in `nvml.h`.
        let memory = unsafe { library.get(c"nvmlDeviceGetMemoryInfo") }.ok()?;
        // SAFETY: the versioned name has this signature in `nvml.h`, for the start of the
        // structure.
        let set = unsafe { library.get(c"nvmlDeviceSetMemoryLimits_v1") }.ok()?;
        Some(Self { count: *count, by_index: *by_index, memory: *memory, set: *set })
    }

    /// Sets the limit of the control group with the given folder on each device.
    fn set(&self, folder: &CStr, bytes: u64) -> Result<(), u32> {
        let done = |code: c_uint| if code == 0 { Ok(()) } else { Err(code) };
        let mut count = 0;
        // SAFETY: `count` outlives the call, which writes one integer to it.
        done(unsafe { (self.count)(&raw mut count) })?;
        for index in 0..count {
            let (mut device, mut memory): (NvmlDevice, _) = (core::ptr::null_mut(), NvmlMemory::default());
            // SAFETY: `device` outlives the call, which writes one handle to it.
            done(unsafe { (self.by_index)(index, &raw mut device) })?;
            // SAFETY: `memory` outlives the call, which writes one structure to it.
            done(unsafe { (self.memory)(device, &raw mut memory) })?;
            let hard = if bytes < memory.total { bytes } else { NO_LIMIT };
            let mut limits = NvmlLimits { namespace: folder.as_ptr(), soft: 0, hard, used: 0 };
            // SAFETY: the folder's text and `limits` outlive the call, which reads the text and the
            // first three members.
            done(unsafe { (self.set)(device, &raw mut limits) })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device with three processes. The size of the second one is not known.
    const DEVICE: usize = 0xd0;
    const FULL: &[u8] = b"0000:0B:00.0\0";
    const OTHER: &[u8] = b"0000:0C:00.0\0";

    /// Writes an answer through a pointer of the caller.
    fn answer<T>(to: *mut T, value: T) {
        // SAFETY: the code under test passes pointers to live variables of the right type.
        unsafe { to.write(value) };
    }

    unsafe extern "C" fn by_bus_id(bus_id: *const c_char, device: *mut NvmlDevice) -> c_uint {
        // SAFETY: the code under test passes a text.
        if unsafe { CStr::from_ptr(bus_id) }.to_bytes_with_nul() != FULL {
            return 6;
        }
        answer(device, core::ptr::without_provenance_mut(DEVICE));
        0
    }

    unsafe extern "C" fn running(device: NvmlDevice, count: *mut c_uint, to: *mut NvmlProcess) -> c_uint {
        assert_eq!(device.addr(), DEVICE);
        let known = [(std::process::id(), 7 << 20), (1, NOT_AVAILABLE), (2, 0)];
        for (at, (process, used_bytes)) in known.into_iter().enumerate() {
            answer(to.wrapping_add(at), NvmlProcess { process, used_bytes, ..NvmlProcess::default() });
        }
        answer(count, known.len() as c_uint);
        0
    }

    unsafe extern "C" fn refuse(_: NvmlDevice, _: *mut c_uint, _: *mut NvmlProcess) -> c_uint {
        3
    }

    unsafe extern "C" fn memory(device: NvmlDevice, to: *mut NvmlMemory) -> c_uint {
        assert_eq!(device.addr(), DEVICE);
        answer(to, NvmlMemory { total: 9, free: 4, used: 5 });
        0
    }

    /// The folder of the group with limits.
    const GROUP: &CStr = c"/sys/fs/cgroup/pod";

    unsafe extern "C" fn get_limits(device: NvmlDevice, limits: *mut NvmlLimits) -> c_uint {
        assert_eq!(device.addr(), DEVICE);
        // SAFETY: the code under test passes a pointer to a live structure.
        let NvmlLimits { namespace, .. } = unsafe { limits.read() };
        // SAFETY: the code under test passes a text.
        if unsafe { CStr::from_ptr(namespace) } != GROUP {
            return 6;
        }
        answer(limits, NvmlLimits { namespace, soft: 0, hard: 100, used: 30 });
        0
    }

    unsafe extern "C" fn set_limits(device: NvmlDevice, limits: *mut NvmlLimits) -> c_uint {
        assert_eq!(device.addr(), DEVICE);
        // SAFETY: the code under test passes a pointer to a live structure.
        let NvmlLimits { soft, hard, .. } = unsafe { limits.read() };
        // Only root may.
        if (soft, hard) == (0, 7) { 4 } else { u32::from((soft, hard) != (0, NO_LIMIT)) }
    }

    unsafe extern "C" fn count(to: *mut c_uint) -> c_uint {
        answer(to, 2);
        0
    }

    unsafe extern "C" fn by_index(_: c_uint, device: *mut NvmlDevice) -> c_uint {
        answer(device, core::ptr::without_provenance_mut(DEVICE));
        0
    }

    #[test]
    fn a_limit_is_set_on_each_device_that_has_more_memory() {
        let setter = LimitSetter { count, by_index, memory, set: set_limits };
        // The device has 9 bytes.
        assert_eq!([7, 8, 9, 10].map(|bytes| setter.set(GROUP, bytes)), [Err(4), Err(1), Ok(()), Ok(())]);
    }

    #[test]
    fn limits_of_groups_are_asked_for_where_the_library_has_them() {
        let bus_id = |text: &'static [u8]| CStr::from_bytes_with_nul(text).expect("a text");
        let functions = |get_limits| Management { by_bus_id, running, memory: None, get_limits, setter: None };
        let library = functions(Some(get_limits as _));
        let found = GroupLimits { used: 30, share: None, most: Some(100) };
        assert_eq!(library.limits(bus_id(FULL), GROUP), Some(found));
        assert_eq!(library.limits(bus_id(FULL), c"/elsewhere"), None);
        assert_eq!(library.limits(bus_id(OTHER), GROUP), None);
        assert_eq!(functions(None).limits(bus_id(FULL), GROUP), None);
    }

    #[test]
    fn the_processes_of_a_device_are_listed_with_the_sizes_that_are_known() {
        let bus_id = |text: &'static [u8]| CStr::from_bytes_with_nul(text).expect("a text");
        let library = Management { by_bus_id, running, memory: Some(memory), get_limits: None, setter: None };
        assert_eq!((library.used(bus_id(FULL)), library.used(bus_id(OTHER))), (Some(5), None));
        let processes = library.processes(bus_id(FULL)).expect("listed");
        let listed: Vec<_> = processes.iter().map(|process| (process.process, process.bytes)).collect();
        let own = std::process::id();
        assert_eq!(listed, [(own, Some(7 << 20)), (1, None), (2, Some(0))]);
        assert_eq!(library.processes(bus_id(OTHER)), None);
        let library = Management { by_bus_id, running: refuse, memory: None, get_limits: None, setter: None };
        assert_eq!((library.processes(bus_id(FULL)), library.used(bus_id(FULL))), (None, None));
    }
}
