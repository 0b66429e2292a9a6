//! Shadow map of device memory on the host: the memory in use, and the freed memory that visiting
//! streams still use.
//!
//! ```text
//! address   48            34 33            21 20        9 8      0
//!          |  which wing     |   which page   |  which unit |      |     two bits a unit: live, pending
//! ```
//!
//! A claim and a release are a few atomic operations. A lock would keep the threads from meeting
//! inside the allocator. A block is claimed after the request and unclaimed before the free, so
//! every overlap seen in the map is real.

use crate::visit::Visit;
use cachalot_core::{DevicePtr, GRAIN};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Bytes of a page. Each word of a page holds the bits of 64 units.
const PAGE_BYTES: u64 = 2 << 20;
/// Words of a page.
const WORDS: usize = (PAGE_BYTES / GRAIN / 64) as usize;
/// Bits of an address that select the page within a wing, and the wing.
const PAGE_BITS: u32 = 13;
const WING_BITS: u32 = 15;
/// End of the map's addresses; no device so far has reached the end (2^49 on Hopper).
const END: u64 = PAGE_BYTES << (PAGE_BITS + WING_BITS);

/// Bits of the units of 2 MiB.
#[derive(Debug)]
struct PageBits {
    live: [AtomicU64; WORDS],
    pending: [AtomicU64; WORDS],
}

/// The pages of 16 GiB.
type Wing = Box<[OnceLock<Box<PageBits>>]>;

/// A block that was freed while other streams used the memory.
#[derive(Debug)]
struct Pending {
    bytes: u64,
    block: u64,
    visits: Vec<Arc<Visit>>,
}

/// Reason for a refused claim.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Conflict {
    /// The address is impossible for a device, or not a multiple of 256.
    NotABlock,
    /// Memory at or around this address is in use.
    InUse(DevicePtr),
    /// A stream still uses the memory of this freed block.
    StillVisited(u64),
}

/// Map of device memory. Concurrent claims need no lock.
#[derive(Debug)]
pub(crate) struct Shadow {
    wings: Box<[OnceLock<Wing>]>,
    /// Freed blocks that other streams may use, by address. Contains exactly the ranges whose
    /// pending bits are set.
    pending: Mutex<BTreeMap<u64, Pending>>,
}

/// The part of a range within one word.
struct WordPart {
    page: u64,
    word: usize,
    mask: u64,
}

/// Iterates over the words that a range touches.
fn parts(ptr: DevicePtr, bytes: u64) -> impl Iterator<Item = WordPart> {
    let end = (ptr.0 + bytes).div_ceil(GRAIN);
    let mut unit = ptr.0 / GRAIN;
    std::iter::from_fn(move || {
        if unit >= end {
            return None;
        }
        let (bit, count) = (unit % 64, (64 - unit % 64).min(end - unit));
        let mask = (u64::MAX >> (64 - count)) << bit;
        let word = unit / 64;
        unit += count;
        Some(WordPart { page: word / WORDS as u64, word: (word % WORDS as u64) as usize, mask })
    })
}

impl Default for Shadow {
    fn default() -> Self {
        Self { wings: (0..1 << WING_BITS).map(|_| OnceLock::new()).collect(), pending: Mutex::default() }
    }
}

impl Shadow {
    fn page(&self, number: u64) -> &PageBits {
        // Wings and pages are allocated on first use, since a device uses few of all addresses.
        let make_wing = || (0..1 << PAGE_BITS).map(|_| OnceLock::new()).collect();
        let wing = self.wings[(number >> PAGE_BITS) as usize].get_or_init(make_wing);
        let zeros = || [const { AtomicU64::new(0) }; WORDS];
        wing[(number & ((1 << PAGE_BITS) - 1)) as usize]
            .get_or_init(|| Box::new(PageBits { live: zeros(), pending: zeros() }))
    }

    /// Marks a new block's memory as in use.
    ///
    /// # Errors
    /// Part of the memory is in use already, or still used by a visiting stream.
    pub(crate) fn claim(&self, ptr: DevicePtr, bytes: u64) -> Result<(), Conflict> {
        if !ptr.0.is_multiple_of(GRAIN) || ptr.0 == 0 || ptr.0.checked_add(bytes).is_none_or(|end| end > END) {
            return Err(Conflict::NotABlock);
        }
        let mut visited = false;
        for WordPart { page, word, mask } in parts(ptr, bytes) {
            let words = self.page(page);
            // Set and test in one atomic operation: of two overlapping claims, at least one sees
            // the other.
            let before = words.live[word].fetch_or(mask, Ordering::AcqRel) & mask;
            if before != 0 {
                let unit = (page * WORDS as u64 + word as u64) * 64 + u64::from(before.trailing_zeros());
                return Err(Conflict::InUse(DevicePtr(unit * GRAIN)));
            }
            // The pending map needs a lock, so only a claim of pending memory looks there.
            visited |= words.pending[word].load(Ordering::Acquire) & mask != 0;
        }
        if visited { self.end_visits(ptr, bytes) } else { Ok(()) }
    }

