//! Memory in the book: by kind and number, the bytes and the asking object.

use super::kind::Kind;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Greatest number of living entries.
pub(super) const ENTRIES: usize = 1 << 20;

/// Parts of the table, each with a lock.
const SHARDS: usize = 16;

/// A living entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Booking {
    pub(super) bytes: u64,
    /// The number of the object in the book.
    pub(super) object: u16,
    /// The number of the call stack, or 0.
    pub(super) stack: u32,
}

type Shard = Mutex<FxHashMap<(Kind, u64), Booking>>;

/// The living entries. No lock is held while foreign code runs.
#[derive(Default)]
pub(super) struct Live {
    shards: [Shard; SHARDS],
    count: AtomicUsize,
}

impl Live {
    fn shard(&self, id: u64) -> &Shard {
        // Addresses are multiples of 512 and more, handles of 16.
        let mixed = id.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 60;
        &self.shards[mixed as usize % SHARDS]
    }

    /// Adds an entry, and returns the earlier entry of the number. `Err`: no room.
    pub(super) fn insert(&self, kind: Kind, id: u64, entry: Booking) -> Result<Option<Booking>, ()> {
        if self.count.fetch_add(1, Ordering::Relaxed) >= ENTRIES {
            self.count.fetch_sub(1, Ordering::Relaxed);
            return Err(());
        }
        let before = self.shard(id).lock().unwrap_or_else(PoisonError::into_inner).insert((kind, id), entry);
        if before.is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        Ok(before)
    }

    /// Removes an entry.
    pub(super) fn remove(&self, kind: Kind, id: u64) -> Option<Booking> {
        let entry = self.shard(id).lock().unwrap_or_else(PoisonError::into_inner).remove(&(kind, id))?;
        self.count.fetch_sub(1, Ordering::Relaxed);
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::{Booking, ENTRIES, Live};
    use crate::ledger::Kind;
    use std::sync::atomic::Ordering;

    #[test]
    fn entries_are_bounded_and_numbers_are_used_again() {
        let live = Live::default();
        let entry = |bytes| Booking { bytes, object: 1, stack: 0 };
        assert_eq!(live.insert(Kind::Plain, 512, entry(1)), Ok(None));
        assert_eq!(live.insert(Kind::Host, 512, entry(2)), Ok(None));
        assert_eq!(live.insert(Kind::Plain, 512, entry(3)), Ok(Some(entry(1))));
        assert_eq!(live.count.load(Ordering::Relaxed), 2);
        assert_eq!(live.remove(Kind::Plain, 512), Some(entry(3)));
        assert_eq!(live.remove(Kind::Plain, 512), None);
        live.count.store(ENTRIES, Ordering::Relaxed);
        assert_eq!(live.insert(Kind::Plain, 1024, entry(1)), Err(()));
        assert_eq!(live.remove(Kind::Plain, 1024), None);
    }
}
