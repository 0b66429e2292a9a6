//! Loads the kernels into a device's context, and launches the kernels in the order of a stream.

use crate::image::{device_image, emulated_image};
use crate::pattern::Life;
use cachalot_core::{DeviceError, DevicePtr, DeviceResult};
use cachalot_cuda::driver::types::{CuCaptureStatus, CuFunction, CuModule, CuStream};
use cachalot_cuda::{CuResult, CudaDevice};
use core::ffi::{CStr, c_void};
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

/// Threads per group.
const THREADS: u32 = 256;
/// Upper bound for the number of groups. Enough to fill the largest devices; beyond that number,
/// each thread handles several words.
const MAX_GROUPS: u32 = 2048;
/// Groups that share the words of each block of a table. A block of 8 MiB takes a sixteenth of the
/// time that one group would need, and a group without words of its own ends at once.
const GROUPS_OF_A_BLOCK: u32 = 16;

/// A range of device memory that kernels may be launched on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// The first address.
    address: DevicePtr,
    /// The length in bytes.
    bytes: u64,
}

impl Region {
    /// Describes the `bytes` bytes at `address`, a multiple of 8.
    ///
    /// # Safety
    /// The range is device memory that every kernel launched on the region may write, until the
    /// kernel is complete. A kernel on any other range would overwrite foreign memory. On a device
    /// that shares the host's addresses, and on the emulated driver, the foreign memory may belong
    /// to this process.
    #[must_use]
    pub const unsafe fn new(address: DevicePtr, bytes: u64) -> Self {
        Self { address, bytes }
    }

    /// Returns the first address.
    #[must_use]
    pub const fn address(self) -> DevicePtr {
        self.address
    }

    /// Returns the length in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.bytes
    }
}

/// Findings of checks, as the kernels leave the findings in device memory (16 bytes, 8-aligned).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Findings {
    /// Number of bytes with a wrong value.
    pub wrong_bytes: u64,
    /// The lowest offset of a wrong byte within its region; [`u64::MAX`] iff no byte is wrong.
    pub lowest_wrong: u64,
}

impl Findings {
    /// Findings without a wrong byte.
    pub const NONE: Self = Self { wrong_bytes: 0, lowest_wrong: u64::MAX };

    /// Decodes findings of [`Kernels::verify_many`]: the index of the first block with a wrong
    /// byte, and the lowest offset of a wrong byte within the block.
    #[must_use]
    pub const fn first_of_many(self) -> Option<(usize, u64)> {
        if self.wrong_bytes == 0 {
            return None;
        }
        Some(((self.lowest_wrong >> ROW_SHIFT) as usize, self.lowest_wrong & ((1 << ROW_SHIFT) - 1)))
    }
}

/// The values that one thread of [`Kernels::fill_many`] or [`Kernels::verify_many`] has read and
/// compared (`Evidence` in `kernels.h`). Tells a wrong table from wrong memory, and whose pattern
/// is there.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[repr(C)]
pub struct Evidence {
    /// 1 if a thread has found a wrong byte or a row of another launch, else 0.
    pub is_taken: u64,
    /// The expected block, as read from the table.
    pub block: u64,
    /// The expected generation, as read from the table.
    pub generation: u64,
    /// The index of the wrong word within the block; for a row of another launch, the number of the
    /// kernel's launch.
    pub word: u64,
    /// The word that was there; fewer bytes after the last whole word.
    pub actual: u64,
    /// The number of the launch that the row was written for, as read from the table.
    pub launch: u64,
}

/// Position of the row in the lowest wrong offset of [`Kernels::verify_many`], as in `kernels.h`.
const ROW_SHIFT: u32 = 40;

/// One block in a table for kernels over many blocks (`Row` in `kernels.h`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Row {
    /// The block's address minus the table's address, modulo 2^64.
    distance: u64,
    /// The block's length in bytes.
    bytes: u64,
    /// The block of the pattern, see [`Life`].
    block: u64,
    /// The generation of the pattern, see [`Life`].
    generation: u64,
    /// The number of the launch, which the kernel compares with its own.
    launch: u64,
}

