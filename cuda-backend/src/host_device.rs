//! Pinned memory of the host as its own device, for copies between the host and a GPU.
//!
//! The memory is mapped in huge pages, touched by several threads, and then registered with the
//! driver. `cuMemHostAlloc` touches pages on one thread, and takes ten times as long. Streams,
//! events and captures are those of the GPU.
//!
//! Blocks of a GPU are freed in the order of a stream. The host has no such order, because it may
//! write to a block as soon as a request returns. So blocks of the host belong to [`HOST_STREAM`],
//! on which no work is ever queued, and each stream that copies from or to a block is recorded as a
//! user of the block.

use crate::device::{CudaDevice, DeviceOptions};
use crate::driver::Driver;
use crate::driver::result::CuResult;
use crate::host_memory::{self, Failure};
use crate::host_stream::{HOST_STREAM, HostStream};
use crate::pinned;
use cachalot_core::forward::{ForwardHost, ForwardStreamOrder, Forwarder};
use cachalot_core::{
    Contents, CopyMark, DevicePtr, DeviceResult, MemoryInfo, PoolId, Saved, Segments, StreamId, StreamOrder,
    VirtualMemory,
};
use core::ffi::c_void;
use core::ptr::NonNull;

/// The settings that suit host memory, in the syntax of [`Config`](cachalot_core::Config), under
/// the caching policy: exact segments, and at most 1 % more memory held than was ever in use.
pub const HOST_SETTINGS: &str = "compact:0.01,exact_segments:True";

/// Pinned memory of the host, on the NUMA node of a GPU.
///
/// Every GPU of the process may copy from and to the memory (`CU_MEMHOSTREGISTER_PORTABLE`), and
/// kernels may use it at the host's address if the driver has unified addressing. The rules are
/// those of [`CudaDevice`]: any thread may call any method, and after a sticky error no driver is
/// called.
///
/// A request on [`HOST_STREAM`] returns a block that the host may write to at once. A request on
/// another stream is served as on a GPU: only work that is queued on that stream may use the block.
/// `cachalot::open_host` opens an allocator over such devices.
///
/// ```no_run
/// use cachalot_core::Segments;
/// use cachalot_cuda::{Driver, HostDevice};
///
/// let host = HostDevice::open(Driver::load()?, 0)?;
/// let segment = host.obtain(38_535_168)?;
/// host.release(segment, 38_535_168)?;
/// host.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct HostDevice {
    /// The GPU that makes the copies. Its events show when they are complete.
    cuda: HostStream,
    /// The NUMA node of the GPU, if the system has several nodes.
    node: Option<u32>,
}

impl HostDevice {
    /// Opens host memory for the GPU with the given ordinal, in the GPU's primary context.
    ///
    /// # Errors
    /// As for [`open_with`](Self::open_with).
    pub fn open(driver: &'static Driver, ordinal: u32) -> DeviceResult<Self> {
        Self::open_with(driver, ordinal, DeviceOptions::default())
    }

    /// Opens host memory for the GPU with the given ordinal. Calls the driver, as
    /// [`CudaDevice::open_with`] does.
    ///
    /// # Errors
    /// Those of [`CudaDevice::open_with`]; [`Unsupported`](cachalot_core::ErrorKind::Unsupported)
    /// if the driver cannot register memory.
    pub fn open_with(driver: &'static Driver, ordinal: u32, options: DeviceOptions) -> DeviceResult<Self> {
        if driver.mem_host_register.is_none() || driver.mem_host_unregister.is_none() {
            return Err(CuResult::NOT_SUPPORTED.error());
        }
        let cuda = CudaDevice::open_with(driver, ordinal, options)?;
        let node = cuda.numa_node_of_gpu();
        Ok(Self { cuda: HostStream(cuda), node })
    }

    /// Returns the GPU that copies from and to the memory on its streams.
    pub fn cuda(&self) -> &CudaDevice {
        &self.cuda.0
    }

    /// Returns the NUMA node that the memory comes from, or `None` if the system chooses.
    pub fn numa_node(&self) -> Option<u32> {
        self.node
    }

    /// Closes the GPU's part; see [`CudaDevice::close`].
    ///
    /// # Errors
    /// Those of [`CudaDevice::close`].
    pub fn close(&self) -> DeviceResult<()> {
        self.cuda().close()
    }
}

impl Segments for HostDevice {
    /// Maps, touches and registers memory. This takes about 45 ms for each GiB, on 16 processors.
    ///
    /// Fails with [`OutOfMemory`](cachalot_core::ErrorKind::OutOfMemory) if the system has too
    /// little memory left, because the system would end a program that touches more. Memory that
    /// other threads of the process are about to touch counts as used.
    fn obtain(&self, bytes: u64) -> DeviceResult<DevicePtr> {
        self.cuda().health()?;
        let claim = host_memory::claim(bytes).ok_or(CuResult::OUT_OF_MEMORY.error())?;
        let base = host_memory::map(bytes, self.node, &claim).map_err(|failure| match failure {
            Failure::OutOfMemory => CuResult::OUT_OF_MEMORY.error(),
            Failure::Refused => CuResult::OPERATING_SYSTEM.error(),
        })?;
        match pinned::register(&self.cuda().context, base, bytes) {
            Ok(()) => Ok(DevicePtr(base.as_ptr().expose_provenance() as u64)),
            Err(refused) => {
                if !refused.is_in_doubt {
                    host_memory::unmap(base, bytes);
                }
                Err(refused.error)
            }
        }
    }

