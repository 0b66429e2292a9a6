//! The first steps after the loader has mapped the library, before the program's own code runs.

use core::ffi::{CStr, c_char, c_void};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The loader calls each function of the section once the needed libraries are ready.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

/// Variables of the loader with entries of the library, and the separators of the entries.
const LOADER_VARIABLES: [(&str, &[u8]); 2] = [("LD_LIBRARY_PATH", b":"), ("LD_PRELOAD", b": ")];

/// The real driver's name in the private folder.
pub(crate) const ALIAS: &str = "libcachalot-driver.so.1";

/// How the name of a private folder begins.
const PRIVATE: &[u8] = b"/cachalot-run-";

extern "C" fn at_load() {
    crate::addresses::fill();
    // A panic must not reach the loader. Without options the process passes every call to the driver.
    let _ = std::panic::catch_unwind(|| {
        let Some(folder) = own_folder() else { return };
        cachalot_run::options::note_folder(&folder);
        if cachalot_run::options::keep_for_process().is_some_and(|options| options.no_follow) {
            leave_environment(&folder);
        }
    });
}

/// The options of AddressSanitizer, unless the program has some. It wants to be the first library of a program, and the library in
/// front, which replaces no function that the sanitizer watches, may be before it.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn __asan_default_options() -> *const c_char {
    c"verify_asan_link_order=0".as_ptr()
}

/// Returns the path by which the loader found the file of an address.
pub(crate) fn file_of(address: *const c_void) -> Option<&'static [u8]> {
    // SAFETY: four pointers and numbers, for which zero is a value.
    let mut found: libc::Dl_info = unsafe { core::mem::zeroed() };
    // SAFETY: any address may be asked for, and the answer is written to the variable.
    let is_found = unsafe { libc::dladdr(address, &raw mut found) } != 0 && !found.dli_fname.is_null();
    // SAFETY: the loader's text lives as long as the file is loaded. The callers look at it at once, or ask for this library.
    is_found.then(|| unsafe { CStr::from_ptr(found.dli_fname) }.to_bytes())
}

/// Returns the private folder by which the loader found the library, with a slash at the end.
fn own_folder() -> Option<Vec<u8>> {
    let path = file_of(at_load as *const c_void)?;
    folder_in(path).map(<[u8]>::to_vec)
}

/// Returns the path of the library in the private folder.
pub(crate) fn own_file() -> Option<Vec<u8>> {
    Some([&own_folder()?[..], b"libcuda.so.1"].concat())
}

/// Returns the private folder in the path of the library, with a slash at the end. The path may lead through links in the folder: the
/// loader puts the system's name for folders of libraries in place of `$LIB` in `LD_PRELOAD`.
fn folder_in(path: &[u8]) -> Option<&[u8]> {
    let slash = |of: &[u8]| of.iter().position(|&byte| byte == b'/');
    let private = path.windows(PRIVATE.len()).rposition(|part| part == PRIVATE);
    let end = private.and_then(|begin| slash(&path[begin + 1..]).map(|length| begin + 1 + length));
    let end = end.or_else(|| path.iter().rposition(|&byte| byte == b'/'))?;
    Some(&path[..=end])
}

/// Takes every entry of `folder` out of the environment of children. The loader has read the variables before.
fn leave_environment(folder: &[u8]) {
    for (name, separators) in LOADER_VARIABLES {
        keep_of(name, |value| without_folder(value, separators, folder));
    }
    // SAFETY: as in `keep_of`.
    unsafe { std::env::remove_var(cachalot_run::options::VARIABLE) };
}

/// Leaves a part of a variable, or removes a variable of which nothing is left.
fn keep_of(name: &str, part: impl FnOnce(&[u8]) -> Vec<u8>) {
    let Some(value) = std::env::var_os(name) else { return };
    let kept = part(value.as_bytes());
    if kept.is_empty() {
        // SAFETY: a preloaded library is loaded before the program can have started a thread.
        unsafe { std::env::remove_var(name) };
    } else {
        // SAFETY: as above.
        unsafe { std::env::set_var(name, OsString::from_vec(kept)) };
    }
}

/// Returns the entries of a variable without `folder` and the files in `folder`.
fn without_folder(value: &[u8], separators: &[u8], folder: &[u8]) -> Vec<u8> {
    let bare = folder.strip_suffix(b"/").unwrap_or(folder);
    let entries = value.split(|byte| separators.contains(byte));
    let kept: Vec<&[u8]> = entries.filter(|entry| *entry != bare && !entry.starts_with(folder)).collect();
    kept.join(&separators[..1])
}

#[cfg(test)]
mod tests {
    use super::{folder_in, without_folder};

    #[test]
    fn only_the_entries_of_the_folder_leave() {
        let left = |value: &[u8], separators: &[u8]| without_folder(value, separators, b"/run/a/");
        assert_eq!(left(b"/run/a:/usr/lib:/run/ab", b":"), b"/usr/lib:/run/ab");
        assert_eq!(left(b"/run/a/libcuda.so.1", b": "), b"");
        assert_eq!(left(b"/run/a/libcuda.so.1 /x/y.so:/z.so", b": "), b"/x/y.so:/z.so");
        assert_eq!(left(b"/usr/lib::/run/a/", b":"), b"/usr/lib:");
    }

    #[test]
    fn the_folder_is_found_through_its_links() {
        let folder = |path: &'static str| folder_in(path.as_bytes()).map(String::from_utf8_lossy);
        let found = Some("/a/cachalot-run-01-limited/".into());
        assert_eq!(folder("/a/cachalot-run-01-limited/libcuda.so.1"), found);
        assert_eq!(folder("/a/cachalot-run-01-limited/lib/x86_64-linux-gnu/libcuda.so.1"), found);
        assert_eq!(folder("/usr/lib/libcuda.so.1"), Some("/usr/lib/".into()));
        assert_eq!(folder("libcuda.so.1"), None);
    }
}
