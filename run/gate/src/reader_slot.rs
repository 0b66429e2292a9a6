//! The slot of a reader, which the writer of the lock reads.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, Ordering};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};

/// The slot of a thread: odd while the thread has a read guard, and different after every read.
/// Only one thread at a time changes a slot, and it does so at each read, so the slot should be on
/// the thread's own cache line.
#[derive(Debug, Default)]
pub struct ReaderSlot {
    /// Twice the number of reads that ended, and 1 more during a read.
    reads: AtomicU64,
}

impl ReaderSlot {
    /// Returns the slot of a thread that does not read.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { reads: AtomicU64::new(0) }
    }

    /// Returns the slot of a thread that does not read.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether the thread of the slot reads. Called by this thread.
    #[inline]
    pub fn is_reading(&self) -> bool {
        self.reads.load(Ordering::Relaxed) & 1 == 1
    }

    /// Makes the slot odd. `None` if it is odd already.
    #[inline]
    pub(crate) fn enter(&self) -> Option<u64> {
        let before = self.reads.load(Ordering::Relaxed);
        if before & 1 == 1 {
            return None;
        }
        self.reads.store(before + 1, Ordering::Relaxed);
        Some(before)
    }

    /// Makes the slot even again after a read. A writer that sees the new value also sees what the
    /// reader did.
    #[inline]
    pub(crate) fn leave(&self) {
        let inside = self.reads.load(Ordering::Relaxed);
        self.reads.store(inside + 1, Ordering::Release);
    }

    /// Restores the slot after a read that was refused because the writer has the lock.
    #[inline]
    pub(crate) fn restore(&self, before: u64) {
        self.reads.store(before, Ordering::Release);
    }
}

/// All slots at a moment, summed up.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Scan {
    /// A number that every read changes.
    pub reads: u64,
    /// Whether a thread has a read guard.
    pub is_reading: bool,
}

/// Reads slots. While the lock is write-locked, `is_reading` says whether a reader may still use
/// the memory.
pub fn scan<'a>(slots: impl IntoIterator<Item = &'a ReaderSlot>) -> Scan {
    slots.into_iter().fold(Scan::default(), |scan, slot| {
        let reads = slot.reads.load(Ordering::Acquire);
        Scan { reads: scan.reads.wrapping_add(reads / 2), is_reading: scan.is_reading || reads & 1 == 1 }
    })
}
