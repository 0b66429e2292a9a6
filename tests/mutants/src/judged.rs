//! The judged changes are changes of the present code.
//!
//! A line of `judged.tsv` names a file and a change in words. A type may have another name since,
//! so a change is known by what it does and by the name of its function. With `CACHALOT_WRITE_DOCS`
//! in the environment, a line whose change is in one other file of the crate follows it there, a
//! line whose change is gone goes, and each line gets the present words.

use crate::conditions::Conditions;
use crate::places;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The head of the table.
const HEAD: &str = "file\tchange\tclass\treason\ttest";

/// The changes of a file, in present words, by what they do and the name of the function.
type Changes = BTreeMap<(String, String), Vec<String>>;

/// Returns what a change does, and the name of its function without the type.
fn key(change: &str) -> (String, String) {
    let (what, function) = match change.split_once(" returns ") {
        Some((function, value)) => (format!("returns {value}"), function),
        None => change.rsplit_once(" in ").map_or_else(|| (change.into(), ""), |(what, name)| (what.into(), name)),
    };
    (what, function.rsplit("::").next().unwrap_or_default().to_owned())
}

/// Returns every change of a file, with each feature on and off.
fn changes(path: &Path) -> Changes {
    let text = fs::read_to_string(path).unwrap_or_default();
    let syntax = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let features = text.split("feature = \"").skip(1).filter_map(|rest| Some(rest.split_once('"')?.0.to_owned()));
    let mut most = Changes::new();
    for features in [features.collect(), HashSet::default()] {
        let mut of_one = Changes::new();
        for place in places::of_file(&syntax, &Conditions { features }) {
            place.texts.into_iter().for_each(|text| of_one.entry(key(&text)).or_default().push(text));
        }
        for (key, texts) in of_one {
            let most = most.entry(key).or_default();
            if texts.len() > most.len() {
                *most = texts;
            }
        }
    }
    most
}

/// Returns the Rust files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let (folders, files): (Vec<_>, Vec<_>) = paths.partition(|path| path.is_dir());
    let files = files.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    files.chain(folders.iter().flat_map(|folder| self::files(folder))).collect()
}

#[test]
fn every_judged_change_is_one_of_the_present_code() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let table = workspace.join("tests/mutants/judged.tsv");
    let text = fs::read_to_string(&table).expect("the table");
    let (head, lines) = text.split_once('\n').expect("a head");
    assert_eq!(head, HEAD);
    let crates: HashSet<&str> = lines.lines().filter_map(|line| Some(line.split_once("/src/")?.0)).collect();
    let all = crates.into_iter().flat_map(|name| files(&workspace.join(name).join("src")));
    let name = |path: &Path| path.strip_prefix(&workspace).expect("in the workspace").display().to_string();
    let mut left: BTreeMap<String, Changes> = all.map(|path| (name(&path), changes(&path))).collect();
    let mut take = |file: &str, change: &str| {
        let texts = left.get_mut(file)?.get_mut(&key(change))?;
        let same = texts.iter().position(|text| text == change).unwrap_or(0);
        (!texts.is_empty()).then(|| texts.remove(same))
    };
    let (mut kept, mut lost) = (Vec::new(), Vec::new());
    for line in lines.lines() {
        let [file, change, rest] = line.splitn(3, '\t').collect::<Vec<_>>()[..] else { panic!("a short line: {line}") };
        match take(file, change) {
            Some(text) => kept.push(format!("{file}\t{text}\t{rest}")),
            None => lost.push((file, change, rest)),
        }
    }
    if env::var_os("CACHALOT_WRITE_DOCS").is_some() {
        for (file, change, rest) in &lost {
            let folder = file.split_once("/src/").expect("a crate").0;
            let others = left.iter().filter_map(|(other, changes)| {
                Some((other, changes.get(&key(change))?.first()?)).filter(|_| other.starts_with(folder))
            });
            let others: Vec<_> = others.collect();
            let same: Vec<_> = others.iter().copied().filter(|(_, text)| text == change).collect();
            if let [(other, text)] = if others.len() > 1 { same } else { others }[..] {
                kept.push(format!("{other}\t{text}\t{rest}"));
            }
        }
        kept.sort();
        fs::write(&table, format!("{HEAD}\n{}\n", kept.join("\n"))).expect("the table can be written");
        return;
    }
    let lost: Vec<_> = lost.iter().map(|(file, change, _)| format!("{file}: {change}")).collect();
    assert!(
        lost.is_empty(),
        "changes that are gone or in another file: run this test with CACHALOT_WRITE_DOCS=1\n{}",
        lost.join("\n")
    );
}
