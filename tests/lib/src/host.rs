//! A program on one simulated device, for tests with exact expected figures.

use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{Allocator, DeviceIndex, DevicePtr, Error, Growable, StreamId};

/// One mebibyte.
pub const MIB: u64 = 1 << 20;

/// The only device.
pub const DEVICE: DeviceIndex = DeviceIndex(0);

/// The stream of requests, unless a test names another.
pub const STREAM: StreamId = StreamId(0);

/// The allocator of most tests. [`Twins`](crate::twins::Twins) has the same type, so the operations
/// are compiled once, with this crate, and test programs only link them.
pub type SimulatedAllocator = Allocator<SimulatedDevice, spin::mutex::SpinMutex<()>, Growable>;

/// An allocator over one simulated device.
pub struct Host {
    /// The allocator.
    pub allocator: SimulatedAllocator,
}

impl Host {
    /// Creates an allocator over a device of `capacity` bytes, with a configuration in PyTorch's
    /// syntax.
    ///
    /// # Panics
    /// If the configuration is invalid.
    pub fn new(config: &str, capacity: u64) -> Self {
        Self::on(config, SimulatedDevice::new(capacity).with_exports())
    }

    /// Creates an allocator over a device, with a configuration in PyTorch's syntax.
    ///
    /// # Panics
    /// If the configuration is invalid.
    pub fn on(config: &str, device: SimulatedDevice) -> Self {
        let config = cachalot_policies::parse(config).expect("the configuration is valid");
        Self { allocator: Allocator::new([device], &config).expect("one device fits") }
    }

    /// Returns the device.
    ///
    /// # Panics
    /// Never.
    pub fn device(&self) -> &SimulatedDevice {
        self.allocator.device(DEVICE).expect("there is one device")
    }

    /// Allocates a block on [`STREAM`] and expects success.
    ///
    /// # Panics
    /// If the request fails.
    pub fn malloc(&self, bytes: u64) -> DevicePtr {
        self.malloc_on(bytes, STREAM)
    }

    /// Allocates a block on a given stream and expects success.
    ///
    /// # Panics
    /// If the request fails.
    pub fn malloc_on(&self, bytes: u64, stream: StreamId) -> DevicePtr {
        self.allocator.malloc(DEVICE, bytes, stream).unwrap_or_else(|error| panic!("{bytes} bytes: {error}"))
    }

    /// Returns the error message of a failing request.
    ///
    /// # Panics
    /// If the request succeeds.
    pub fn refused(&self, bytes: u64) -> Error {
        self.allocator.malloc(DEVICE, bytes, STREAM).expect_err("the request is refused")
    }

    /// Frees a block and expects success.
    ///
    /// # Panics
    /// If the free fails.
    pub fn free(&self, ptr: DevicePtr) {
        self.allocator.free(ptr).unwrap_or_else(|error| panic!("{ptr}: {error}"));
    }

    /// Empties the cache and expects success.
    ///
    /// # Panics
    /// If emptying fails.
    pub fn empty_cache(&self) {
        self.allocator.empty_cache(DEVICE).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Returns a statistic by name.
    ///
    /// # Panics
    /// If the name is unknown.
    pub fn stat(&self, key: &str) -> i64 {
        let stats = self.allocator.stats(DEVICE).expect("there is one device").totals();
        stats.get(key).unwrap_or_else(|| panic!("there is no statistic {key}"))
    }

    /// Changes the configuration at run time, as PyTorch does.
    ///
    /// # Panics
    /// If the configuration is invalid.
    pub fn configure(&self, text: &str) {
        let mut config = self.allocator.settings(DEVICE).expect("there is one device").config();
        config.update(text).expect("the configuration is valid");
        self.allocator.configure(&config);
    }

    /// Returns the bytes that are allocated, reserved, and inactive in split segments.
    pub fn figures(&self) -> [i64; 3] {
        ["allocated_bytes.all.current", "reserved_bytes.all.current", "inactive_split_bytes.all.current"]
            .map(|key| self.stat(key))
    }
}

impl Drop for Host {
    /// Checks the allocator's invariants at the end of every test.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            crate::consistency::check(&self.allocator, DEVICE, None).unwrap_or_else(|why| panic!("{why}"));
        }
    }
}
