//! The environment with the library in front of the driver, and the environment without the
//! library.

use super::names::{ALIAS, FRONT, LINKS, is_private};
use cachalot_run::Options;
use cachalot_run::options::VARIABLE;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::Command;

const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
const PRELOAD: &str = "LD_PRELOAD";

/// The folder of a preloaded library. The loader of glibc puts its own name for folders of
/// libraries in place of the word, and the private folder has a link for each such name. The loader
/// of musl takes the word as it is, finds no file and goes on: it could not load the library, and
/// the program would end.
const ANY_LINK: &str = "$LIB";

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

/// Returns the environment without the library of an outer `cachalot run`, which an inner
/// `cachalot run` replaces.
pub(super) fn without_library() -> Changes {
    let mut changes: Vec<_> = [LIBRARY_PATH, PRELOAD].map(|name| (name, cleaned(name))).into();
    changes.push((VARIABLE, None));
    Changes(changes)
}

/// Returns the environment with the library in `folder`.
pub(super) fn with_library(folder: &Path, options: &Options) -> Changes {
    let before = |name: &str, entry: &Path| {
        let mut value = entry.as_os_str().to_owned();
        if let Some(rest) = cleaned(name) {
            value.push(":");
            value.push(rest);
        }
        Some(value)
    };
    Changes(vec![
        (LIBRARY_PATH, before(LIBRARY_PATH, folder)),
        (PRELOAD, before(PRELOAD, &folder.join(ANY_LINK).join(FRONT))),
        (VARIABLE, Some(options.to_variable().into())),
    ])
}

/// Returns the library path without the folder of an outer `cachalot run`.
pub(super) fn library_path() -> OsString {
    cleaned(LIBRARY_PATH).unwrap_or_default()
}

/// Returns a variable of the loader without the entries of private folders. `None` if nothing is
/// left.
fn cleaned(name: &str) -> Option<OsString> {
    let value = std::env::var_os(name)?;
    let entries = value.as_bytes().split(|&byte| byte == b':' || (byte == b' ' && name == PRELOAD));
    let kept: Vec<&[u8]> = entries.filter(|entry| !is_ours(Path::new(OsStr::from_bytes(entry)))).collect();
    (kept != [b""]).then(|| OsString::from_vec(kept.join(&b':'))).filter(|value| !value.is_empty())
}

/// Returns whether an entry is a private folder or a file in a private folder.
fn is_ours(entry: &Path) -> bool {
    let in_folder = [FRONT, ALIAS].iter().any(|&name| entry.file_name().is_some_and(|file| file == name));
    is_private(entry) || (in_folder && entry.ancestors().skip(1).take(LINKS.len()).any(is_private))
}

#[cfg(test)]
mod tests {
    use super::is_ours;
    use std::path::Path;

    #[test]
    fn entries_of_private_folders_are_ours_and_no_others() {
        let is = |entry: &str| is_ours(Path::new(entry));
        let folder = "/home/a/.cache/cachalot/cachalot-run-01";
        for ours in ["", "/libcuda.so.1", "/$LIB/libcuda.so.1", "/lib/x86_64-linux-gnu/libcuda.so.1"] {
            assert!(is(&format!("{folder}{ours}")), "{ours}");
        }
        for other in ["/usr/lib/libcuda.so.1", "/home/a/.cache/cachalot", "libcuda.so.1", "/cachalot-run-01/x.so"] {
            assert!(!is(other), "{other}");
        }
    }
}
