//! `cuIpcGetMemHandle`, `cuIpcOpenMemHandle` and `cuIpcCloseMemHandle`: memory of other processes.
//!
//! A block at the start of a segment has the driver's own handle, which any process can open. Every
//! block of more than 1 MiB does, unless the device was short of memory. Another block has a handle
//! of the library ([`published`]).

use crate::serve::process::{MemoryAt, Process};
use crate::serve::published::{self, Opened, PublishedBlock};
use cachalot_core::Allocation;
use cachalot_cuda::driver::types::{CuDevicePtr, CuIpcMemHandle};
use cachalot_cuda::{CuResult, HOST_STREAM};
use core::ffi::c_uint;

impl Process {
    /// `cuIpcGetMemHandle`.
    ///
    /// # Safety
    /// `handle` is null or writable.
    pub unsafe fn ipc_get_mem_handle(&self, handle: *mut CuIpcMemHandle, address: CuDevicePtr) -> CuResult {
        let block = match self.memory_at(address) {
            // SAFETY: the arguments are the caller's.
            MemoryAt::Foreign => return unsafe { self.real.ipc_get_mem_handle(handle, address) },
            // Memory of a pool has no legacy handle.
            MemoryAt::Block(_, block) if block.stream == HOST_STREAM && !handle.is_null() => block,
            MemoryAt::Block(..) | MemoryAt::Free => return CuResult::INVALID_VALUE,
        };
        // SAFETY: `handle` is not null, and the caller vouches for it.
        let code = unsafe { self.real.ipc_get_mem_handle(handle, block.segment.0) };
        if !code.is_success() || block.base == block.segment {
            return code;
        }
        // SAFETY: the driver has written the handle.
        let segment = unsafe { handle.read() };
        let Some(own) = self.publish(&block, segment) else { return CuResult::NOT_SUPPORTED };
        // SAFETY: `handle` is not null, and the caller vouches for it.
        unsafe { handle.write(own) };
        CuResult::SUCCESS
    }

    /// Publishes a block. `None` if the user's files cannot be written.
    fn publish(&self, block: &Allocation, segment: CuIpcMemHandle) -> Option<CuIpcMemHandle> {
        let (offset, bytes) = (block.base.0 - block.segment.0, block.requested);
        let handle = self.handles.publish(block.base.0, &PublishedBlock { segment, offset, bytes }).ok()?;
        // The note has the handle withdrawn when the block is freed.
        self.notes.publish(block.base.0);
        Some(handle)
    }

    /// `cuIpcOpenMemHandle_v2`.
    ///
    /// # Safety
    /// `address` is null or writable.
    pub unsafe fn ipc_open_mem_handle(
        &self,
        address: *mut CuDevicePtr,
        handle: CuIpcMemHandle,
        flags: c_uint,
    ) -> CuResult {
        let block = match published::read(&handle) {
            // SAFETY: the arguments are the caller's.
            None => return unsafe { self.real.ipc_open_mem_handle(address, handle, flags) },
            Some(Err(_)) => return CuResult::INVALID_VALUE,
            Some(Ok(_)) if address.is_null() => return CuResult::INVALID_VALUE,
            Some(Ok(block)) => block,
        };
        let mut segment = 0;
        // SAFETY: `segment` outlives the call, which writes one address to it.
        let code = unsafe { self.real.ipc_open_mem_handle(&raw mut segment, block.segment, flags) };
        if !code.is_success() {
            return code;
        }
        let Some(base) = self.within(segment, &block) else {
            // SAFETY: the segment was opened above, and no other code has its address.
            let _ = unsafe { self.real.ipc_close_mem_handle(segment) };
            return CuResult::INVALID_VALUE;
        };
        let mut opened = self.handles.opened();
        opened.entry(base).or_insert(Opened { segment, bytes: block.bytes, times: 0 }).times += 1;
        // SAFETY: `address` is not null, and the caller vouches for it.
        unsafe { address.write(base) };
        CuResult::SUCCESS
    }

    /// Returns the first address of a published block in the opened segment. `None` if the segment
    /// is too short for the block.
    fn within(&self, segment: CuDevicePtr, block: &PublishedBlock) -> Option<CuDevicePtr> {
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: both variables outlive the call, which writes one integer to each.
        let code = unsafe { self.real.mem_get_address_range(&raw mut base, &raw mut bytes, segment) };
        let end = block.offset.checked_add(block.bytes)?;
        (code.is_success() && base == segment && end <= bytes as u64).then_some(segment + block.offset)
    }

    /// `cuIpcCloseMemHandle`.
    ///
    /// # Safety
    /// None beyond the driver's: no work uses the memory any longer.
    pub unsafe fn ipc_close_mem_handle(&self, address: CuDevicePtr) -> CuResult {
        let mut opened = self.handles.opened();
        // The driver counts each opening of the segment.
        let segment = opened.get(&address).map_or(address, |block| block.segment);
        // SAFETY: takes no host pointers; the address is the caller's, or that of its segment.
        let code = unsafe { self.real.ipc_close_mem_handle(segment) };
        if code.is_success()
            && let Some(block) = opened.get_mut(&address)
        {
            block.times -= 1;
            if block.times == 0 {
                opened.remove(&address);
            }
        }
        code
    }

    /// Returns the start and the bytes of the opened block of another process around an
    /// address.
    pub(super) fn opened_around(&self, address: CuDevicePtr) -> Option<(CuDevicePtr, u64)> {
        let opened = self.handles.opened();
        opened
            .iter()
            .find(|(base, block)| (**base..**base + block.bytes).contains(&address))
            .map(|(base, block)| (*base, block.bytes))
    }
}
