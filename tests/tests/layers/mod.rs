//! Checks that imports run downward: each crate's modules against the layers in `ARCHITECTURE.md`.
//!
//! ```text
//! ARCHITECTURE.md ─▶ document ─▶ Layers ─┐
//! src/**/*.rs ─▶ modules ─▶ imports ─────┴▶ check ─▶ what is wrong
//!                 (paths reads the tokens)
//! ```
//!
//! An import is a path to another file of the crate: in a `use`, in code, or in a macro's
//! arguments. A method call is no import. Code under `#[cfg(test)]` is ignored.

mod check;
pub(crate) mod document;
mod imports;
pub(crate) mod modules;
mod paths;

#[cfg(test)]
mod tests;

use std::path::Path;

#[test]
fn imports_run_downward() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let text = std::fs::read_to_string(root.join("ARCHITECTURE.md")).expect("the repository has the document");
    let blocks = document::blocks(&text);
    assert!(!blocks.is_empty(), "ARCHITECTURE.md has no block that begins with ```layers");
    let mut wrong = Vec::new();
    for layers in &blocks {
        let folder = root.join(&layers.folder);
        let imports = imports::of(&|file: &str| std::fs::read_to_string(folder.join(file)).ok());
        let found = check::check(layers, &imports);
        wrong.extend(found.into_iter().map(|what| format!("{}: {what}", layers.folder)));
    }
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}
