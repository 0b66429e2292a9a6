//! The lines of `--json`.

use super::{PlannedProblem, words};
use crate::commands::{SCHEMA, print};
use cachalot_planner::operators::{Forward, Lowered};
use cachalot_replay::plan::Source;
use cachalot_replay::plan::operators::Names;
use serde::Serialize;
use std::io;

/// A problem.
#[derive(Serialize)]
struct ProblemLine<'a> {
    schema: u32,
    file: String,
    part: Option<&'a str>,
    algorithm: &'static str,
    buffers: usize,
    peak_bytes: Option<u64>,
    lower_bound_bytes: u64,
    optimal: bool,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    capacity_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    throughout_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outside_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    taken: Option<Vec<ForwardLine<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<Vec<ForwardLine<'a>>>,
}

/// A forward.
#[derive(Serialize)]
struct ForwardLine<'a> {
    operator: String,
    value: &'a str,
    input: &'a str,
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

/// Prints the line of a problem.
pub(super) fn write(planned: &PlannedProblem, capacity: Option<u64>) -> io::Result<()> {
    let (taken, refused) = match &planned.task.source {
        Source::Operators { names, lowered, device } => {
            let (taken, refused) = forwards(names, lowered, *device);
            (Some(taken), Some(refused))
        }
        Source::Table(_) | Source::Record(_) => (None, None),
    };
    let recorded = match &planned.task.source {
        Source::Record(recorded) => Some(recorded),
        Source::Table(_) | Source::Operators { .. } => None,
    };
    let line = ProblemLine {
        schema: SCHEMA,
        file: planned.file.display().to_string(),
        part: Some(planned.task.part.as_str()).filter(|part| !part.is_empty()),
        algorithm: planned.solved.algorithm,
        buffers: planned.task.buffers(),
        peak_bytes: planned.solved.plan.as_ref().map(|plan| plan.peak),
        lower_bound_bytes: planned.solved.lower_bound,
        optimal: planned.solved.optimal,
        seconds: planned.solved.seconds,
        capacity_bytes: capacity,
        answer: planned.answer.map(words),
        throughout_bytes: recorded.map(|recorded| recorded.throughout_bytes),
        outside_bytes: recorded.map(|recorded| recorded.outside_bytes),
        held_bytes: recorded.map(|recorded| recorded.held_bytes),
        taken,
        refused,
    };
    print(serde_json::to_string(&line)?)
}

/// Returns the forwards of a device, taken and refused.
fn forwards<'a>(names: &'a Names, lowered: &Lowered, device: u32) -> (Vec<ForwardLine<'a>>, Vec<ForwardLine<'a>>) {
    let entry = |forward: &Forward, why: Option<String>| ForwardLine {
        operator: names.operator(forward.operator),
        value: &names.values[forward.value as usize],
        input: &names.values[forward.input as usize],
        kind: if forward.written { "over" } else { "view" },
        why,
    };
    let here = |forward: &Forward| names.on[forward.value as usize] == device;
    let taken = lowered.taken.iter().filter(|forward| here(forward)).map(|forward| entry(forward, None));
    let refused = lowered.refused.iter().filter(|(forward, _)| here(forward));
    (taken.collect(), refused.map(|(forward, why)| entry(forward, Some(names.why(why)))).collect())
}
