//! The environment with the library in front of the driver, and the environment without the library.

use super::libraries::Libraries;
use super::names::{ALIAS, AUDITOR, FRONT, is_private};
use cachalot_run::Options;
use cachalot_run::options::{VARIABLE, without_static_tls};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::Command;

const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
const PRELOAD: &str = "LD_PRELOAD";
const AUDIT: &str = "LD_AUDIT";
const TUNABLES: &str = "GLIBC_TUNABLES";

/// Room for thread-local variables of libraries. With an auditor the loader lays out the program's own before the
/// libraries that the program links are known, and has 512 bytes for theirs: the Rust compiler needs 24 KiB. Each thread's stack has the
/// room, and threads with stacks of 16 KiB have to start: the room is what the program's libraries need, as without an auditor,
/// and a little for children.
pub(super) const STATIC_TLS: &str = cachalot_run::options::STATIC_TLS;
const LEAST_STATIC_TLS: u64 = 4 << 10;
/// The loader's own choice, which stays for libraries that are loaded later.
const DEFAULT_STATIC_TLS: u64 = 512;

/// Variables to set, or to remove.
pub(super) struct Changes(Vec<(&'static str, Option<OsString>)>);

impl Changes {
    /// Changes the environment of a command.
    pub(super) fn apply(&self, command: &mut Command) {
        for (name, value) in &self.0 {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
    }
}

/// Returns the environment without the library of an outer `cachalot run`, which an inner `cachalot run` replaces.
pub(super) fn without_library() -> Changes {
    let mut changes: Vec<_> = [LIBRARY_PATH, PRELOAD, AUDIT].map(|name| (name, cleaned(name))).into();
    changes.push((TUNABLES, tunables()));
    changes.push((VARIABLE, None));
    Changes(changes)
}

/// Returns the loader's tunables without the one of an outer `cachalot run`.
fn tunables() -> Option<OsString> {
    let value = std::env::var_os(TUNABLES)?;
    let outer = Options::of_environment().ok().flatten().map_or(0, |outer| outer.static_tls);
    let kept = without_static_tls(value.as_bytes(), outer);
    (!kept.is_empty()).then(|| OsString::from_vec(kept))
}

/// Returns the environment with the library in `folder`. `libraries`: those of a program that can be audited.
pub(super) fn with_library(folder: &Path, libraries: Option<&Libraries>, mut options: Options) -> Changes {
    let before = |name: &str, entry: &Path| {
        let mut value = entry.as_os_str().to_owned();
        if let Some(rest) = cleaned(name) {
            value.push(":");
            value.push(rest);
        }
        Some(value)
    };
    let mut changes = vec![(LIBRARY_PATH, before(LIBRARY_PATH, folder))];
    // A sanitizer's library wants to be the first one. The library path and the auditor lead to the library in front, too.
    if libraries.is_none_or(|libraries| !libraries.has_sanitizer()) {
        changes.push((PRELOAD, before(PRELOAD, &folder.join(FRONT))));
    }
    if let Some(libraries) = libraries {
        let room = libraries.thread_local_bytes().saturating_add(DEFAULT_STATIC_TLS).next_multiple_of(512);
        let (tunables, added) = with_static_tls(tunables(), room.max(LEAST_STATIC_TLS));
        options.static_tls = added;
        changes.push((AUDIT, before(AUDIT, &folder.join(AUDITOR))));
        changes.push((TUNABLES, Some(tunables)));
    }
    changes.push((VARIABLE, Some(options.to_variable().into())));
    Changes(changes)
}

/// Returns the loader's tunables with room for thread-local variables, unless the user has said how much, and the added room.
fn with_static_tls(before: Option<OsString>, bytes: u64) -> (OsString, u64) {
    let mut tunables = before.unwrap_or_default();
    let named = |entry: &[u8]| entry.split(|&byte| byte == b'=').next() == Some(STATIC_TLS.as_bytes());
    if tunables.as_bytes().split(|&byte| byte == b':').any(named) {
        return (tunables, 0);
    }
    if !tunables.is_empty() {
        tunables.push(":");
    }
    tunables.push(format!("{STATIC_TLS}={bytes}"));
    (tunables, bytes)
}

/// Returns the library path without the folder of an outer `cachalot run`.
pub(super) fn library_path() -> OsString {
    cleaned(LIBRARY_PATH).unwrap_or_default()
}

/// Returns a variable of the loader without the entries of private folders. `None` if nothing is left.
fn cleaned(name: &str) -> Option<OsString> {
    let value = std::env::var_os(name)?;
    let entries = value.as_bytes().split(|&byte| byte == b':' || (byte == b' ' && name == PRELOAD));
    let kept: Vec<&[u8]> = entries.filter(|entry| !is_ours(Path::new(OsStr::from_bytes(entry)))).collect();
    (kept != [b""]).then(|| OsString::from_vec(kept.join(&b':'))).filter(|value| !value.is_empty())
}

/// Returns whether an entry is a private folder or a file in a private folder.
fn is_ours(entry: &Path) -> bool {
    let in_folder = [FRONT, ALIAS, AUDITOR].iter().any(|&name| entry.file_name().is_some_and(|file| file == name));
    is_private(entry) || (in_folder && entry.parent().is_some_and(is_private))
}

#[cfg(test)]
mod tests {
    use super::with_static_tls;

    #[test]
    fn room_for_thread_local_variables_is_added_once() {
        let added = || "glibc.rtld.optional_static_tls=4096".to_owned();
        let with = |before: &str| with_static_tls(Some(before.into()), 4096);
        assert_eq!(with_static_tls(None, 4096), (added().into(), 4096));
        assert_eq!(with(""), (added().into(), 4096));
        assert_eq!(with("glibc.malloc.check=1"), (format!("glibc.malloc.check=1:{}", added()).into(), 4096));
        for own in ["glibc.rtld.optional_static_tls=512", "a=b:glibc.rtld.optional_static_tls=0"] {
            assert_eq!(with(own), (own.into(), 0));
        }
    }
}
