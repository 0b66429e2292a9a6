//! The allocator this project is about, as a [`Subject`]: the whole of it, over a device in memory.

use crate::settings::{CAPACITY, Settings};
use crate::subject::Subject;
use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{Allocator, Config, DeviceIndex, DevicePtr, Growable, Lock, StreamId};
use std::sync::Arc;

const DEVICE: DeviceIndex = DeviceIndex(0);

/// One allocator with statistics, whose heaps are locked by `R`. Clones are the same allocator.
pub struct Cachalot<R: Lock>(Arc<Allocator<SimulatedDevice, R, Growable>>);

impl<R: Lock> Clone for Cachalot<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<R: Lock> Cachalot<R> {
    /// An allocator with these settings.
    ///
    /// # Panics
    /// If the configuration is refused.
    pub fn new(settings: &Settings) -> Self {
        let config = Config::parse(&settings.config).expect("the configuration is valid");
        let allocator = Allocator::new([SimulatedDevice::new(CAPACITY)], &config).expect("one device fits");
        allocator.set_limit(DEVICE, settings.limit).expect("the device exists");
        Self(Arc::new(allocator))
    }

    /// The allocator itself.
    pub fn allocator(&self) -> &Allocator<SimulatedDevice, R, Growable> {
        &self.0
    }
}

impl<R: Lock> Subject for Cachalot<R> {
    type Handle = DevicePtr;

    #[inline(never)]
    fn malloc(&mut self, bytes: u64, stream: u64) -> Option<DevicePtr> {
        self.0.malloc(DEVICE, bytes, StreamId(stream)).ok()
    }

    #[inline(never)]
    fn free(&mut self, ptr: DevicePtr) {
        self.0.free(ptr).expect("the block is held");
    }
}