/// Bytes of device memory per block of a table.
pub const ROW_BYTES: u64 = size_of::<Row>() as u64;

/// Reason why the kernels could not be loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum KernelError {
    /// The crate was built without the compiler for this driver's kernels (nvcc, or C++ for the
    /// emulated driver).
    NoImage,
    /// The driver refused the kernels.
    Device(DeviceError),
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoImage => f.write_str("the kernels were not compiled for this driver"),
            Self::Device(error) => write!(f, "the kernels cannot be loaded: {error}"),
        }
    }
}

impl std::error::Error for KernelError {}

impl From<DeviceError> for KernelError {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

/// The kernels in one device's context.
///
/// A launch returns at once. The work is done in the order of the stream; while the stream
/// captures, the work becomes a node of the graph. Launches are permitted from any thread, with any
/// current context. Errors are the device's own; errors of a kernel's execution are reported by
/// later calls.
#[derive(Debug)]
pub struct Kernels<'d> {
    /// The device.
    device: &'d CudaDevice,
    /// The module that contains the kernels.
    module: CuModule,
    /// Handles of the kernels, in the order of [`NAMES`].
    functions: [CuFunction; NAMES.len()],
    /// Number of launches over tables so far, for [`Row::launch`].
    launches: AtomicU64,
}

/// Names a kernel by its index in [`Kernels::functions`].
#[derive(Clone, Copy)]
enum Kernel {
    Fill,
    Verify,
    Checksum,
    Hold,
    Scribble,
    Probe,
    Copy,
    Add,
    Trap,
    FillMany,
    VerifyMany,
}

/// Symbols of the kernels, in the order of [`Kernel`].
const NAMES: [&CStr; 11] = [
    c"cachalot_fill",
    c"cachalot_verify",
    c"cachalot_checksum",
    c"cachalot_hold",
    c"cachalot_scribble",
    c"cachalot_probe",
    c"cachalot_copy",
    c"cachalot_add",
    c"cachalot_trap",
    c"cachalot_fill_many",
    c"cachalot_verify_many",
];

impl<'d> Kernels<'d> {
    /// Loads the kernels into the device's context. For the emulated driver, loads the host
    /// functions.
    ///
    /// # Errors
    /// [`KernelError`].
    pub fn load(device: &'d CudaDevice) -> Result<Self, KernelError> {
        let image: *const c_void = if device.driver().is_emulated() {
            emulated_image().ok_or(KernelError::NoImage)?.as_ptr().cast()
        } else {
            device_image().ok_or(KernelError::NoImage)?.as_ptr().cast()
        };
        let mut module = CuModule::NULL;
        device.with_context(|driver| {
            // SAFETY: `module` outlives the call; the image is complete, immutable, and in this
            // driver's format.
            unsafe { driver.module_load_data(&raw mut module, image) }
        })?;
        let mut functions = [CuFunction::NULL; NAMES.len()];
        for (function, name) in functions.iter_mut().zip(NAMES) {
            device.with_context(|driver| {
                // SAFETY: `function` outlives the call; the module is loaded, and the name is
                // NUL-terminated.
                unsafe { driver.module_get_function(function, module, name.as_ptr()) }
            })?;
        }
        Ok(Self { device, module, functions, launches: AtomicU64::new(0) })
    }

    /// Unloads the kernels. All launches must be complete. Kernels that are not unloaded stay until
    /// the context is destroyed.
    ///
    /// # Errors
    /// The device's.
    pub fn unload(self) -> DeviceResult<()> {
        self.device.with_context(|driver| {
            // SAFETY: takes no host pointers; `load` loaded the module, and `self` is the only
            // user.
            unsafe { driver.module_unload(self.module) }
        })
    }

    /// Writes a life's pattern to a region.
    ///
    /// # Errors
    /// The device's, as for every launch.
    pub fn fill(&self, stream: CuStream, on: Region, life: Life) -> DeviceResult<()> {
        self.launch(Kernel::Fill, stream, on.bytes / 8, &[on.address.0, on.bytes, life.block, life.generation])
    }

