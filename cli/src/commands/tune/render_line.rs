//! The object of `--json`.

use cachalot_replay::tune::{Aim, Options, Outcome, Part, Parts, Tried};
use serde::Serialize;
use std::io;

/// The whole result.
#[derive(Serialize)]
struct TuneLine<'a> {
    #[serde(rename = "for")]
    aim: Aim,
    seed: u64,
    baseline: &'a str,
    seen: Vec<&'a str>,
    held_back: Vec<&'a str>,
    halves: bool,
    stopped_at_deadline: bool,
    torch: Option<Recommendation<'a>>,
    cachalot: Option<Recommendation<'a>>,
    tried: &'a [Tried],
}

/// A recommended candidate.
#[derive(Serialize)]
struct Recommendation<'a> {
    variable: &'static str,
    #[serde(flatten)]
    tried: &'a Tried,
}

/// Prints the object.
pub(super) fn write(parts: &Parts, options: &Options, outcome: &Outcome) -> io::Result<()> {
    let names = |parts: &'_ [Part]| -> Vec<String> { parts.iter().map(|part| part.name.clone()).collect() };
    let (seen, held) = (names(&parts.seen), names(&parts.held));
    let recommended = |variable, number: Option<usize>| {
        number.map(|number| Recommendation { variable, tried: &outcome.tried[number] })
    };
    let line = TuneLine {
        aim: options.aim,
        seed: options.seed,
        baseline: &options.baseline,
        seen: seen.iter().map(String::as_str).collect(),
        held_back: held.iter().map(String::as_str).collect(),
        halves: parts.halves,
        stopped_at_deadline: outcome.stopped,
        torch: recommended(super::render_text::TORCH, outcome.torch),
        cachalot: recommended(super::render_text::CACHALOT, outcome.cachalot),
        tried: &outcome.tried,
    };
    let text = serde_json::to_string(&line).map_err(io::Error::from)?;
    crate::commands::print(text)
}
