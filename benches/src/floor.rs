//! Lower bound for the cost of a pair: takes two locks and counts. Makes no decision and no
//! look-up.

use crate::subject::Subject;
use cachalot::HeapLock;
use lock_api::Mutex;

/// The counters of a pair: blocks and bytes allocated, bytes requested, and free blocks beside live
/// blocks with their bytes. Peaks are omitted.
#[derive(Default)]
struct Counts {
    added: [u64; 5],
    removed: [u64; 5],
}

/// A lock and the counters.
#[derive(Default)]
pub struct Floor(Mutex<HeapLock, Counts>);

impl Subject for Floor {
    type Handle = u64;

    #[inline(never)]
    fn malloc(&mut self, bytes: u64, _stream: u64) -> Option<u64> {
        let mut counts = self.0.lock();
        for (counter, amount) in counts.added.iter_mut().zip([1, bytes, bytes]) {
            *counter += amount;
        }
        for (counter, amount) in counts.removed.iter_mut().skip(3).zip([1, bytes]) {
            *counter += amount;
        }
        Some(bytes)
    }

    #[inline(never)]
    fn free(&mut self, bytes: u64) {
        let mut counts = self.0.lock();
        for (counter, amount) in counts.removed.iter_mut().zip([1, bytes, bytes]) {
            *counter += amount;
        }
        for (counter, amount) in counts.added.iter_mut().skip(3).zip([1, bytes]) {
            *counter += amount;
        }
    }
}
