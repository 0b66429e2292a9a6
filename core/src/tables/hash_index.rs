//! Entries of a table found by a key: a hash table chained through the entries themselves.

use crate::tables::atomic_map::start;
use crate::tables::slot_table::NONE;
use crate::tables::{Storage, Table};

/// An entry that has a key of its own and holds a link.
pub(crate) trait Indexed {
    fn key(&self) -> u64;
    fn chain(&self) -> u32;
    fn set_chain(&mut self, next: u32);
}

/// The heads of the chains.
pub(crate) struct HashIndex<S: Storage> {
    buckets: S::Table<u32>,
}

impl<S: Storage> Default for HashIndex<S> {
    fn default() -> Self {
        Self { buckets: S::Table::<u32>::default() }
    }
}

impl<S: Storage> HashIndex<S> {
    /// Makes sure that entries can be added, and that there are about as many chains as `entries` if they can be had.
    pub(crate) fn make_room<T: Indexed>(&mut self, entries: &mut [T]) -> bool {
        while self.buckets.len() < entries.len().max(1) && self.grow(entries) {}
        !self.buckets.is_empty()
    }

    /// Doubles the chains, whose number is a power of two. False if that many cannot be had: they only become longer.
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
        // What is behind a place stays in its chain, or moves to the new one `old` further on.
        for bucket in 0..old {
            let mut at = core::mem::replace(&mut self.buckets[bucket], NONE);
            while at != NONE {
                let next = entries[at as usize].chain();
                self.insert(at, entries);
                at = next;
            }
        }
        true
    }

    /// Gives the memory of the heads back to the host, if it came from there. No entry is chained.
    pub(crate) fn drop_buckets(&mut self) {
        self.buckets.drop_entries();
    }

    /// Adds an entry whose key no other has; room was made.
    #[inline(always)]
    pub(crate) fn insert<T: Indexed>(&mut self, index: u32, entries: &mut [T]) {
        let entry = &mut entries[index as usize];
        let bucket = start(entry.key(), self.buckets.len());
        entry.set_chain(core::mem::replace(&mut self.buckets[bucket], index));
    }

    /// The entry with this key.
    #[inline(always)]
    pub(crate) fn find<T: Indexed>(&self, key: u64, entries: &[T]) -> Option<u32> {
        let mut at = *self.buckets.get(start(key, self.buckets.len()))?;
        // No entry is at `NONE`.
        while let Some(entry) = entries.get(at as usize) {
            if entry.key() == key {
                return Some(at);
            }
            at = entry.chain();
        }
        None
    }

    /// Takes the entry with this key out.
    #[inline(always)]
    pub(crate) fn take<T: Indexed>(&mut self, key: u64, entries: &mut [T]) -> Option<u32> {
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

    /// How many entries are in the chains, for checks.
    pub(crate) fn count<T: Indexed>(&self, entries: &[T]) -> u32 {
        let chain = |&head: &u32| core::iter::successors(Some(head), |&at| Some(entries.get(at as usize)?.chain()));
        self.buckets.iter().flat_map(chain).filter(|&at| at != NONE).count() as u32
    }
}

/// Takes the entry with this key out of a chain, where it stands behind the entry `before`.
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
