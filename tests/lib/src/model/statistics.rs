//! Statistics of the model: every change updates every counter at once.

use cachalot_core::PoolKind;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Default)]
struct Counter {
    current: i64,
    peak: i64,
    allocated: i64,
    freed: i64,
}

impl Counter {
    fn change(&mut self, amount: i64) {
        self.current += amount;
        self.peak = self.peak.max(self.current);
        if amount > 0 { self.allocated += amount } else { self.freed -= amount }
    }
}

/// Statistics with separate counters for all, small and large blocks.
const BY_POOL: [&str; 9] = [
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
];

const OVERSIZE: [&str; 2] = ["oversize_allocations", "oversize_segments"];

const EVENTS: [&str; 6] = [
    "num_alloc_retries",
    "num_ooms",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
    "num_oom_rejections",
];

/// All counters of one device.
pub(super) struct Statistics {
    counters: BTreeMap<(&'static str, &'static str), Counter>,
    events: BTreeMap<&'static str, i64>,
    max_split_size: i64,
}

impl Statistics {
    pub(super) fn new(max_split_size: Option<u64>) -> Self {
        let by_pool = BY_POOL.into_iter().flat_map(|name| ["all", "small_pool", "large_pool"].map(|pool| (name, pool)));
        let oversize = OVERSIZE.into_iter().map(|name| (name, ""));
        Self {
            counters: by_pool.chain(oversize).map(|key| (key, Counter::default())).collect(),
            events: EVENTS.into_iter().map(|name| (name, 0)).collect(),
            max_split_size: max_split_size.map_or(-1, u64::cast_signed),
        }
    }

    fn counter(&mut self, key: (&'static str, &'static str)) -> &mut Counter {
        self.counters.get_mut(&key).expect("every counter exists from the start")
    }

    /// Adds `amount` to a statistic, for all blocks and for the blocks of `kind`.
    pub(super) fn change(&mut self, name: &'static str, kind: PoolKind, amount: i64) {
        let pool = match kind {
            PoolKind::Small => "small_pool",
            PoolKind::Large => "large_pool",
        };
        self.counter((name, "all")).change(amount);
        self.counter((name, pool)).change(amount);
    }

    /// Adds to a statistic without counters by pool.
    pub(super) fn change_oversize(&mut self, name: &'static str, amount: i64) {
        self.counter((name, "")).change(amount);
    }

    /// Counts an event.
    pub(super) fn count(&mut self, name: &'static str) {
        *self.events.get_mut(name).expect("every event exists from the start") += 1;
    }

    /// Returns the present value of a statistic over all blocks.
    pub(super) fn current(&self, name: &'static str) -> u64 {
        self.counters[&(name, "all")].current.cast_unsigned()
    }

    pub(super) fn reset_peaks(&mut self) {
        for counter in self.counters.values_mut() {
            counter.peak = counter.current;
        }
    }

    pub(super) fn reset_accumulated(&mut self) {
        for counter in self.counters.values_mut() {
            (counter.allocated, counter.freed) = (0, 0);
        }
        for count in self.events.values_mut() {
            *count = 0;
        }
    }

    /// Returns every key and value, flattened like `torch.cuda.memory_stats()`.
    pub(super) fn flattened(&self) -> BTreeMap<String, i64> {
        let mut all = BTreeMap::new();
        for (&(name, pool), counter) in &self.counters {
            let dot = if pool.is_empty() { "" } else { "." };
            for (field, value) in [
                ("current", counter.current),
                ("peak", counter.peak),
                ("allocated", counter.allocated),
                ("freed", counter.freed),
            ] {
                all.insert(format!("{name}{dot}{pool}.{field}"), value);
            }
        }
        all.extend(self.events.iter().map(|(&name, &count)| (name.to_owned(), count)));
        all.insert("max_split_size".to_owned(), self.max_split_size);
        all
    }
}
