//! The support of a device for virtual memory: granularity, direct access by network adapters, and
//! export to other processes.

use crate::context::Context;
use crate::driver::result::CuResult;
use crate::driver::types::{
    CuDevice, CuDeviceAttribute, CuGranularity, CuMemAllocationProp, CuMemLocation, CuMemLocationType,
};
use cachalot_core::DeviceResult;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// The properties of a device's virtual memory.
#[derive(Debug)]
pub(crate) struct Virtual {
    /// The granularity of mappings, in bytes; a power of two.
    pub(crate) granularity: u64,
    /// Whether physical memory is created for direct access by devices on the bus.
    rdma: AtomicBool,
    /// Whether physical memory is created for export to other processes.
    export: AtomicBool,
    /// Where physical memory of the host is created: on the NUMA node closest to the device, or
    /// anywhere. `None` if the device cannot map memory of the host.
    pub(crate) host: Option<CuMemLocation>,
    /// The turn of the thread that changes mappings.
    pub(crate) mappings: Turn,
}

/// The requested uses of new physical memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Uses {
    /// Direct access by devices on the bus.
    pub(crate) rdma: bool,
    /// Export to processes.
    pub(crate) export: bool,
}

impl Uses {
    /// Iterates over all requested uses, and then over fewer, because a device may report a use and
    /// then refuse it.
    pub(crate) fn or_fewer(self) -> impl Iterator<Item = Self> {
        let choices = [(true, true), (false, true), (true, false), (false, false)];
        let choices = choices.into_iter().map(|(rdma, export)| Self { rdma, export });
        choices.filter(move |uses| uses.rdma <= self.rdma && uses.export <= self.export)
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
    /// # Errors
    /// Only sticky errors. If the driver refuses a query, the device counts as one without virtual
    /// memory.
    pub(crate) fn of(context: &Context, device: CuDevice) -> DeviceResult<Option<Self>> {
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
        let uses = Uses {
            rdma: has(context, device, CuDeviceAttribute::GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)?,
            export: driver.mem_export.is_some()
                && has(context, device, CuDeviceAttribute::HANDLE_TYPE_POSIX_FD_SUPPORTED)?,
        };
        for Uses { rdma, export } in uses.or_fewer() {
            let properties = CuMemAllocationProp::on_device(device.0, rdma, export);
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
                return Ok(Some(Self {
                    granularity: granularity as u64,
                    rdma: AtomicBool::new(rdma),
                    export: AtomicBool::new(export),
                    host: host_of(context, device)?,
                    mappings: Turn::default(),
                }));
            }
            stop_if_sticky(context, code)?;
        }
        Ok(None)
    }

    /// Returns the uses for which physical memory is created.
    pub(crate) fn uses(&self) -> Uses {
        Uses { rdma: self.rdma.load(Ordering::Relaxed), export: self.export.load(Ordering::Relaxed) }
    }

    /// Sets the uses for which physical memory is created from now on.
    pub(crate) fn set_uses(&self, uses: Uses) {
        self.rdma.store(uses.rdma, Ordering::Relaxed);
        self.export.store(uses.export, Ordering::Relaxed);
    }
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
fn has(context: &Context, device: CuDevice, attribute: CuDeviceAttribute) -> DeviceResult<bool> {
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
        let fewer = |rdma, export| -> Vec<_> {
            Uses { rdma, export }.or_fewer().map(|Uses { rdma, export }| (rdma, export)).collect()
        };
        assert_eq!(fewer(true, true), [(true, true), (false, true), (true, false), (false, false)]);
        assert_eq!(fewer(false, true), [(false, true), (false, false)]);
        assert_eq!(fewer(true, false), [(true, false), (false, false)]);
        assert_eq!(fewer(false, false), [(false, false)]);
    }
}
