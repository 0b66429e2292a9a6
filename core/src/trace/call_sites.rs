//! The call sites of blocks and segments: the numbers returned by the host while a trace is
//! recorded.
//!
//! The table is separate from the blocks, and has entries only for call sites with a number. A
//! program without stacks pays nothing. The table lives on the host's heap; a build without `alloc`
//! stores no call sites.

use crate::sync::{Lock, Rank, Ranked};
use crate::units::DevicePtr;
#[cfg(feature = "alloc")]
use alloc::collections::BTreeMap;

/// The call sites of a device's blocks and segments.
pub(crate) struct CallSites<R: Lock>(Ranked<R, Tables>);

/// The call sites by address.
#[derive(Default)]
struct Tables {
    /// Address of a live or pending block → its call site.
    #[cfg(feature = "alloc")]
    blocks: BTreeMap<DevicePtr, u32>,
    /// Base of a segment, or of a mapped part → its length in bytes and its call site.
    #[cfg(feature = "alloc")]
    segments: BTreeMap<DevicePtr, (u64, u32)>,
}

impl<R: Lock> Default for CallSites<R> {
    fn default() -> Self {
        Self(Ranked::new(Rank::CallSites, Tables::default()))
    }
}

impl<R: Lock> CallSites<R> {
    /// Removes all call sites.
    pub(crate) fn clear(&self) {
        *self.0.lock() = Tables::default();
    }
}

#[cfg(feature = "alloc")]
impl<R: Lock> CallSites<R> {
    /// Sets the call site of the block at `addr`. Returns false in a build without `alloc`.
    pub(crate) fn set_block(&self, addr: DevicePtr, site: u32) -> bool {
        self.0.lock().blocks.insert(addr, site);
        true
    }

    /// Returns the call site of the block at `addr`; 0 if unknown.
    pub(crate) fn block(&self, addr: DevicePtr) -> u32 {
        self.0.lock().blocks.get(&addr).copied().unwrap_or(0)
    }

    /// Removes and returns the call site of the block at `addr`; 0 if unknown.
    #[cold]
    pub(crate) fn take_block(&self, addr: DevicePtr) -> u32 {
        self.0.lock().blocks.remove(&addr).unwrap_or(0)
    }

    /// Sets the call site of the segment, or mapped part, at `base`. Returns false in a build that
    /// stores none.
    pub(crate) fn set_segment(&self, base: DevicePtr, bytes: u64, site: u32) -> bool {
        self.0.lock().segments.insert(base, (bytes, site));
        true
    }

    /// Returns the call site of the segment around `addr`; 0 if unknown.
    pub(crate) fn segment(&self, addr: DevicePtr) -> u32 {
        let tables = self.0.lock();
        let before = tables.segments.range(..=addr).next_back();
        before.filter(|&(base, &(bytes, _))| addr.0 - base.0 < bytes).map_or(0, |(_, &(_, site))| site)
    }
}

#[cfg(not(feature = "alloc"))]
#[allow(clippy::unused_self, reason = "the signatures are those of a build with `alloc`")]
impl<R: Lock> CallSites<R> {
    pub(crate) fn set_block(&self, _: DevicePtr, _: u32) -> bool {
        false
    }

    pub(crate) fn block(&self, _: DevicePtr) -> u32 {
        0
    }

    pub(crate) fn take_block(&self, _: DevicePtr) -> u32 {
        0
    }

    pub(crate) fn set_segment(&self, _: DevicePtr, _: u64, _: u32) -> bool {
        false
    }

    pub(crate) fn segment(&self, _: DevicePtr) -> u32 {
        0
    }
}
