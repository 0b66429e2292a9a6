//! The archive of a release, unpacked: its command finds its library, and puts the library in front
//! of the driver.

use super::{clean, compile, driver, output_of};
use crate::common::folder;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Packs the files from the test's build, unpacks the archive, and returns the unpacked folder.
fn unpacked(place: &Path) -> PathBuf {
    let built = place.join("built");
    fs::create_dir(&built).expect("a folder");
    let test = std::env::current_exe().expect("a test has a path");
    let files = ["libcachalot.a", "libcachalot.so", "libcachalot_front.so"].map(|name| test.with_file_name(name));
    for file in files.into_iter().chain([PathBuf::from(env!("CARGO_BIN_EXE_cachalot"))]) {
        symlink(&file, built.join(file.file_name().expect("a name"))).expect("a link");
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/release/archive.sh");
    output_of(Command::new(script).arg("--from").arg(&built).arg(place));
    let name = concat!("cachalot-", env!("CARGO_PKG_VERSION"), "-linux-x86_64");
    output_of(Command::new("tar").arg("-xzf").arg(format!("{name}.tar.gz")).current_dir(place));
    place.join(name)
}

#[test]
fn the_command_of_the_archive_puts_its_library_in_front() {
    let place = folder("archive");
    let archive = unpacked(&place);
    let manifest = fs::read_to_string(archive.join("share/cachalot/manifest.txt")).expect("it is there");
    for file in ["bin/cachalot", "lib/cachalot/libcachalot_front.so", "lib/libcachalot.a", "include/cachalot.h"] {
        assert!(manifest.lines().any(|line| line == file) && archive.join(file).is_file(), "{file}: {manifest}");
    }

    // No other folder in which the command looks has the library.
    let program = compile("ways.c", &place, &[]);
    let mut command = Command::new(archive.join("bin/cachalot"));
    clean(&mut command).env("XDG_CACHE_HOME", &place).arg("run").arg("--driver").arg(driver(&place, &[]));
    assert_eq!(output_of(command.arg("--").arg(program).args(["open", "libcuda.so.1"])), "SRS SR");
}
