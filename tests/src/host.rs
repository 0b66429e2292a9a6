//! A program on one simulated device, for tests that say what they expect in figures.

use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{Allocator, Config, DeviceIndex, DevicePtr, Error, Growable, StreamId};

/// One mebibyte.
pub const MIB: u64 = 1 << 20;

/// The one device.
pub const DEVICE: DeviceIndex = DeviceIndex(0);

/// The stream that requests are made on unless a test says otherwise.
pub const STREAM: StreamId = StreamId(0);

/// An allocator over one simulated device.
pub struct Host {
    /// The allocator.
    pub allocator: Allocator<SimulatedDevice, parking_lot::RawMutex, Growable>,
}

impl Host {
    /// Over a device of `capacity` bytes, with a configuration in PyTorch's form.
    ///
    /// # Panics
    /// If the configuration is not valid.
    pub fn new(config: &str, capacity: u64) -> Self {
        let config = Config::parse(config).expect("the configuration is valid");
        let allocator = Allocator::new([SimulatedDevice::new(capacity)], &config).expect("one device fits");
        Self { allocator }
    }

    /// The device.
    ///
    /// # Panics
    /// Never.
    pub fn device(&self) -> &SimulatedDevice {
        self.allocator.device(DEVICE).expect("there is one device")
    }

    /// A block on [`STREAM`].
    ///
    /// # Panics
    /// If the request fails.
    pub fn malloc(&self, bytes: u64) -> DevicePtr {
        self.malloc_on(bytes, STREAM)
    }

    /// A block on another stream.
    ///
    /// # Panics
    /// If the request fails.
    pub fn malloc_on(&self, bytes: u64, stream: StreamId) -> DevicePtr {
        self.allocator.malloc(DEVICE, bytes, stream).unwrap_or_else(|error| panic!("{bytes} bytes: {error}"))
    }

    /// The text of the error that a request ends in.
    ///
    /// # Panics
    /// If it succeeds.
    pub fn refused(&self, bytes: u64) -> Error {
        self.allocator.malloc(DEVICE, bytes, STREAM).expect_err("the request is refused")
    }

    /// Gives a block back.
    ///
    /// # Panics
    /// If that fails.
    pub fn free(&self, ptr: DevicePtr) {
        self.allocator.free(ptr).unwrap_or_else(|error| panic!("{ptr}: {error}"));
    }

    /// Gives the cache back.
    ///
    /// # Panics
    /// If that fails.
    pub fn empty_cache(&self) {
        self.allocator.empty_cache(DEVICE).unwrap_or_else(|error| panic!("{error}"));
    }

    /// One statistic.
    ///
    /// # Panics
    /// If there is none of this name.
    pub fn stat(&self, key: &str) -> i64 {
        let stats = self.allocator.stats(DEVICE).expect("there is one device");
        stats.get(key).unwrap_or_else(|| panic!("there is no statistic {key}"))
    }

    /// Puts a configuration in force as PyTorch does at run time.
    ///
    /// # Panics
    /// If it is not valid.
    pub fn configure(&self, text: &str) {
        let mut config = self.allocator.config(DEVICE).expect("there is one device");
        config.update(text).expect("the configuration is valid");
        self.allocator.configure(&config);
    }

    /// How many bytes are allocated, reserved, and free beside others.
    pub fn figures(&self) -> [i64; 3] {
        ["allocated_bytes.all.current", "reserved_bytes.all.current", "inactive_split_bytes.all.current"]
            .map(|key| self.stat(key))
    }
}

impl Drop for Host {
    /// Whatever a test did, the allocator is sound at its end.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            crate::consistency::check(&self.allocator, DEVICE, None).unwrap_or_else(|why| panic!("{why}"));
        }
    }
}
