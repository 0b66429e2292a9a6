//! The first steps after the loader has mapped the library, before the program's own code runs.

use core::ffi::{CStr, c_void};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The loader calls each function of the section once the needed libraries are ready.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

/// Variables of the loader with entries of the library, and the separators of the entries.
const LOADER_VARIABLES: [(&str, &[u8]); 3] = [("LD_LIBRARY_PATH", b":"), ("LD_PRELOAD", b": "), ("LD_AUDIT", b":")];

extern "C" fn at_load() {
    crate::addresses::fill();
    // A panic must not reach the loader. Without options the process passes every call to the driver.
    let _ = std::panic::catch_unwind(|| {
        let Some(folder) = own_folder() else { return };
        cachalot_run::options::note_folder(&folder);
        if let Some(options) = cachalot_run::options::keep_for_process().filter(|options| options.no_follow) {
            leave_environment(&folder, options.static_tls);
        }
    });
}

/// Returns the folder by which the loader found the library, with a slash at the end.
fn own_folder() -> Option<Vec<u8>> {
    // SAFETY: four pointers and numbers, for which zero is a value.
    let mut found: libc::Dl_info = unsafe { core::mem::zeroed() };
    // SAFETY: any address may be asked for, and the answer outlives the call.
    if unsafe { libc::dladdr(at_load as *const c_void, &raw mut found) } == 0 || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's text lives as long as the library is loaded.
    let path = unsafe { CStr::from_ptr(found.dli_fname) }.to_bytes();
    path.iter().rposition(|&byte| byte == b'/').map(|slash| path[..=slash].to_vec())
}

/// Takes every entry of `folder`, and the room for the folder's libraries, out of the environment of children. The loader has read the
/// variables before.
fn leave_environment(folder: &[u8], static_tls: u64) {
    for (name, separators) in LOADER_VARIABLES {
        keep_of(name, |value| without_folder(value, separators, folder));
    }
    keep_of("GLIBC_TUNABLES", |value| cachalot_run::options::without_static_tls(value, static_tls));
    // SAFETY: as above.
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
    use super::without_folder;

    #[test]
    fn only_the_entries_of_the_folder_leave() {
        let left = |value: &[u8], separators: &[u8]| without_folder(value, separators, b"/run/a/");
        assert_eq!(left(b"/run/a:/usr/lib:/run/ab", b":"), b"/usr/lib:/run/ab");
        assert_eq!(left(b"/run/a/libcuda.so.1", b": "), b"");
        assert_eq!(left(b"/run/a/libcuda.so.1 /x/y.so:/z.so", b": "), b"/x/y.so:/z.so");
        assert_eq!(left(b"/usr/lib::/run/a/", b":"), b"/usr/lib:");
    }
}
