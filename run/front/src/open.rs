//! `dlopen` in front of the C library's: a path to the driver leads to the library, and NVML to the
//! folder of the library, where `--nvml` has put one.
//!
//! The loader finds the library for a bare name, by the library path or because the library is
//! loaded already. A path it opens as it is, so the path is changed here. An auditor of the loader
//! (`LD_AUDIT`) could do the same, but the loader then lays out the thread-local variables before
//! it knows the program's libraries, and a program whose libraries have many does not start: the
//! Rust compiler has 24 KiB. Room for them (`glibc.rtld.optional_static_tls`) comes out of the
//! stack of every thread, and Java's small threads fail.

use crate::load::{ALIAS, NVML, REAL_NVML, file_of, own_file};
use cachalot_run::loader::symbol;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::OnceLock;

/// Opens a library as the C library does, or the library in front in place of the driver.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void {
    // The next function takes the caller's folders and namespace from its return address. So it
    // gets the caller's: a jump, and no frame of ours.
    #[cfg(target_arch = "x86_64")]
    core::arch::naked_asm!(
        "push rsi",
        "mov rsi, [rsp + 8]",
        "call {next}",
        "mov rdi, rax",
        "pop rsi",
        "jmp rdx",
        next = sym next,
    );
    // Processors that check where jumps go (BTI) let `br` reach the start of a function by x16 or
    // x17 alone, and calls reach only what begins with `bti c`, which is hint 34.
    #[cfg(target_arch = "aarch64")]
    core::arch::naked_asm!(
        "hint #34",
        "stp x30, x1, [sp, #-16]!",
        "mov x1, x30",
        "bl {next}",
        "mov x16, x1",
        "ldp x30, x1, [sp], #16",
        "br x16",
        next = sym next,
    );
}

/// The type of `dlopen`.
type Open = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

/// What to open, and the function that opens it. Two registers hold the answer.
#[repr(C)]
struct Next {
    name: *const c_char,
    open: *mut c_void,
}

/// Returns what a caller gets who opens `name`.
unsafe extern "C" fn next(name: *const c_char, caller: *const c_void) -> Next {
    // SAFETY: the caller's name is null or ends with a zero.
    let text = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) });
    let in_place = catch_unwind(|| text.and_then(|text| in_place_of(text, caller))).ok().flatten();
    Next { name: in_place.map_or(name, CStr::as_ptr), open: real() }
}

/// Returns the next `dlopen` in the program's order: the C library's, or that of another library in
/// front of it.
fn real() -> *mut c_void {
    static REAL: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
    let known = REAL.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: the handle stands for the libraries after this one.
    let found = unsafe { symbol(libc::RTLD_NEXT, c"dlopen") };
    let found = if found.is_null() { nothing as Open as *mut c_void } else { found };
    // Two threads at once write the same address.
    REAL.store(found, Ordering::Relaxed);
    found
}

/// A `dlopen` for a program without another one.
unsafe extern "C" fn nothing(_name: *const c_char, _flags: c_int) -> *mut c_void {
    core::ptr::null_mut()
}

/// The files that take part.
struct Files {
    /// The library in front.
    own: CString,
    /// The last part of the real driver's own path, such as `libcuda.so.580.159.04`.
    driver: Vec<u8>,
    /// NVML for programs, and the real one. `None`: programs open the real one.
    nvml: Option<[CString; 2]>,
}

/// Returns the files, or `None` if the library was not loaded from a private folder.
fn files() -> Option<&'static Files> {
    static FILES: OnceLock<Option<Files>> = OnceLock::new();
    let find = || {
        let own = own_file()?;
        let own_path = Path::new(std::ffi::OsStr::from_bytes(&own));
        let driver = std::fs::canonicalize(own_path.with_file_name(ALIAS)).ok()?;
        let beside = |name| {
            let path = own_path.with_file_name(name);
            path.exists().then(|| CString::new(path.as_os_str().as_bytes()).ok()).flatten()
        };
        let nvml = beside(NVML).zip(beside(REAL_NVML)).map(<[_; 2]>::from);
        let driver = driver.file_name()?.as_bytes().to_vec();
        Some(Files { own: CString::new(own).ok()?, driver, nvml })
    };
    FILES.get_or_init(find).as_ref()
}

/// Returns whether programs get the NVML of the private folder.
pub(crate) fn has_nvml() -> bool {
    files().is_some_and(|files| files.nvml.is_some())
}

/// Returns the library in front if `name` is the path of a driver, and the NVML of the private
/// folder if it is the name or a path of NVML. A program may try one path after the other, and a
/// path without a library must fail as ever. A driver may consist of several files, each of which
/// loads the next one: those get what they name, and the real NVML, as this library does.
fn in_place_of(name: &CStr, caller: *const c_void) -> Option<&'static CStr> {
    let path = name.to_bytes();
    let last = path.rsplit(|&byte| byte == b'/').next()?;
    let is_path = last.len() < path.len();
    let files = files()?;
    // SAFETY: the name ends with a zero.
    let exists = || !is_path || unsafe { libc::access(name.as_ptr(), libc::F_OK) } == 0;
    if let Some([nvml, real]) = files.nvml.as_ref().filter(|_| names_version(last, b"libnvidia-ml.so")) {
        return exists().then(|| if is_of_driver(caller) { real } else { nvml }.as_c_str());
    }
    if last != files.driver && !(is_path && names_driver(last)) {
        return None;
    }
    (exists() && !is_of_driver(caller)).then_some(files.own.as_c_str())
}

/// Returns whether the last part of a path is one of the driver's names: `libcuda.so`, with the
/// number of any version.
fn names_driver(last: &[u8]) -> bool {
    names_version(last, b"libcuda.so")
}

/// Returns whether the last part of a path is a library's name, with the number of any version.
fn names_version(last: &[u8], library: &[u8]) -> bool {
    let version = last.strip_prefix(library);
    version.is_some_and(|version| match version.split_first() {
        None => true,
        Some((first, digits)) => {
            *first == b'.' && !digits.is_empty() && digits.iter().all(|byte| matches!(byte, b'.' | b'0'..=b'9'))
        }
    })
}

/// Returns whether an address is in a file of the driver, or in the library in front.
fn is_of_driver(address: *const c_void) -> bool {
    file_of(address).is_some_and(|file| {
        let last = file.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        names_driver(last) || last == ALIAS.as_bytes()
    })
}

#[cfg(test)]
mod tests {
    use super::names_driver;

    #[test]
    fn the_driver_has_its_name_with_any_version() {
        for name in ["libcuda.so", "libcuda.so.1", "libcuda.so.1.1", "libcuda.so.580.159.04"] {
            assert!(names_driver(name.as_bytes()), "{name}");
        }
        for name in ["libcuda.so.", "libcuda.so1", "libcuda.so.x", "libcudart.so.13", "libcuda.a", "cuda"] {
            assert!(!names_driver(name.as_bytes()), "{name}");
        }
    }
}
