//! The floor: what a pair costs that does nothing but take its two locks and count. No decision is made, nothing is looked up.

use crate::subject::Subject;
use cachalot::HeapLock;
use lock_api::Mutex;

/// What a pair has to count: blocks and bytes allocated, bytes requested, free blocks beside others and their bytes. Peaks are
/// left out.
#[derive(Default)]
struct Counts {
    added: [u64; 5],
    removed: [u64; 5],
}

/// One lock and what it protects.
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
