//! The texts of the project, for the tests that read them, most of all its Rust.

use std::path::{Path, PathBuf};
use walkdir::{DirEntry, WalkDir};

/// The folder of the project.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Returns whether the walk enters a folder: neither build outputs nor hidden folders, such as
/// `.tools`.
fn is_entered(entry: &DirEntry) -> bool {
    let name = entry.file_name().to_string_lossy();
    entry.depth() == 0 || !(name.starts_with('.') || ["target", "book", "build", "node_modules"].contains(&&*name))
}

/// Iterates over the files at or below a path of the project whose names have one of `endings`: the
/// path relative to the project, and the text.
pub(crate) fn texts(path: &str, endings: &[&str]) -> impl Iterator<Item = (PathBuf, String)> {
    let entries = WalkDir::new(Path::new(ROOT).join(path)).into_iter().filter_entry(is_entered);
    let entries = entries.map(|entry| entry.expect("the tree is readable"));
    let is_text = |path: &Path| path.extension().is_some_and(|found| endings.iter().any(|ending| *ending == found));
    let files = entries.filter(move |entry| entry.file_type().is_file() && is_text(entry.path()));
    files.map(|entry| {
        let path = entry.path().strip_prefix(ROOT).expect("below the root").to_owned();
        let bytes = std::fs::read(entry.path()).expect("it can be read");
        (path, String::from_utf8_lossy(&bytes).into_owned())
    })
}

/// Iterates over the Rust files at or below a path of the project.
pub(crate) fn below(path: &str) -> impl Iterator<Item = (PathBuf, String)> {
    texts(path, &["rs"])
}

/// Returns the last name in a path.
pub(crate) fn last_name(path: &syn::Path) -> Option<String> {
    path.segments.last().map(|segment| segment.ident.to_string())
}

/// Returns the last name in the path of a type.
pub(crate) fn name_of_type(of: &syn::Type) -> Option<String> {
    if let syn::Type::Path(path) = of { last_name(&path.path) } else { None }
}
