//! The program's own filters: which requests a route leads into its pool.
//!
//! A filter is asked with no lock held, and let go of once its route has ended and nobody is asking it any longer.

use crate::marshal::Userdata;
use cachalot_cuda::driver::types::CuStream;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Asks the program: is a request on this stream led?
pub(crate) type Leads = unsafe extern "C" fn(*mut c_void, crate::abi::cachalot_stream) -> c_int;
/// Tells the program that its filter is not asked any more.
pub(crate) type LetGo = unsafe extern "C" fn(*mut c_void);

/// One filter of the program's.
pub(crate) struct Filter {
    pub(crate) leads: Leads,
    pub(crate) let_go: Option<LetGo>,
    pub(crate) userdata: Userdata,
}

impl Filter {
    fn leads(&self, stream: CuStream) -> bool {
        let stream = core::ptr::without_provenance_mut(stream.0);
        // SAFETY: the program gave both, to be called so from any thread until it is let go of; no lock is held.
        unsafe { (self.leads)(self.userdata.0, stream) != 0 }
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        if let Some(let_go) = self.let_go {
            // SAFETY: the program gave both, to be called so once; nobody has the filter any more.
            unsafe { let_go(self.userdata.0) };
        }
    }
}

/// The filters in force, by the numbers of their routes.
#[derive(Default)]
pub(crate) struct Filters {
    /// The last number that was given.
    last: AtomicU64,
    /// `None`: every request is led.
    filters: RwLock<BTreeMap<u64, Option<Arc<Filter>>>>,
}

impl Filters {
    /// Puts a filter in force, and answers its route's number.
    pub(crate) fn add(&self, filter: Option<Filter>) -> u64 {
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let mut filters = self.filters.write().unwrap_or_else(PoisonError::into_inner);
        filters.insert(number, filter.map(Arc::new));
        number
    }

    /// The route of this number has ended.
    pub(crate) fn remove(&self, number: u64) {
        let removed = self.filters.write().unwrap_or_else(PoisonError::into_inner).remove(&number);
        // Let go of here, with no lock held.
        drop(removed);
    }

    /// Whether the route of this number leads a request on `stream`.
    pub(crate) fn leads(&self, number: u64, stream: CuStream) -> bool {
        let found = self.filters.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned();
        match found {
            Some(Some(filter)) => filter.leads(stream),
            Some(None) => true,
            None => false,
        }
    }
}