    /// Compares a region with a life's pattern, and adds the result to the [`Findings`] in
    /// `result`.
    ///
    /// # Errors
    /// The device's.
    pub fn verify(&self, stream: CuStream, on: Region, life: Life, result: Region) -> DeviceResult<()> {
        let result = at_least(result, size_of::<Findings>())?;
        let arguments = [on.address.0, on.bytes, life.block, life.generation, result];
        self.launch(Kernel::Verify, stream, on.bytes / 8, &arguments)
    }

    /// Writes the patterns of many blocks with one launch. `table` is 8-aligned device memory of
    /// [`ROW_BYTES`] per block. The memory must not be used otherwise until the stream has
    /// completed the launch; later launches on the stream may reuse the table. Returns the number
    /// of the launch. A kernel that finds a row of another launch leaves the row out, and the
    /// [`Evidence`] in `evidence`.
    ///
    /// # Errors
    /// The device's; [`InvalidArgument`](cachalot_core::ErrorKind::InvalidArgument) if the table is
    /// too short; [`NotPermittedInCapture`](cachalot_core::ErrorKind::NotPermittedInCapture) while
    /// the stream captures.
    pub fn fill_many(
        &self,
        stream: CuStream,
        blocks: &[(Region, Life)],
        table: Region,
        evidence: Option<Region>,
    ) -> DeviceResult<u64> {
        let evidence = evidence.map_or(Ok(0), |evidence| at_least(evidence, size_of::<Evidence>()))?;
        let launch = self.launches.fetch_add(1, Ordering::Relaxed);
        if self.upload(stream, blocks, table, launch)? {
            let arguments = [table.address.0, blocks.len() as u64, launch, evidence];
            self.launch_groups(Kernel::FillMany, stream, blocks.len(), &arguments)?;
        }
        Ok(launch)
    }

    /// Compares many blocks with their patterns with one launch, and adds the result to the
    /// [`Findings`] in `result`, for [`first_of_many`](Findings::first_of_many). A longer `result`
    /// also gets the [`Evidence`] behind the findings. The rules for the table are as for
    /// [`fill_many`](Self::fill_many).
    ///
    /// # Errors
    /// As for [`fill_many`](Self::fill_many).
    pub fn verify_many(
        &self,
        stream: CuStream,
        blocks: &[(Region, Life)],
        table: Region,
        result: Region,
    ) -> DeviceResult<u64> {
        let launch = self.launches.fetch_add(1, Ordering::Relaxed);
        let (found, evidence) = (at_least(result, size_of::<Findings>())?, evidence_of(result));
        if self.upload(stream, blocks, table, launch)? {
            let arguments = [table.address.0, blocks.len() as u64, found, launch, evidence];
            self.launch_groups(Kernel::VerifyMany, stream, blocks.len(), &arguments)?;
        }
        Ok(launch)
    }

    /// Adds the region's [`checksum`](crate::checksum) to the 64-bit number in `result`.
    ///
    /// # Errors
    /// The device's.
    pub fn checksum(&self, stream: CuStream, on: Region, result: Region) -> DeviceResult<()> {
        let result = at_least(result, 8)?;
        self.launch(Kernel::Checksum, stream, on.bytes / 8, &[on.address.0, on.bytes, result])
    }

    /// Occupies the stream for the given number of microseconds.
    ///
    /// # Errors
    /// The device's.
    pub fn hold(&self, stream: CuStream, microseconds: u64) -> DeviceResult<()> {
        self.launch(Kernel::Hold, stream, 1, &[microseconds])
    }

    /// Waits, then writes one value to every byte. Simulates a slow use of memory that may be freed
    /// before the write.
    ///
    /// # Errors
    /// The device's.
    pub fn scribble(&self, stream: CuStream, on: Region, value: u8, microseconds: u64) -> DeviceResult<()> {
        let arguments = [on.address.0, on.bytes, u64::from(value), microseconds];
        self.launch(Kernel::Scribble, stream, on.bytes, &arguments)
    }

