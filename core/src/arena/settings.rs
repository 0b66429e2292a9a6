//! Configuration and memory limit of one device, and the rules that heaps derive from both.

use crate::arena::heaps::options_of;
use crate::arena::{Arena, flags};
use crate::config::Config;
use crate::config::rounding::PoolKind;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::heap::split_rules::Rules;
use crate::pool::PoolOptions;
use crate::sync::{Lock, Ordering};
use crate::tables::Storage;

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// Returns the rules of a heap of `kind` in a pool with `options`. A heap is expandable if the
    /// configuration says so, no sub-allocator manages the heap, and the device has virtual memory.
    pub(crate) fn rules(&self, config: &Config, kind: PoolKind, options: PoolOptions) -> Rules {
        let suballocated = self.policy.suballocates(kind);
        let expandable =
            config.expandable_segments() && !suballocated && self.driver.device().virtual_memory().is_some();
        Rules::new(config, kind, options.no_split, self.flags.has(flags::AGES), expandable)
    }

    /// Applies the configuration and the limit to the flags, the rounding and every heap. The
    /// registry is locked, so no other thread makes a heap.
    pub(crate) fn apply_config(&self) {
        // Lock order: registry, config, then one heap at a time.
        let _registry = self.registry.lock();
        let mut config = self.config.lock();
        // The policy is fixed when the arena is made.
        config.set_policy(self.policy);
        self.pin_planned(&mut config);
        let config = config.clone();
        for (word, &divisions) in self.divisions.iter().zip(config.roundup_power2_divisions().intervals()) {
            word.store(divisions, Ordering::Relaxed);
        }
        let divided = config.roundup_power2_divisions().intervals().iter().any(|&divisions| divisions > 1);
        self.flags.set(flags::ROUNDING, divided || self.policy.rounds_otherwise());
        let limited = self.ledger.limit() != u64::MAX;
        self.flags.set(flags::AGES, limited && config.garbage_collection_threshold().is_some());
        for slot in self.slot_numbers() {
            // `lock` sets the clock by the old rules: a heap that begins to age now has a stale
            // clock until its next lock.
            let mut heap = self.lock(slot);
            heap.rules = self.rules(&config, heap.rules.kind, options_of(&heap));
        }
    }

    /// Returns a copy of the configuration in force.
    pub(crate) fn config(&self) -> Config {
        self.config.lock().clone()
    }

    /// Returns the limit on the bytes held from the device, if a limit is set.
    pub(crate) fn limit(&self) -> Option<u64> {
        Some(self.ledger.limit()).filter(|&limit| limit != u64::MAX)
    }

    /// Sets or removes the limit. A lower limit releases nothing by itself.
    pub(crate) fn set_limit(&self, limit: Option<u64>) {
        self.ledger.set_limit(limit.unwrap_or(u64::MAX));
        self.apply_config();
    }

    /// Limits the bytes held to a fraction of the device's total memory. A fraction of 1 removes
    /// the limit.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidFraction`] unless `fraction` is from 0 to 1, and errors of the device.
    pub(crate) fn set_fraction(&self, fraction: f64) -> Result<(), Error> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(Error::InvalidFraction(fraction));
        }
        let total = self.call(D::memory_info)?.total;
        self.set_limit((fraction < 1.0).then(|| fraction_of(fraction, total)));
        Ok(())
    }
}

/// Returns `fraction` of `bytes`, rounded to the nearest byte and halves up, as C++'s `std::round`
/// does for positive numbers.
pub(crate) fn fraction_of(fraction: f64, bytes: u64) -> u64 {
    (fraction * bytes as f64 + 0.5) as u64
}
