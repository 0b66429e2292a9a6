//! The real driver's library, found as the loader would find the library.

use super::environment;
use super::names::NVML;
use super::processor::PROCESSOR;
use object::elf::FileHeader64;
use object::read::elf::ElfFile;
use object::{LittleEndian, Object, ObjectSymbol, ReadCache};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The driver's name for the loader.
const NAME: &str = "libcuda.so.1";

/// The environment variable by which users of cachalot name the driver.
const VARIABLE: &str = "CACHALOT_LIBCUDA";

/// Folders of drivers outside the loader's cache: folders of distributions, containers, WSL and
/// NixOS.
const FOLDERS: [&str; 6] =
    ["/lib64", "/usr/lib64", "/usr/lib", "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib", "/run/opengl-driver/lib"];

/// Finds the driver: `named`, else the file or name in [`VARIABLE`], else `libcuda.so.1` in
/// `LD_LIBRARY_PATH`, in the loader's cache, and in the usual folders. The path is absolute.
///
/// # Errors
/// A line about a missing driver.
pub(super) fn find(named: Option<&Path>) -> Result<PathBuf, String> {
    let variable = std::env::var_os(VARIABLE).map(PathBuf::from);
    let (name, origin) = match (named, &variable) {
        (Some(path), _) => (path, "--driver"),
        (None, Some(path)) => (path.as_path(), VARIABLE),
        (None, None) => (Path::new(NAME), ""),
    };
    if name.components().count() > 1 {
        return match std::fs::canonicalize(name) {
            Ok(_) => std::path::absolute(name).map_err(|error| format!("{}: {error}", name.display())),
            Err(error) => Err(format!("{}: {error} ({origin} names the driver)", name.display())),
        };
    }
    in_system(name).ok_or_else(|| {
        format!(
            "no {} in LD_LIBRARY_PATH, in the loader's cache or in the usual folders: --driver names the driver",
            name.display()
        )
    })
}

/// Finds NVML, which is installed beside the driver, or else as the driver is.
///
/// # Errors
/// A line about a missing library.
pub(super) fn find_nvml(driver: &Path) -> Result<PathBuf, String> {
    let beside = driver.with_file_name(NVML);
    let found = Some(beside).filter(|path| path.is_file()).or_else(|| in_system(Path::new(NVML)));
    found.ok_or_else(|| format!("--nvml: no {NVML} beside {}, and none where the loader looks", driver.display()))
}

/// Finds a library in `LD_LIBRARY_PATH`, in the loader's cache, or in the usual folders.
fn in_system(name: &Path) -> Option<PathBuf> {
    let paths = std::env::split_paths(&environment::library_path()).collect::<Vec<_>>();
    let in_path = paths.iter().filter(|folder| folder.is_absolute()).map(|folder| folder.join(name));
    let usual = PROCESSOR.folders.iter().chain(&FOLDERS).map(|folder| Path::new(folder).join(name));
    in_path.chain(cached(name)).chain(usual).find(|path| path.is_file())
}

/// Returns the paths of a library in the loader's cache.
fn cached(name: &Path) -> Vec<PathBuf> {
    let programs = ["/sbin/ldconfig", "/usr/sbin/ldconfig", "ldconfig"];
    let output = programs.iter().find_map(|program| Command::new(program).arg("-p").output().ok());
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().filter_map(|line| in_cache(line, name)).collect()
}

/// Returns the path in a line of `ldconfig -p` about a library for this processor.
fn in_cache(line: &str, name: &Path) -> Option<PathBuf> {
    let (library, path) = line.trim().split_once(" => ")?;
    let (library, kind) = library.split_once(' ')?;
    (Path::new(library) == name && kind.contains(PROCESSOR.in_cache)).then(|| PathBuf::from(path))
}

/// Returns the names exported by a library.
///
/// # Errors
/// A line about a file of another kind than a library of 64 bits.
pub(super) fn exported(library: &Path) -> Result<BTreeSet<String>, String> {
    let refuse = |reason: &dyn std::fmt::Display| format!("{}: {reason}", library.display());
    let file = File::open(library).map_err(|error| refuse(&error))?;
    let data = ReadCache::new(file);
    let parsed = ElfFile::<FileHeader64<LittleEndian>, _>::parse(&data).map_err(|error| refuse(&error))?;
    let defined = parsed.dynamic_symbols().filter(ObjectSymbol::is_definition);
    Ok(defined.filter_map(|symbol| symbol.name().ok().map(str::to_owned)).collect())
}

#[cfg(test)]
mod tests {
    use super::{PROCESSOR, in_cache};
    use std::path::{Path, PathBuf};

    #[test]
    fn the_cache_names_libraries_of_each_architecture() {
        let kind = PROCESSOR.in_cache;
        let found = |line: &str| in_cache(&line.replace("PROCESSOR", kind), Path::new("libcuda.so.1"));
        let path = PathBuf::from("/lib/here/libcuda.so.1");
        assert_eq!(found("\tlibcuda.so.1 (libc6,PROCESSOR) => /lib/here/libcuda.so.1"), Some(path));
        assert_eq!(found("\tlibcuda.so.1 (libc6) => /lib/i386-linux-gnu/libcuda.so.1"), None);
        assert_eq!(found("\tlibcuda.so (libc6,PROCESSOR) => /lib/here/libcuda.so"), None);
        assert_eq!(found("1297 libs found in cache `/etc/ld.so.cache'"), None);
    }
}
