//! The first steps after the loader has mapped the library, before the program's own code runs.

use core::ffi::{CStr, c_char, c_int, c_void};

/// The loader calls each function of the section once the needed libraries are ready.
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn(c_int, *mut *mut c_char, *mut *mut c_char) = at_load;

/// Variables of the loader with entries of the library, and the separators of the entries.
const LOADER_VARIABLES: [(&str, &[u8]); 2] = [("LD_LIBRARY_PATH", b":"), ("LD_PRELOAD", b": ")];

/// The real driver's name in the private folder.
pub(crate) const ALIAS: &str = "libcachalot-driver.so.1";

/// NVML for programs in the private folder, where `--nvml` has put one.
pub(crate) const NVML: &str = "libnvidia-ml.so.1";

/// The real NVML's name beside it.
pub(crate) const REAL_NVML: &str = "libcachalot-nvml.so.1";

/// How the name of a private folder begins.
const PRIVATE: &[u8] = b"/cachalot-run-";

extern "C" fn at_load(_count: c_int, _arguments: *mut *mut c_char, variables: *mut *mut c_char) {
    crate::addresses::fill();
    // A panic must not reach the loader. Without options the process passes every call to the
    // driver.
    let _ = std::panic::catch_unwind(|| {
        let Some(folder) = own_folder() else { return };
        cachalot_run::options::note_folder(&folder);
        if cachalot_run::options::keep_for_process().is_some_and(|options| options.no_follow) {
            leave_environment(variables, &folder);
        }
    });
}

/// The options of `AddressSanitizer`, unless the program has some. It wants to be the first library
/// of a program, and the library in front, which replaces no function that the sanitizer watches,
/// may be before it.
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
    // SAFETY: the loader's text lives as long as the file is loaded. The callers look at it at
    // once, or ask for this library.
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

/// Returns the private folder in the path of the library, with a slash at the end. The path may
/// lead through links in the folder: the loader puts the system's name for folders of libraries in
/// place of `$LIB` in `LD_PRELOAD`.
fn folder_in(path: &[u8]) -> Option<&[u8]> {
    let slash = |of: &[u8]| of.iter().position(|&byte| byte == b'/');
    let private = path.windows(PRIVATE.len()).rposition(|part| part == PRIVATE);
    let end = private.and_then(|begin| slash(&path[begin + 1..]).map(|length| begin + 1 + length));
    let end = end.or_else(|| path.iter().rposition(|&byte| byte == b'/'))?;
    Some(&path[..=end])
}

/// Takes every entry of `folder`, and the options, out of the environment of children. The loader
/// has read the variables before.
///
/// A program may read `environ`, or the list that `main` gets (bash does), so both are changed
/// where they are: `unsetenv` would leave the second.
fn leave_environment(variables: *mut *mut c_char, folder: &[u8]) {
    unsafe extern "C" {
        static mut environ: *mut *mut c_char;
    }
    // SAFETY: a preloaded library is loaded before the program can have started a thread.
    let present = unsafe { environ };
    leave_list(variables, folder);
    if present != variables {
        leave_list(present, folder);
    }
}

/// Takes the entries of `folder`, and the options, out of a list of variables, which ends with
/// null.
fn leave_list(list: *mut *mut c_char, folder: &[u8]) {
    if list.is_null() {
        return;
    }
    let mut length = 0;
    // SAFETY: the loader and `setenv` end the list with null.
    while !unsafe { list.wrapping_add(length).read() }.is_null() {
        length += 1;
    }
    // SAFETY: the entries before the null, which no other thread uses yet.
    let entries = unsafe { core::slice::from_raw_parts_mut(list, length) };
    let mut left = 0;
    for at in 0..length {
        // SAFETY: the entries are texts that end with a zero.
        let text = unsafe { CStr::from_ptr(entries[at]) }.to_bytes();
        let Some(kept) = kept_of(text, folder) else { continue };
        if kept.len() < text.len() {
            // SAFETY: the kept part is shorter than the text, which has its own place.
            unsafe { entries[at].copy_from_nonoverlapping(kept.as_ptr().cast(), kept.len()) };
            // SAFETY: as above.
            unsafe { entries[at].wrapping_add(kept.len()).write(0) };
        }
        entries[left] = entries[at];
        left += 1;
    }
    entries[left..].fill(core::ptr::null_mut());
}

/// Returns what is left of a variable, `NAME=value`. `None`: nothing.
fn kept_of(variable: &[u8], folder: &[u8]) -> Option<Vec<u8>> {
    let value_of = |name: &str| variable.strip_prefix(name.as_bytes())?.strip_prefix(b"=");
    if value_of(cachalot_run::options::VARIABLE).is_some() {
        return None;
    }
    let named = LOADER_VARIABLES.iter().find_map(|(name, separators)| Some((name, *separators, value_of(name)?)));
    let Some((name, separators, value)) = named else { return Some(variable.to_vec()) };
    let kept = without_folder(value, separators, folder);
    (!kept.is_empty() || value.is_empty()).then(|| [name.as_bytes(), b"=", &kept].concat())
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
    use super::{folder_in, kept_of, leave_list, without_folder};
    use std::ffi::{CStr, CString};

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

    #[test]
    fn a_list_of_variables_loses_the_folder_where_it_is() {
        let texts =
            ["A=1", "LD_PRELOAD=/run/a/libcuda.so.1", "LD_LIBRARY_PATH=/run/a:/usr/lib", "CACHALOT_RUN={}", "B="];
        let mut list: Vec<_> = texts.iter().map(|text| CString::new(*text).unwrap().into_raw()).collect();
        list.push(std::ptr::null_mut());
        leave_list(list.as_mut_ptr(), b"/run/a/");
        let left = list.iter().take_while(|entry| !entry.is_null());
        // SAFETY: the entries are texts of the list above.
        let left: Vec<_> = left.map(|&entry| unsafe { CStr::from_ptr(entry) }.to_str().unwrap()).collect();
        assert_eq!(left, ["A=1", "LD_LIBRARY_PATH=/usr/lib", "B="]);
        assert!(list[3..].iter().all(|entry| entry.is_null()));
        leave_list(std::ptr::null_mut(), b"/run/a/");
        assert_eq!(kept_of(b"LD_PRELOADED=/run/a/", b"/run/a/").as_deref(), Some(&b"LD_PRELOADED=/run/a/"[..]));
    }
}
