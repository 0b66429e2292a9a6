//! Memory of the driver: passed on, and charged if on a device.

use crate::charge::{DeviceCharge, DriverFigures, Holding, taken_by};
use crate::ledger::Kind;
use crate::serve::process::{MemoryAt, Process};
use cachalot_cuda::CuResult;
use cachalot_cuda::driver::types::{CuContext, CuDevice, CuDevicePtr, CuMemHandleType, CuMemoryPool, CuStream};
use core::ffi::{c_uint, c_void};
use core::sync::atomic::Ordering;
use std::sync::Arc;

/// Kinds of memory that a program frees by the address.
const BY_ADDRESS: [Kind; 4] = [Kind::Plain, Kind::Pool, Kind::Managed, Kind::Graph];

/// The attribute of the memory that a device holds for the memory nodes of graphs
/// (`CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`).
const RESERVED_FOR_GRAPHS: u32 = 2;

/// The name of the memory for the memory nodes of all graphs of a device. No address of the driver
/// is such a number.
const OF_ALL_GRAPHS: u64 = u64::MAX;

impl Process {
    /// Passes a request for memory of the current context's device on by `call`, and charges the
    /// bytes. Memory of a stream's order names the stream, and the pool unless it is the current
    /// one.
    ///
    /// # Safety
    /// `call` writes the address to `address` if it succeeds.
    #[cold]
    pub(super) unsafe fn pass_request(
        &self,
        kind: Kind,
        address: *mut CuDevicePtr,
        bytes: u64,
        stream: Option<CuStream>,
        pool: Option<CuMemoryPool>,
        call: impl FnOnce() -> CuResult,
    ) -> CuResult {
        self.pass();
        // SAFETY: called after success of `call`, for which the caller vouches.
        let given = || unsafe { address.read() };
        let code = match self.current_device() {
            Some(device) => {
                let context = self.contexts.root(self.current().unwrap_or_default());
                self.frees.add_context(context);
                // Memory of a pool outlives contexts.
                let owner = if kind == Kind::Plain { context } else { CuContext::NULL };
                let code = self.take_held(device, kind, taken_by(bytes), owner, call, given);
                if code.is_success() && kind == Kind::Pool {
                    self.pool_gave(pool, device, given(), taken_by(bytes));
                }
                code
            }
            None => call(),
        };
        if code.is_success() {
            self.observe_taken(given(), bytes, stream);
        }
        code
    }

    /// Makes a call of the driver for memory of a device, and charges the bytes under the name that
    /// `name` finds after success.
    pub(super) fn take_held(
        &self,
        device: CuDevice,
        kind: Kind,
        bytes: u64,
        context: CuContext,
        call: impl FnOnce() -> CuResult,
        name: impl FnOnce() -> u64,
    ) -> CuResult {
        let code = self.try_to_hold(device, kind, bytes, context, call, name);
        self.refused(code, device)
    }

    /// Reports a refusal, if the limit of the device is the reason for the code of a call. Returns
    /// the code.
    pub(super) fn refused(&self, code: CuResult, device: CuDevice) -> CuResult {
        if code == CuResult::OUT_OF_MEMORY {
            self.charge.of_device(self.real, device).tell_refusal();
        }
        code
    }

    /// Makes a call as [`take_held`](Self::take_held) does, and reports no refusal.
    pub(super) fn try_to_hold(
        &self,
        device: CuDevice,
        kind: Kind,
        bytes: u64,
        context: CuContext,
        call: impl FnOnce() -> CuResult,
        name: impl FnOnce() -> u64,
    ) -> CuResult {
        let memory = Holding { charge: self.charge.of_device(self.real, device), kind, bytes, context };
        // Before the call, because a call cannot be repeated.
        if memory.charge.budget().is_some_and(|budget| budget.available < bytes) {
            self.finds_room(device, bytes);
        }
        code_of(self.charge.holdings().take(memory, || result_of(call()), |()| name(), |code| code))
    }

    /// Makes a call of the driver for memory whose bytes are not counted, and notes that the call
    /// was seen. The memory goes with `context`, unless the handle is null.
    ///
    /// # Safety
    /// `address` is null, or `call` writes the address to `address` if it succeeds.
    pub(super) unsafe fn take_uncounted(
        &self,
        kind: Kind,
        address: *mut CuDevicePtr,
        context: CuContext,
        call: impl FnOnce() -> CuResult,
    ) -> CuResult {
        match self.current_device().filter(|_| !address.is_null()) {
            // SAFETY: called after success of `call`, for which the caller vouches.
            Some(device) => self.take_held(device, kind, 0, context, call, || unsafe { address.read() }),
            None => call(),
        }
    }

    /// Makes a call of the driver to free the memory at an address, and ends the charge. Counts an
    /// address that no seen call has given: the call for the memory came by another way.
    pub(super) fn give_address(&self, address: CuDevicePtr, call: impl FnOnce() -> CuResult) -> CuResult {
        let give = || self.charge.holdings().give(&BY_ADDRESS, address, || result_of(call()));
        let given = self.free_of_pool(address, give);
        if given == Ok(false) && address != 0 {
            self.counters.missed.fetch_add(1, Ordering::Relaxed);
            if let Some(device) = self.current_device()
                && let Some(ledger) = self.charge.of_device(self.real, device).ledger()
            {
                ledger.missed();
            }
        }
        code_of(given.map(drop))
    }

