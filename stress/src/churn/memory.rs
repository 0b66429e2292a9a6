//! Host memory of the process, and detection of growth.

use super::library::Answer;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Measurements per phase. The first measurement, after a tenth, is the baseline of the later ones.
const MEASUREMENTS: u64 = 10;
const KIB_PER_MIB: f64 = 1024.0;

/// Returns the KiB of the process's own memory. Excludes shared mappings: the device memory of
/// emulated devices is a shared mapping.
fn own_kib() -> Answer<u64> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(|error| format!("/proc/self/status: {error}"))?;
    let field = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let number = field.and_then(|field| field.trim().strip_suffix("kB")).and_then(|number| number.trim().parse().ok());
    number.ok_or_else(|| "/proc/self/status does not say RssAnon".to_owned())
}

/// Progress of a phase: units taken by the threads, and host memory.
pub(super) struct Progress {
    name: &'static str,
    total: u64,
    bound_kib: u64,
    next: AtomicU64,
    /// Memory at the first measurement, or 0 before the first measurement.
    first_kib: AtomicU64,
    stopped: AtomicBool,
}

impl Progress {
    /// Starts a phase of `total` units. Memory may grow by `bound_kib` after the first measurement.
    pub(super) fn new(name: &'static str, total: u64, bound_kib: u64) -> Self {
        let (next, first_kib) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { name, total, bound_kib, next, first_kib, stopped: AtomicBool::new(false) }
    }

    /// Takes the next unit. Returns `None` if no unit is left, or the phase was stopped.
    ///
    /// # Errors
    /// Memory has grown beyond the bound.
    pub(super) fn next(&self) -> Answer<Option<u64>> {
        if self.stopped.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if number > 0 && number <= self.total && number.is_multiple_of(self.total.div_ceil(MEASUREMENTS)) {
            self.measure(number)?;
        }
        Ok((number < self.total).then_some(number))
    }

    /// Makes every thread stop at its next unit.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Prints the host memory after `done` units.
    ///
    /// # Errors
    /// Memory has grown beyond the bound.
    pub(super) fn measure(&self, done: u64) -> Answer {
        let now = own_kib()?;
        let before = self.first_kib.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        let first = before.err().unwrap_or(now);
        println!("{:<10} {done:>11}   {:>8.1} MiB", self.name, now as f64 / KIB_PER_MIB);
        let grown = now.saturating_sub(first);
        if grown > self.bound_kib {
            return Err(format!(
                "memory grew by {grown} KiB, more than {}, after {done} {}",
                self.bound_kib, self.name
            ));
        }
        Ok(())
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done = self.next.load(Ordering::Relaxed).min(self.total);
        write!(f, "{}, {done} of {}", self.name, self.total)
    }
}
