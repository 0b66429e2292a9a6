//! The entry points of the driver that the program links: `cuda-driver-sys` passes `-lcuda` to the
//! linker.

use super::table::Table;
use core::ffi::{CStr, c_void};
use core::ptr::NonNull;

/// A symbol that only the emulated driver exports.
const EMULATED_MARK: &CStr = c"cachalot_emulated_driver";

/// Returns the linked driver's table, its origin for messages, and whether the driver is the
/// emulated driver.
pub(super) fn table() -> (Table, String, bool) {
    // A symbol that is used makes the linker keep the driver's library.
    core::hint::black_box(cuda_driver_sys::cuInit as *const c_void);
    // SAFETY: a function that a driver exports under a versioned name has the signature of the
    // versioned name. A linked library stays loaded.
    let table = unsafe { Table::fill(linked) };
    (table, "the linked driver".to_owned(), linked(EMULATED_MARK).is_some())
}

/// Returns the address of a symbol where the loader finds it for this code: in the program, and in
/// the libraries that the program or the library with this code is linked to.
fn linked(symbol: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: the name is a text for C. The symbol is only used as an address here; `Table::fill`
    // gives the address a type.
    NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, symbol.as_ptr()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_required_entry_is_linked() {
        let missing = table().0.missing().find(|entry| entry.required);
        assert!(missing.is_none(), "{missing:?}");
    }
}
