//! How much memory of the host the process has, and whether that grows.

use super::library::Answer;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Looks of a phase. The first one, after a tenth, is what later ones are compared with.
const LOOKS: u64 = 10;
const KIB_PER_MIB: f64 = 1024.0;

/// KiB of memory of the process's own, shared mappings excluded: those of an emulated device are its device memory.
fn own_kib() -> Answer<u64> {
    let status = std::fs::read_to_string("/proc/self/status").map_err(|error| format!("/proc/self/status: {error}"))?;
    let field = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let number = field.and_then(|field| field.trim().strip_suffix("kB")).and_then(|number| number.trim().parse().ok());
    number.ok_or_else(|| "/proc/self/status does not say RssAnon".to_owned())
}

/// The units of a phase as its threads take them, and the memory while they do.
pub(super) struct Progress {
    name: &'static str,
    total: u64,
    bound_kib: u64,
    next: AtomicU64,
    /// Memory at the first look; 0 before it.
    first_kib: AtomicU64,
    stopped: AtomicBool,
}

impl Progress {
    /// Nothing done of `total` units; memory may grow by `bound_kib` from the first look on.
    pub(super) fn new(name: &'static str, total: u64, bound_kib: u64) -> Self {
        let (next, first_kib) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { name, total, bound_kib, next, first_kib, stopped: AtomicBool::new(false) }
    }

    /// Takes the next unit. `None` if there is none, or the phase was stopped.
    ///
    /// # Errors
    /// Memory has grown beyond the bound.
    pub(super) fn next(&self) -> Answer<Option<u64>> {
        if self.stopped.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if number > 0 && number <= self.total && number.is_multiple_of(self.total.div_ceil(LOOKS)) {
            self.look(number)?;
        }
        Ok((number < self.total).then_some(number))
    }

    /// Lets every thread stop.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// Prints how much memory there is after so many units.
    ///
    /// # Errors
    /// It has grown beyond the bound.
    pub(super) fn look(&self, done: u64) -> Answer {
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
