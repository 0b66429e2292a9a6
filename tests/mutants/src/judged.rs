//! The judged changes are changes of the present code.
//!
//! A line of `judged.tsv` names a file and a change in words. With `CACHALOT_WRITE_DOCS` in the
//! environment, a line whose change is in another file of the crate follows it there, and a line
//! whose change is gone goes.

use crate::conditions::Conditions;
use crate::places;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The head of the table.
const HEAD: &str = "file\tchange\tclass\treason\ttest";

/// The number of each change in a file, by words.
type Changes = BTreeMap<String, usize>;

/// Returns every change of a file, with each feature on and off.
fn changes(path: &Path) -> Changes {
    let text = fs::read_to_string(path).unwrap_or_default();
    let syntax = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let features = text.split("feature = \"").skip(1).filter_map(|rest| Some(rest.split_once('"')?.0.to_owned()));
    let mut most = Changes::new();
    for features in [features.collect(), HashSet::default()] {
        let mut of_one = Changes::new();
        for place in places::of_file(&syntax, &Conditions { features }) {
            place.texts.into_iter().for_each(|text| *of_one.entry(text).or_default() += 1);
        }
        for (text, count) in of_one {
            let most = most.entry(text).or_default();
            *most = count.max(*most);
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
        let count = left.get_mut(file).and_then(|changes| changes.get_mut(change)).filter(|count| **count > 0);
        count.map(|count| *count -= 1).is_some()
    };
    let (mut kept, mut lost) = (Vec::new(), Vec::new());
    for line in lines.lines() {
        let [file, change, ..] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("a short line: {line}") };
        if take(file, change) { kept.push(line.to_owned()) } else { lost.push((file, change, line)) }
    }
    if env::var_os("CACHALOT_WRITE_DOCS").is_some() {
        for (file, change, line) in &lost {
            let folder = file.split_once("/src/").expect("a crate").0;
            let others =
                left.iter().filter(|(other, changes)| other.starts_with(folder) && changes.get(*change) > Some(&0));
            if let [(other, _)] = others.collect::<Vec<_>>()[..] {
                kept.push(line.replacen(file, other, 1));
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
