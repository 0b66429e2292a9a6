//! `cuMemAlloc`, `cuMemFree`, `cuMemAllocPitch`, `cuMemGetInfo` and `cuDeviceTotalMem`: memory
//! complete for the host.

use crate::charge::{DeviceCharge, DriverFigures, taken_by};
use crate::ledger::Kind;
use crate::serve::frees::Waited;
use crate::serve::process::{Process, is_foreign};
use crate::serve::served::{DEVICE, Served, code_of};
use crate::sleep::AwakeGuard;
use cachalot_core::{DevicePtr, Error, MemoryInfo, StreamId};
use cachalot_cuda::driver::types::{CuContext, CuDevice, CuDevicePtr};
use cachalot_cuda::{CuResult, HOST_STREAM};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

/// Greatest number of bytes of an element of `cuMemAllocPitch`.
const ELEMENTS: [u32; 3] = [4, 8, 16];

impl Process {
    /// `cuMemAlloc_v2`. Writes an address, usable on every stream at once.
    ///
    /// # Safety
    /// `address` is null or writable.
    #[inline]
    pub unsafe fn mem_alloc(&self, address: *mut CuDevicePtr, bytes: usize) -> CuResult {
        let admitted = self.admit();
        if !admitted.is_success() {
            return admitted;
        }
        if address.is_null() || bytes == 0 {
            return CuResult::INVALID_VALUE;
        }
        match self.with_current(|served| self.request(served, bytes as u64, HOST_STREAM)) {
            Some(Ok(ptr)) => {
                // SAFETY: the caller vouches for a non-null address.
                unsafe { address.write(ptr.0) };
                CuResult::SUCCESS
            }
            Some(Err(code)) => code,
            None => {
                // SAFETY: the arguments are the caller's.
                let call = || unsafe { self.real.mem_alloc(address, bytes) };
                // SAFETY: the driver has written the address after success.
                unsafe { self.pass_request(Kind::Plain, address, bytes as u64, None, None, call) }
            }
        }
    }

    /// Serves a request for memory on a stream, and clears the memory if the options say so.
    #[inline]
    pub(super) fn request(&self, served: &Arc<Served>, bytes: u64, stream: StreamId) -> Result<DevicePtr, CuResult> {
        let inside = self.enter()?;
        let (ptr, _inside) = match served.allocator().malloc(DEVICE, bytes, stream) {
            Ok(ptr) => (ptr, inside),
            Err(error) => self.request_in_turn(served, bytes, stream, error, inside)?,
        };
        if self.options.zero
            && stream == HOST_STREAM
            && let Err(code) = served.clear(ptr, bytes)
        {
            // The block was not handed out: no work uses it.
            let _ = served.allocator().free(ptr);
            return Err(code);
        }
        if self.options.ledger {
            served.device().charge().book(Kind::Served, bytes, ptr.0);
        }
        Ok(ptr)
    }

    /// Repeats a request after a failure. A member of a group that parks its members waits for its
    /// turn.
    #[cold]
    fn request_in_turn(
        &self,
        served: &Arc<Served>,
        bytes: u64,
        stream: StreamId,
        error: Error,
        inside: AwakeGuard,
    ) -> Result<(DevicePtr, AwakeGuard), CuResult> {
        let mut turn = self.begin_turn();
        let (mut inside, mut last) = (inside, error);
        loop {
            match self.request_again(served, bytes, stream, last) {
                Ok(ptr) => return Ok((ptr, inside)),
                Err(error) => last = error,
            }
            let Some(turn) = turn.as_mut().filter(|_| matches!(last, Error::OutOfMemory(_))) else {
                served.device().charge().tell_refusal();
                self.recorder.write(served, &last);
                return Err(code_of(last));
            };
            let Some(entered) = self.wait_in_turn(turn, inside, served.device().charge(), taken_by(bytes))? else {
                return Err(code_of(last));
            };
            inside = entered;
        }
    }

