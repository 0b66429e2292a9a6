//! The support of a device for virtual memory: granularity, and the uses for which memory is
//! created.

use crate::context::Context;
use crate::driver::result::CuResult;
use crate::driver::types::{
    CuDevice, CuDeviceAttribute, CuGranularity, CuMemAccessDesc, CuMemAllocationFlags, CuMemAllocationProp,
    CuMemHandle, CuMemHandleType, CuMemLocation, CuMemLocationType,
};
use cachalot_core::DeviceResult;
use core::ffi::c_int;
use core::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// The properties of a device's virtual memory.
#[derive(Debug)]
pub(crate) struct Virtual {
    /// The granularity of mappings, in bytes; a power of two.
    pub(crate) granularity: u64,
    /// The uses for which physical memory is created: the bits of a [`Uses`].
    uses: AtomicU8,
    /// Where physical memory of the device is created: anywhere, or in a locality domain.
    pub(crate) home: CuMemLocation,
    /// Where physical memory of the host is created: on the NUMA node closest to the device, or
    /// anywhere. `None` if the device cannot map memory of the host.
    pub(crate) host: Option<CuMemLocation>,
    /// The turn of the thread that changes mappings.
    pub(crate) mappings: Turn,
}

/// What a device's pages have besides what every page has.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PageOptions {
    /// Processes on other nodes of the device's `NVLink` fabric may import the pages
    /// (`CU_MEM_HANDLE_TYPE_FABRIC`), if the device supports it and the driver permits it to the
    /// process.
    pub fabric: bool,
    /// The locality domain of the device in which the pages lie
    /// (`CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN`), if the device has it. `None`: anywhere on
    /// the device.
    pub locality_domain: Option<u8>,
}

/// Uses of physical memory that are asked for when it is created, a bit each.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Uses(u8);

impl Uses {
    /// Export to processes on other nodes of a fabric. The first to be given up: a device may
    /// support it in a process that may not use it.
    pub(crate) const FABRIC: Self = Self(1);
    /// Direct access by devices on the bus.
    pub(crate) const RDMA: Self = Self(2);
    /// Export to processes.
    pub(crate) const EXPORT: Self = Self(4);
    /// Work of the device's decompression engine, which reads and writes no other memory of
    /// `cuMemCreate`. All memory of `cuMemAlloc` serves the engine.
    pub(crate) const DECOMPRESSION: Self = Self(8);

    /// Returns the uses of both.
    fn with(self, more: Self) -> Self {
        Self(self.0 | more.0)
    }

    /// Returns `self` if a condition holds, and no use otherwise.
    fn only_if(self, condition: bool) -> Self {
        if condition { self } else { Self::default() }
    }

    /// Returns whether all uses of `other` are among these.
    pub(crate) fn include(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Iterates over all requested uses, and then over fewer, because a device may report a use and
    /// then refuse it.
    pub(crate) fn or_fewer(self) -> impl Iterator<Item = Self> {
        (0..16).map(Self).filter(move |&dropped| self.include(dropped)).map(move |dropped| Self(self.0 & !dropped.0))
    }

    /// Describes memory of a device, at a location there, for these uses.
    pub(crate) fn at(self, home: CuMemLocation) -> CuMemAllocationProp {
        let mut properties = CuMemAllocationProp::at(home);
        properties.flags.gpu_direct_rdma_capable = self.include(Self::RDMA).into();
        for (uses, kind) in [(Self::EXPORT, CuMemHandleType::POSIX_FD), (Self::FABRIC, CuMemHandleType::FABRIC)] {
            if self.include(uses) {
                properties.requested_handle_types.0 |= kind.0;
            }
        }
        if self.include(Self::DECOMPRESSION) {
            properties.flags.usage = CuMemAllocationFlags::HW_DECOMPRESS;
        }
        properties
    }
}

/// Lets only one thread at a time change mappings, from its first call to its last. The driver
/// fails with code 999 if a mapping of a handle is removed after the handle was mapped at a new
/// place and before access to the new place is set (driver 580, on an H100). Only requests that map
/// pages wait.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    taken: Mutex<bool>,
    ended: Condvar,
}

