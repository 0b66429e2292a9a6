//! The file needs no library beyond every container's, carries the driver's name, and exports the
//! driver's names alone.

use crate::names;
use object::elf::{DF_1_NODELETE, DT_FLAGS_1, DT_NEEDED, DT_RUNPATH, DT_SONAME, DynamicTag, FileHeader64};
use object::read::elf::{Dyn, ElfFile, FileHeader};
use object::{LittleEndian, Object, ObjectSymbol};
use std::collections::BTreeSet;

/// Reads the library, which cargo has built beside the test.
fn image() -> Vec<u8> {
    let test = std::env::current_exe().expect("a test has a file");
    std::fs::read(test.with_file_name("libcachalot_front.so")).expect("cargo has built the library")
}

/// Returns the entries of the dynamic section: the tag, and the text or the number.
fn entries(image: &[u8]) -> Vec<(DynamicTag, String, u64)> {
    let header = FileHeader64::<LittleEndian>::parse(image).expect("an ELF file");
    let sections = header.sections(LittleEndian, image).expect("sections");
    let (dynamic, link) = sections.dynamic(LittleEndian, image).expect("sound").expect("a dynamic section");
    let texts = sections.strings(LittleEndian, image, link).expect("texts");
    let entries = dynamic.iter().map(|entry| {
        let tag = entry.d_tag(LittleEndian);
        let value = entry.d_val(LittleEndian);
        let text = u32::try_from(value).ok().and_then(|at| texts.get(at).ok()).unwrap_or_default();
        (tag, String::from_utf8_lossy(text).into_owned(), value)
    });
    entries.collect()
}

#[test]
fn the_file_is_the_drivers_and_needs_only_libc_and_the_driver() {
    let entries = entries(&image());
    let texts = |tag| entries.iter().filter(move |entry| entry.0 == tag).map(|entry| entry.1.as_str());
    assert_eq!(texts(DT_SONAME).collect::<Vec<_>>(), ["libcuda.so.1"]);
    assert_eq!(texts(DT_RUNPATH).collect::<Vec<_>>(), ["$ORIGIN"]);
    let allowed = ["libc.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2", "libcachalot-driver.so.1"];
    let needed: Vec<&str> = texts(DT_NEEDED).collect();
    assert!(needed.iter().all(|name| allowed.contains(name)), "{needed:?}");
    assert!(needed.contains(&"libcachalot-driver.so.1"), "{needed:?}");
    let flags = entries.iter().find(|entry| entry.0 == DT_FLAGS_1).expect("flags").2;
    assert_ne!(flags & DF_1_NODELETE.0, 0, "the library must not be unloaded");
}

#[test]
fn only_names_of_the_driver_and_four_more_are_exported() {
    let image = image();
    let file = ElfFile::<FileHeader64<LittleEndian>>::parse(&*image).expect("an ELF file");
    let defined = file.dynamic_symbols().filter(ObjectSymbol::is_definition);
    let exported: BTreeSet<String> = defined.map(|symbol| symbol.name().expect("ASCII").to_owned()).collect();
    let mut expected = names();
    expected.extend(["cuGetProcAddress", "cuGetProcAddress_v2"].map(str::to_owned));
    // A path to the driver leads here, and AddressSanitizer need not be first.
    expected.extend(["dlopen", "__asan_default_options"].map(str::to_owned));
    // What NVML says of a device's memory.
    expected.extend(["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2"].map(str::to_owned));
    assert_eq!(exported, expected);
    assert!(!exported.contains("cuGetExportTable"), "the driver's private tables are the driver's own");
}

#[test]
fn older_functions_that_end_contexts_or_begin_captures_are_replaced_too() {
    // A runtime of CUDA 10 and before asks for them by these names, and a resolver answers with
    // them.
    const OLDER: [&str; 8] = [
        "cuDevicePrimaryCtxRelease",
        "cuDevicePrimaryCtxReset",
        "cuCtxCreate",
        "cuCtxDestroy",
        "cuCtxDetach",
        "cuStreamDestroy",
        "cuStreamBeginCapture",
        "cuStreamBeginCapture_ptsz",
    ];
    let names = names();
    for name in OLDER {
        assert!(names.contains(name), "{name}");
    }
}
