//! A hash index over the entries of a table. Collisions are chained through the entries themselves,
//! so the index only allocates the heads of the chains.

use crate::sync::impl_empty;
use crate::tables::atomic_map::start;
use crate::tables::slot_table::NONE;
use crate::tables::{Storage, Table};

/// The number of buckets for an entry. With one, every ninth free found its block behind another in
/// the chain, and began anew.
const SPREAD: usize = 4;

/// An entry that has a unique key and a link.
pub trait Indexed {
    /// Returns the key. It does not change while the entry is in an index.
    fn key(&self) -> u64;
    /// Returns the next entry of the chain, or [`NONE`] at the end.
    fn chain(&self) -> u32;
    /// Sets the next entry of the chain.
    fn set_chain(&mut self, next: u32);
}

/// A hash index: the heads of the chains. The entries belong to the caller, who passes them to
/// every operation.
#[derive(Clone)]
pub struct HashIndex<S: Storage> {
    /// The first entry of each chain, or [`NONE`]. The length is 0 or a power of two.
    buckets: S::Table<u32>,
}

impl_empty! { [S: Storage] HashIndex<S> { buckets } }

impl<S: Storage> HashIndex<S> {
    /// Makes sure that entries can be added. Adds buckets until there are `SPREAD` for each
    /// entry, or until memory runs out. Returns false if there are no buckets at all.
    pub fn make_room<T: Indexed>(&mut self, entries: &mut [T]) -> bool {
        while self.buckets.len() < (SPREAD * entries.len()).max(1) && self.grow(entries) {}
        !self.buckets.is_empty()
    }

    /// Doubles the number of buckets. Returns false if memory runs out. The chains then become
    /// longer, but remain correct.
    #[cold]
    fn grow<T: Indexed>(&mut self, entries: &mut [T]) -> bool {
        let old = self.buckets.len();
        let extra = old.max(1);
        if !self.buckets.make_room(extra) {
            return false;
        }
        for _ in 0..extra {
            self.buckets.add(NONE);
        }
        // The number of buckets is a power of two, so doubling it uses one more bit of the hash:
        // each entry of bucket `n` remains in bucket `n` or moves to bucket `n + old`.
        for bucket in 0..old {
            let mut at = core::mem::replace(&mut self.buckets[bucket], NONE);
            while at != NONE {
                // Read the link first: `insert` overwrites it.
                let next = entries[at as usize].chain();
                self.insert(at, entries);
                at = next;
            }
        }
        true
    }

    /// Gives the memory of the buckets back to the host. The caller has removed all entries. Does
    /// nothing if the capacity is fixed.
    pub(crate) fn drop_buckets(&mut self) {
        self.buckets.drop_entries();
    }

    /// Adds an entry. The caller has made room, and no other entry has its key.
    #[inline(always)]
    pub fn insert<T: Indexed>(&mut self, index: u32, entries: &mut [T]) {
        let entry = &mut entries[index as usize];
        entry.set_chain(self.add(entry.key(), index));
    }

    /// Adds the entry `index` with this key, and returns the next entry of the chain, to which the
    /// caller sets the entry's link. A caller that fills the entry anyway stores it only once, and
    /// no key is loaded. The caller has made room, and no other entry has the key.
    #[inline(always)]
    #[must_use]
    pub(crate) fn add(&mut self, key: u64, index: u32) -> u32 {
        let bucket = start(key, self.buckets.len());
        core::mem::replace(&mut self.buckets[bucket], index)
    }

    /// Returns the entry with this key.
    #[inline(always)]
    pub fn find<T: Indexed>(&self, key: u64, entries: &[T]) -> Option<u32> {
        // An index without buckets has no entries. `get` fails then, so no separate test is needed.
        let mut at = *self.buckets.get(start(key, self.buckets.len()))?;
        // The bounds check ends the chain: no table has an entry at `NONE`.
        while let Some(entry) = entries.get(at as usize) {
            if entry.key() == key {
                return Some(at);
            }
            at = entry.chain();
        }
        None
    }

    /// Removes the entry with this key from its chain, and returns its index.
    #[inline(always)]
    pub fn take<T: Indexed>(&mut self, key: u64, entries: &mut [T]) -> Option<u32> {
        let bucket = start(key, self.buckets.len());
        let head = self.buckets.get_mut(bucket)?;
        let first = *head;
        let entry = entries.get(first as usize)?;
        if entry.key() == key {
            *head = entry.chain();
            return Some(first);
        }
        take_behind(first, key, entries)
    }

    /// Removes the entry with this key if it is the first of its chain and `may` agrees, and
    /// returns its index. Otherwise changes nothing. There are more buckets than entries, so an
    /// entry is usually the first of its chain.
    #[inline(always)]
    pub(crate) fn take_if<T: Indexed>(&mut self, key: u64, entries: &[T], may: impl FnOnce(&T) -> bool) -> Option<u32> {
        let bucket = start(key, self.buckets.len());
        let head = self.buckets.get_mut(bucket)?;
        let first = *head;
        let entry = entries.get(first as usize)?;
        if entry.key() != key || !may(entry) {
            return None;
        }
        *head = entry.chain();
        Some(first)
    }

    /// Counts the entries in all chains, for consistency checks.
    pub(crate) fn count<T: Indexed>(&self, entries: &[T]) -> u32 {
        let chain = |&head: &u32| core::iter::successors(Some(head), |&at| Some(entries.get(at as usize)?.chain()));
        self.buckets.iter().flat_map(chain).filter(|&at| at != NONE).count() as u32
    }
}

/// Removes the entry with this key from a chain, searching after the entry `before`. Cold: as there
/// are more buckets than entries, the entry is usually the head of its chain.
#[cold]
fn take_behind<T: Indexed>(mut before: u32, key: u64, entries: &mut [T]) -> Option<u32> {
    loop {
        let at = entries[before as usize].chain();
        let entry = entries.get(at as usize)?;
        if entry.key() == key {
            let next = entry.chain();
            entries[before as usize].set_chain(next);
            return Some(at);
        }
        before = at;
    }
}
