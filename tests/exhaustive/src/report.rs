//! The tables of a campaign: searches of the core, and planted defects.

use crate::defects::Planted;
use crate::letter::text;
use crate::search::Outcome;
use crate::setting::Setting;
use cachalot_tests::figures::grouped;

/// The head of the table of searches.
pub const SEARCHES: &str = "| setting | configuration | letters | longest programs | states | programs run | meetings checked | of them unequal | seconds | found |\n\
                            |---|---|---|---|---|---|---|---|---|---|";

/// The head of the table of defects.
pub const DEFECTS: &str = "| defect | after | setting | theorem broken | length | shortest program | programs run | seconds |\n\
                           |---|---|---|---|---|---|---|---|";

/// Writes the row of a search.
#[must_use]
pub fn search_row(setting: &Setting, outcome: &Outcome) -> String {
    let found = outcome
        .found
        .as_ref()
        .map_or_else(|| "0".to_owned(), |found| format!("{}: {}", text(&found.program), found.violation));
    format!(
        "| {} | `{}` | {} | {} | {} | {} | {} | {} | {:.0} | {found} |",
        setting.name,
        setting.config,
        setting.alphabet.letters().len(),
        if outcome.is_whole { "any".to_owned() } else { outcome.length.to_string() },
        grouped(outcome.states.iter().sum()),
        grouped(outcome.programs),
        grouped(outcome.meetings),
        outcome.unequal,
        outcome.time.as_secs_f64(),
    )
}

/// Writes the row of a planted defect.
#[must_use]
pub fn defect_row(planted: &Planted, outcome: &Outcome) -> String {
    let (length, program, theorem) = outcome.found.as_ref().map_or_else(
        || ("none".to_owned(), "not found".to_owned(), "none"),
        |found| (found.program.len().to_string(), text(&found.program), found.violation.theorem.name()),
    );
    format!(
        "| {} | {} | {} | {theorem} | {length} | {program} | {} | {:.1} |",
        planted.sentence.trim_end_matches('.'),
        planted.after,
        planted.setting,
        grouped(outcome.programs),
        outcome.time.as_secs_f64(),
    )
}
