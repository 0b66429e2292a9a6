//! The table of `cachalot plan`, and what was refused below it.

use super::live::gap;
use super::{Planned, print, title, words};
use crate::commands::bytes;
use cachalot_replay::plan::Source;
use comfy_table::{CellAlignment, Table, presets};
use std::io;

/// Prints all of it.
pub(super) fn write(planned: &[Planned], capacity: Option<u64>) -> io::Result<()> {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
    let mut header = vec!["problem", "buffers", "peak bytes", "peak", "lower bound", "gap", "seconds", "algorithm"];
    header.extend(capacity.map(|_| "answer"));
    table.set_header(header);
    for column in table.column_iter_mut().skip(1).take(6) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for one in planned {
        table.add_row(row(one));
    }
    print(table)?;
    let mut seen = Vec::new();
    for one in planned {
        if let Source::Operators { names, lowered, .. } = &one.task.source {
            // The devices of a program share its forwards.
            if seen.contains(&&one.file) {
                continue;
            }
            seen.push(&one.file);
            print(format_args!(
                "{}: {} forwards taken, {} refused",
                one.file.display(),
                lowered.taken.len(),
                lowered.refused.len()
            ))?;
            for (forward, why) in &lowered.refused {
                let [value, input] = [forward.value, forward.input].map(|value| &names.values[value as usize]);
                let kind = if forward.written { "over" } else { "a view of" };
                let operator = names.operator(forward.operator);
                print(format_args!("  {operator}: `{value}` is not {kind} `{input}`: {}", names.why(why)))?;
            }
        }
    }
    Ok(())
}

fn row(one: &Planned) -> Vec<String> {
    let bound = one.solved.lower_bound;
    let mut row = vec![title(&one.file, &one.task), one.task.problem.buffers.len().to_string()];
    match &one.solved.plan {
        Some(plan) => {
            let gap = if one.solved.optimal { "optimal".to_owned() } else { gap(plan.peak, bound) };
            row.extend([plan.peak.to_string(), bytes::show(plan.peak), bytes::show(bound), gap]);
        }
        None => row.extend(["–".to_owned(), "–".to_owned(), bytes::show(bound), "–".to_owned()]),
    }
    row.push(format!("{:.3}", one.solved.seconds));
    row.push(one.solved.algorithm.to_owned());
    row.extend(one.answer.map(|answer| words(answer).to_owned()));
    row
}
