//! Checks that no two types or traits of a crate have one name, whether public or private.
//!
//! The crates are those with layers in `ARCHITECTURE.md`. Each program beside a library is a crate
//! of its own. A type in a function, in a test or from a macro does not count, and a file that
//! stands in for another by `path` is the same type under another setting.

use super::layers::document;
use super::layers::modules::{self, Read};
use std::collections::BTreeMap;
use std::path::Path;

/// Lists the names that two modules of a crate define as types, with the modules.
fn shared_names(read: Read<'_>) -> Vec<String> {
    let mut by_name = BTreeMap::<String, Vec<String>>::new();
    for (module, contents) in modules::read(read) {
        for name in contents.types {
            by_name.entry(name).or_default().push(module.join("::"));
        }
    }
    let shared = by_name.into_iter().filter(|(_, modules)| modules.len() > 1);
    shared.map(|(name, modules)| format!("{name}: {}", modules.join(" "))).collect()
}

#[test]
fn a_name_of_a_type_means_one_thing_in_a_crate() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = std::fs::read_to_string(root.join("ARCHITECTURE.md")).expect("the repository has the document");
    let mut shared = Vec::new();
    for crate_of in document::blocks(&text) {
        let folder = root.join(&crate_of.folder);
        let found = shared_names(&|file: &str| std::fs::read_to_string(folder.join(file)).ok());
        shared.extend(found.into_iter().map(|names| format!("{}: {names}", crate_of.folder)));
    }
    assert!(shared.is_empty(), "names of two types:\n{}", shared.join("\n"));
}

#[test]
fn a_name_of_two_types_is_found() {
    let files = BTreeMap::from([
        ("lib.rs", "mod a; mod b; mod c; #[cfg(test)] mod tests { struct Row; } mod inner { trait Cell {} }"),
        ("a.rs", "struct Row; type Cell = u8; fn f() { struct Local; }"),
        ("b.rs", "enum Row { Cell } fn f() { struct Local; } const LOCAL: u8 = 1;"),
        ("c.rs", "#[cfg(a)] struct Twice; #[cfg(not(a))] struct Twice;"),
    ]);
    let found = shared_names(&|file: &str| files.get(file).map(|text| (*text).to_owned()));
    assert_eq!(found, ["Cell: a inner", "Row: a b"]);
}