    /// Marks a block's memory as unused, before the free. Returns false if part of the memory was
    /// not claimed.
    pub(crate) fn unclaim(&self, ptr: DevicePtr, bytes: u64) -> bool {
        let mut whole = true;
        for WordPart { page, word, mask } in parts(ptr, bytes) {
            let before = self.page(page).live[word].fetch_and(!mask, Ordering::AcqRel);
            whole &= before & mask == mask;
        }
        whole
    }

    /// Registers a block that is about to be freed while `visits` may be incomplete.
    pub(crate) fn pend(&self, ptr: DevicePtr, bytes: u64, block: u64, visits: Vec<Arc<Visit>>) {
        let mut pending = self.pending.lock();
        pending.insert(ptr.0, Pending { bytes, block, visits });
        self.mark(ptr, bytes, true);
    }

    /// Removes a block whose free has failed from the pending blocks. Returns the block's visits.
    pub(crate) fn unpend(&self, ptr: DevicePtr) -> Vec<Arc<Visit>> {
        let mut pending = self.pending.lock();
        let Some(entry) = pending.remove(&ptr.0) else { return Vec::new() };
        self.mark(ptr, entry.bytes, false);
        entry.visits
    }

    /// Forgets the freed blocks whose visits are complete.
    pub(crate) fn prune(&self) {
        let over = |entry: &Pending| entry.visits.iter().all(|visit| visit.is_over() == Some(true));
        self.pending.lock().retain(|&at, entry| {
            let keep = !over(entry);
            if !keep {
                self.mark(DevicePtr(at), entry.bytes, false);
            }
            keep
        });
    }

    /// Checks that all visits to freed blocks in a range are complete, because the range was served
    /// again.
    fn end_visits(&self, ptr: DevicePtr, bytes: u64) -> Result<(), Conflict> {
        let mut ended = Vec::new();
        let end = ptr.0 + bytes;
        let mut pending = self.pending.lock();
        while let Some((&at, entry)) = pending.range(..end).next_back()
            && at + entry.bytes.next_multiple_of(GRAIN) > ptr.0
        {
            self.mark(DevicePtr(at), entry.bytes, false);
            ended.extend(pending.remove(&at));
        }
        drop(pending);
        // The driver is asked without the lock, which every free of a visited block takes.
        // Incomplete now implies incomplete when the block was served.
        let runs = |entry: &&Pending| entry.visits.iter().any(|visit| visit.is_over() == Some(false));
        ended.iter().find(runs).map_or(Ok(()), |entry| Err(Conflict::StillVisited(entry.block)))
    }

    /// Sets or clears pending bits. The caller holds the lock.
    fn mark(&self, ptr: DevicePtr, bytes: u64, on: bool) {
        for WordPart { page, word, mask } in parts(ptr, bytes) {
            let word = &self.page(page).pending[word];
            if on {
                word.fetch_or(mask, Ordering::AcqRel);
            } else {
                word.fetch_and(!mask, Ordering::AcqRel);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Conflict, PAGE_BYTES, Shadow};
    use cachalot_core::DevicePtr;

    #[test]
    fn overlaps_are_detected_at_every_edge() {
        let shadow = Shadow::default();
        let base = DevicePtr(0x7f00_0000_0000 + PAGE_BYTES - 1024);
        assert_eq!(shadow.claim(base, 3 * PAGE_BYTES + 1), Ok(()));
        let last = base.offset(3 * PAGE_BYTES);
        for inside in [base, base.offset(512), base.offset(PAGE_BYTES), last] {
            assert_eq!(shadow.claim(inside, 1), Err(Conflict::InUse(inside)));
        }
        assert_eq!(shadow.claim(DevicePtr(base.0 - 512), 512), Ok(()));
        assert_eq!(shadow.claim(last.offset(512), 1), Ok(()));
        assert!(shadow.unclaim(base, 3 * PAGE_BYTES + 1));
        assert!(!shadow.unclaim(base, 1), "it was given up before");
        assert_eq!(shadow.claim(base, 3 * PAGE_BYTES + 1), Ok(()));
        assert_eq!(shadow.claim(last, 1024), Err(Conflict::InUse(last)));
    }

    #[test]
    fn impossible_blocks_are_refused() {
        let shadow = Shadow::default();
        for (address, bytes) in [(0, 512), (513, 1), (u64::MAX - 511, 512), (1 << 49, 1)] {
            assert_eq!(shadow.claim(DevicePtr(address), bytes), Err(Conflict::NotABlock), "{address:#x}");
        }
    }
}
