//! What of a program cannot run on the emulated libraries, as far as its file tells.

use object::elf::FileHeader64;
use object::read::elf::{Dyn, ElfFile, FileHeader};
use object::{LittleEndian, Object, ObjectSection, ObjectSymbol, ReadCache, ReadRef, elf};
use std::fs::File;
use std::path::Path;

/// The section into which nvcc puts the machine code of GPUs.
const KERNELS: &str = ".nv_fatbin";

/// A function of the CUDA runtime that every program with the runtime in it has.
const OF_RUNTIME: &str = "cudaGetDeviceCount";

/// NVIDIA's libraries that bring their own kernels, or that call private functions of the driver.
const CLOSED: [&str; 12] = [
    "libcublas.",
    "libcublasLt.",
    "libcudnn",
    "libcufft.",
    "libcurand.",
    "libcusolver.",
    "libcusparse.",
    "libnccl.",
    "libnvrtc.",
    "libnvJitLink.",
    "libnpp",
    "libnvinfer",
];

/// What a program's file tells.
#[derive(Debug, Default, PartialEq, Eq)]
struct Contents {
    /// The names of the libraries that the loader loads with it.
    needed: Vec<String>,
    has_kernels: bool,
    /// The CUDA runtime is a part of the file.
    has_runtime: bool,
}

/// Returns a line about what cannot run of a program. `kernels_given`: an option says what happens
/// to kernels. A file that cannot be read tells nothing.
pub(super) fn remark(program: &Path, kernels_given: bool) -> Option<String> {
    contents(program).and_then(|contents| judge(&contents, kernels_given))
}

/// Returns the line for a program with such contents.
fn judge(contents: &Contents, kernels_given: bool) -> Option<String> {
    let mut parts = Vec::new();
    let runtime = contents.needed.iter().find(|name| name.starts_with("libcudart."));
    if contents.has_runtime || (contents.has_kernels && runtime.is_none()) {
        parts.push(
            "the program contains NVIDIA's CUDA runtime, which does not start on the emulated driver (link it with \
             `nvcc -cudart shared`)"
                .to_owned(),
        );
    } else if contents.has_kernels && !kernels_given {
        parts.push(
            "the program's kernels are for a GPU, so their launches fail (--skip-kernels skips them, --kernels names \
             a library with functions for the host)"
                .to_owned(),
        );
    }
    if let Some(name) = runtime.filter(|name| *name != super::libraries::RUNTIME) {
        parts.push(format!("the program needs {name}, and the emulated runtime is {}", super::libraries::RUNTIME));
    }
    let closed: Vec<&str> = contents
        .needed
        .iter()
        .map(String::as_str)
        .filter(|name| CLOSED.iter().any(|closed| name.starts_with(closed)))
        .collect();
    if !closed.is_empty() {
        parts.push(format!("calls of {} fail, because these libraries need a GPU", closed.join(", ")));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Reads the sections, the needed libraries and the symbols of a program.
fn contents(program: &Path) -> Option<Contents> {
    let data = &ReadCache::new(File::open(program).ok()?);
    let file = ElfFile::<FileHeader64<LittleEndian>, _>::parse(data).ok()?;
    let has_kernels = file.sections().any(|section| section.name() == Ok(KERNELS));
    let is_of_runtime = |symbol: &object::read::elf::ElfSymbol<'_, '_, FileHeader64<LittleEndian>, _>| {
        symbol.is_definition() && symbol.name() == Ok(OF_RUNTIME)
    };
    let has_runtime = file.symbols().any(|symbol| is_of_runtime(&symbol));
    Some(Contents { needed: needed(data).unwrap_or_default(), has_kernels, has_runtime })
}

/// Returns the names of the libraries that the loader loads with a program.
fn needed<'data>(data: impl ReadRef<'data>) -> Option<Vec<String>> {
    let header = FileHeader64::<LittleEndian>::parse(data).ok()?;
    let sections = header.sections(LittleEndian, data).ok()?;
    let (entries, link) = sections.dynamic(LittleEndian, data).ok()??;
    let strings = sections.strings(LittleEndian, data, link).ok()?;
    let of_libraries = entries.iter().filter(|entry| entry.tag(LittleEndian) == elf::DT_NEEDED);
    let names = of_libraries.filter_map(|entry| entry.string(LittleEndian, strings).ok());
    Some(names.map(|name| String::from_utf8_lossy(name).into_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::{Contents, contents, judge};
    use std::path::Path;

    /// Returns contents with needed libraries.
    fn needing(names: &[&str]) -> Contents {
        Contents { needed: names.iter().map(ToString::to_string).collect(), ..Contents::default() }
    }

    #[test]
    fn a_program_is_told_what_cannot_run_and_others_nothing() {
        let says = |contents: &Contents, given| judge(contents, given).unwrap_or_default();
        assert_eq!(judge(&needing(&["libcuda.so.1", "libcudart.so.13", "libc.so.6"]), false), None);
        let kernels = Contents { has_kernels: true, ..needing(&["libcudart.so.13"]) };
        assert!(says(&kernels, false).contains("--skip-kernels") && judge(&kernels, true).is_none());
        for inside in [Contents { has_kernels: true, ..Contents::default() }, Contents { has_runtime: true, ..kernels }]
        {
            assert!(says(&inside, true).contains("-cudart shared"), "{inside:?}");
        }
        assert!(says(&needing(&["libcudart.so.12"]), false).contains("libcudart.so.12"));
        let closed = says(&needing(&["libcublas.so.13", "libcudnn_ops.so.9"]), false);
        assert!(closed.contains("libcublas.so.13, libcudnn_ops.so.9"), "{closed}");
    }

    #[test]
    fn the_needed_libraries_of_a_file_are_read() {
        let own = contents(&std::env::current_exe().expect("a path")).expect("an ELF file");
        assert!(own.needed.iter().any(|name| name.starts_with("libc.so")), "{own:?}");
        assert!(!own.has_kernels && !own.has_runtime);
        assert_eq!(contents(Path::new("/nowhere")), None);
    }
}
