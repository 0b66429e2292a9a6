//! The installed library, for tests that use the library like a program outside of the repository.

use super::{library_folder, root, scratch, succeed};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Returns an installed tree, created once: headers, libraries, pkg-config file, `CMake` package.
pub(crate) fn installed() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = empty("prefix");
        install(&prefix, &[]);
        prefix
    })
}

/// Installs the library from the test's build.
pub(crate) fn install(prefix: &Path, variables: &[(&str, &str)]) {
    let mut command = Command::new(root().join("ffi/packaging/install.sh"));
    command.arg("--from").arg(library_folder()).arg(prefix).envs(variables.iter().copied());
    succeed(&mut command).expect("the script is there");
}

/// Creates an empty folder for one test.
pub(crate) fn empty(name: &str) -> PathBuf {
    let folder = scratch("empty").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("the test's folder can be written");
    folder
}
