//! Runs the shell commands of the README and of the book, with the command from this build.
//!
//! A block that cannot run here has a comment in the line before it, which no reader of the page
//! sees: `<!-- not run: needs REASON -->`. [`REASONS`] lists the reasons.

use crate::common::{finish, folder, trace, write};
use flate2::read::GzDecoder;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

/// The accepted reasons for a block that is not run.
const REASONS: [&str; 5] = ["PyTorch", "a long build", "another program", "an installed library", "the network"];

/// The start of a mark.
const MARK: &str = "<!-- not run: needs ";

/// Takes the place of cargo: the command from this build, in place of one that cargo would build.
const CARGO: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do
  case $1 in
    run | --release | -q | -p | cachalot-cli) shift ;;
    --) shift && exec cachalot "$@" ;;
    *) echo "no block runs cargo $1" >&2 && exit 1 ;;
  esac
done
"#;

/// A block of shell commands.
struct Block {
    /// The page, and the line of the block's fence.
    place: String,
    /// The commands.
    commands: String,
    /// The reason why the block is not run.
    reason: Option<String>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the README and the pages of the book.
fn pages() -> Vec<String> {
    let book = fs::read_dir(root().join("docs")).expect("the book");
    let names = book.map(|entry| format!("docs/{}", entry.expect("an entry").file_name().display()));
    let mut pages: Vec<String> =
        names.filter(|name| Path::new(name).extension().is_some_and(|end| end == "md")).collect();
    pages.sort();
    pages.insert(0, "README.md".to_owned());
    pages
}

/// Returns the blocks of shell commands of a page.
fn blocks(page: &str) -> Vec<Block> {
    let text = fs::read_to_string(root().join(page)).expect(page);
    let lines: Vec<&str> = text.lines().collect();
    let fences = lines.iter().enumerate().filter(|(_, line)| **line == "```sh").map(|(at, _)| at);
    fences
        .map(|at| {
            let commands: Vec<&str> = lines[at + 1..].iter().take_while(|line| **line != "```").copied().collect();
            let mark = at.checked_sub(1).and_then(|before| lines[before].strip_prefix(MARK));
            Block {
                place: format!("{page}:{}", at + 1),
                commands: commands.join("\n"),
                reason: mark.map(|mark| mark.trim_end_matches(" -->").to_owned()),
            }
        })
        .collect()
}

/// Writes the decompressed text of a recorded trace.
fn decompress(name: &str, to: &Path) {
    let mut bytes = Vec::new();
    GzDecoder::new(File::open(trace(name)).expect(name)).read_to_end(&mut bytes).expect(name);
    fs::write(to, bytes).expect("the test's folder can be written");
}

/// Writes the files that the pages name without bringing them: snapshots, a profile, a table, and
/// the tools.
fn prepare(place: &Path) {
    symlink(root().join("tests").canonicalize().expect("the tests"), place.join("tests")).expect("a link");
    for (name, from) in [
        ("snapshot.pickle", "multistream_prefetch__stacks.pickle.gz"),
        ("before.pickle", "mlp_seed__stacks.pickle.gz"),
        ("after.pickle", "multistream_prefetch__stacks.pickle.gz"),
        ("main.pickle", "mlp_seed__stacks.pickle.gz"),
        ("branch.pickle", "mlp_seed__stacks.pickle.gz"),
    ] {
        decompress(from, &place.join(name));
    }
    write(place, "trace.json.gz", r#"{"traceEvents": [], "baseTimeNanoseconds": 1000000000}"#);
    write(place, "buffers.csv", "id,lower,upper,size\n0,0,4,1024\n1,2,6,2048\n2,5,9,1024\n");
    let tools = place.join("bin");
    fs::create_dir(&tools).expect("the test's folder can be written");
    symlink(env!("CARGO_BIN_EXE_cachalot"), tools.join("cachalot")).expect("a link");
    let cargo = write(&tools, "cargo", CARGO);
    fs::set_permissions(cargo, fs::Permissions::from_mode(0o755)).expect("a file of the test");
}

/// Runs a block, whose commands must all succeed.
fn run(block: &Block, place: &Path) {
    let path = std::env::var("PATH").expect("a path");
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", &block.commands]).current_dir(place);
    let finished = finish(shell.env("PATH", format!("{}:{path}", place.join("bin").display())));
    assert_eq!(finished.status, 0, "{}\n{}\n{}", block.place, block.commands, finished.errors);
}

#[test]
fn the_commands_of_the_pages_run() {
    let place = folder("pages");
    prepare(&place);
    let (left_out, runs): (Vec<Block>, Vec<Block>) =
        pages().iter().flat_map(|page| blocks(page)).partition(|block| block.reason.is_some());
    for block in &left_out {
        let reason = block.reason.as_deref().expect("a mark");
        println!("not run: {}, which needs {reason}", block.place);
        assert!(REASONS.contains(&reason), "{}: `{reason}` is none of {REASONS:?}", block.place);
    }
    assert!(runs.len() >= 15, "{} blocks are run", runs.len());
    // Neighbours may write files of one name, and are in different halves of a page only by chance:
    // each half has its own folder.
    let other = folder("other_pages");
    prepare(&other);
    thread::scope(|scope| {
        for (first, place) in [(0, &place), (1, &other)] {
            let half = runs.iter().skip(first).step_by(2);
            scope.spawn(move || half.for_each(|block| run(block, place)));
        }
    });
}

/// A page cannot hide a block from this test by another name of the shell.
#[test]
fn every_block_of_shell_commands_is_marked_sh() {
    for page in pages() {
        let text = fs::read_to_string(root().join(&page)).expect("a page");
        for line in text.lines() {
            let language = line.trim_start().strip_prefix("```").unwrap_or_default();
            assert!(!["bash", "shell", "console", "sh "].contains(&language), "{page}: {line}");
            assert!(language != "sh" || line == "```sh", "{page}: an indented block is not run: {line}");
        }
    }
}
