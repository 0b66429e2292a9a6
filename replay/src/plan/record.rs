//! Records of an allocator: each allocation of one section becomes a buffer.
//!
//! A step is an event of the section: an allocation, or the moment from which its block could be used again. The section is the one
//! that repeats (a training step), if there is one, else the whole record; it begins where as little as possible is held
//! over from before.

use super::section::{Repetition, repetition};
use super::{Reading, Source, Task};
use crate::trace::{Action, BadInput, Start, Trace};
use cachalot_core::UNIT;
use cachalot_planner::{Buffer, Plan, Problem};
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

/// An allocation of a record. What was there before the first event comes first, one number each, and then the events.
struct Allocation {
    size: u64,
    stream: u64,
    /// The event that made it.
    start: u64,
    /// The event from which on its block is free again, if there is one.
    end: Option<u64>,
}

/// Makes a problem of each record of a file.
pub(super) fn tasks(file: &Path, traces: &[Trace], reading: &Reading) -> Result<Vec<Task>, BadInput> {
    let several = traces.len() > 1;
    let task = |trace: &Trace| {
        let (mut part, problem, numbers) = plan(file, trace, reading)?;
        if several {
            part = format!("{} {part}", trace.name);
        }
        problem.check().map_err(|error| BadInput::whole(file, error.to_string()))?;
        let start = trace.start.as_ref().map(Start::to_string);
        Ok(Task { part, problem, source: Source::Record(numbers), start })
    };
    traces.iter().map(task).collect()
}

/// The section's name, its problem, and the numbers of its allocations.
fn plan(file: &Path, trace: &Trace, reading: &Reading) -> Result<(String, Problem, Vec<u64>), BadInput> {
    let allocations = allocations(trace);
    let count = allocations.len();
    let (section, repeats) = match &reading.section {
        Some(section) => (section.start as usize..section.end.min(count as u64) as usize, false),
        None => match find(&allocations) {
            Some(section) => (section, true),
            None => (0..count, false),
        },
    };
    if section.is_empty() {
        let what = format!("the section holds no allocations: accepted are FROM..TO within 0..{count}");
        return Err(BadInput::whole(file, what));
    }
    let part = match (repeats, section.len() == count) {
        (true, _) => format!("allocations {}..{}, repeated", section.start, section.end),
        (false, false) => format!("allocations {}..{}", section.start, section.end),
        (false, true) => "all allocations".to_owned(),
    };
    let (buffers, numbers) = buffers(&allocations, section, repeats, reading.alignment.unwrap_or(UNIT));
    if buffers.is_empty() {
        return Err(BadInput::whole(file, "the section's allocations have no bytes: there is nothing to plan"));
    }
    Ok((part, Problem { buffers, ..Problem::default() }, numbers))
}

fn allocations(trace: &Trace) -> Vec<Allocation> {
    let mut held: HashMap<u64, usize> = HashMap::new();
    let mut allocations: Vec<Allocation> = Vec::new();
    for (segment, block) in trace.start.iter().flat_map(Start::blocks) {
        let number = allocations.len();
        held.insert(block.address, number);
        let (size, stream) = (block.requested_size, segment.stream);
        allocations.push(Allocation { size, stream, start: number as u64, end: None });
    }
    for (number, event) in (allocations.len() as u64..).zip(&trace.events) {
        match event.action {
            Action::Alloc => {
                held.insert(event.addr, allocations.len());
                allocations.push(Allocation { size: event.size, stream: event.stream, start: number, end: None });
            }
            Action::FreeCompleted => {
                if let Some(allocation) = held.remove(&event.addr) {
                    allocations[allocation].end = Some(number);
                }
            }
            _ => {}
        }
    }
    allocations
}

/// A whole period of what repeats, from where the least is held over.
fn find(allocations: &[Allocation]) -> Option<Range<usize>> {
    let sequence: Vec<(u64, u64)> = allocations.iter().map(|allocation| (allocation.size, allocation.stream)).collect();
    let Repetition { run, period } = repetition(&sequence)?;
    // Not the last of several: what a period holds over is freed in the one behind it.
    let behind = if run.len() < 3 * period { 0 } else { period };
    let first = run.end + 1 - 2 * period - behind;
    // What is held when each allocation is made, of those that the period before made.
    let mut changes: Vec<(u64, bool, u64)> = Vec::new();
    for allocation in &allocations[run.clone()] {
        changes.push((allocation.start, true, allocation.size));
        changes.extend(allocation.end.map(|end| (end, false, allocation.size)));
    }
    changes.sort_unstable();
    let mut held = HashMap::new();
    let mut bytes = 0;
    for (event, begins, size) in changes {
        if begins {
            held.insert(event, bytes);
            bytes += size;
        } else {
            bytes -= size;
        }
    }
    let start = (first..first + period).min_by_key(|&at| held[&allocations[at].start])?;
    Some(start..start + period)
}

/// The buffers of a section, and the numbers of their allocations.
fn buffers(
    allocations: &[Allocation],
    section: Range<usize>,
    repeats: bool,
    alignment: u64,
) -> (Vec<Buffer>, Vec<u64>) {
    let first = allocations[section.start].start;
    let last = allocations.get(section.end).map_or_else(
        || allocations.iter().map(|other| other.end.unwrap_or(other.start)).fold(0, u64::max) + 1,
        |next| next.start,
    );
    let period = last - first;
    let (mut buffers, mut numbers) = (Vec::new(), Vec::new());
    for number in section {
        let allocation = &allocations[number];
        if allocation.size == 0 {
            continue;
        }
        let within = allocation.end.filter(|&end| end <= last);
        let (start, end, copies) = match (within, repeats) {
            (Some(end), _) => (allocation.start - first, end - first, 1),
            (None, false) => (allocation.start - first, period, 1),
            // What is held over into the next period lies there from its beginning, so it keeps its bytes all the time; if it is
            // held for several periods, so many of it are there at once.
            (None, true) => {
                let length = allocation.end.map_or(period, |end| end - allocation.start);
                (0, period, length.div_ceil(period).max(1))
            }
        };
        for _ in 0..copies {
            buffers.push(Buffer { start, end, size: allocation.size, alignment, fixed: None });
            numbers.push(number as u64);
        }
    }
    (buffers, numbers)
}

/// A plan as a table that can be planned again; the ids are the numbers of the record's allocations.
pub(super) fn with_offsets(numbers: &[u64], problem: &Problem, plan: &Plan) -> Vec<Vec<String>> {
    let header = ["id", "lower", "upper", "size", "alignment", "offset"].map(str::to_owned).to_vec();
    let row = |((number, buffer), offset): ((&u64, &Buffer), &u64)| {
        let fields = [*number, buffer.start, buffer.end, buffer.size, buffer.alignment, *offset];
        fields.iter().map(u64::to_string).collect()
    };
    let rows = numbers.iter().zip(&problem.buffers).zip(&plan.offsets).map(row);
    std::iter::once(header).chain(rows).collect()
}
