//! Where in the program blocks and segments were allocated: what the host says while a trace is recorded, as numbers.
//!
//! Kept apart from the blocks, and only of those that the host had a number for: a program without stacks pays nothing.

use crate::arena::Arena;
#[cfg(feature = "alloc")]
use crate::arena::attention;
use crate::device::DeviceMemory;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::DevicePtr;
#[cfg(feature = "alloc")]
use alloc::collections::BTreeMap;
use lock_api::Mutex;

/// The places of one device.
pub(crate) struct Sites<R: Lock>(Mutex<R, Places>);

/// Without a heap there is nowhere to keep them: events of frees and segments then have none.
#[derive(Default)]
struct Places {
    /// Address of a block that the program holds, or that is pending → its place.
    #[cfg(feature = "alloc")]
    blocks: BTreeMap<DevicePtr, u32>,
    /// Base of a segment, or of a mapped part of one → its length in bytes and its place.
    #[cfg(feature = "alloc")]
    segments: BTreeMap<DevicePtr, (u64, u32)>,
}

impl<R: Lock> Default for Sites<R> {
    fn default() -> Self {
        Self(Mutex::new(Places::default()))
    }
}

#[cfg_attr(not(feature = "alloc"), allow(clippy::unused_self, reason = "there is nothing to keep them in"))]
impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    pub(crate) fn forget_sites(&self) {
        *self.sites.0.lock() = Places::default();
    }
}

#[cfg(feature = "alloc")]
impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    /// The block at `addr` was handed out at `site`.
    #[cold]
    pub(crate) fn set_site(&self, addr: DevicePtr, site: u32) {
        self.sites.0.lock().blocks.insert(addr, site);
        self.set(attention::SITES, true);
    }

    /// Where the block at `addr` was handed out; 0 if it is not known.
    pub(crate) fn site_of(&self, addr: DevicePtr) -> u32 {
        if !self.has(attention::SITES) {
            return 0;
        }
        self.sites.0.lock().blocks.get(&addr).copied().unwrap_or(0)
    }

    /// The same of a block that becomes free.
    #[inline(always)]
    pub(crate) fn take_site(&self, addr: DevicePtr) -> u32 {
        if self.has(attention::SITES) { self.remove_site(addr) } else { 0 }
    }

    #[cold]
    fn remove_site(&self, addr: DevicePtr) -> u32 {
        self.sites.0.lock().blocks.remove(&addr).unwrap_or(0)
    }

    /// A segment, or a part of one, was obtained at `site`.
    pub(crate) fn set_segment_site(&self, base: DevicePtr, bytes: u64, site: u32) {
        self.sites.0.lock().segments.insert(base, (bytes, site));
        self.set(attention::SITES, true);
    }

    /// Where what lies at `addr` was obtained; 0 if it is not known.
    pub(crate) fn segment_site(&self, addr: DevicePtr) -> u32 {
        if !self.has(attention::SITES) {
            return 0;
        }
        let sites = self.sites.0.lock();
        let before = sites.segments.range(..=addr).next_back();
        before.filter(|&(base, &(bytes, _))| addr.0 - base.0 < bytes).map_or(0, |(_, &(_, site))| site)
    }
}

#[cfg(not(feature = "alloc"))]
#[allow(clippy::unused_self, reason = "as where there is a heap")]
impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    pub(crate) fn set_site(&self, _: DevicePtr, _: u32) {}

    pub(crate) fn site_of(&self, _: DevicePtr) -> u32 {
        0
    }

    pub(crate) fn take_site(&self, _: DevicePtr) -> u32 {
        0
    }

    pub(crate) fn set_segment_site(&self, _: DevicePtr, _: u64, _: u32) {}

    pub(crate) fn segment_site(&self, _: DevicePtr) -> u32 {
        0
    }
}
