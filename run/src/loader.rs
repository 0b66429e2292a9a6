//! The loader's own look-up of symbols, whatever other libraries put in front of it.

use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};

/// The type of `dlsym`.
type LookUp = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// The version of `dlsym` that every glibc of the processor has.
#[cfg(target_arch = "x86_64")]
const VERSION: &CStr = c"GLIBC_2.2.5";
/// As above.
#[cfg(not(target_arch = "x86_64"))]
const VERSION: &CStr = c"GLIBC_2.17";

/// Returns the address of a symbol in a library, or in those after this one (`RTLD_NEXT`). Null:
/// there is none.
///
/// Libraries that limit the memory of a program (`LD_PRELOAD`) may have a `dlsym` that answers with
/// their functions in place of the driver's. Those call the driver by its name, which is the
/// library in front again, and so on until the stack ends. So the question goes to the C library's
/// `dlsym`, which has a version, as theirs has not.
///
/// # Safety
/// `library` is a handle of the loader, or `RTLD_NEXT`.
pub unsafe fn symbol(library: *mut c_void, name: &CStr) -> *mut c_void {
    static KNOWN: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    let mut known = KNOWN.load(Ordering::Relaxed);
    if known.is_null() {
        // SAFETY: both names end with a zero.
        known = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), VERSION.as_ptr()) };
        if known.is_null() {
            known = libc::dlsym as LookUp as *mut c_void;
        }
        // Two threads at once write the same address.
        KNOWN.store(known, Ordering::Relaxed);
    }
    // SAFETY: the address is that of a `dlsym`.
    let look_up = unsafe { core::mem::transmute::<*mut c_void, LookUp>(known) };
    // SAFETY: guaranteed by the caller, and the name ends with a zero.
    unsafe { look_up(library, name.as_ptr()) }
}
