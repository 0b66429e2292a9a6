//! The sums of a campaign, and the changes without a failing test.

use crate::campaign::{self, List, Outcome, Pass};
use crate::change::State;
use std::collections::BTreeMap;
use std::path::Path;

/// The columns of the sums.
const COLUMNS: [&str; 8] =
    ["changes", "noticed", "timeout", "survived", "not reached", "unviable", "constant", "not run"];

/// Prints the sums by file, and the changes without a failing test.
pub(crate) fn print(folder: &Path) -> Result<(), String> {
    let list: List = campaign::read(&folder.join("list.json"))?;
    let results: Vec<_> = Pass::all(&list).iter().map(|pass| pass.outcomes(folder)).collect();
    let mut sums: BTreeMap<&str, [usize; COLUMNS.len()]> = BTreeMap::new();
    let mut unnoticed = Vec::new();
    for change in &list.changes {
        let name = change.name();
        let all: Vec<Outcome> = results.iter().filter_map(|of| of.get(&name).copied()).collect();
        let column = match change.state {
            State::Unviable => "unviable",
            State::Constant => "constant",
            // The first in the order of outcomes is the strongest.
            State::Built => all.iter().min().map_or("not run", |outcome| outcome.name()),
        };
        if column == "survived" || column == "not reached" {
            unnoticed.push(format!("{column}: {name}"));
        }
        for file in [change.file.as_str(), "all"] {
            let row = sums.entry(file).or_default();
            row[0] += 1;
            row[COLUMNS.iter().position(|of| *of == column).expect("every column is listed")] += 1;
        }
    }
    println!("{}", COLUMNS.join(" | "));
    for (file, row) in &sums {
        let row: Vec<_> = row.iter().map(ToString::to_string).collect();
        println!("{} | {file}", row.join(" | "));
    }
    unnoticed.iter().for_each(|line| println!("{line}"));
    Ok(())
}
