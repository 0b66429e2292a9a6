//! The kernels, loaded into a device's context, and launched in the order of a stream.

use crate::image::{device_image, emulated_image};
use crate::pattern::Life;
use cachalot_core::{DeviceError, DevicePtr, DeviceResult};
use cachalot_cuda::driver::types::{CuCaptureStatus, CuFunction, CuModule, CuStream};
use cachalot_cuda::{CuResult, CudaDevice};
use core::ffi::{CStr, c_void};
use core::fmt;

/// Threads in a group.
const THREADS: u32 = 256;
/// Groups at most: enough to fill the largest devices, so that threads take several words each beyond that.
const MAX_GROUPS: u32 = 2048;

/// A range of device memory that kernels may be launched on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Where it begins.
    address: DevicePtr,
    /// How long it is, in bytes.
    bytes: u64,
}

impl Region {
    /// The `bytes` bytes at `address`, a multiple of 8.
    ///
    /// # Safety
    /// The range is memory of the device that every kernel launched on it may write, until those kernels are done.
    /// Elsewhere they would overwrite what belongs to others; on a device that shares the host's addresses, and on the
    /// emulated driver, that can be this process's own memory.
    #[must_use]
    pub const unsafe fn new(address: DevicePtr, bytes: u64) -> Self {
        Self { address, bytes }
    }

    /// Where it begins.
    #[must_use]
    pub const fn address(self) -> DevicePtr {
        self.address
    }

    /// How long it is, in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.bytes
    }
}

/// What checks have found, as the kernels leave it in device memory (16 bytes, 8-aligned).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Findings {
    /// How many bytes were not what they should be.
    pub wrong_bytes: u64,
    /// The lowest offset of such a byte in its region; [`u64::MAX`] iff there was none.
    pub lowest_wrong: u64,
}

impl Findings {
    /// Nothing wrong.
    pub const NONE: Self = Self { wrong_bytes: 0, lowest_wrong: u64::MAX };

    /// After [`Kernels::verify_many`]: the first block with a wrong byte, by its place among those that were given, and the
    /// lowest offset of such a byte in it.
    #[must_use]
    pub const fn first_of_many(self) -> Option<(usize, u64)> {
        if self.wrong_bytes == 0 {
            return None;
        }
        Some(((self.lowest_wrong >> ROW_SHIFT) as usize, self.lowest_wrong & ((1 << ROW_SHIFT) - 1)))
    }
}

/// Where the row begins in what [`Kernels::verify_many`] leaves as the lowest wrong offset, as `kernels.h` has it.
const ROW_SHIFT: u32 = 40;

/// A block in a table for the kernels over many (`Row` in `kernels.h`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Row {
    /// The block's address less the table's, modulo 2^64.
    distance: u64,
    /// Its length in bytes.
    bytes: u64,
    /// Its pattern.
    block: u64,
    /// Its pattern.
    generation: u64,
}

/// Bytes of device memory that a table takes for each block.
pub const ROW_BYTES: u64 = size_of::<Row>() as u64;

/// Why the kernels could not be loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum KernelError {
    /// The crate was built without the compiler for this driver's kernels (nvcc, or C++ for the emulated driver).
    NoImage,
    /// The driver refused.
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
/// Launches return at once; the work is done in the order of the stream, and becomes a node of the graph while the stream
/// captures. From any thread, with any context current. Errors are the device's own; those of the kernels'
/// execution are told by later calls.
#[derive(Debug)]
pub struct Kernels<'d> {
    /// The device.
    device: &'d CudaDevice,
    /// The module that holds them.
    module: CuModule,
    /// One handle for each of [`NAMES`], in that order.
    functions: [CuFunction; NAMES.len()],
}

/// The kernels by their place in [`Kernels::functions`].
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

