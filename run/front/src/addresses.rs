//! The driver's own functions under the exported names.
//!
//! The real driver is loaded under an alias, since the loader takes the library for `libcuda.so.1`.

use crate::exports::NAMES;
use core::ffi::{CStr, c_void};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

/// The name by which the loader knows the real driver. The library's own file needs the name, so the real driver is
/// loaded whenever the library is.
const ALIAS: &CStr = c"libcachalot-driver.so.1";

/// The driver's functions in the order of [`NAMES`]. Null: the driver lacks the function.
static ADDRESSES: [AtomicPtr<c_void>; NAMES.len()] = [const { AtomicPtr::new(core::ptr::null_mut()) }; NAMES.len()];

/// Whether [`ADDRESSES`] holds the driver's functions.
static FILLED: AtomicBool = AtomicBool::new(false);

/// Returns the driver's function with the name `NAMES[index]`, or `None` if the driver lacks the function.
#[inline]
pub(crate) fn of_driver(index: usize) -> Option<NonNull<c_void>> {
    if !FILLED.load(Ordering::Acquire) {
        fill();
    }
    NonNull::new(ADDRESSES[index].load(Ordering::Relaxed))
}

/// Returns the index of the name whose function of the driver is at `address`.
pub(crate) fn index_of(address: NonNull<c_void>) -> Option<usize> {
    (0..NAMES.len()).find(|&index| of_driver(index) == Some(address))
}

/// Asks the loader for each function. Two threads at once write equal addresses, and no lock is held while the
/// loader takes locks.
#[cold]
pub(crate) fn fill() {
    // SAFETY: the name ends with a zero. The flag leaves alone what is not loaded.
    let driver = unsafe { libc::dlopen(ALIAS.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if driver.is_null() {
        return;
    }
    for (address, name) in ADDRESSES.iter().zip(NAMES) {
        // SAFETY: the handle is of the line above and is never closed, and the name ends with a zero.
        address.store(unsafe { libc::dlsym(driver, name.as_ptr()) }, Ordering::Relaxed);
    }
    FILLED.store(true, Ordering::Release);
}