    /// `cuMemAllocManaged`. The memory moves between host and devices, and is booked, and not
    /// charged: see docs/groups.md.
    ///
    /// # Safety
    /// `address` is null or writable.
    pub unsafe fn mem_alloc_managed(&self, address: *mut CuDevicePtr, bytes: usize, flags: c_uint) -> CuResult {
        self.pass();
        let owner = self.contexts.root(self.current().unwrap_or_default());
        // SAFETY: the arguments are the caller's.
        let call = || unsafe { self.real.mem_alloc_managed(address, bytes, flags) };
        // SAFETY: the driver has written the address after success.
        let code = unsafe { self.take_uncounted(Kind::Managed, address, owner, call) };
        if code.is_success()
            && let Some(device) = self.current_device()
        {
            // SAFETY: as above.
            self.charge.of_device(self.real, device).book(Kind::Managed, bytes as u64, unsafe { address.read() });
        }
        code
    }

    /// `cuMemHostAlloc`.
    ///
    /// # Safety
    /// `address` is null or writable.
    pub unsafe fn mem_host_alloc(&self, address: *mut *mut c_void, bytes: usize, flags: c_uint) -> CuResult {
        self.pass();
        // SAFETY: the arguments are the caller's.
        unsafe { self.real.mem_host_alloc(address, bytes, flags) }
    }

    /// `cuMemAllocHost_v2`.
    ///
    /// # Safety
    /// `address` is null or writable.
    pub unsafe fn mem_alloc_host(&self, address: *mut *mut c_void, bytes: usize) -> CuResult {
        self.pass();
        // SAFETY: the arguments are the caller's.
        unsafe { self.real.mem_alloc_host(address, bytes) }
    }

    /// `cuMemFreeHost`.
    ///
    /// # Safety
    /// No thread and no work uses the memory any longer.
    pub unsafe fn mem_free_host(&self, address: *mut c_void) -> CuResult {
        self.pass();
        // SAFETY: the argument is the caller's.
        unsafe { self.real.mem_free_host(address) }
    }

    /// `cuMemPoolExportToShareableHandle`. Later requests for the pool are passed on.
    ///
    /// # Safety
    /// `handle` is null, or writable for the kind of handle.
    pub unsafe fn mem_pool_export_to_shareable_handle(
        &self,
        handle: *mut c_void,
        pool: CuMemoryPool,
        kind: CuMemHandleType,
        flags: u64,
    ) -> CuResult {
        self.pools.shared(pool);
        // SAFETY: the arguments are the caller's.
        unsafe { self.real.mem_pool_export_to_shareable_handle(handle, pool, kind, flags) }
    }

    /// `cuMemPoolExportPointer`. A served block is no memory of an exported pool, and is refused
    /// like memory of an unexported pool.
    ///
    /// # Safety
    /// `data` is null or writable.
    pub unsafe fn mem_pool_export_pointer(&self, data: *mut c_void, address: CuDevicePtr) -> CuResult {
        match self.memory_at(address) {
            // SAFETY: the arguments are the caller's.
            MemoryAt::Foreign => unsafe { self.real.mem_pool_export_pointer(data, address) },
            MemoryAt::Block(..) | MemoryAt::Free => CuResult::INVALID_VALUE,
        }
    }

    /// Makes a call of the driver with an unknown need for memory of the current context's device:
    /// code, graphs, libraries, arrays. The driver's figure is asked before and after, which takes
    /// 5 µs each on driver 580 and breaks no capture. `gives`: the call frees memory. Beyond the
    /// limit, `undo` gives the memory back and returns true, and the answer is that the memory is
    /// short; or the memory stays.
    pub fn measured(
        &self,
        kind: Kind,
        gives: bool,
        call: impl FnOnce() -> CuResult,
        undo: impl FnOnce() -> bool,
    ) -> CuResult {
        let Some(device) = self.current_device() else { return call() };
        let charge = self.charge.of_device(self.real, device);
        let figures = || DriverFigures::of_current(self.real).ok();
        let call = || {
            let code = call();
            if kind == Kind::Graph && !self.frees.is_capturing() {
                self.count_graph_memory(&charge, device);
            }
            code
        };
        charge.measured(kind, gives, figures, call, undo)
    }

    /// Counts what the device holds for the memory nodes of all graphs, which changes at any launch
    /// of a graph.
    fn count_graph_memory(&self, charge: &Arc<DeviceCharge>, device: CuDevice) {
        if !charge.counts_all() {
            return;
        }
        let mut bytes = 0_u64;
        let value = (&raw mut bytes).cast();
        // SAFETY: the attribute's value is a `cuuint64_t`, and `bytes` outlives the call.
        let code = unsafe { self.real.device_get_graph_mem_attribute(device, RESERVED_FOR_GRAPHS, value) };
        if code.is_success() {
            self.charge.holdings().set(charge, Kind::Graph, OF_ALL_GRAPHS, bytes);
        }
    }
}

/// Returns a code of the driver as a result.
pub(super) fn result_of(code: CuResult) -> Result<(), CuResult> {
    if code.is_success() { Ok(()) } else { Err(code) }
}

/// Returns a result as a code of the driver.
pub(super) fn code_of(result: Result<(), CuResult>) -> CuResult {
    result.err().unwrap_or(CuResult::SUCCESS)
}
