//! The object of `--json`.

use super::{TuneArgs, TuneRecord};
use crate::commands::answer::Told;
use cachalot_replay::tune::{Aim, Options, Outcome, Part, Parts, Tried};
use serde::Serialize;
use std::io;

/// The whole result.
#[derive(Serialize)]
struct TuneLine<'a> {
    schema: u32,
    #[serde(rename = "for")]
    aim: Aim,
    seed: u64,
    baseline: Option<&'a str>,
    recorded: Vec<RecordedLine<'a>>,
    seen: Vec<&'a str>,
    held_back: Vec<&'a str>,
    halves: bool,
    stopped_at_deadline: bool,
    torch: Option<Recommendation<'a>>,
    cachalot: Option<Recommendation<'a>>,
    tried: &'a [Tried],
}

/// A recording.
#[derive(Serialize)]
struct RecordedLine<'a> {
    file: &'a str,
    record: &'a str,
    config: &'a str,
    tells_config: bool,
    peak_reserved_bytes: u64,
    peak_live_bytes: u64,
    answer: Told,
}

impl<'a> RecordedLine<'a> {
    fn of(record: &'a TuneRecord) -> Self {
        Self {
            file: &record.file,
            record: &record.part.name,
            config: &record.config,
            tells_config: record.tells_config,
            peak_reserved_bytes: record.recorded.peak_reserved_bytes,
            peak_live_bytes: record.recorded.peak_live_bytes,
            answer: Told::from(&record.answer),
        }
    }
}

/// A recommended candidate.
#[derive(Serialize)]
struct Recommendation<'a> {
    variable: &'static str,
    #[serde(flatten)]
    tried: &'a Tried,
}

/// Prints the object.
pub(super) fn write(
    records: &[TuneRecord],
    parts: &Parts,
    options: &Options,
    outcome: &Outcome,
    args: &TuneArgs,
) -> io::Result<()> {
    let names = |parts: &'_ [Part]| -> Vec<String> { parts.iter().map(|part| part.name.clone()).collect() };
    let (seen, held) = (names(&parts.seen), names(&parts.held));
    let recommended = |variable, number: Option<usize>| {
        number.map(|number| Recommendation { variable, tried: &outcome.tried[number] })
    };
    let line = TuneLine {
        schema: crate::commands::SCHEMA,
        aim: options.aim,
        seed: options.seed,
        baseline: args.baseline.as_deref(),
        recorded: records.iter().map(RecordedLine::of).collect(),
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