impl Turn {
    /// Waits until no thread changes mappings, and takes the turn.
    pub(crate) fn begin(&self) {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let free = self.ended.wait_while(taken, |taken| *taken);
        *free.unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Ends the turn.
    pub(crate) fn end(&self) {
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.ended.notify_one();
    }
}

impl Virtual {
    /// Queries the virtual memory of a device. Returns `None` if the device has none, or if the
    /// driver does not have an entry point for it. The caller has entered the context.
    ///
    /// A device that shares the host's memory maps a page first, because such a device may report
    /// virtual memory and then refuse all of it (Jetson boards: `cuMemCreate` is out of memory at
    /// the first page). Pages of the host would be pages of the same memory, so it has none.
    ///
    /// # Errors
    /// Only sticky errors. If the driver refuses a query, the device counts as one without virtual
    /// memory.
    pub(crate) fn of(
        context: &Context,
        device: CuDevice,
        shares_host_memory: bool,
        pages: PageOptions,
    ) -> DeviceResult<Option<Self>> {
        let driver = context.driver();
        let complete = driver.mem_get_allocation_granularity.is_some()
            && driver.mem_address_reserve.is_some()
            && driver.mem_address_free.is_some()
            && driver.mem_create.is_some()
            && driver.mem_release.is_some()
            && driver.mem_map.is_some()
            && driver.mem_unmap.is_some()
            && driver.mem_set_access.is_some();
        if !complete || !has(context, device, CuDeviceAttribute::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)? {
            return Ok(None);
        }
        let home = home_of(context, device, pages.locality_domain)?;
        let rdma = has(context, device, CuDeviceAttribute::GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)?;
        let export =
            driver.mem_export.is_some() && has(context, device, CuDeviceAttribute::HANDLE_TYPE_POSIX_FD_SUPPORTED)?;
        let algorithms = value_of(context, device, CuDeviceAttribute::MEM_DECOMPRESS_ALGORITHM_MASK)?;
        let uses = Uses::RDMA.only_if(rdma).with(Uses::EXPORT.only_if(export));
        let uses = uses.with(Uses::DECOMPRESSION.only_if(algorithms.is_some_and(|mask| mask > 0)));
        let fabric = driver.mem_export.is_some()
            && pages.fabric
            && has(context, device, CuDeviceAttribute::HANDLE_TYPE_FABRIC_SUPPORTED)?;
        let uses = uses.with(Uses::FABRIC.only_if(fabric));
        for uses in uses.or_fewer() {
            let properties = uses.at(home);
            let mut granularity = 0;
            // SAFETY: both variables outlive the call, which reads `properties` and writes one
            // integer to `granularity`.
            let code = unsafe {
                driver.mem_get_allocation_granularity(
                    &raw mut granularity,
                    &raw const properties,
                    CuGranularity::MINIMUM,
                )
            };
            if code.is_success() && granularity.is_power_of_two() {
                if shares_host_memory && !maps_a_page(context, device, granularity)? {
                    return Ok(None);
                }
                return Ok(Some(Self {
                    granularity: granularity as u64,
                    uses: AtomicU8::new(uses.0),
                    home,
                    host: if shares_host_memory { None } else { host_of(context, device)? },
                    mappings: Turn::default(),
                }));
            }
            stop_if_sticky(context, code)?;
        }
        Ok(None)
    }

    /// Returns the uses for which physical memory is created.
    pub(crate) fn uses(&self) -> Uses {
        Uses(self.uses.load(Ordering::Relaxed))
    }