    /// Repeats a request after a failure: whenever more frees are complete, and after the caches of
    /// the device's other contexts have gone back to the driver.
    fn request_again(
        &self,
        served: &Arc<Served>,
        bytes: u64,
        stream: StreamId,
        error: Error,
    ) -> Result<DevicePtr, Error> {
        let mut last = error;
        let (mut waited, mut emptied) = (Waited::Advanced, false);
        while matches!(last, Error::OutOfMemory(_)) {
            if waited == Waited::Advanced {
                // Once more also if no free waits: another request may have seen the frees complete
                // since this one looked.
                waited = self.frees.wait(self.real);
                served.device().advance(self.frees.reached());
            } else if emptied
                || !(self.empty_caches(served.ordinal(), served.context())
                    | self.finds_room(served.ordinal(), taken_by(bytes)))
            {
                break;
            } else {
                emptied = true;
            }
            match served.allocator().malloc(DEVICE, bytes, stream) {
                Ok(ptr) => return Ok(ptr),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Gives the caches of a device's contexts but one back to the driver. Returns whether another
    /// context is served.
    pub(super) fn empty_caches(&self, device: CuDevice, but: CuContext) -> bool {
        let mut any = false;
        for other in self.contexts.all() {
            if other.ordinal() == device && other.context() != but {
                other.device().advance(self.frees.reached());
                // A failure leaves the cache of that context as it was, or smaller.
                let _ = other.allocator().empty_cache(DEVICE);
                any = true;
            }
        }
        any
    }

    /// `cuMemFree_v2`. The block serves again when all work submitted by the process before the
    /// call is complete. Returns at once, except with `sync_free`.
    ///
    /// # Safety
    /// None beyond the driver's: no later work uses the memory.
    #[inline]
    pub unsafe fn mem_free(&self, address: CuDevicePtr) -> CuResult {
        let admitted = self.admit();
        if !admitted.is_success() || address == 0 {
            return admitted;
        }
        if self.options.observe {
            return self.pass_free(address);
        }
        self.notes.block_freed(self.real, &self.handles, address);
        // Most programs free in the context that they allocate in. None is opened for a free.
        let own = self
            .current()
            .and_then(|context| self.contexts.with(context, |served| self.free_of(served, address)).ok().flatten());
        own.unwrap_or_else(|| self.free_elsewhere(address))
    }

    /// Frees a block of a context. `None` if the address is not the context's.
    #[inline]
    fn free_of(&self, served: &Served, address: CuDevicePtr) -> Option<CuResult> {
        let ptr = DevicePtr(address);
        if self.options.ledger {
            // Before the free: another thread may get the address at once.
            served.device().charge().unbook(Kind::Served, address);
        }
        let freed = if self.options.sync_free {
            free_after_wait(served, ptr)
        } else {
            // The number is read first: it stands for the work before this call.
            let number = self.frees.number();
            served.allocator().free_at(ptr, number)
        };
        match freed {
            Ok(()) => Some(CuResult::SUCCESS),
            Err(error) if is_foreign(&error) => None,
            Err(error) => Some(code_of(error)),
        }
    }

    /// Frees an address of another context, or of the driver's own memory.
    #[cold]
    fn free_elsewhere(&self, address: CuDevicePtr) -> CuResult {
        // The context may have been made by a call that no library sees, and have work on the
        // memory.
        if let Some(context) = self.current() {
            self.frees.add_context(self.contexts.root(context));
        }
        self.contexts
            .all()
            .iter()
            .find_map(|served| self.free_of(served, address))
            .unwrap_or_else(|| self.pass_free(address))
    }

    /// `cuMemAllocPitch_v2`: rows at the driver's pitch. The first call of a process asks the
    /// driver for the pitch of an element. Every pitch is a multiple.
    ///
    /// # Safety
    /// `address` and `pitch` are null or writable.
    pub unsafe fn mem_alloc_pitch(
        &self,
        address: *mut CuDevicePtr,
        pitch: *mut usize,
        width: usize,
        height: usize,
        element: u32,
    ) -> CuResult {
        if address.is_null() || pitch.is_null() || width == 0 || height == 0 || !ELEMENTS.contains(&element) {
            return CuResult::INVALID_VALUE;
        }
        let step = if self.options.observe { None } else { self.pitch_step() };
        let sizes = step.and_then(|step| {
            let row = width.checked_next_multiple_of(step)?;
            Some((row, row.checked_mul(height)?))
        });
        let Some((row, bytes)) = sizes else {
            // SAFETY: the arguments are the caller's.
            let call = || unsafe { self.real.mem_alloc_pitch(address, pitch, width, height, element) };
            let bytes = (width as u64).saturating_mul(height as u64);
            // SAFETY: the driver has written the address after success.
            return unsafe { self.pass_request(Kind::Plain, address, bytes, None, None, call) };
        };
        // SAFETY: the caller vouches for `address`.
        let code = unsafe { self.mem_alloc(address, bytes) };
        if code.is_success() {
            // SAFETY: the caller vouches for a non-null `pitch`.
            unsafe { pitch.write(row) };
        }
        code
    }

    /// Returns the step of pitches: the driver's pitch for a row of 1 byte. `None` if the
    /// driver cannot tell, or a context refuses.
    fn pitch_step(&self) -> Option<usize> {
        static STEP: AtomicUsize = AtomicUsize::new(0);
        let known = STEP.load(Ordering::Relaxed);
        if known != 0 {
            return Some(known);
        }
        let (mut row, mut step) = (0, 0);
        if !self.admit().is_success() {
            return None;
        }
        // SAFETY: both variables outlive the call, which writes one integer to each.
        let code = unsafe { self.real.mem_alloc_pitch(&raw mut row, &raw mut step, 1, 1, ELEMENTS[0]) };
        if !code.is_success() {
            return None;
        }
        // SAFETY: the row is new, and no other code has its address. The driver waits here, once.
        let _ = unsafe { self.real.mem_free(row) };
        if !step.is_power_of_two() {
            return None;
        }
        STEP.store(step, Ordering::Relaxed);
        Some(step)
    }

    /// `cuMemGetInfo_v2`. Memory held for later requests counts as free, because a request can
    /// have the memory. With a limit, of the options or of a control group, the limit is the total.
    ///
    /// # Safety
    /// `free` and `total` are null or writable.
    pub unsafe fn mem_get_info(&self, free: *mut usize, total: *mut usize) -> CuResult {
        let figures = match DriverFigures::of_current(self.real) {
            Ok(figures) => figures,
            Err(code) => return code,
        };
        let (mut most, mut could) = (figures.total, figures.total - figures.used);
        if let Some(device) = self.current_device() {
            let of_device = |served: &&Arc<Served>| served.ordinal() == device;
            let unused: u64 = self.contexts.all().iter().filter(of_device).map(|served| served.unused()).sum();
            let charge = self.charge.of_device(self.real, device);
            MemoryInfo { free: could, total: most } = charge.groups().within(MemoryInfo { free: could, total: most });
            if let Some(ledger) = charge.ledger() {
                ledger.driver(figures.used, figures.total);
            }
            charge.bound(figures.used);
            self.measure_pools();
            if let Some(budget) = charge.budget() {
                most = most.min(budget.limit);
                could = could.min(budget.available);
            }
            // Parked memory wakes before a request is served.
            let of_device = |(of, _): &&(Arc<DeviceCharge>, u64)| Arc::ptr_eq(of, &charge);
            let parked: u64 = self.parked_needs().iter().filter(of_device).map(|(_, bytes)| bytes).sum();
            could = could.saturating_add(unused).saturating_sub(parked).min(most);
        }
        // Programs leave out what they do not want.
        if !free.is_null() {
            // SAFETY: the caller vouches for a non-null address.
            unsafe { free.write(could as usize) };
        }
        if !total.is_null() {
            // SAFETY: the caller vouches for a non-null address.
            unsafe { total.write(most as usize) };
        }
        CuResult::SUCCESS
    }

    /// `cuDeviceTotalMem_v2`. With a limit, the limit is the total, as for `cuMemGetInfo`: programs
    /// take a share of it.
    ///
    /// # Safety
    /// `bytes` is null or writable.
    pub unsafe fn device_total_mem(&self, bytes: *mut usize, device: CuDevice) -> CuResult {
        // SAFETY: guaranteed by the caller.
        let code = unsafe { self.real.device_total_mem(bytes, device) };
        if !code.is_success() || !self.options.has_limit() {
            return code;
        }
        if let Some(budget) = self.charge.of_device(self.real, device).budget() {
            // SAFETY: the driver has just written the number.
            let total = unsafe { bytes.read() };
            // SAFETY: as above.
            unsafe { bytes.write(total.min(budget.limit as usize)) };
        }
        code
    }

    /// Returns what NVML is to say of a device: the total and the free bytes. See
    /// [`Charge::within`](crate::charge::Charge::within).
    pub fn within_limit(&self, uuid: &str, total: u64, free: u64) -> Option<[u64; 2]> {
        self.charge.within(uuid, total, free)
    }

    /// Passes a free on.
    pub(super) fn pass_free(&self, address: CuDevicePtr) -> CuResult {
        self.pass();
        self.observe_given(address);
        // SAFETY: takes no host pointers; the address is the caller's.
        self.give_address(address, || unsafe { self.real.mem_free(address) })
    }
}

/// Waits for the work of a block's context as the driver's `cuMemFree` does, and frees the block.
fn free_after_wait(served: &Served, ptr: DevicePtr) -> Result<(), Error> {
    let block = served.allocator().base_of(ptr)?;
    if block.base == ptr {
        served.wait()?;
    }
    served.allocator().free(ptr)
}
