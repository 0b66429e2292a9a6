//! The environment with the library in front of the driver, and the environment without the library.

use super::names::{ALIAS, AUDITOR, FRONT, is_private};
use cachalot_run::Options;
use cachalot_run::options::VARIABLE;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::Command;

const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
const PRELOAD: &str = "LD_PRELOAD";
const AUDIT: &str = "LD_AUDIT";
const TUNABLES: &str = "GLIBC_TUNABLES";

/// Room for thread-local variables of libraries. With an auditor the loader lays out the program's own before the
/// libraries that the program links are known, and has 512 bytes for theirs: the Rust compiler does not start so.
const STATIC_TLS: &str = "glibc.rtld.optional_static_tls";
const STATIC_TLS_BYTES: u32 = 64 << 10;

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
    changes.push((VARIABLE, None));
    Changes(changes)
}

/// Returns the environment with the library in `folder`.
pub(super) fn with_library(folder: &Path, audited: bool, options: &Options) -> Changes {
    let before = |name: &str, entry: &Path| {
        let mut value = entry.as_os_str().to_owned();
        if let Some(rest) = cleaned(name) {
            value.push(":");
            value.push(rest);
        }
        Some(value)
    };
    let mut changes = vec![
        (LIBRARY_PATH, before(LIBRARY_PATH, folder)),
        (PRELOAD, before(PRELOAD, &folder.join(FRONT))),
        (VARIABLE, Some(options.to_variable().into())),
    ];
    if audited {
        changes.push((AUDIT, before(AUDIT, &folder.join(AUDITOR))));
        changes.push((TUNABLES, Some(with_static_tls(std::env::var_os(TUNABLES)))));
    }
    Changes(changes)
}

/// Returns the loader's tunables with room for thread-local variables, unless the user has said how much.
fn with_static_tls(before: Option<OsString>) -> OsString {
    let mut tunables = before.unwrap_or_default();
    let named = |entry: &[u8]| entry.split(|&byte| byte == b'=').next() == Some(STATIC_TLS.as_bytes());
    if !tunables.as_bytes().split(|&byte| byte == b':').any(named) {
        if !tunables.is_empty() {
            tunables.push(":");
        }
        tunables.push(format!("{STATIC_TLS}={STATIC_TLS_BYTES}"));
    }
    tunables
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
        let added = "glibc.rtld.optional_static_tls=65536";
        assert_eq!(with_static_tls(None), added);
        assert_eq!(with_static_tls(Some("".into())), added);
        assert_eq!(with_static_tls(Some("glibc.malloc.check=1".into())), *format!("glibc.malloc.check=1:{added}"));
        for own in ["glibc.rtld.optional_static_tls=4096", "a=b:glibc.rtld.optional_static_tls=0"] {
            assert_eq!(with_static_tls(Some(own.into())), own);
        }
    }
}
