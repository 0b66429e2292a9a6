//! A device as the keeper of the contents of parked memory.

use crate::context_wait::wait_for_context;
use crate::device::CudaDevice;
use crate::driver::types::{CuEvent, CuEventFlags};
use cachalot_core::{Contents, CopyMark, DevicePtr, DeviceResult, ErrorKind, Saved};

impl CudaDevice {
    /// Sets the bytes of pinned host memory that stay when all contents of parked memory are gone, for the
    /// next park. The initial value is 0. Gives excess memory back.
    ///
    /// # Errors
    /// The first error of the driver or the system. Memory whose return failed is lost.
    pub fn retain_host_memory(&self, bytes: u64) -> DeviceResult<()> {
        self.store.retain(&self.context, bytes)
    }

    /// Returns the bytes of pinned host memory for contents: all bytes, and the bytes without contents at
    /// present.
    pub fn host_memory_for_contents(&self) -> (u64, u64) {
        self.store.bytes()
    }

    /// Waits for all work of the context with an event behind the work. Calls of other threads continue
    /// during the wait. A call that frees memory would block them.
    pub(crate) fn wait_for_all_work(&self) -> DeviceResult<()> {
        if self.driver().ctx_record_event.is_none() {
            let waited = wait_for_context(&self.context, self.streams.kept_bytes());
            if waited.is_err_and(|error| error.kind == ErrorKind::OutOfMemory) {
                // This may break a capture that the allocator cannot know of, as the event would.
                // SAFETY: takes no arguments.
                return self.with_context(|driver| unsafe { driver.ctx_synchronize() });
            }
            return waited;
        }
        let mut event = CuEvent::NULL;
        self.with_context(|driver| {
            // SAFETY: `event` outlives the call, which writes one handle to it.
            unsafe { driver.event_create(&raw mut event, CuEventFlags::DISABLE_TIMING) }
        })?;
        let waited = self
            .with_context(|driver| {
                // SAFETY: takes no host pointers; the context is this device's, and the event is new.
                unsafe { driver.ctx_record_event(self.cu_context(), event) }
            })
            .and_then(|()| {
                self.with_context(|driver| {
                    // SAFETY: takes no host pointers; the event was made above.
                    unsafe { driver.event_synchronize(event) }
                })
            });
        let destroyed = self.with_context(|driver| {
            // SAFETY: takes no host pointers; nothing else has the event.
            unsafe { driver.event_destroy(event) }
        });
        waited.and(destroyed)
    }
}

impl Contents for CudaDevice {
    fn prepare(&self, bytes: u64, _largest: u64) -> DeviceResult<()> {
        // Contents of any length lie in one region.
        self.store.prepare(bytes, self.numa_node_of_gpu())
    }

    fn end_saves(&self) {
        self.store.end_saves(&self.context);
    }

    fn save(&self, at: DevicePtr, bytes: u64) -> DeviceResult<Saved> {
        self.store.save(&self.context, at, bytes)
    }

    fn restore(&self, saved: Saved, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.store.restore(&self.context, saved, at, bytes)
    }

    fn zero(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.store.zero(&self.context, at, bytes)
    }

    fn mark(&self) -> DeviceResult<CopyMark> {
        self.store.mark(&self.context)
    }

    fn finish(&self, mark: CopyMark) -> DeviceResult<()> {
        self.store.finish(&self.context, mark)
    }

    fn forget(&self, saved: Saved) {
        self.store.forget(&self.context, saved);
    }
}
