//! The table of `cachalot plan`, followed by lines about memory outside of a section and about
//! refused forwards.

use super::live::gap;
use super::{PlannedProblem, title, words};
use crate::commands::bytes::{grouped, plural, show};
use crate::commands::print;
use crate::commands::table::{Column, Look, Table, column, extra};
use cachalot_planner::operators::Lowered;
use cachalot_replay::plan::Source;
use cachalot_replay::plan::operators::Names;
use cachalot_replay::plan::record::Recorded;
use std::io;
use std::path::Path;

/// The columns.
const COLUMNS: [Column; 7] = [
    column("problem"),
    column("buffers"),
    column("peak bytes"),
    column("lower bound"),
    column("gap"),
    column("seconds"),
    extra("algorithm"),
];

/// The columns with the answer to `--capacity`.
const CAPACITY_COLUMNS: [Column; 8] = [
    column("problem"),
    column("answer"),
    column("buffers"),
    column("peak bytes"),
    column("lower bound"),
    extra("gap"),
    column("seconds"),
    extra("algorithm"),
];

/// Prints the table and the lines below.
pub(super) fn write(planned: &[PlannedProblem], look: &Look) -> io::Result<()> {
    let answers = planned.iter().any(|one| one.answer.is_some());
    let mut table = if answers { Table::new(&CAPACITY_COLUMNS) } else { Table::new(&COLUMNS) };
    for one in planned {
        table.row(row(one));
    }
    print(table.render(look))?;
    let mut seen: Vec<&Path> = Vec::new();
    for one in planned {
        match &one.task.source {
            // The devices of a program share the forwards.
            Source::Operators { names, lowered, .. } if !seen.contains(&one.file.as_path()) => {
                seen.push(&one.file);
                forwards(one, names, lowered)?;
            }
            Source::Record(recorded) => outside(one, recorded)?,
            Source::Operators { .. } | Source::Table(_) => {}
        }
    }
    Ok(())
}

fn row(one: &PlannedProblem) -> Vec<String> {
    let bound = one.solved.lower_bound;
    let mut row = vec![title(&one.file, &one.task)];
    row.extend(one.answer.map(|answer| words(answer).to_owned()));
    row.push(one.task.buffers().to_string());
    match &one.solved.plan {
        Some(plan) => {
            let gap = if one.solved.optimal { "optimal".to_owned() } else { gap(plan.peak, bound) };
            row.extend([grouped(plan.peak), grouped(bound), gap]);
        }
        None => row.extend(["–".to_owned(), grouped(bound), "–".to_owned()]),
    }
    row.push(format!("{:.3}", one.solved.seconds));
    row.push(one.solved.algorithm.to_owned());
    row
}

/// Prints the comparison of a section's plan with the recorded allocator, and the memory outside of
/// the plan.
fn outside(one: &PlannedProblem, recorded: &Recorded) -> io::Result<()> {
    let Recorded { throughout_bytes, outside_bytes, held_bytes, .. } = *recorded;
    print(format_args!("\n{}", title(&one.file, &one.task)))?;
    if let Some(plan) = &one.solved.plan {
        let (planned, held) = (show(plan.peak), show(held_bytes));
        print(format_args!("  {planned} planned; the recorded allocator held {held} for these buffers"))?;
    }
    if throughout_bytes > 0 {
        print(format_args!("  {} held throughout are not in the plan", show(throughout_bytes)))?;
    }
    if outside_bytes > throughout_bytes {
        let more = show(outside_bytes - throughout_bytes);
        print(format_args!("  {more} from before the section, freed in it, are not in the plan"))?;
    }
    Ok(())
}

/// Prints the number of taken forwards of a program, and the reason for each refusal.
fn forwards(one: &PlannedProblem, names: &Names, lowered: &Lowered) -> io::Result<()> {
    let (taken, refused) = (lowered.taken.len(), lowered.refused.len());
    print(format_args!("\n{}: {} taken, {refused} refused", one.file.display(), plural(taken as u64, "forward")))?;
    for (forward, why) in &lowered.refused {
        let [value, input] = [forward.value, forward.input].map(|value| &names.values[value as usize]);
        let kind = if forward.written { "over" } else { "a view of" };
        let operator = names.operator(forward.operator);
        print(format_args!("  {operator}: `{value}` is not {kind} `{input}`: {}", names.why(why)))?;
    }
    Ok(())
}
