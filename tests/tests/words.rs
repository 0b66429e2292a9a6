//! Limits the share of pointing words in doc comments.
//!
//! A *pointing word* (it, that, what, those, one, …) sends the reader back to an earlier sentence.
//! Of the words in the docs of hashbrown, smallvec, `parking_lot_core` and crossbeam, 3 to 5 %
//! point. A single limit holds for every folder of Rust sources.

use super::rust_files;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The largest share of pointing words in the docs of a folder, in percent.
const LIMIT: f64 = 4.0;

/// The least number of words for an entry of the table. A folder with fewer words counts as a part of
/// the folder above.
const LEAST_WORDS: usize = 300;

const POINTING: [&str; 25] = [
    "it", "its", "itself", "that", "what", "those", "these", "this", "one", "ones", "who", "whom", "whoever",
    "whatever", "nobody", "somebody", "anybody", "anyone", "someone", "everyone", "such", "there", "other", "others",
    "same",
];

/// Returns the text of the doc comments of a file, without code in backticks.
fn docs(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim_start);
    let docs = lines.filter_map(|line| line.strip_prefix("///").or_else(|| line.strip_prefix("//!")));
    docs.map(|line| line.split('`').step_by(2).collect::<Vec<_>>().join(" X ")).collect()
}

/// Splits a line of documentation into words.
fn words(line: &str) -> impl Iterator<Item = String> {
    let apart = line.split(|c: char| !c.is_ascii_alphabetic() && c != '\'');
    apart.filter(|word| word.starts_with(|c: char| c.is_ascii_alphabetic())).map(str::to_lowercase)
}

/// Word counts of some docs.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Count {
    words: usize,
    pointing: usize,
}

impl Count {
    /// Counts the words of a file's docs.
    fn of(text: &str) -> Self {
        let docs = docs(text);
        let all = || docs.iter().flat_map(|line| words(line));
        Self { words: all().count(), pointing: all().filter(|word| POINTING.contains(&&**word)).count() }
    }

    fn add(&mut self, more: Self) {
        self.words += more.words;
        self.pointing += more.pointing;
    }

    /// Returns the share of pointing words in percent.
    fn share(self) -> f64 {
        100.0 * self.pointing as f64 / self.words.max(1) as f64
    }
}

/// Counts the docs of every Rust file of the tree, by folder. The folders are relative to the root.
fn folders() -> BTreeMap<PathBuf, Count> {
    let mut counts = BTreeMap::<_, Count>::new();
    for (path, text) in rust_files::below("") {
        let folder = path.parent().expect("a file lies in a folder");
        counts.entry(folder.to_owned()).or_default().add(Count::of(&text));
    }
    counts
}

/// Adds each folder with few words to the folder above, from the deepest folder up.
fn entries(mut counts: BTreeMap<PathBuf, Count>) -> BTreeMap<PathBuf, Count> {
    let folders: BTreeSet<PathBuf> =
        counts.keys().flat_map(|folder| folder.ancestors()).map(Path::to_path_buf).collect();
    let mut folders: Vec<PathBuf> = folders.into_iter().collect();
    folders.sort_by_key(|folder| Reverse(folder.components().count()));
    for folder in &folders {
        let Some(above) = folder.parent() else { continue };
        if counts.get(folder).is_some_and(|count| count.words < LEAST_WORDS) {
            let count = counts.remove(folder).unwrap_or_default();
            counts.entry(above.to_owned()).or_default().add(count);
        }
    }
    counts
}

#[test]
fn docs_name_the_thing_they_speak_of() {
    let mut entries: Vec<(PathBuf, Count)> = entries(folders()).into_iter().collect();
    entries.sort_by(|(_, one), (_, other)| other.share().total_cmp(&one.share()));
    let line = |(folder, count): &(PathBuf, Count)| {
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        format!("{:6.2} % of {:6} words  {}", count.share(), count.words, folder.display())
    };
    entries.iter().for_each(|entry| println!("{}", line(entry)));
    let over: Vec<String> = entries.iter().filter(|(_, count)| count.share() > LIMIT).map(line).collect();
    let over = over.join("\n");
    assert!(over.is_empty(), "more than {LIMIT} % of the words of the docs point in these folders:\n{over}");
}

#[test]
fn small_folders_count_with_the_folder_above() {
    let count = |words| Count { words, pointing: 1 };
    let counts = [("a/src", 299), ("a/src/large", 300), ("a/src/small", 1), ("b/src", 2), ("b/src/c/d", 3)];
    let found = entries(counts.into_iter().map(|(folder, words)| (folder.into(), count(words))).collect());
    let expected = [("", 5, 2), ("a/src", 300, 2), ("a/src/large", 300, 1)];
    let expected = expected.map(|(folder, words, pointing)| (PathBuf::from(folder), Count { words, pointing }));
    assert_eq!(found, BTreeMap::from(expected));
}

#[test]
fn pointing_words_are_found_in_docs_and_nowhere_else() {
    let text = "//! That is one.\nlet it = 1; // what\n    /// The `it` of those.\n/// It's its own.";
    let found: Vec<String> = docs(text).iter().flat_map(|line| words(line)).collect();
    assert_eq!(found, ["that", "is", "one", "the", "x", "of", "those", "it's", "its", "own"]);
}
