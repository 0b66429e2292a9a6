//! The memory use of a device by process. A process that the driver does not report is left out.
//!
//! The driver interface reports free memory and the size of the driver's own pool. The driver's
//! management library (NVML), which is installed next to the driver, reports the memory of each
//! process. Both are slow, so only reports and `cachalot run` query them.

use crate::device::CudaDevice;
use crate::device_groups::GroupMemory;
use crate::driver::result::CuResult;
use crate::driver::types::{CuMemPoolAttribute, CuMemoryPool};
use crate::host_memory;
use crate::management::{ProcessMemory, management};
use cachalot_core::DeviceResult;
use core::ffi::{CStr, c_char, c_void};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

/// The number of bytes in a bus id: `domain:bus:device.function` and the NUL.
pub const BUS_ID_BYTES: usize = 32;
/// The first version of the driver that limits the memory of control groups.
const FIRST_WITH_LIMITS: u32 = 13_040;
/// The memory use of a device by the processes that the driver reports.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct MemoryUsers {
    /// The bytes that the driver's own stream-ordered pool holds for this process. `None` if the
    /// driver has no pool, or is too old to report the size.
    pub pool_reserved: Option<u64>,
    /// The processes that compute on the device. Empty if the driver reports none.
    pub processes: Vec<ProcessMemory>,
}

impl MemoryUsers {
    /// Returns the bytes that this process uses, including contexts and libraries. Returns `None`
    /// if the process is not listed, or in a container with its own process ids, because there
    /// another process may have the number.
    #[must_use]
    pub fn own(&self) -> Option<u64> {
        self.of(id_for_driver()?)
    }

    /// Returns the bytes that the process uses which the driver knows as `process`.
    fn of(&self, process: u32) -> Option<u64> {
        self.processes.iter().find(|known| known.process == process).and_then(|known| known.bytes)
    }
}

/// Returns the bytes that this process uses on the device at a place on the bus, including contexts
/// and libraries, as the driver's management library reports them. Returns `None` if the library is
/// missing or does not know the process. Takes 0.2 ms (H200), and calls no driver.
#[must_use]
pub fn memory_of_this_process(bus_id: &CStr) -> Option<u64> {
    let own = id_for_driver()?;
    let users = MemoryUsers { pool_reserved: None, processes: management()?.processes(bus_id)? };
    users.of(own)
}

/// Returns the bytes of a device that all processes use, as the driver's management library reports
/// them. Needs no context, and takes 0.02 ms (H200).
#[must_use]
pub fn used_memory(bus_id: &CStr) -> Option<u64> {
    management()?.used(bus_id)
}

/// Returns the id by which the driver knows this process, which is the one outside of all
/// containers. Returns `None` if the process cannot know it.
fn id_for_driver() -> Option<u32> {
    static ID: OnceLock<(u32, Option<u32>)> = OnceLock::new();
    let own = std::process::id();
    let find = || {
        let is_outside = std::fs::metadata("/proc/self/ns/pid").is_ok_and(|names| names.ino() == OUTERMOST);
        outermost(own, is_outside, &std::fs::read_to_string("/proc/self/status").unwrap_or_default())
    };
    let &(of, id) = ID.get_or_init(|| (own, find()));
    // A forked child has another id.
    if of == own { id } else { find() }
}

/// The number of the outermost set of process ids (`PROC_PID_INIT_INO` of Linux).
const OUTERMOST: u64 = 0xefff_fffc;

/// Returns the outermost id of a process, from its status. In a container the line `NSpid` starts
/// with the id that the mounted `/proc` shows. It has more ids than that of the container only if
/// this `/proc` is that of an outer container or of the system.
fn outermost(own: u32, is_outside: bool, status: &str) -> Option<u32> {
    if is_outside {
        return Some(own);
    }
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    let mut ids = ids.split_whitespace();
    let first = ids.next()?.parse().ok()?;
    ids.next().map(|_| first)
}

impl CudaDevice {
    /// Returns the use of the device's memory. Takes milliseconds, and the first call loads the
    /// management library.
    ///
    /// # Errors
    /// As for [`health`](Self::health). Figures that the driver does not report are left out.
    pub fn memory_users(&self) -> DeviceResult<MemoryUsers> {
        let _scope = self.context.enter()?;
        Ok(MemoryUsers { pool_reserved: self.pool_reserved(), processes: self.processes() })
    }

