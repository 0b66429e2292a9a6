//! The libraries that the loader takes into a program before the program runs: their thread-local variables, and sanitizers.

use object::elf::{FileHeader64, PT_TLS};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{LittleEndian, ReadCache};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Prefixes of the names of sanitizers' libraries, which want to be the first library of a program.
const SANITIZERS: [&str; 6] = ["libasan.so", "libtsan.so", "liblsan.so", "libhwasan.so", "libclang_rt.", "libmsan.so"];

/// Libraries of a program, each once.
pub(super) struct Libraries(BTreeSet<PathBuf>);

impl Libraries {
    /// Asks a loader for the libraries of the program and of the driver, which the library in front needs. The program does not run.
    /// `prepare` takes the library of an outer `cachalot run` out of the command's environment.
    pub(super) fn of(
        loader: &Path,
        program: &Path,
        front: &Path,
        driver: &Path,
        prepare: impl Fn(&mut Command),
    ) -> Self {
        let mut all = BTreeSet::from([front.to_owned(), driver.to_owned()]);
        for file in [program, driver] {
            let mut command = Command::new(loader);
            command.arg("--list").arg(file).stdin(Stdio::null()).stderr(Stdio::null());
            prepare(&mut command);
            // A program whose libraries are missing says so itself.
            let text = command.output().map(|output| output.stdout).unwrap_or_default();
            all.extend(String::from_utf8_lossy(&text).lines().filter_map(path_in));
        }
        Self(all)
    }

    /// Returns the bytes of all thread-local variables.
    pub(super) fn thread_local_bytes(&self) -> u64 {
        self.0.iter().filter_map(|path| thread_local_bytes(path)).sum()
    }

    /// Returns whether the loader takes a sanitizer's library.
    pub(super) fn has_sanitizer(&self) -> bool {
        let is_one = |name: &str| SANITIZERS.iter().any(|begin| name.starts_with(begin));
        self.0.iter().any(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(is_one))
    }
}

/// Returns the path in a line of `ld.so --list`: `name => path (address)`, or `path (address)`.
fn path_in(line: &str) -> Option<PathBuf> {
    let (path, _address) = line.trim().rsplit_once(" (0x")?;
    let path = path.split_once(" => ").map_or(path, |(_, path)| path);
    path.starts_with('/').then(|| path.into())
}

/// Returns the bytes of a library's thread-local variables.
fn thread_local_bytes(library: &Path) -> Option<u64> {
    let data = &ReadCache::new(File::open(library).ok()?);
    let header = FileHeader64::<LittleEndian>::parse(data).ok()?;
    let headers = header.program_headers(LittleEndian, data).ok()?;
    let found = headers.iter().find(|header| header.p_type(LittleEndian) == PT_TLS)?;
    found.p_memsz(LittleEndian).checked_next_multiple_of(found.p_align(LittleEndian).max(1))
}

#[cfg(test)]
mod tests {
    use super::{Libraries, path_in};
    use std::path::{Path, PathBuf};

    #[test]
    fn the_loader_names_libraries_with_and_without_a_path() {
        assert_eq!(path_in("\tlibc.so.6 => /lib/libc.so.6 (0x00007f0)"), Some(PathBuf::from("/lib/libc.so.6")));
        assert_eq!(path_in("\t/lib64/ld.so (0x00007f0)"), Some(PathBuf::from("/lib64/ld.so")));
        assert_eq!(path_in("\tlinux-vdso.so.1 (0x00007f0)"), None);
        assert_eq!(path_in("\tlibnone.so.1 => not found"), None);
    }

    #[test]
    fn the_c_library_counts_and_is_no_sanitizer() {
        let (loader, program) = (Path::new("/lib64/ld-linux-x86-64.so.2"), std::env::current_exe().expect("a program"));
        let libraries = Libraries::of(loader, &program, Path::new("/none"), Path::new("/none"), |_| {});
        assert!((64..4096).contains(&libraries.thread_local_bytes()), "{}", libraries.thread_local_bytes());
        assert!(!libraries.has_sanitizer());
        assert!(Libraries([PathBuf::from("/usr/lib/libasan.so.8")].into()).has_sanitizer());
    }
}
