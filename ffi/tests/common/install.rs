//! The library as it is installed, for tests that use it as a program outside of the repository does.

use super::{library_folder, root, scratch, succeed};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// An installed tree, made once: headers, libraries, pkg-config file, `CMake` package.
pub(crate) fn installed() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = empty("prefix");
        install(&prefix, &[]);
        prefix
    })
}

/// Installs what was built for this test.
pub(crate) fn install(prefix: &Path, variables: &[(&str, &str)]) {
    let mut command = Command::new(root().join("ffi/packaging/install.sh"));
    command.arg("--from").arg(library_folder()).arg(prefix).envs(variables.iter().copied());
    succeed(&mut command).expect("the script is there");
}

/// A folder of this test program's with nothing in it.
pub(crate) fn empty(name: &str) -> PathBuf {
    let folder = scratch(env!("CARGO_CRATE_NAME")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("the test's folder can be written");
    folder
}
