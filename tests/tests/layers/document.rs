//! Reads the layers of a crate from `ARCHITECTURE.md`.
//!
//! ````text
//! ```layers ffi/src
//! capi torch                    top: the modules of a line do not import each other
//! boundary                      each module is named once
//! c/first c/second              the modules of a folder, listed one by one
//! circle: a/x a/y               a circle of files that is allowed; none of two modules can be
//! ```
//! ````
//!
//! Name `a` means the file `a.rs` or `a/mod.rs`, and the folder `a`. A module file and the files in
//! its folder may use each other. Name `c/first` means the file `c/first.rs` and the folder
//! `c/first`; then every module of the folder `c` is listed. Two spaces end the names of a line;
//! the rest of the line is a remark.

/// The layers of one crate.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Layers {
    /// Folder with the sources of the crate.
    pub(crate) folder: String,
    /// Modules of each layer, from top to bottom.
    pub(crate) lines: Vec<Vec<String>>,
    /// The allowed circles: the files of each, sorted.
    pub(crate) circles: Vec<Vec<String>>,
}

/// Prefix of the first line of a block.
const BEGIN: &str = "```layers ";
/// Last line of a block.
const END: &str = "```";
/// Prefix of a line that allows a circle.
const CIRCLE: &str = "circle:";

/// Reads every block of a document.
pub(crate) fn blocks(text: &str) -> Vec<Layers> {
    let mut blocks: Vec<Layers> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if let Some(folder) = line.strip_prefix(BEGIN) {
            blocks.push(Layers { folder: folder.trim().to_owned(), ..Layers::default() });
            inside = true;
        } else if line.starts_with(END) {
            inside = false;
        } else if inside && let Some(block) = blocks.last_mut() {
            read_line(block, line);
        }
    }
    blocks
}

/// Reads one line of a block.
fn read_line(block: &mut Layers, line: &str) {
    let (circle, names) = match line.strip_prefix(CIRCLE) {
        Some(rest) => (true, rest.trim_start()),
        None => (false, line),
    };
    let names = names.split_once("  ").map_or(names, |(names, _)| names);
    let mut names: Vec<String> = names.split_whitespace().map(str::to_owned).collect();
    if names.is_empty() {
        return;
    }
    if circle {
        names.sort();
        block.circles.push(names);
    } else {
        block.lines.push(names);
    }
}
