//! `cuMemAllocAsync`, `cuMemFreeAsync` and `cuMemAllocFromPoolAsync`: memory in the order of a
//! stream.
//!
//! Memory of a device's default pool is served. A block belongs to the stream of the request. A
//! free on another stream counts as a use by the freeing stream. While any stream captures,
//! requests are passed on: the driver makes nodes of a graph of them, or refuses them.

use crate::ledger::Kind;
use crate::serve::process::{MemoryAt, Process, is_foreign};
use crate::serve::served::{Served, code_of};
use cachalot_core::DevicePtr;
use cachalot_cuda::driver::types::{CuCaptureStatus, CuContext, CuDevice, CuDevicePtr, CuMemoryPool, CuStream};
use cachalot_cuda::{CuResult, HOST_STREAM};
use std::sync::Arc;

impl Process {
    /// `cuMemAllocAsync`.
    ///
    /// # Safety
    /// `address` is null or writable, and the stream lives.
    pub unsafe fn mem_alloc_async(&self, address: *mut CuDevicePtr, bytes: usize, stream: CuStream) -> CuResult {
        // SAFETY: the arguments are the caller's.
        unsafe { self.alloc_on(address, bytes, stream, None) }
    }

    /// `cuMemAllocFromPoolAsync`.
    ///
    /// # Safety
    /// `address` is null or writable, and the pool and the stream live.
    pub unsafe fn mem_alloc_from_pool_async(
        &self,
        address: *mut CuDevicePtr,
        bytes: usize,
        pool: CuMemoryPool,
        stream: CuStream,
    ) -> CuResult {
        // SAFETY: the arguments are the caller's.
        unsafe { self.alloc_on(address, bytes, stream, Some(pool)) }
    }

    /// Serves a request on a stream, or passes the request on.
    ///
    /// # Safety
    /// As for the callers.
    unsafe fn alloc_on(
        &self,
        address: *mut CuDevicePtr,
        bytes: usize,
        stream: CuStream,
        pool: Option<CuMemoryPool>,
    ) -> CuResult {
        if !address.is_null()
            && bytes != 0
            && !self.frees.is_capturing()
            && let Some(answer) = self.serve_on(bytes as u64, stream, pool)
        {
            return match answer {
                Ok(ptr) => {
                    // SAFETY: the caller vouches for a non-null address.
                    unsafe { address.write(ptr.0) };
                    CuResult::SUCCESS
                }
                Err(code) => code,
            };
        }
        let call = || match pool {
            // SAFETY: the arguments are the caller's.
            Some(pool) => unsafe { self.real.mem_alloc_from_pool_async(address, bytes, pool, stream) },
            // SAFETY: as above.
            None => unsafe { self.real.mem_alloc_async(address, bytes, stream) },
        };
        if address.is_null() || bytes == 0 || self.is_capturing(stream) != Ok(false) {
            // A node of a graph takes its memory when the graph runs.
            self.pass();
            // SAFETY: the driver has written the address after success.
            return unsafe { self.take_uncounted(Kind::Graph, address, CuContext::NULL, call) };
        }
        // SAFETY: the driver has written the address after success.
        unsafe { self.pass_request(Kind::Pool, address, bytes as u64, Some(stream), pool, call) }
    }

    /// Serves a request on a stream. `None` passes the request on.
    fn serve_on(
        &self,
        bytes: u64,
        stream: CuStream,
        pool: Option<CuMemoryPool>,
    ) -> Option<Result<DevicePtr, CuResult>> {
        match self.is_capturing(stream) {
            Ok(false) => {}
            Ok(true) | Err(_) => return None,
        }
        let admitted = self.admit();
        if !admitted.is_success() {
            return Some(Err(admitted));
        }
        self.with_stream(stream, |served| {
            let device = served.ordinal();
            let serves = match pool {
                Some(pool) => self.pools.serves(self.real, device, pool),
                None => self.pools.serves_current(self.real, device),
            };
            serves.then(|| self.alloc_ordered(served, bytes, stream))
        })?
    }

    /// Serves a request on a stream of a context.
    fn alloc_ordered(&self, served: &Arc<Served>, bytes: u64, stream: CuStream) -> Result<DevicePtr, CuResult> {
        served.set_ordered();
        let cuda = served.device().cuda();
        let number = cuda.stream_id(stream).map_err(|error| CuResult(error.code))?;
        let ptr = self.request(served, bytes, number)?;
        if self.options.zero {
            // In the order of the stream, in front of the program's work there.
            // SAFETY: the block is new, and belongs to the stream.
            let cleared = unsafe { cuda.fill(ptr, 0, bytes, stream) };
            if let Err(error) = cleared {
                let _ = served.allocator().free(ptr);
                return Err(CuResult(error.code));
            }
        }
        Ok(ptr)
    }

