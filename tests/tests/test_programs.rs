//! Checks that every file of a folder of tests belongs to a test program. Cargo alone would pass
//! over a file, because the crates list their programs (`autotests = false`).

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use walkdir::WalkDir;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Returns the names of the test programs in a manifest.
fn programs(manifest: &str) -> Vec<&str> {
    let tables = manifest.split("\n[").filter_map(|table| table.strip_prefix("[test]]"));
    tables.filter_map(|table| table.split_once("name = \"")?.1.split('"').next()).collect()
}

/// Returns the modules named in a program's file.
fn modules(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.strip_prefix("mod ")?.strip_suffix(';'))
}

/// Returns the files of a folder of tests without a program.
fn left_out<'a>(manifest: &str, files: &[&'a str], read: impl Fn(&str) -> String) -> Vec<&'a str> {
    let programs = programs(manifest);
    let texts: Vec<String> = programs.iter().map(|program| read(program)).collect();
    let used: BTreeSet<&str> = programs.iter().copied().chain(texts.iter().flat_map(|text| modules(text))).collect();
    files.iter().filter(|file| !used.contains(*file)).copied().collect()
}

#[test]
fn every_file_of_tests_belongs_to_a_program() {
    let manifests = WalkDir::new(ROOT).max_depth(3).into_iter().filter_entry(|entry| {
        let name = entry.file_name().to_string_lossy();
        entry.depth() == 0 || !(name.starts_with('.') || name == "target")
    });
    let mut listed = 0;
    for manifest in manifests.map(|entry| entry.expect("it can be read")) {
        let folder = manifest.path().parent().expect("a file is in a folder").join("tests");
        if manifest.file_name() != "Cargo.toml" || !folder.is_dir() {
            continue;
        }
        let text = fs::read_to_string(manifest.path()).expect("it was just found");
        if !text.contains("\nautotests = false\n") {
            continue;
        }
        let entries = fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").path());
        let sources = entries.filter(|path| path.extension() == Some(OsStr::new("rs")));
        let names: Vec<String> =
            sources.map(|path| path.file_stem().expect("a name").to_str().expect("UTF-8").to_owned()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let read = |program: &str| {
            let file = folder.join(program).with_extension("rs");
            fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
        };
        let left_out = left_out(&text, &names, read);
        assert!(left_out.is_empty(), "{}: in no test program: {left_out:?}", folder.display());
        listed += 1;
    }
    assert!(listed > 5, "{listed} crates list their test programs");
}

#[test]
fn a_file_in_no_program_is_caught() {
    let manifest = "[package]\nautotests = false\n\n[[test]]\nname = \"all\"\n\n# Alone.\n[[test]]\nname = \"own\"\n";
    let read = |program: &str| if program == "all" { "//! mod no;\n\nmod a;\n" } else { "" }.to_owned();
    assert_eq!(left_out(manifest, &["all", "own", "a", "no"], read), ["no"]);
}