    /// Sets the uses for which physical memory is created from now on.
    pub(crate) fn set_uses(&self, uses: Uses) {
        self.uses.store(uses.0, Ordering::Relaxed);
    }
}

/// Says in a line that a device has no virtual memory, which its settings ask for.
#[cfg(feature = "log")]
pub fn tell_of_missing_virtual_memory(device: c_int) {
    crate::log::warning(format_args!(
        "device {device} has no virtual memory, which policy:stitched and expandable_segments:True need: blocks are \
         placed as by policy:caching without them"
    ));
}

/// Returns whether the driver creates and maps a page of the device, which is given back again.
fn maps_a_page(context: &Context, device: CuDevice, bytes: usize) -> DeviceResult<bool> {
    let driver = context.driver();
    let (mut at, mut handle) = (0, CuMemHandle::default());
    let (properties, access) = (Uses::default().at(CuMemLocation::device(device)), CuMemAccessDesc::full(device));
    // SAFETY: `at` outlives the call, which writes one address to it.
    let reserved = unsafe { driver.mem_address_reserve(&raw mut at, bytes, 0, 0, 0) };
    if !reserved.is_success() {
        return stop_if_sticky(context, reserved).map(|()| false);
    }
    // SAFETY: both variables outlive the call, which reads `properties` and writes one handle to
    // `handle`.
    let mut code = unsafe { driver.mem_create(&raw mut handle, bytes, &raw const properties, 0) };
    if code.is_success() {
        // SAFETY: takes no host pointers; the addresses and the page are new.
        code = unsafe { driver.mem_map(at, bytes, 0, handle, 0) };
        if code.is_success() {
            // SAFETY: `access` outlives the call, which reads one description.
            code = unsafe { driver.mem_set_access(at, bytes, &raw const access, 1) };
            // SAFETY: takes no host pointers; the page was mapped above, and no work uses it.
            let unmapped = unsafe { driver.mem_unmap(at, bytes) };
            code = if code.is_success() { unmapped } else { code };
        }
        // SAFETY: takes no host pointers; the handle was created above.
        let released = unsafe { driver.mem_release(handle) };
        code = if code.is_success() { released } else { code };
    }
    // SAFETY: takes no host pointers; the addresses were reserved above.
    let freed = unsafe { driver.mem_address_free(at, bytes) };
    code = if code.is_success() { freed } else { code };
    stop_if_sticky(context, code).map(|()| code.is_success())
}

/// Returns where physical memory of a device is created: in a wanted locality domain, if the device
/// has it.
fn home_of(context: &Context, device: CuDevice, domain: Option<u8>) -> DeviceResult<CuMemLocation> {
    if let Some(domain) = domain
        && value_of(context, device, CuDeviceAttribute::LOCALITY_DOMAIN_COUNT)?
            .is_some_and(|domains| i32::from(domain) < domains)
    {
        return Ok(CuMemLocation::locality_domain(device, domain));
    }
    Ok(CuMemLocation::device(device))
}

/// Returns where physical memory of the host is created for a device.
fn host_of(context: &Context, device: CuDevice) -> DeviceResult<Option<CuMemLocation>> {
    if has(context, device, CuDeviceAttribute::HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)? {
        // A system without nodes answers -1, and takes node 0.
        let node = value_of(context, device, CuDeviceAttribute::HOST_NUMA_ID)?.unwrap_or(0).max(0);
        return Ok(Some(CuMemLocation { kind: CuMemLocationType::HOST_NUMA, id: node }));
    }
    let anywhere = has(context, device, CuDeviceAttribute::HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)?;
    Ok(anywhere.then_some(CuMemLocation { kind: CuMemLocationType::HOST, id: 0 }))
}

/// Returns whether an attribute of the device is 1. If the query is refused, it counts as 0.
pub(crate) fn has(context: &Context, device: CuDevice, attribute: CuDeviceAttribute) -> DeviceResult<bool> {
    Ok(value_of(context, device, attribute)? == Some(1))
}

/// Returns an attribute of the device, or `None` if the query is refused.
fn value_of(context: &Context, device: CuDevice, attribute: CuDeviceAttribute) -> DeviceResult<Option<c_int>> {
    let mut value: c_int = 0;
    // SAFETY: `value` outlives the call, which writes one integer to it.
    let code = unsafe { context.driver().device_get_attribute(&raw mut value, attribute, device) };
    stop_if_sticky(context, code)?;
    Ok(code.is_success().then_some(value))
}

/// Fails iff the code is sticky.
fn stop_if_sticky(context: &Context, code: CuResult) -> DeviceResult<()> {
    if code.is_sticky() { context.check(code) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_uses_are_asked_for_one_by_one() {
        let fewer = |of: Uses| -> Vec<_> { of.or_fewer().map(|Uses(bits)| bits).collect() };
        let (fabric, rdma, export, engine) = (Uses::FABRIC, Uses::RDMA, Uses::EXPORT, Uses::DECOMPRESSION);
        assert_eq!(fewer(rdma.with(export)), [6, 4, 2, 0], "direct access goes first");
        assert_eq!(fewer(export), [4, 0]);
        assert_eq!(fewer(rdma), [2, 0]);
        assert_eq!(fewer(Uses::default()), [0]);
        assert_eq!(fewer(rdma.with(export).with(engine)), [14, 12, 10, 8, 6, 4, 2, 0], "the engine goes last");
        assert_eq!(fewer(fabric.with(export)), [5, 4, 1, 0], "the fabric goes first");
    }

    #[test]
    fn only_memory_for_the_engine_says_so() {
        let usage = |uses: Uses| uses.at(CuMemLocation::device(CuDevice(0))).flags.usage;
        assert_eq!(usage(Uses::DECOMPRESSION.with(Uses::RDMA)), CuMemAllocationFlags::HW_DECOMPRESS);
        assert_eq!(usage(Uses::RDMA.with(Uses::EXPORT)), 0);
    }

    #[test]
    fn memory_for_a_fabric_has_both_kinds_of_handles() {
        let kinds = |uses: Uses| uses.at(CuMemLocation::device(CuDevice(0))).requested_handle_types.0;
        let (fabric, export) = (Uses::FABRIC, Uses::EXPORT);
        assert_eq!([export, fabric, fabric.with(export), Uses::RDMA].map(kinds), [1, 8, 9, 0]);
    }

    #[test]
    fn a_locality_domain_is_named_by_two_bytes() {
        let location = CuMemLocation::locality_domain(CuDevice(3), 1);
        assert_eq!((location.kind.0, location.id.to_ne_bytes()), (6, [3, 1, 0, 0]));
    }
}