    fn release(&self, base: DevicePtr, bytes: u64) -> DeviceResult<()> {
        let base = core::ptr::with_exposed_provenance_mut::<c_void>(base.0 as usize);
        let base = NonNull::new(base).ok_or(CuResult::INVALID_VALUE.error())?;
        pinned::unregister(&self.cuda().context, base)?;
        if host_memory::unmap(base, bytes) { Ok(()) } else { Err(CuResult::OPERATING_SYSTEM.error()) }
    }

    /// Returns the memory of the system, or of the process's control group if the group has less.
    fn memory_info(&self) -> DeviceResult<MemoryInfo> {
        self.cuda().health()?;
        let (total, free) = host_memory::of_system().ok_or(CuResult::OPERATING_SYSTEM.error())?;
        Ok(MemoryInfo { free, total })
    }

    fn process_use(&self) -> Option<u64> {
        host_memory::of_process()
    }

    fn owed(&self) -> u64 {
        0
    }

    fn shares_host_memory(&self) -> bool {
        true
    }

    fn lacks(&self, _: u64) -> bool {
        false
    }

    fn uuid(&self) -> Option<[u8; 16]> {
        None
    }

    fn supplies(&self, _: PoolId) -> bool {
        false
    }

    fn pins(&self) -> bool {
        true
    }

    fn is_ordered(&self) -> bool {
        false
    }

    fn obtain_on(&self, _: StreamId, bytes: u64) -> DeviceResult<DevicePtr> {
        self.obtain(bytes)
    }

    fn obtain_for(&self, _: PoolId, bytes: u64) -> DeviceResult<DevicePtr> {
        self.obtain(bytes)
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory> {
        None
    }

    /// Returns this device. Memory of the host is never parked, so it is only filled and read.
    fn contents(&self) -> Option<&dyn Contents> {
        Some(self)
    }
}

/// The error of the operations that memory of the host does not have, because its pages are never
/// parked.
const NOT_PARKED: CuResult = CuResult::NOT_SUPPORTED;

impl Contents for HostDevice {
    fn lie_elsewhere(&self) -> bool {
        false
    }

    fn prepare(&self, _: u64, _: u64) -> DeviceResult<()> {
        Err(NOT_PARKED.error())
    }

    fn end_saves(&self) {}

    fn save(&self, _: DevicePtr, _: u64) -> DeviceResult<Saved> {
        Err(NOT_PARKED.error())
    }

    fn restore(&self, _: Saved, _: DevicePtr, _: u64) -> DeviceResult<()> {
        Err(NOT_PARKED.error())
    }

    fn zero(&self, at: DevicePtr, bytes: u64) -> DeviceResult<()> {
        self.fill(HOST_STREAM, at, bytes, 0)
    }

    fn copy(&self, _: DevicePtr, _: DevicePtr, _: u64) -> DeviceResult<()> {
        Err(NOT_PARKED.error())
    }

    /// Fills the memory on the host. Work of the host is not in the order of a stream of the GPU,
    /// so the work of such a stream is waited for first.
    fn fill(&self, stream: StreamId, at: DevicePtr, bytes: u64, value: u8) -> DeviceResult<()> {
        let is_of_gpu = stream != HOST_STREAM && self.cuda().streams().handle(stream).is_some();
        if is_of_gpu {
            self.cuda().synchronize(stream)?;
        } else {
            self.cuda().health()?;
        }
        let first = core::ptr::with_exposed_provenance_mut::<u8>(at.0 as usize);
        // SAFETY: the allocator fills bytes of a segment that this device has mapped, and no work
        // and no thread uses them.
        unsafe { first.write_bytes(value, bytes as usize) };
        Ok(())
    }

    fn read(&self, at: DevicePtr, into: &mut [u8]) -> DeviceResult<()> {
        let first = core::ptr::with_exposed_provenance::<u8>(at.0 as usize);
        // SAFETY: the allocator reads bytes of a segment that this device has mapped, and no work
        // and no thread uses them.
        unsafe { first.copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    fn mark(&self) -> DeviceResult<CopyMark> {
        Ok(CopyMark::default())
    }

    fn finish(&self, _: CopyMark) -> DeviceResult<()> {
        Ok(())
    }

    fn forget(&self, _: Saved) {}
}

impl Forwarder for HostDevice {
    type Inner = HostStream;

    fn inner(&self) -> DeviceResult<&HostStream> {
        Ok(&self.cuda)
    }
}

impl ForwardStreamOrder for HostDevice {}
impl ForwardHost for HostDevice {}
