//! Filters: functions of the program that decide which requests a route sends into a pool.
//!
//! A filter is called with no lock held. A filter is released after its route has ended and no call
//! is running.

use crate::c::marshal::Userdata;
use cachalot_cuda::driver::types::CuStream;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Decides whether a request on a stream goes into the pool.
pub(crate) type Accepts = unsafe extern "C" fn(*mut c_void, crate::c::abi::cachalot_stream) -> c_int;
/// Tells the program that the filter will not be called again.
pub(crate) type FilterReleased = unsafe extern "C" fn(*mut c_void);

/// A filter with the program's context pointer.
pub(crate) struct Filter {
    pub(crate) accepts: Accepts,
    pub(crate) released: Option<FilterReleased>,
    pub(crate) userdata: Userdata,
}

impl Filter {
    fn accepts(&self, stream: CuStream) -> bool {
        let stream = core::ptr::without_provenance_mut(stream.0);
        // SAFETY: the program passed both, for calls from any thread until the release; no lock is
        // held.
        unsafe { (self.accepts)(self.userdata.0, stream) != 0 }
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        if let Some(released) = self.released {
            // SAFETY: the program passed both, for one call; no other reference to the filter
            // exists.
            unsafe { released(self.userdata.0) };
        }
    }
}

/// The active filters, by route number.
#[derive(Default)]
pub(crate) struct Filters {
    /// The route number assigned last; numbers start at 1.
    last: AtomicU64,
    /// Filter of each route. `None` accepts every request.
    filters: RwLock<BTreeMap<u64, Option<Arc<Filter>>>>,
}

impl Filters {
    /// Adds a filter and returns the number of its route.
    pub(crate) fn add(&self, filter: Option<Filter>) -> u64 {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let mut filters = self.filters.write().unwrap_or_else(PoisonError::into_inner);
        filters.insert(number, filter.map(Arc::new));
        number
    }

    /// Removes the filter of an ended route.
    pub(crate) fn remove(&self, number: u64) {
        let removed = self.filters.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
        // The drop may call the program, so no lock may be held here.
        drop(removed);
    }

    /// Returns whether the route sends a request on `stream` into its pool. False for an unknown
    /// route.
    pub(crate) fn leads(&self, number: u64, stream: CuStream) -> bool {
        let found = self.filters.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned();
        match found {
            Some(Some(filter)) => filter.accepts(stream),
            Some(None) => true,
            None => false,
        }
    }
}