    /// `cuMemFreeAsync`. Memory of `cuMemAlloc` may be freed here as well, and serves again when
    /// all work submitted before the call is complete.
    ///
    /// # Safety
    /// The stream lives, and no work after the call uses the memory.
    pub unsafe fn mem_free_async(&self, address: CuDevicePtr, stream: CuStream) -> CuResult {
        // SAFETY: the arguments are the caller's.
        let pass = || unsafe { self.real.mem_free_async(address, stream) };
        if address == 0 || self.options.observe {
            self.observe_given(address);
            return self.give_address(address, pass);
        }
        let (served, block) = match self.memory_at(address) {
            MemoryAt::Block(served, block) => (served, block),
            MemoryAt::Free => return CuResult::INVALID_VALUE,
            MemoryAt::Foreign => {
                self.pass();
                return self.give_address(address, pass);
            }
        };
        match self.is_capturing(stream) {
            Ok(false) => {}
            // A graph frees only what it has allocated.
            Ok(true) => return CuResult::INVALID_VALUE,
            Err(code) => return code,
        }
        let admitted = self.admit();
        if !admitted.is_success() {
            return admitted;
        }
        let ptr = DevicePtr(address);
        if block.base != ptr {
            return CuResult::INVALID_VALUE;
        }
        self.notes.block_freed(self.real, &self.handles, address);
        if self.options.ledger {
            served.device().charge().unbook(Kind::Served, address);
        }
        let freed = if block.stream == HOST_STREAM || self.is_green_default(stream) {
            if let Some(context) = self.current().filter(|&context| context != served.context()) {
                // As for a free of the host: no call may have shown the context before.
                self.frees.add_context(self.contexts.root(context));
            }
            served.allocator().free_at(ptr, self.frees.number())
        } else {
            let number = match served.device().cuda().stream_id(stream) {
                Ok(number) => number,
                Err(error) => return CuResult(error.code),
            };
            let used = if number == block.stream { Ok(()) } else { served.allocator().record_stream(ptr, number) };
            used.and_then(|()| served.allocator().free(ptr))
        };
        match freed {
            Ok(()) => CuResult::SUCCESS,
            // Another thread was faster, and its segment has gone back to the driver.
            Err(error) if is_foreign(&error) => CuResult::INVALID_VALUE,
            Err(error) => code_of(error),
        }
    }

    /// Calls `act` with the allocator of a stream's context. `None` where `act` is not called,
    /// because the context cannot be served.
    fn with_stream<T>(&self, stream: CuStream, act: impl FnOnce(&Arc<Served>) -> T) -> Option<T> {
        let current = self.current()?;
        let mut context = current;
        // The default streams belong to the current context, and those of a green context are not
        // those of its root.
        if self.is_green_default(stream) {
            return None;
        }
        if stream.0 > CuStream::PER_THREAD.0 {
            let mut of_stream = CuContext::NULL;
            // SAFETY: `of_stream` outlives the call, which writes one handle to it.
            let code = unsafe { self.real.stream_get_ctx(stream, &raw mut of_stream) };
            if code.is_success() && !of_stream.is_null() {
                context = of_stream;
            }
        }
        if context == current {
            return self.with_current(act);
        }
        // A context is opened by a request while it is current.
        self.contexts.with(context, act).ok()
    }

    /// Returns whether a stream is a default stream of a green context.
    fn is_green_default(&self, stream: CuStream) -> bool {
        if stream.0 > CuStream::PER_THREAD.0 || !self.contexts.has_greens() {
            return false;
        }
        let current = self.current();
        self.contexts.green(|green| Some(green.context) == current).is_some()
    }

    /// Returns whether a stream captures.
    ///
    /// # Errors
    /// The driver's code for a dead stream, and for a failed context.
    fn is_capturing(&self, stream: CuStream) -> Result<bool, CuResult> {
        let mut status = CuCaptureStatus::NONE;
        // SAFETY: `status` outlives the call, which writes one number to it.
        let code = unsafe { self.real.stream_is_capturing(stream, &raw mut status) };
        match code {
            CuResult::SUCCESS => Ok(status != CuCaptureStatus::NONE),
            // The legacy stream while a blocking stream captures.
            CuResult::STREAM_CAPTURE_IMPLICIT => Ok(true),
            CuResult::CALL_REQUIRES_NEWER_DRIVER => Ok(false),
            code => Err(code),
        }
    }

    /// `cuDeviceSetMemPool`.
    ///
    /// # Safety
    /// The pool lives.
    pub unsafe fn device_set_mem_pool(&self, device: CuDevice, pool: CuMemoryPool) -> CuResult {
        // SAFETY: the arguments are the caller's.
        let code = unsafe { self.real.device_set_mem_pool(device, pool) };
        if code.is_success() {
            self.pools.chosen(self.real, device, pool);
        }
        code
    }
}
