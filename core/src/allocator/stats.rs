//! The statistics of a device: reading and resetting them.

use super::{Allocator, Reading};
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::stats::Stats;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::DeviceIndex;

view! {
    /// The statistics of a device: a view of an [`Allocator`], returned by [`Allocator::stats`].
    ///
    /// Device: no method calls it.
    Statistics,
    /// Returns the statistics of `device`.
    stats
}

impl<D: DeviceMemory, R: Lock, S: Storage> Statistics<'_, D, R, S> {
    /// Returns the counters of memory, blocks and requests. Peaks are exact, except that if two
    /// calls overlap in time, one of them may be missing until the next call.
    pub fn totals(&self) -> Stats {
        self.arena.peaks.locked(|totals| totals.stats(self.arena.counters().all()))
    }

    /// Reads every other [statistic](crate::Statistic). Heaps are read in turn, so sums may
    /// disagree slightly while threads allocate.
    pub fn reading(&self) -> Reading {
        Reading::of(self.allocator, self.arena)
    }

    /// Sets every peak to the current value.
    pub fn reset_peaks(&self) {
        let arena = self.begin("reset_peak_stats");
        arena.peaks.locked(|totals| totals.reset_peaks(arena.counters().all()));
    }

    /// Sets the totals of allocated and freed amounts, and the counts of events, to 0.
    pub fn reset_accumulated(&self) {
        let arena = self.begin("reset_accumulated_stats");
        arena.peaks.locked(|totals| totals.reset_accumulated(arena.counters().all()));
    }

    /// Returns how many bytes could not be released. The device or the host may still hold this
    /// memory. It is never allocated again, and counts as held.
    pub fn leaked_bytes(&self) -> u64 {
        self.arena.leaked_bytes()
    }
}