    /// Returns the size in bytes of the driver's own pool. The context is entered.
    fn pool_reserved(&self) -> Option<u64> {
        let mut pool = CuMemoryPool::NULL;
        // SAFETY: `pool` outlives the call, which writes one handle to it.
        self.succeeded(unsafe { self.driver().device_get_default_mem_pool(&raw mut pool, self.device) })?;
        let mut bytes: u64 = 0;
        let value = (&raw mut bytes).cast::<c_void>();
        // SAFETY: `bytes` outlives the call, which writes a 64-bit integer to it for this
        // attribute.
        let code =
            unsafe { self.driver().mem_pool_get_attribute(pool, CuMemPoolAttribute::RESERVED_MEM_CURRENT, value) };
        self.succeeded(code)?;
        Some(bytes)
    }

    /// Returns what the control groups of this process leave it of the device.
    pub(crate) fn group_memory(&self) -> GroupMemory {
        let place = self.place.get_or_init(|| self.place_on_bus()).as_deref();
        let asks_management = self.driver().version() >= FIRST_WITH_LIMITS;
        place.map_or(GroupMemory::UNBOUNDED, |place| GroupMemory::of(place, asks_management))
    }

    /// Lists the processes that compute on the device. The context is entered.
    fn processes(&self) -> Vec<ProcessMemory> {
        let bus_id = self.bus_id();
        let listed = |bus_id: [c_char; BUS_ID_BYTES]| {
            let bytes = bus_id.map(|letter| letter as u8);
            management()?.processes(CStr::from_bytes_until_nul(&bytes).ok()?)
        };
        bus_id.and_then(listed).unwrap_or_default()
    }

    /// Returns the NUMA node of the GPU, if the system has several nodes.
    pub(crate) fn numa_node_of_gpu(&self) -> Option<u32> {
        host_memory::node_of(&self.place_on_bus()?)
    }

    /// Returns the device's place on the bus, or `None` if the driver does not report it.
    pub(crate) fn place_on_bus(&self) -> Option<String> {
        let _scope = self.context.enter().ok()?;
        let bus_id = self.bus_id()?.map(|letter| letter as u8);
        CStr::from_bytes_until_nul(&bus_id).ok()?.to_str().ok().map(str::to_owned)
    }

    /// Returns the device's place on the bus as a text that ends in NUL, or `None` if the driver
    /// does not report it. The context is entered.
    pub(crate) fn bus_id(&self) -> Option<[c_char; BUS_ID_BYTES]> {
        let mut bus_id: [c_char; BUS_ID_BYTES] = [0; BUS_ID_BYTES];
        // SAFETY: the buffer outlives the call, which writes at most `BUS_ID_BYTES` bytes, NUL
        // included.
        let code =
            unsafe { self.driver().device_get_pci_bus_id(bus_id.as_mut_ptr(), BUS_ID_BYTES as i32, self.device) };
        self.succeeded(code).map(|()| bus_id)
    }

    /// Returns `Some` iff a call succeeded. Remembers a sticky code.
    fn succeeded(&self, code: CuResult) -> Option<()> {
        self.context.check(code).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_process_is_known_if_its_size_is() {
        let users = |listed: &[(u32, Option<u64>)]| MemoryUsers {
            pool_reserved: None,
            processes: listed.iter().map(|&(process, bytes)| ProcessMemory { process, bytes }).collect(),
        };
        assert_eq!(users(&[(7, Some(7 << 20)), (1, None)]).of(7), Some(7 << 20));
        assert_eq!(users(&[(8, Some(1)), (7, None)]).of(7), None);
        assert_eq!(MemoryUsers::default().of(7), None);
    }

    #[test]
    fn a_process_knows_itself_only_by_its_outermost_id() {
        assert_eq!(outermost(7, true, ""), Some(7));
        assert_eq!(outermost(7, false, "Name:\tx\nNSpid:\t4711\t7\n"), Some(4711));
        // In a container, the driver's list may have another process under the number.
        assert_eq!(outermost(7, false, "NSpid:\t7\n"), None);
        assert_eq!(outermost(7, false, "Name:\tx\n"), None);
    }
}
