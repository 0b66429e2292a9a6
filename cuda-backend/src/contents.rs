//! The device's part of parking: it saves and restores the contents of parked memory.

use crate::context_wait::wait_for_context;
use crate::device::CudaDevice;
use crate::spare_events;
#[cfg(doc)]
use cachalot_core::ErrorKind;
use cachalot_core::{Contents, CopyMark, DevicePtr, DeviceResult, Saved, StreamId, StreamOrder};
use std::io;
use std::path::PathBuf;

impl CudaDevice {
    /// Sets how many bytes of pinned host memory are kept for the next park when no contents of
    /// parked memory are left. The initial value is 0. Gives excess memory back.
    ///
    /// # Errors
    /// The first error of the driver or the system. Memory that could not be given back is lost.
    pub fn retain_host_memory(&self, bytes: u64) -> DeviceResult<()> {
        self.store.retain(&self.context, bytes)
    }

    /// Keeps the contents of later parks in files without names in a folder, and no longer in
    /// memory of the host. `None` means in memory of the host, which is the default. The folder is
    /// checked by the next park. Contents that are kept already remain where they are.
    ///
    /// A park takes the room for its file before anything is moved. A park and a wake need up to 64
    /// MiB of pinned memory while they last. A forked child that does not start another program
    /// holds the file, too.
    pub fn keep_contents_in(&self, folder: Option<PathBuf>) {
        self.store.keep_in(folder);
    }

    /// Returns the last error of a file for contents since the last call or the last park. The
    /// error names the folder. The call that failed because of it has returned
    /// [`OutOfMemory`](ErrorKind::OutOfMemory) if the folder does not have the room, and otherwise
    /// an error with the code 304.
    pub fn take_contents_error(&self) -> Option<io::Error> {
        self.store.take_file_error()
    }

    /// Returns the bytes of pinned host memory for contents: all of them, and those that have no
    /// contents at present.
    pub fn host_memory_for_contents(&self) -> (u64, u64) {
        self.store.bytes()
    }

    /// Starts to copy the part of kept contents that starts at the offset `from` and has `bytes`
    /// bytes to the mapped memory at `at`, so that the memory after the part need not be mapped
    /// yet. The copy ends as those of [`restore`](Contents::restore) do.
    ///
    /// # Errors
    /// Any error of the device. `CUDA_ERROR_INVALID_VALUE` if the contents end before the part.
    pub fn restore_part(&self, saved: Saved, from: u64, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.store.restore(&self.context, saved, from, at, bytes)
    }

    /// Waits for all work of the context with an event after this work. Meanwhile, calls of other
    /// threads continue. A call that frees memory would block them.
    pub(crate) fn wait_for_all_work(&self) -> DeviceResult<()> {
        if self.driver().ctx_record_event.is_none() {
            if wait_for_context(&self.context, self.streams.kept_bytes())? {
                return Ok(());
            }
            // This may break a capture that the allocator cannot know about, as the event would.
            // SAFETY: takes no arguments.
            return self.with_context(|driver| unsafe { driver.ctx_synchronize() });
        }
        let event = spare_events::create(&self.context)?;
        let recorded = self.with_context(|driver| {
            // SAFETY: takes no host pointers; the context is this device's, and the event is new.
            unsafe { driver.ctx_record_event(self.cu_context(), event.handle) }
        });
        let waited = recorded.and_then(|()| self.wait(event.number()));
        waited.and(spare_events::destroy(&self.context, event))
    }
}

impl Contents for CudaDevice {
    fn lie_elsewhere(&self) -> bool {
        !self.shares_host_memory || self.store.keeps_in_files()
    }

    fn prepare(&self, bytes: u64, largest: u64) -> DeviceResult<()> {
        self.store.prepare(&self.context, bytes, largest, self.numa_node_of_gpu())
    }

    fn end_saves(&self) {
        self.store.end_saves(&self.context);
    }

    fn save(&self, at: DevicePtr, bytes: u64) -> DeviceResult<Saved> {
        self.store.save(&self.context, at, bytes)
    }

    fn restore(&self, saved: Saved, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.store.restore(&self.context, saved, 0, at, bytes)
    }

    fn zero(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.store.zero(&self.context, at, bytes)
    }

    fn copy(&self, from: DevicePtr, to: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let stream = self.store.copies.stream(&self.context)?;
        self.context.call(|driver| {
            // SAFETY: takes no host pointers; the allocator has mapped both ranges, and no work
            // uses them before the copy has ended.
            unsafe { driver.memcpy_dtod_async(to.0, from.0, bytes as usize, stream) }
        })
    }

    fn fill(&self, stream: StreamId, at: DevicePtr, bytes: u64, value: u8) -> DeviceResult<()> {
        let handle = self.streams.handle(stream);
        let on = handle.map_or_else(|| self.store.copies.stream(&self.context), Ok)?;
        self.context.call(|driver| {
            // SAFETY: takes no host pointers; the allocator has mapped the range, and orders every
            // use after the fill.
            unsafe { driver.memset_d8_async(at.0, value, bytes as usize, on) }
        })?;
        if handle.is_some() {
            return Ok(());
        }
        self.context.call(|driver| {
            // SAFETY: takes no host pointers; the stream is this device's own.
            unsafe { driver.stream_synchronize(on) }
        })
    }

    fn read(&self, at: DevicePtr, into: &mut [u8]) -> DeviceResult<()> {
        self.context.call(|driver| {
            // SAFETY: `into` has room for its length, and no other thread uses it.
            unsafe { driver.memcpy_dtoh(into.as_mut_ptr().cast(), at.0, into.len()) }
        })
    }

    fn mark(&self) -> DeviceResult<CopyMark> {
        self.store.copies.mark(&self.context)
    }

    fn finish(&self, mark: CopyMark) -> DeviceResult<()> {
        self.store.copies.finish(&self.context, mark)
    }

    fn forget(&self, saved: Saved) {
        self.store.forget(&self.context, saved);
    }
}
