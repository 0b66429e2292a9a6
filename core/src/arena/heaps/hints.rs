//! Hints: where to look first for the heaps of a stream in the default pool.
//!
//! A hint has no key. The heap that it leads to says under its lock whom it serves, so a wrong hint
//! only makes the straight path decline. A hint is written when a stream gets its pair, and after
//! that only read.

use crate::arena::heaps::slot_of;
use crate::config::rounding::PoolKind;
use crate::sync::{AtomicU32, Ordering, empty, empty_by};
use crate::units::StreamId;

/// Log2 of the number of hints. Two of 16 streams share one in 2 of 5 programs, and the one whose
/// pair was made first then takes the general path. Under loom, streams share hints.
const HINTS_LOG2: u32 = if cfg!(loom) { 1 } else { 8 };

/// The slot of the small heap of the stream that last got a pair, by a hash of the stream.
#[derive(Debug)]
pub(crate) struct StreamHints([AtomicU32; 1 << HINTS_LOG2]);

empty_by!(StreamHints = Self(empty!()));

impl StreamHints {
    #[inline(always)]
    fn hint(&self, stream: StreamId) -> &AtomicU32 {
        // Fibonacci hashing: addresses at equal distances, as handles of streams are, spread
        // evenly.
        &self.0[(stream.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - HINTS_LOG2)) as usize]
    }

    /// Returns the slot of the heap of this kind that may belong to `stream`.
    #[inline(always)]
    pub(crate) fn slot(&self, stream: StreamId, kind: PoolKind) -> u32 {
        // Relaxed suffices: the heap's lock comes after the load, and its own word decides.
        self.hint(stream).load(Ordering::Relaxed) + kind as u32
    }

    /// Points the hint of `stream` to `pair`.
    pub(crate) fn set(&self, stream: StreamId, pair: u32) {
        self.hint(stream).store(slot_of(pair, PoolKind::Small), Ordering::Relaxed);
    }
}
