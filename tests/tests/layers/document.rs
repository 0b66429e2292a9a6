//! The layers of a crate, as `ARCHITECTURE.md` lists them.
//!
//! ````text
//! ```layers ffi/src
//! capi torch                    top: the modules of a line do not import each other
//! boundary                      each module is named once
//! circle: a/x a/y               a circle of files that is allowed; none of two modules can be
//! ```
//! ````
//!
//! `a` is the file `a.rs` or `a/mod.rs` with the folder `a`. A folder's own file and the files in it may use each other.
//! Two spaces end the names of a line; what follows them is for the reader.

/// The layers of one crate.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Layers {
    /// The folder of the crate's sources.
    pub(crate) folder: String,
    /// The modules of each layer, from the top to the bottom.
    pub(crate) lines: Vec<Vec<String>>,
    /// The circles that are allowed: the files of each, sorted.
    pub(crate) circles: Vec<Vec<String>>,
}

/// What begins a block.
const BEGIN: &str = "```layers ";
/// What ends a block.
const END: &str = "```";
/// What a line begins with that allows a circle.
const CIRCLE: &str = "circle:";

/// Every block of a document.
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