    /// Compares every byte with one value, and adds the result to the [`Findings`] in `result`. If
    /// memory was filled with the value when freed, the findings show any later write.
    ///
    /// # Errors
    /// The device's.
    pub fn probe(&self, stream: CuStream, on: Region, value: u8, result: Region) -> DeviceResult<()> {
        let result = at_least(result, size_of::<Findings>())?;
        self.launch(Kernel::Probe, stream, on.bytes / 8, &[on.address.0, on.bytes, u64::from(value), result])
    }

    /// Copies all of `from` to the start of `to`. The regions must not overlap.
    ///
    /// # Errors
    /// The device's; [`InvalidArgument`](cachalot_core::ErrorKind::InvalidArgument) if `to` is
    /// shorter than `from`.
    pub fn copy(&self, stream: CuStream, to: Region, from: Region) -> DeviceResult<()> {
        let destination = at_least(to, from.bytes as usize)?;
        self.launch(Kernel::Copy, stream, from.bytes / 8, &[destination, from.address.0, from.bytes])
    }

    /// Adds the floats of two regions, as many as fit into `to`.
    ///
    /// # Errors
    /// The device's; [`InvalidArgument`](cachalot_core::ErrorKind::InvalidArgument) if `left` or
    /// `right` is shorter than `to`.
    pub fn add(&self, stream: CuStream, to: Region, left: Region, right: Region) -> DeviceResult<()> {
        let count = to.bytes / size_of::<f32>() as u64;
        let (left, right) = (at_least(left, to.bytes as usize)?, at_least(right, to.bytes as usize)?);
        self.launch(Kernel::Add, stream, count, &[to.address.0, left, right, count])
    }

    /// Makes the driver lose the context. With `code` 700 the kernel accesses an unmapped address.
    /// With other codes the kernel traps, and the emulated driver returns `code` from then on.
    ///
    /// # Errors
    /// The device's.
    pub fn trap(&self, stream: CuStream, code: CuResult) -> DeviceResult<()> {
        self.launch(Kernel::Trap, stream, 1, &[u64::from(code.0)])
    }

    /// Sets the findings in `result` to [`Findings::NONE`], and the [`Evidence`] behind them to
    /// zero, in the order of the stream.
    ///
    /// # Errors
    /// The device's.
    pub fn clear(&self, stream: CuStream, result: Region) -> DeviceResult<()> {
        let count = DevicePtr(at_least(result, size_of::<Findings>())?);
        // SAFETY: `result` is writable device memory, long enough for both numbers.
        unsafe { self.device.fill(count, 0, 8, stream) }?;
        // SAFETY: `result` is writable device memory, long enough for both numbers.
        unsafe { self.device.fill(count.offset(8), 0xff, 8, stream) }?;
        match evidence_of(result) {
            0 => Ok(()),
            // SAFETY: `result` is writable device memory, long enough for the evidence, too.
            evidence => unsafe { self.device.fill(DevicePtr(evidence), 0, size_of::<Evidence>() as u64, stream) },
        }
    }

    /// Waits for the stream, and returns the findings in `result`. The stream must not capture.
    ///
    /// # Errors
    /// The device's.
    pub fn findings(&self, stream: CuStream, result: Region) -> DeviceResult<Findings> {
        let from = at_least(result, size_of::<Findings>())?;
        let mut found = Box::new(Findings::NONE);
        let to: *mut c_void = (&raw mut *found).cast();
        let copied = self.device.with_context(|driver| {
            // SAFETY: `found` is 16 bytes long and outlives the copy: freed only after the wait for
            // the stream.
            unsafe { driver.memcpy_dtoh_async(to, from, size_of::<Findings>(), stream) }
        });
        let waited = self.device.with_context(|driver| {
            // SAFETY: takes no host pointers; the caller vouches for the stream.
            unsafe { driver.stream_synchronize(stream) }
        });
        if let Err(error) = copied.and(waited) {
            // The copy may still run, so its 16 bytes are leaked.
            let _ = Box::leak(found);
            return Err(error);
        }
        Ok(*found)
    }

