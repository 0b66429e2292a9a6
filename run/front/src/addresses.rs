//! The driver's own functions under the exported names.
//!
//! The real driver is loaded under an alias, since the loader takes the library for `libcuda.so.1`.

use crate::exports::NAMES;
use cachalot_run::loader::symbol;
use core::ffi::{CStr, c_void};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, Ordering};

/// The name by which the loader knows the real driver. The library's own file needs the name, so
/// the real driver is loaded whenever the library is.
const ALIAS: &CStr = c"libcachalot-driver.so.1";

/// The driver's functions in the order of [`NAMES`]. Null: the driver lacks the function.
static ADDRESSES: [AtomicPtr<c_void>; NAMES.len()] = [const { AtomicPtr::new(core::ptr::null_mut()) }; NAMES.len()];

/// The places of [`ADDRESSES`], in the order of the addresses. Of equal addresses, the first place
/// comes first.
static BY_ADDRESS: [AtomicU16; NAMES.len()] = [const { AtomicU16::new(0) }; NAMES.len()];

/// Whether [`ADDRESSES`] and [`BY_ADDRESS`] hold the driver's functions.
static FILLED: AtomicBool = AtomicBool::new(false);

/// Returns the driver's function with the name `NAMES[index]`, or `None` if the driver lacks the
/// function.
#[inline]
pub(crate) fn of_driver(index: usize) -> Option<NonNull<c_void>> {
    known(index).or_else(|| found(index))
}

/// Returns the driver's function with the name `NAMES[index]` after a look at the table without the
/// function.
#[cold]
fn found(index: usize) -> Option<NonNull<c_void>> {
    if !FILLED.load(Ordering::Acquire) {
        fill();
    }
    known(index)
}

/// Returns the driver's function with the name `NAMES[index]`, or `None` if the driver lacks the
/// function or the table of addresses is still empty.
#[inline]
pub(crate) fn known(index: usize) -> Option<NonNull<c_void>> {
    // Relaxed: what is behind the address was there before the program.
    NonNull::new(ADDRESSES[index].load(Ordering::Relaxed))
}

/// Returns the index of the first name whose function of the driver is at `address`.
pub(crate) fn index_of(address: NonNull<c_void>) -> Option<usize> {
    if !FILLED.load(Ordering::Acquire) {
        fill();
    }
    let place = |at: &AtomicU16| usize::from(at.load(Ordering::Relaxed));
    let of = |at: &AtomicU16| ADDRESSES[place(at)].load(Ordering::Relaxed);
    let first = BY_ADDRESS.partition_point(|at| of(at).addr() < address.addr().get());
    BY_ADDRESS.get(first).filter(|at| of(at) == address.as_ptr()).map(place)
}

/// Asks the loader for each function. Two threads at once write equal addresses, and no lock is
/// held while the loader takes locks.
#[cold]
pub(crate) fn fill() {
    // SAFETY: the name ends with a zero. The flag leaves alone what is not loaded.
    let driver = unsafe { libc::dlopen(ALIAS.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if driver.is_null() {
        return;
    }
    for (address, name) in ADDRESSES.iter().zip(NAMES) {
        // SAFETY: the handle is of the line above and is never closed.
        address.store(unsafe { symbol(driver, name) }, Ordering::Relaxed);
    }
    for (at, place) in
        BY_ADDRESS.iter().zip(order(&ADDRESSES.each_ref().map(|address| address.load(Ordering::Relaxed))))
    {
        at.store(place, Ordering::Relaxed);
    }
    FILLED.store(true, Ordering::Release);
}

/// Returns the places of the addresses, in the order of the addresses and then of the places.
fn order<const N: usize>(addresses: &[*mut c_void; N]) -> [u16; N] {
    let mut places = core::array::from_fn(|place| place as u16);
    places.sort_unstable_by_key(|&place| (addresses[usize::from(place)].addr(), place));
    places
}

#[cfg(test)]
mod tests {
    use super::order;

    #[test]
    fn the_first_of_equal_addresses_comes_first() {
        let addresses = [30, 0, 10, 30, 20, 0, 10].map(core::ptr::without_provenance_mut);
        assert_eq!(order(&addresses), [1, 5, 2, 6, 4, 0, 3]);
    }
}
