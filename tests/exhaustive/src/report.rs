//! The tables of a campaign, as CSV: searches of the core, and planted defects.

use crate::defects::Planted;
use crate::letter::text;
use crate::search::Outcome;
use crate::setting::Setting;
use cachalot_tests::figures::line;

/// The head of the table of searches.
pub const SEARCHES: [&str; 10] = [
    "setting",
    "configuration",
    "letters",
    "longest programs",
    "states",
    "programs run",
    "meetings checked",
    "of them unequal",
    "seconds",
    "found",
];

/// The head of the table of defects.
pub const DEFECTS: [&str; 8] =
    ["defect", "after", "setting", "theorem broken", "length", "shortest program", "programs run", "seconds"];

/// Writes the row of a search.
#[must_use]
pub fn search_row(setting: &Setting, outcome: &Outcome) -> String {
    let found = outcome
        .found
        .as_ref()
        .map_or_else(|| "0".to_owned(), |found| format!("{}: {}", text(&found.program), found.violation));
    line(&[
        setting.name.to_owned(),
        format!("`{}`", setting.config),
        setting.alphabet.letters().len().to_string(),
        if outcome.is_whole { "any".to_owned() } else { outcome.length.to_string() },
        outcome.states.iter().sum::<u64>().to_string(),
        outcome.programs.to_string(),
        outcome.meetings.to_string(),
        outcome.unequal.to_string(),
        format!("{:.0}", outcome.time.as_secs_f64()),
        found,
    ])
}

/// Writes the row of a planted defect.
#[must_use]
pub fn defect_row(planted: &Planted, outcome: &Outcome) -> String {
    let (length, program, theorem) = outcome.found.as_ref().map_or_else(
        || ("none".to_owned(), "not found".to_owned(), "none"),
        |found| (found.program.len().to_string(), text(&found.program), found.violation.theorem.name()),
    );
    line(&[
        planted.sentence.trim_end_matches('.').to_owned(),
        planted.after.to_owned(),
        planted.setting.to_owned(),
        theorem.to_owned(),
        length,
        program,
        outcome.programs.to_string(),
        format!("{:.1}", outcome.time.as_secs_f64()),
    ])
}