/// Their symbols, in the order of [`Kernel`].
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
    /// Loads the kernels into the device's context: those for the emulated driver if it is one.
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
            // SAFETY: `module` outlives the call; the image is one that this driver reads, complete and immutable.
            unsafe { driver.module_load_data(&raw mut module, image) }
        })?;
        let mut functions = [CuFunction::NULL; NAMES.len()];
        for (function, name) in functions.iter_mut().zip(NAMES) {
            device.with_context(|driver| {
                // SAFETY: `function` outlives the call; the module was just loaded, the name is NUL-terminated.
                unsafe { driver.module_get_function(function, module, name.as_ptr()) }
            })?;
        }
        Ok(Self { device, module, functions })
    }

    /// Unloads the kernels. Whatever runs has been waited for. Without this they stay until the context goes.
    ///
    /// # Errors
    /// The device's.
    pub fn unload(self) -> DeviceResult<()> {
        self.device.with_context(|driver| {
            // SAFETY: takes no host pointers; the module was loaded by `load` and `self` is its only user.
            unsafe { driver.module_unload(self.module) }
        })
    }

    /// Writes a life's pattern.
    ///
    /// # Errors
    /// The device's, as for every launch.
    pub fn fill(&self, stream: CuStream, on: Region, life: Life) -> DeviceResult<()> {
        self.launch(Kernel::Fill, stream, on.bytes / 8, &[on.address.0, on.bytes, life.block, life.generation])
    }

    /// Compares with a life's pattern; adds to the [`Findings`] in `result`.
    ///
    /// # Errors
    /// The device's.
    pub fn verify(&self, stream: CuStream, on: Region, life: Life, result: Region) -> DeviceResult<()> {
        let result = at_least(result, size_of::<Findings>())?;
        let arguments = [on.address.0, on.bytes, life.block, life.generation, result];
        self.launch(Kernel::Verify, stream, on.bytes / 8, &arguments)
    }

    /// Writes the patterns of many blocks with one launch. `table` is 8-aligned device memory of [`ROW_BYTES`] for each, which is
    /// not used for anything else until the stream has come so far; the next table of the same stream may lie there.
    ///
    /// # Errors
    /// The device's; [`InvalidArgument`](cachalot_core::ErrorKind::InvalidArgument) if the table is too short;
    /// [`NotPermittedInCapture`](cachalot_core::ErrorKind::NotPermittedInCapture) while the stream captures.
    pub fn fill_many(&self, stream: CuStream, blocks: &[(Region, Life)], table: Region) -> DeviceResult<()> {
        if self.upload(stream, blocks, table)? {
            self.launch_groups(Kernel::FillMany, stream, blocks.len(), &[table.address.0, blocks.len() as u64])?;
        }
        Ok(())
    }

    /// Compares many blocks with their patterns with one launch; adds to the [`Findings`] in `result`, which
    /// [`first_of_many`](Findings::first_of_many) reads. The table is as for [`fill_many`](Self::fill_many).
    ///
    /// # Errors
    /// As for [`fill_many`](Self::fill_many).
    pub fn verify_many(
        &self,
        stream: CuStream,
        blocks: &[(Region, Life)],
        table: Region,
        result: Region,
    ) -> DeviceResult<()> {
        let result = at_least(result, size_of::<Findings>())?;
        if self.upload(stream, blocks, table)? {
            let arguments = [table.address.0, blocks.len() as u64, result];
            self.launch_groups(Kernel::VerifyMany, stream, blocks.len(), &arguments)?;
        }
        Ok(())
    }

    /// Adds the region's [`checksum`](crate::checksum) to the 64-bit number in `result`.
    ///
    /// # Errors
    /// The device's.
    pub fn checksum(&self, stream: CuStream, on: Region, result: Region) -> DeviceResult<()> {
        let result = at_least(result, 8)?;
        self.launch(Kernel::Checksum, stream, on.bytes / 8, &[on.address.0, on.bytes, result])
    }

    /// Occupies the stream for this many microseconds.
    ///
    /// # Errors
    /// The device's.
    pub fn hold(&self, stream: CuStream, microseconds: u64) -> DeviceResult<()> {
        self.launch(Kernel::Hold, stream, 1, &[microseconds])
    }

    /// Waits, then writes one byte everywhere: a slow user of memory that may have been freed meanwhile.
    ///
    /// # Errors
    /// The device's.
    pub fn scribble(&self, stream: CuStream, on: Region, value: u8, microseconds: u64) -> DeviceResult<()> {
        let arguments = [on.address.0, on.bytes, u64::from(value), microseconds];
        self.launch(Kernel::Scribble, stream, on.bytes, &arguments)
    }

    /// Compares with one byte everywhere; adds to the [`Findings`] in `result`. After memory was filled with that
    /// byte when it was freed, this tells whether anything wrote to it since.
    ///
    /// # Errors
    /// The device's.
    pub fn probe(&self, stream: CuStream, on: Region, value: u8, result: Region) -> DeviceResult<()> {
        let result = at_least(result, size_of::<Findings>())?;
        self.launch(Kernel::Probe, stream, on.bytes / 8, &[on.address.0, on.bytes, u64::from(value), result])
    }

    /// Copies as much as `from` holds to the beginning of `to`, which it does not overlap.
    ///
    /// # Errors
    /// The device's; [`InvalidArgument`](cachalot_core::ErrorKind::InvalidArgument) if `to` is shorter.
    pub fn copy(&self, stream: CuStream, to: Region, from: Region) -> DeviceResult<()> {
        let destination = at_least(to, from.bytes as usize)?;
        self.launch(Kernel::Copy, stream, from.bytes / 8, &[destination, from.address.0, from.bytes])
    }

    /// Adds the floats of two regions, as many as `to` holds.
    ///
    /// # Errors
    /// The device's; [`InvalidArgument`](cachalot_core::ErrorKind::InvalidArgument) if one of the others is shorter.
    pub fn add(&self, stream: CuStream, to: Region, left: Region, right: Region) -> DeviceResult<()> {
        let count = to.bytes / size_of::<f32>() as u64;
        let (left, right) = (at_least(left, to.bytes as usize)?, at_least(right, to.bytes as usize)?);
        self.launch(Kernel::Add, stream, count, &[to.address.0, left, right, count])
    }

    /// Loses the context. `code` 700 asks for an access to an address that is not mapped; with others the kernel traps,
    /// and the emulated driver answers `code` from then on.
    ///
    /// # Errors
    /// The device's.
    pub fn trap(&self, stream: CuStream, code: CuResult) -> DeviceResult<()> {
        self.launch(Kernel::Trap, stream, 1, &[u64::from(code.0)])
    }

    /// Sets the findings in `result` to [`Findings::NONE`], in the order of the stream.
    ///
    /// # Errors
    /// The device's.
    pub fn clear(&self, stream: CuStream, result: Region) -> DeviceResult<()> {
        let count = DevicePtr(at_least(result, size_of::<Findings>())?);
        // SAFETY: `result` is device memory that may be written, and is long enough for both numbers.
        unsafe { self.device.fill(count, 0, 8, stream) }?;
        // SAFETY: as above.
        unsafe { self.device.fill(count.offset(8), 0xff, 8, stream) }
    }

    /// The findings in `result` once the stream has come so far. Waits for the stream, which must not capture.
    ///
    /// # Errors
    /// The device's.
    pub fn findings(&self, stream: CuStream, result: Region) -> DeviceResult<Findings> {
        let from = at_least(result, size_of::<Findings>())?;
        let mut found = Box::new(Findings::NONE);
        let to: *mut c_void = (&raw mut *found).cast();
        let copied = self.device.with_context(|driver| {
            // SAFETY: `found` is 16 bytes long and outlives the copy: it is freed only after the stream was waited for.
            unsafe { driver.memcpy_dtoh_async(to, from, size_of::<Findings>(), stream) }
        });
        let waited = self.device.with_context(|driver| {
            // SAFETY: takes no host pointers; the caller vouches for the stream.
            unsafe { driver.stream_synchronize(stream) }
        });
        if let Err(error) = copied.and(waited) {
            // The copy may still be under way; its 16 bytes are left to it.
            let _ = Box::leak(found);
            return Err(error);
        }
        Ok(*found)
    }

    /// Puts a table into device memory, in the order of the stream. False: there is nothing in it.
    fn upload(&self, stream: CuStream, blocks: &[(Region, Life)], table: Region) -> DeviceResult<bool> {
        let bytes = blocks.len() * size_of::<Row>();
        let base = at_least(table, bytes)?;
        let row = |&(on, life): &(Region, Life)| Row {
            distance: on.address.0.wrapping_sub(base),
            bytes: on.bytes,
            block: life.block,
            generation: life.generation,
        };
        let rows: Vec<Row> = blocks.iter().map(row).collect();
        let mut status = CuCaptureStatus::NONE;
        self.device.with_context(|driver| {
            // SAFETY: `status` outlives the call, which writes one integer to it.
            unsafe { driver.stream_is_capturing(stream, &raw mut status) }
        })?;
        if status != CuCaptureStatus::NONE {
            // The graph would read the host's table again whenever it runs.
            return Err(CuResult::STREAM_CAPTURE_UNSUPPORTED.error());
        }
        self.device.with_context(|driver| {
            // SAFETY: 1. the driver copies pageable host memory aside before it returns, unless the stream captures;
            // 2. the table is long enough, and its maker vouches that it may be written.
            unsafe { driver.memcpy_htod_async(base, rows.as_ptr().cast(), bytes, stream) }
        })?;
        Ok(!rows.is_empty())
    }

    /// Launches a kernel over `elements` elements. Every parameter is 64 bits wide.
    fn launch(&self, kernel: Kernel, stream: CuStream, elements: u64, arguments: &[u64]) -> DeviceResult<()> {
        let groups = u32::try_from(elements.div_ceil(u64::from(THREADS))).unwrap_or(u32::MAX).clamp(1, MAX_GROUPS);
        // A spin or a trap needs one thread, and more would only occupy more of the device.
        let (groups, threads) = if elements == 1 { (1, 1) } else { (groups, THREADS) };
        self.launch_shape(kernel, stream, (groups, threads), arguments)
    }

    /// Launches a kernel with a group of threads for each of `count` blocks.
    fn launch_groups(&self, kernel: Kernel, stream: CuStream, count: usize, arguments: &[u64]) -> DeviceResult<()> {
        let groups = u32::try_from(count).unwrap_or(u32::MAX).clamp(1, MAX_GROUPS);
        self.launch_shape(kernel, stream, (groups, THREADS), arguments)
    }

    /// Launches a kernel with so many groups of so many threads.
    fn launch_shape(
        &self,
        kernel: Kernel,
        stream: CuStream,
        (groups, threads): (u32, u32),
        arguments: &[u64],
    ) -> DeviceResult<()> {
        let mut values = [0_u64; 5];
        values[..arguments.len()].copy_from_slice(arguments);
        let mut parameters = values.each_mut().map(|value| core::ptr::from_mut(value).cast::<c_void>());
        self.device.with_context(|driver| {
            let function = self.functions[kernel as usize];
            // SAFETY: 1. the function is one of the loaded module; 2. it has at most five parameters of 64 bits, which the
            // driver copies before it returns; 3. the addresses among them are of regions, for which their makers vouch.
            unsafe {
                driver.launch_kernel(
                    function,
                    groups,
                    1,
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

/// The address of a region that holds at least `bytes` bytes.
fn at_least(region: Region, bytes: usize) -> DeviceResult<u64> {
    if region.bytes < bytes as u64 {
        return Err(CuResult::INVALID_VALUE.error());
    }
    Ok(region.address.0)
}
