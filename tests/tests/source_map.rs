//! The map of the core in ARCHITECTURE.md names existing files, and leaves no file out.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The folder of the map.
const FOLDER: &str = "core/src";

/// The folders of which the map names every file and every folder.
const WHOLE: [&str; 2] = ["core/src", "core/src/arena"];

/// Returns the paths in a map, relative to the root. A line names files and folders up to the first
/// word without a path. A line with a deeper indentation names contents of the first folder above.
fn named(map: &str) -> BTreeSet<String> {
    let mut folders = vec![FOLDER.to_owned()];
    let mut paths = BTreeSet::new();
    for line in map.lines() {
        let depth = line.chars().take_while(|&letter| letter == ' ').count() / 2;
        let is_path = |word: &&str| word.ends_with('/') || word.strip_suffix(".rs").is_some();
        let words: Vec<&str> = line.split_whitespace().take_while(is_path).collect();
        let Some(first) = words.first().filter(|_| (1..=folders.len()).contains(&depth)) else { continue };
        folders.truncate(depth);
        let folder = folders.join("/");
        paths.extend(words.iter().map(|word| format!("{folder}/{}", word.trim_end_matches('/'))));
        folders.push(first.trim_end_matches('/').trim_end_matches(".rs").to_owned());
    }
    paths
}

/// Returns the folder of the project.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Returns the map of the page.
fn map() -> String {
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).expect("the page");
    let (_, rest) = page.split_once("```\ncore/src/\n").expect("the map begins with its folder");
    rest.split_once("```").expect("the map ends").0.to_owned()
}

#[test]
fn the_map_of_the_core_names_what_is_there() {
    let missing: Vec<_> = named(&map()).into_iter().filter(|path| !root().join(path).exists()).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names what is not there: {missing:?}");
}

#[test]
fn the_map_of_the_core_leaves_nothing_out() {
    let named = named(&map());
    let mut left_out = Vec::new();
    for folder in WHOLE {
        for entry in fs::read_dir(root().join(folder)).expect("a folder") {
            let name = entry.expect("an entry").file_name().into_string().expect("a name in UTF-8");
            let path = format!("{folder}/{name}");
            let is_inside = |other: &String| other.starts_with(&format!("{path}/"));
            if !["lib.rs", "mod.rs"].contains(&&*name) && !named.contains(&path) && !named.iter().any(is_inside) {
                left_out.push(path);
            }
        }
    }
    assert!(left_out.is_empty(), "ARCHITECTURE.md does not name {left_out:?}");
}

#[test]
fn a_map_is_read_by_its_indentation() {
    let map = "  one.rs    a text about two.rs\n    in.rs of/     more\n      deep.rs\n  folder/ other.rs\n";
    let paths = ["folder", "one.rs", "one/in.rs", "one/in/deep.rs", "one/of", "other.rs"];
    assert_eq!(named(map), paths.map(|path| format!("{FOLDER}/{path}")).into());
}
