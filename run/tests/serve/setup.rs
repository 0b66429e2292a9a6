//! A driver for each test, and a process in front of the driver.

use cachalot_cuda::driver::types::{
    CuCaptureMode, CuMemAccessDesc, CuMemAccessFlags, CuMemLocation, CuMemLocationType, CuMemoryPool, CuStream,
};
use cachalot_emulated_driver::api::Api;
use cachalot_emulated_driver::client::Client;
use cachalot_emulated_driver::install::install;
use cachalot_run::Options;
use cachalot_run::real::Real;
use cachalot_run::serve::Process;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a page of the driver.
pub(crate) const PAGE: usize = 2 << 20;

/// A separate driver, and the process in front of the driver. Dereferences to the driver.
pub(crate) struct Setup {
    driver: Api,
    pub(crate) control: Client,
    pub(crate) process: Process,
    /// The primary context of device 0, which is current.
    pub(crate) context: u64,
}

impl Deref for Setup {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.driver
    }
}

impl Setup {
    /// Starts a driver and a process with default options.
    pub(crate) fn new() -> Self {
        Self::with(&[], Options::default())
    }

    /// Starts a driver without the symbols in `hidden`, and a process with the given options.
    pub(crate) fn with(hidden: &[&str], options: Options) -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!("cachalot-serve-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        let path = install(&folder, hidden).expect("installed");
        let driver = Api::load(&path).expect("loaded");
        let control = Client::load(&path).expect("emulated");
        let real = Real::load(&path).expect("loaded");
        // The loaded library no longer needs the file.
        std::fs::remove_dir_all(folder).expect("removed");
        // Each copy of the library has separate addresses, and a test program loads many copies.
        control.set_address_space(64 << 30).expect("before cuInit");
        assert_eq!(driver.cuInit(0), 0);
        let process = Process::new(real, options).expect("valid settings");
        let mut setup = Self { driver, control, process, context: 0 };
        setup.context = setup.retain(0);
        assert_eq!(setup.cuCtxSetCurrent(setup.context), 0);
        setup
    }

    /// Retains the primary context of a device, as a program does.
    pub(crate) fn retain(&self, device: i32) -> u64 {
        let mut context = cachalot_cuda::driver::types::CuContext::NULL;
        let device = cachalot_cuda::driver::types::CuDevice(device);
        // SAFETY: `context` outlives the call.
        let code = unsafe { self.process.device_primary_ctx_retain(&raw mut context, device) };
        assert_eq!(code.0, 0);
        context.0 as u64
    }

    /// Makes a context that no call of the process has shown, for the driver's own figures. Leaves
    /// it current.
    pub(crate) fn watch(&self, device: i32) -> u64 {
        let mut context = 0;
        assert_eq!(self.cuCtxCreate_v2(&mut context, 0, device), 0);
        context
    }

    /// Returns what a program is told of the current context's device: free and all bytes.
    pub(crate) fn front_figures(&self) -> (usize, usize) {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both variables outlive the call.
        assert_eq!(unsafe { self.process.mem_get_info(&raw mut free, &raw mut total) }.0, 0);
        (free, total)
    }

    /// Returns how many ranges of addresses the driver has reserved.
    pub(crate) fn reserved_addresses(&self) -> u64 {
        self.control.calls("cuMemAddressReserve") - self.control.calls("cuMemAddressFree")
    }

    /// Opens the default pool of a device to another device, as a program does.
    pub(crate) fn open_default_pool(&self, device: i32, to: i32) -> u32 {
        let mut pool = 0;
        assert_eq!(self.cuDeviceGetDefaultMemPool(&mut pool, device), 0);
        let location = CuMemLocation { kind: CuMemLocationType::DEVICE, id: to };
        let access = CuMemAccessDesc { location, flags: CuMemAccessFlags::READ_WRITE };
        // SAFETY: `access` outlives the call.
        unsafe { self.process.mem_pool_set_access(CuMemoryPool(pool as usize), &raw const access, 1) }.0
    }

    /// Requests memory.
    pub(crate) fn try_take(&self, bytes: usize) -> Result<u64, u32> {
        let mut address = 0;
        // SAFETY: `address` outlives the call.
        let code = unsafe { self.process.mem_alloc(&raw mut address, bytes) };
        if code.is_success() { Ok(address) } else { Err(code.0) }
    }

    /// Requests memory that must be there.
    pub(crate) fn take(&self, bytes: usize) -> u64 {
        self.try_take(bytes).expect("memory")
    }

    /// Requests memory in the order of a stream.
    pub(crate) fn take_on(&self, bytes: usize, stream: u64) -> u64 {
        let mut address = 0;
        // SAFETY: `address` outlives the call, and the stream lives.
        let code = unsafe { self.process.mem_alloc_async(&raw mut address, bytes, CuStream(stream as usize)) };
        assert_eq!(code.0, 0);
        address
    }

    /// Frees memory.
    pub(crate) fn give(&self, address: u64) -> u32 {
        // SAFETY: the tests queue no work after the free.
        unsafe { self.process.mem_free(address) }.0
    }

    /// Frees memory in the order of a stream.
    pub(crate) fn give_on(&self, address: u64, stream: u64) -> u32 {
        // SAFETY: the tests queue no work after the free.
        unsafe { self.process.mem_free_async(address, CuStream(stream as usize)) }.0
    }

    /// Fills memory by work on a stream.
    pub(crate) fn fill(&self, address: u64, value: u8, bytes: usize, stream: u64) {
        assert_eq!(self.cuMemsetD8Async(address, value, bytes, stream), 0);
    }

    /// Returns the contents of memory as they are now.
    pub(crate) fn now(&self, address: u64, bytes: usize) -> Vec<u8> {
        self.control.peek(address, bytes).expect("memory")
    }

    /// Makes an unblocking stream.
    pub(crate) fn stream(&self) -> u64 {
        self.stream_of(1)
    }

    /// Makes a stream; flags 0, or 1 for an unblocking stream.
    pub(crate) fn stream_of(&self, flags: u32) -> u64 {
        self.driver.stream(flags).expect("a stream")
    }

    /// Starts to capture a stream. Mode 0 is global, 1 thread-local, 2 relaxed.
    pub(crate) fn begin(&self, stream: u64, mode: u32) -> u32 {
        // SAFETY: the stream lives.
        unsafe { self.process.stream_begin_capture(CuStream(stream as usize), CuCaptureMode(mode)) }.0
    }

    /// Ends a capture.
    pub(crate) fn end(&self, stream: u64) -> u32 {
        let mut graph = cachalot_cuda::driver::types::CuGraph::NULL;
        // SAFETY: `graph` outlives the call, and the stream lives.
        unsafe { self.process.stream_end_capture(CuStream(stream as usize), &raw mut graph) }.0
    }
}
