//! The configuration and the limit of one device, and what follows from them in every heap.

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
    pub(crate) fn rules(&self, config: &Config, kind: PoolKind, options: PoolOptions) -> Rules {
        let suballocated = self.policy.suballocates(kind);
        let expandable =
            config.expandable_segments() && !suballocated && self.driver.device().virtual_memory().is_some();
        Rules::new(config, kind, options.no_split, self.flags.has(flags::AGES), expandable)
    }

    /// Puts the configuration and the limit in force everywhere. The registry is locked, so no heap is made meanwhile.
    pub(crate) fn apply_config(&self) {
        let _registry = self.registry.lock();
        let mut config = self.config.lock();
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
            // Their clocks stand still while no ages are kept.
            let mut heap = self.lock(slot);
            heap.rules = self.rules(&config, heap.rules.kind, options_of(&heap));
        }
    }

    /// The configuration in force.
    pub(crate) fn config(&self) -> Config {
        self.config.lock().clone()
    }

    pub(crate) fn limit(&self) -> Option<u64> {
        Some(self.ledger.limit()).filter(|&limit| limit != u64::MAX)
    }

    pub(crate) fn set_limit(&self, limit: Option<u64>) {
        self.ledger.set_limit(limit.unwrap_or(u64::MAX));
        self.apply_config();
    }

    pub(crate) fn set_fraction(&self, fraction: f64) -> Result<(), Error> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(Error::InvalidFraction(fraction));
        }
        let total = self.call(D::memory_info)?.total;
        self.set_limit((fraction < 1.0).then(|| fraction_of(fraction, total)));
        Ok(())
    }
}

/// A fraction of so many bytes, rounded to the nearest one (as `std::round` does for positive numbers).
pub(crate) fn fraction_of(fraction: f64, bytes: u64) -> u64 {
    (fraction * bytes as f64 + 0.5) as u64
}
