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
    }
    Changes(changes)
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
