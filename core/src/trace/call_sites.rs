//! The call sites of blocks and segments: the numbers that the host returns while a trace is
//! recorded.
//!
//! The table is separate from the blocks, and has entries only where the host returned a number, so
//! a program that records no stacks pays nothing for it. The table is on the host's heap; a build
//! without `alloc` stores no call sites.

use crate::sync::{AtomicU32, Lock, Ordering, Rank, Ranked, empty, empty_by, impl_empty};
use crate::units::DevicePtr;
#[cfg(feature = "alloc")]
use alloc::collections::BTreeMap;

/// The call sites of a device's blocks and segments.
pub(crate) struct CallSites<R: Lock> {
    tables: Ranked<R, Tables>,
    /// 0 ⟹ the tables are empty. This is read without the lock, so a program that traces events but
    /// reports no call sites never locks the tables.
    any: AtomicU32,
}

impl_empty! { [R: Lock] CallSites<R> { tables: Ranked::new(Rank::CallSites, empty!()), any } }

/// The call sites, by address.
struct Tables {
    /// Address of a live or pending block → its call site.
    #[cfg(feature = "alloc")]
    blocks: BTreeMap<DevicePtr, u32>,
    /// Base of a segment, or of a mapped part → its length in bytes and its call site.
    #[cfg(feature = "alloc")]
    segments: BTreeMap<DevicePtr, (u64, u32)>,
}

empty_by! {
    Tables = Self {
        #[cfg(feature = "alloc")]
        blocks: BTreeMap::new(),
        #[cfg(feature = "alloc")]
        segments: BTreeMap::new(),
    }
}

impl<R: Lock> CallSites<R> {
    /// Removes all call sites.
    pub(crate) fn clear(&self) {
        let mut tables = self.tables.lock();
        *tables = empty!();
        self.any.store(0, Ordering::Relaxed);
    }
}

#[cfg(feature = "alloc")]
impl<R: Lock> CallSites<R> {
    /// Returns whether the tables may have entries.
    #[inline(always)]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed) != 0
    }

    /// Sets the call site of the block at `addr`.
    #[cold]
    pub(crate) fn set_block(&self, addr: DevicePtr, site: u32) {
        let mut tables = self.tables.lock();
        tables.blocks.insert(addr, site);
        self.any.store(1, Ordering::Relaxed);
    }

    /// Returns the call site of the block at `addr`, or 0 if it is unknown.
    pub(crate) fn block(&self, addr: DevicePtr) -> u32 {
        if !self.any() {
            return 0;
        }
        self.tables.lock().blocks.get(&addr).copied().unwrap_or(0)
    }

    /// Removes and returns the call site of the block at `addr`, or returns 0 if it is unknown.
    #[inline(always)]
    pub(crate) fn take_block(&self, addr: DevicePtr) -> u32 {
        if self.any() { self.take_known_block(addr) } else { 0 }
    }

    #[cold]
    fn take_known_block(&self, addr: DevicePtr) -> u32 {
        self.tables.lock().blocks.remove(&addr).unwrap_or(0)
    }

    /// Sets the call site of the segment or mapped part at `base`. The unknown site, 0, replaces
    /// the site of an earlier segment at the same address, too.
    pub(crate) fn set_segment(&self, base: DevicePtr, bytes: u64, site: u32) {
        if site != 0 || self.any() {
            let mut tables = self.tables.lock();
            tables.segments.insert(base, (bytes, site));
            self.any.store(1, Ordering::Relaxed);
        }
    }

    /// Returns the call site of the segment that contains `addr`, or 0 if it is unknown.
    pub(crate) fn segment(&self, addr: DevicePtr) -> u32 {
        if !self.any() {
            return 0;
        }
        let tables = self.tables.lock();
        let before = tables.segments.range(..=addr).next_back();
        before.filter(|&(base, &(bytes, _))| addr.0 - base.0 < bytes).map_or(0, |(_, &(_, site))| site)
    }
}

/// A build without `alloc` stores no call site.
#[cfg(not(feature = "alloc"))]
#[allow(clippy::unused_self, reason = "the signatures are those of a build with `alloc`")]
impl<R: Lock> CallSites<R> {
    pub(crate) fn set_block(&self, _: DevicePtr, _: u32) {}

    pub(crate) fn take_block(&self, _: DevicePtr) -> u32 {
        0
    }

    pub(crate) fn block(&self, _: DevicePtr) -> u32 {
        0
    }

    pub(crate) fn set_segment(&self, _: DevicePtr, _: u64, _: u32) {}

    pub(crate) fn segment(&self, _: DevicePtr) -> u32 {
        0
    }
}

#[cfg(all(test, not(loom), feature = "alloc"))]
mod tests {
    use super::CallSites;
    use crate::sync::empty;
    use crate::units::DevicePtr;
    use spin::mutex::SpinMutex;

    const BLOCK: DevicePtr = DevicePtr(0x40);

    #[test]
    fn a_block_has_its_site_until_it_is_taken() {
        let sites: CallSites<SpinMutex<()>> = empty!();
        assert_eq!((sites.any(), sites.block(BLOCK), sites.take_block(BLOCK)), (false, 0, 0));
        sites.set_block(BLOCK, 7);
        assert_eq!((sites.any(), sites.block(BLOCK), sites.block(DevicePtr(0x41))), (true, 7, 0));
        assert_eq!((sites.take_block(BLOCK), sites.take_block(BLOCK)), (7, 0));
        sites.set_block(BLOCK, 8);
        sites.clear();
        assert_eq!((sites.any(), sites.block(BLOCK)), (false, 0));
    }

    #[test]
    fn a_segment_has_its_site_over_its_whole_length() {
        let sites: CallSites<SpinMutex<()>> = empty!();
        let base = DevicePtr(0x1000);
        sites.set_segment(base, 0x100, 0);
        assert!(!sites.any(), "nothing is known");
        sites.set_segment(base, 0x100, 5);
        let at = |address| sites.segment(DevicePtr(address));
        assert_eq!([0xfff, 0x1000, 0x10ff, 0x1100].map(at), [0, 5, 5, 0]);
        sites.set_segment(base, 0x100, 0);
        assert_eq!(at(0x1000), 0, "a later segment without a site");
    }
}
