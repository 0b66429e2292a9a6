//! The allocator of the project as a [`Subject`]: the complete allocator, over a simulated device.

use crate::settings::{CAPACITY, Settings};
use crate::subject::Subject;
use cachalot_core::simulated::SimulatedDevice;
use cachalot_core::{Allocator, DeviceIndex, DevicePtr, Lock, StreamId};
use cachalot_policies::Tables;
use std::sync::Arc;

const DEVICE: DeviceIndex = DeviceIndex(0);

/// An allocator with statistics, whose heaps are locked by `R`. Clones share the allocator.
pub struct Cachalot<R: Lock>(Arc<Allocator<SimulatedDevice, R, Tables>>);

impl<R: Lock> Clone for Cachalot<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<R: Lock> Cachalot<R> {
    /// Creates an allocator with the given settings.
    ///
    /// # Panics
    /// If the configuration is invalid.
    pub fn new(settings: &Settings) -> Self {
        let config = cachalot_policies::parse(&settings.config).expect("the configuration is valid");
        let allocator = Allocator::new([SimulatedDevice::new(CAPACITY)], &config).expect("one device fits");
        allocator.settings(DEVICE).expect("the device exists").set_limit(settings.limit);
        Self(Arc::new(allocator))
    }

    /// Returns the allocator.
    pub fn allocator(&self) -> &Allocator<SimulatedDevice, R, Tables> {
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
        self.0.free(ptr).expect("the block is live");
    }
}
