//! The settings of a device that programs may change while they use it.

use super::Allocator;
use crate::arena::flags;
use crate::config::Config;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::sync::{Lock, Ordering};
use crate::tables::Storage;
use crate::units::DeviceIndex;

view! {
    /// The settings of a device: a view of an [`Allocator`], returned by [`Allocator::settings`].
    /// [`Allocator::configure`] replaces the configuration of all devices.
    DeviceSettings,
    /// Returns the settings of `device`.
    settings
}

impl<D: DeviceMemory, R: Lock, S: Storage> DeviceSettings<'_, D, R, S> {
    /// Returns the active configuration.
    pub fn config(&self) -> Config {
        self.arena.settings.copy()
    }

    /// Limits the bytes held from the device. `None` removes the limit. Memory that is held beyond
    /// the limit is not released: see [`Allocator::trim`].
    pub fn set_limit(&self, limit: Option<u64>) {
        let device = self.begin("set_limit");
        device.ledger.set_limit(limit.unwrap_or(u64::MAX));
        device.apply_config();
    }

    /// Returns the most bytes that may be held from the device, or `None` if there is no limit.
    pub fn limit(&self) -> Option<u64> {
        self.arena.ledger.limit_if_set()
    }

    /// Limits the bytes held from the device to a fraction of its memory, rounded to the nearest
    /// byte. A fraction of 1 removes the limit.
    ///
    /// Device: called to get the size of its memory.
    ///
    /// # Errors
    /// * [`Error::InvalidFraction`]: the fraction is outside of 0 … 1, or not a number.
    /// * [`Error::Device`].
    pub fn set_memory_fraction(&self, fraction: f64) -> Result<(), Error> {
        let device = self.begin("set_memory_fraction");
        device.ledger.limit_to_fraction(&device.driver, fraction).map(|()| device.apply_config())
    }

    /// Turns the cache on or off. With the cache off, every request obtains memory from the device
    /// and every free releases it, which is useful for memory checkers. A request that the device
    /// or a limit refuses takes the [steps](crate::ladder::steps) that do not search the cache: it
    /// waits for pending blocks, and releases what was cached before. Blocks that were allocated
    /// before remain valid. `policy:direct` has no cache to turn on.
    pub fn set_caching(&self, caching: bool) {
        let device = self.begin("set_caching");
        // `policy:direct` never caches.
        let caches = caching && device.settings.policy().traits().caches;
        device.driver.flags.set(flags::DIRECT, !caches);
    }

    /// Selects whether a request searches the cache again after it has waited for events, before
    /// any memory is released. This is on by default. When it is off, the allocator decides as
    /// `PyTorch` 2.11 does, so that recorded programs are repeated exactly.
    pub fn set_second_search(&self, on: bool) {
        self.begin("set_second_search").settings.single_search.store(u32::from(!on), Ordering::Relaxed);
    }
}
