//! The cache, the limits and the settings.

use super::Worker;
use crate::abi;
use crate::permitted::Situation;
use cachalot::c::abi::CACHALOT_NO_LIMIT;
use std::ffi::CString;
use std::sync::atomic::Ordering;

/// Settings for a change under the policy caching.
const CHANGES: &[&str] = &[
    "",
    "max_split_size_mb:20",
    "max_split_size_mb:64,max_non_split_rounding_mb:32",
    "garbage_collection_threshold:0.6",
    "roundup_power2_divisions:4",
    "large_segment_size_mb:12",
    "compact:0.1",
    "parity:False",
    "parity:True",
];

impl Worker {
    /// Makes pending blocks available.
    pub(crate) fn process_events(&mut self) {
        let device = self.any_device() as i32;
        self.world.allocator.process_events(device).judge(self.situation());
    }

    /// Releases the cache.
    pub(crate) fn empty_cache(&mut self) {
        let device = self.any_device() as i32;
        self.world.allocator.empty_cache(device).judge(self.situation());
    }

    /// Releases a part of the cache.
    pub(crate) fn trim(&mut self) {
        let device = self.any_device() as i32;
        let keep = self.rng.usize(..self.world.case.memory as usize / 2);
        self.world.allocator.trim(device, keep).judge(self.situation());
        let stream = self.any_stream();
        if let Some(_alive) = stream.alive() {
            self.enter(stream.device);
            let handle = abi::stream(stream.handle);
            self.world.allocator.stream_trim(stream.device as i32, handle, keep).judge(self.situation());
        }
        // The frees of this program are at number 0, which is done from the beginning.
        self.world.allocator.set_safe_frontier(device, u64::from(self.rng.u8(..))).judge(self.situation());
    }

    /// Does the work put off by requests.
    pub(crate) fn maintain(&mut self) {
        let device = self.any_device() as i32;
        let (mut more, max_us) = (-1, if self.rng.bool() { 1_000_000 } else { 200 });
        self.world.allocator.maintain(device, max_us, &mut more).judge(self.situation());
        if !self.world.case.repeats() && self.rng.u8(..8) == 0 {
            let interval_us = if self.rng.bool() { 0 } else { 500 };
            self.world.allocator.maintain_every(interval_us, 200).judge(self.situation());
        }
    }

    /// Sets a limit, or none.
    pub(crate) fn limit(&mut self) {
        let device = self.any_device() as i32;
        if !self.world.case.tight {
            self.world.allocator.set_limit(device, CACHALOT_NO_LIMIT).judge(self.situation());
            return;
        }
        let allocator = self.world.allocator;
        match self.rng.u8(..4) {
            0 => {
                let bytes = self.rng.u64(..self.world.case.memory);
                self.say(|| format!("limit {bytes}"));
                allocator.set_limit(device, bytes).judge(self.situation())
            }
            1 => allocator.set_memory_fraction(device, 0.3 + self.rng.f64() * 0.7).judge(self.situation()),
            2 => allocator.set_memory_fraction(device, 1.0).judge(self.situation()),
            _ => allocator.set_limit(device, CACHALOT_NO_LIMIT).judge(self.situation()),
        };
    }

    /// Changes settings of the policy caching.
    pub(crate) fn configure(&mut self) {
        if self.world.case.config.contains("policy:") {
            return;
        }
        let text = CHANGES[self.rng.usize(..CHANGES.len())];
        let text = CString::new(text).unwrap_or_default();
        self.world.allocator.configure(text.as_ptr()).judge(self.situation());
    }

    /// Turns the cache off, and on again later.
    pub(crate) fn set_caching(&mut self) {
        let device = self.any_device() as i32;
        let on = i32::from(self.rng.u8(..3) > 0);
        self.world.unusual.store(true, Ordering::Relaxed);
        self.world.allocator.set_caching(device, on).judge(self.situation() | Situation::NONE);
    }

    /// Announces iterations, and ends their plans at times.
    pub(crate) fn iteration(&mut self) {
        let device = self.any_device() as i32;
        self.world.allocator.iteration(device).judge(self.situation());
        if self.rng.u8(..8) == 0 {
            self.world.allocator.plans_end(device).judge(self.situation());
        }
    }
}
