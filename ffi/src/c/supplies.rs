//! Private pools whose segments the program supplies.
//!
//! The program's functions are called with no lock held. The program learns when neither the pool
//! nor a segment of the pool is left.

use crate::c::marshal::Userdata;
use cachalot_core::{DeviceError, DevicePtr, DeviceResult, ErrorKind, PoolId};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Segments start at a multiple of this number of bytes.
const ALIGNMENT: usize = 512;

/// Supplies a segment.
pub(crate) type Supplies = unsafe extern "C" fn(*mut c_void, usize, c_int) -> *mut c_void;
/// Takes a segment back.
pub(crate) type TakesBack = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int);
/// Tells the program that neither function will be called again.
pub(crate) type SupplierReleased = unsafe extern "C" fn(*mut c_void);

/// The functions of one pool, with the program's context pointer.
pub(crate) struct Supply {
    pub(crate) supplies: Supplies,
    pub(crate) takes_back: TakesBack,
    pub(crate) released: Option<SupplierReleased>,
    pub(crate) userdata: Userdata,
}

impl Drop for Supply {
    fn drop(&mut self) {
        if let Some(released) = self.released {
            // SAFETY: the program passed both, for one call; no other reference to the functions
            // exists.
            unsafe { released(self.userdata.0) };
        }
    }
}

/// The active supplies.
#[derive(Default)]
struct SupplyTables {
    /// The functions of each pool, by device and name.
    pools: BTreeMap<(c_int, PoolId), Arc<Supply>>,
    /// The functions that take each segment back, by address.
    segments: BTreeMap<DevicePtr, Arc<Supply>>,
}

/// The pools with segments of the program, and these segments.
#[derive(Default)]
pub(crate) struct SuppliedPools {
    tables: Mutex<SupplyTables>,
    /// Number of pools and segments. A program without such pools takes no lock.
    entries: AtomicUsize,
}

impl SuppliedPools {
    /// Changes the tables. Returns what the change has taken out, which is dropped without the
    /// lock.
    fn change<T>(&self, change: impl FnOnce(&mut SupplyTables) -> T) -> T {
        let mut tables = self.lock();
        let result = change(&mut tables);
        self.entries.store(tables.pools.len() + tables.segments.len(), Ordering::Release);
        result
    }

    fn lock(&self) -> MutexGuard<'_, SupplyTables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the program supply the segments of a pool from now on.
    pub(crate) fn set(&self, device: c_int, pool: PoolId, supply: Supply) {
        drop(self.change(|tables| tables.pools.insert((device, pool), Arc::new(supply))));
    }

    /// Ends the supply of a pool. Its segments go back to the program as before.
    pub(crate) fn forget(&self, device: c_int, pool: PoolId) {
        if self.entries.load(Ordering::Acquire) > 0 {
            drop(self.change(|tables| tables.pools.remove(&(device, pool))));
        }
    }

    /// Returns whether the program supplies the segments of a pool.
    pub(crate) fn includes(&self, device: c_int, pool: PoolId) -> bool {
        self.entries.load(Ordering::Acquire) > 0 && self.lock().pools.contains_key(&(device, pool))
    }

    /// Asks the program for a segment.
    pub(crate) fn obtain(&self, device: c_int, pool: PoolId, bytes: u64) -> DeviceResult<DevicePtr> {
        let supply = self.lock().pools.get(&(device, pool)).map(Arc::clone);
        let supply = supply.ok_or(DeviceError::new(ErrorKind::Other, 0))?;
        // SAFETY: the program passed both, for calls from any thread; no lock is held.
        let segment = unsafe { (supply.supplies)(supply.userdata.0, bytes as usize, device) };
        if segment.is_null() {
            return Err(DeviceError::new(ErrorKind::OutOfMemory, 0));
        }
        if segment.addr() % ALIGNMENT != 0 {
            // SAFETY: as above; the segment came from the other function.
            unsafe { (supply.takes_back)(supply.userdata.0, segment, bytes as usize, device) };
            return Err(DeviceError::new(ErrorKind::InvalidArgument, 0));
        }
        let base = DevicePtr(segment.addr() as u64);
        drop(self.change(|tables| tables.segments.insert(base, supply)));
        Ok(base)
    }

    /// Gives a segment back to the program. Returns false if the segment is the device's.
    pub(crate) fn release(&self, device: c_int, base: DevicePtr, bytes: u64) -> bool {
        if self.entries.load(Ordering::Acquire) == 0 {
            return false;
        }
        let Some(supply) = self.change(|tables| tables.segments.remove(&base)) else { return false };
        let segment = core::ptr::without_provenance_mut(base.0 as usize);
        // SAFETY: the program passed both, for calls from any thread; the segment came from the
        // other function; no lock is held.
        unsafe { (supply.takes_back)(supply.userdata.0, segment, bytes as usize, device) };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr::null_mut;

    #[test]
    fn only_the_pool_that_is_supplied_is_included() {
        extern "C" fn supplies(_: *mut c_void, _: usize, _: c_int) -> *mut c_void {
            null_mut()
        }
        extern "C" fn takes_back(_: *mut c_void, _: *mut c_void, _: usize, _: c_int) {}
        let (pools, pool, other) = (SuppliedPools::default(), PoolId(0, 1), PoolId(0, 2));
        pools.set(0, pool, Supply { supplies, takes_back, released: None, userdata: Userdata(null_mut()) });
        let included = [(0, pool), (0, other), (1, pool)].map(|(device, pool)| pools.includes(device, pool));
        assert_eq!(included, [true, false, false]);
        pools.forget(0, pool);
        assert!(!pools.includes(0, pool));
    }
}
