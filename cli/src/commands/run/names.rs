//! Names of the private folders and of their files.

use super::processor::PROCESSOR;
use std::path::Path;

/// The library in front, under the driver's name.
pub(super) const FRONT: &str = "libcuda.so.1";
/// The library in front, under the driver's name without a version.
pub(super) const UNVERSIONED: &str = "libcuda.so";
/// The real driver.
pub(super) const ALIAS: &str = "libcachalot-driver.so.1";
/// NVML for programs, where it says the limit.
pub(super) const NVML: &str = "libnvidia-ml.so.1";
/// The real NVML beside it.
pub(super) const REAL_NVML: &str = "libcachalot-nvml.so.1";
/// Links in the folder, from its folder's names in `$LIB` to itself: that of Fedora, of Arch, and
/// the two parts of Debian's.
pub(super) const LINKS: [&str; 3] = ["lib64", "lib", PROCESSOR.debian];

/// The prefix of the name of every private folder.
pub(super) const PREFIX: &str = "cachalot-run-";

/// Returns whether a path has the name of a private folder.
pub(super) fn is_private(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX))
}

#[cfg(test)]
mod tests {
    use super::is_private;
    use std::path::Path;

    #[test]
    fn a_private_folder_is_known_by_its_name() {
        assert!(is_private(Path::new("/run/user/1/cachalot/cachalot-run-00ff")));
        assert!(!is_private(Path::new("/run/user/1/cachalot")));
    }
}