    /// Copies a table to device memory, in the order of the stream. Returns false if the table is
    /// empty.
    fn upload(&self, stream: CuStream, blocks: &[(Region, Life)], table: Region, launch: u64) -> DeviceResult<bool> {
        let bytes = blocks.len() * size_of::<Row>();
        let base = at_least(table, bytes)?;
        let row = |&(on, life): &(Region, Life)| Row {
            distance: on.address.0.wrapping_sub(base),
            bytes: on.bytes,
            block: life.block,
            generation: life.generation,
            launch,
        };
        let rows: Vec<Row> = blocks.iter().map(row).collect();
        let mut status = CuCaptureStatus::NONE;
        self.device.with_context(|driver| {
            // SAFETY: `status` outlives the call, which writes one integer to it.
            unsafe { driver.stream_is_capturing(stream, &raw mut status) }
        })?;
        if status != CuCaptureStatus::NONE {
            // The graph would read the host's table again at every run.
            return Err(CuResult::STREAM_CAPTURE_UNSUPPORTED.error());
        }
        self.device.with_context(|driver| {
            // SAFETY: 1. the driver copies pageable host memory to a buffer before it returns,
            // unless the stream captures; 2. the table is long enough, and the caller vouches that
            // the table may be written.
            unsafe { driver.memcpy_htod_async(base, rows.as_ptr().cast(), bytes, stream) }
        })?;
        Ok(!rows.is_empty())
    }

    /// Launches a kernel over `elements` elements. Every parameter has 64 bits.
    fn launch(&self, kernel: Kernel, stream: CuStream, elements: u64, arguments: &[u64]) -> DeviceResult<()> {
        let groups = u32::try_from(elements.div_ceil(u64::from(THREADS))).unwrap_or(u32::MAX).clamp(1, MAX_GROUPS);
        // A spin or a trap needs one thread; more threads would only occupy more of the device.
        let (groups, threads) = if elements == 1 { (1, 1) } else { (groups, THREADS) };
        self.launch_shape(kernel, stream, (groups, 1, threads), arguments)
    }

    /// Launches a kernel with [`GROUPS_OF_A_BLOCK`] groups of threads for each of `count` blocks.
    fn launch_groups(&self, kernel: Kernel, stream: CuStream, count: usize, arguments: &[u64]) -> DeviceResult<()> {
        let groups = u32::try_from(count).unwrap_or(u32::MAX).clamp(1, MAX_GROUPS);
        self.launch_shape(kernel, stream, (groups, GROUPS_OF_A_BLOCK, THREADS), arguments)
    }

    /// Launches a kernel with the given number of groups in both dimensions, and of threads per
    /// group.
    fn launch_shape(
        &self,
        kernel: Kernel,
        stream: CuStream,
        (groups, parts, threads): (u32, u32, u32),
        arguments: &[u64],
    ) -> DeviceResult<()> {
        let mut values = [0_u64; 5];
        values[..arguments.len()].copy_from_slice(arguments);
        let mut parameters = values.each_mut().map(|value| core::ptr::from_mut(value).cast::<c_void>());
        self.device.with_context(|driver| {
            let function = self.functions[kernel as usize];
            // SAFETY: 1. the function belongs to the loaded module; 2. the function has at most
            // five parameters of 64 bits, which the driver copies before it returns; 3. the
            // addresses among the parameters belong to regions, and the callers of `Region::new`
            // vouch for the regions.
            unsafe {
                driver.launch_kernel(
                    function,
                    groups,
                    parts,
                    1,
                    threads,
                    1,
                    1,
                    0,
                    stream,
                    parameters.as_mut_ptr(),
                    core::ptr::null_mut(),
                )
            }
        })
    }
}

/// Returns the address of a region. Fails if the region is shorter than `bytes` bytes.
fn at_least(region: Region, bytes: usize) -> DeviceResult<u64> {
    if region.bytes < bytes as u64 {
        return Err(CuResult::INVALID_VALUE.error());
    }
    Ok(region.address.0)
}

/// Returns the address of the [`Evidence`] behind the findings in a region, or 0 if the region has
/// only findings.
fn evidence_of(result: Region) -> u64 {
    let evidence = size_of::<Findings>() as u64;
    let holds = result.bytes >= evidence + size_of::<Evidence>() as u64;
    if holds { result.address.0 + evidence } else { 0 }
}
