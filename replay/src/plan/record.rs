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

/// What a record tells of the buffers of a section beside their lives and sizes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recorded {
    /// For each buffer, the number of its allocation, counted from 0.
    pub numbers: Vec<u64>,
    /// Bytes of blocks from before the section that live throughout the section: they are not in the problem.
    pub throughout_bytes: u64,
    /// The most bytes of blocks that are live in the section and not in the problem; not less than those throughout.
    pub outside_bytes: u64,
    /// The most bytes that the recorded allocator held from the device in the section beside such blocks.
    pub held_bytes: u64,
}

/// A section that is planned.
struct Section {
    /// The numbers of its allocations.
    allocations: Range<usize>,
    /// The allocations around it that repeat with its length, if the section repeats.
    run: Option<Range<usize>>,
}

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
        let (mut part, problem, recorded) = plan(file, trace, reading)?;
        if several {
            part = format!("{} {part}", trace.name);
        }
        problem.check().map_err(|error| BadInput::whole(file, error.to_string()))?;
        let start = trace.start.as_ref().map(Start::to_string);
        Ok(Task { part, problem, source: Source::Record(recorded), start })
    };
    traces.iter().map(task).collect()
}

/// The section's name, its problem, and what else the record tells of it.
fn plan(file: &Path, trace: &Trace, reading: &Reading) -> Result<(String, Problem, Recorded), BadInput> {
    let allocations = allocations(trace);
    let count = allocations.len();
    let chosen = |allocations| Section { allocations, run: None };
    let section = match &reading.section {
        Some(section) => chosen(section.start as usize..section.end.min(count as u64) as usize),
        None => find(&allocations).unwrap_or_else(|| chosen(0..count)),
    };
    let Section { allocations: numbers, run } = &section;
    if numbers.is_empty() {
        let what = format!("the section holds no allocations: accepted are FROM..TO within 0..{count}");
        return Err(BadInput::whole(file, what));
    }
    let part = match (run, numbers.len() == count) {
        (Some(_), _) => format!("allocations {}..{}, repeated", numbers.start, numbers.end),
        (None, false) => format!("allocations {}..{}", numbers.start, numbers.end),
        (None, true) => "all allocations".to_owned(),
    };
    let alignment = reading.alignment.unwrap_or(UNIT);
    let (buffers, numbers) = buffers(&allocations, numbers.clone(), run.is_some(), alignment);
    if buffers.is_empty() {
        return Err(BadInput::whole(file, "the section's allocations have no bytes: there is nothing to plan"));
    }
    let recorded = Recorded { numbers, ..outside(trace, &allocations, &section, alignment) };
    Ok((part, Problem { buffers, ..Problem::default() }, recorded))
}

/// What is live in a section and not in its problem, and what the recorded allocator held beside that.
fn outside(trace: &Trace, allocations: &[Allocation], section: &Section, alignment: u64) -> Recorded {
    let numbers = &section.allocations;
    let (first, last) = events(allocations, numbers);
    // What an earlier period holds over has a place in the problem if its counterpart of this period is held over, too: that
    // keeps its bytes all the time. Of what is never freed, only the last one has a place.
    let has_place = |number: usize| {
        let Some(run) = section.run.as_ref().filter(|run| run.contains(&number)) else { return false };
        let period = numbers.len();
        let place = (number - run.start + period - (numbers.start - run.start) % period) % period;
        let held_over = allocations[numbers.start + place].end.is_none_or(|end| end > last);
        held_over && allocations[number].end.is_some()
    };
    let mut recorded = Recorded::default();
    // The blocks from before the first event have the first numbers.
    let begun = trace.start.iter().flat_map(Start::blocks).count();
    let count = begun + trace.events.len();
    let mut changes = vec![0_i64; count + 1];
    for (number, allocation) in allocations.iter().enumerate().take_while(|&(number, _)| number < numbers.end) {
        if numbers.contains(&number) || has_place(number) {
            continue;
        }
        let bytes = allocation.size.next_multiple_of(alignment);
        changes[allocation.start as usize] += bytes as i64;
        changes[allocation.end.map_or(count, |end| end as usize)] -= bytes as i64;
        if allocation.end.is_none_or(|end| end >= last) {
            recorded.throughout_bytes += bytes;
        }
    }
    let mut reserved =
        trace.start.iter().flat_map(|start| &start.segments).map(|segment| segment.total_size as i64).sum::<i64>();
    let mut live: i64 = changes[..begun].iter().sum();
    for (number, (event, change)) in (begun as u64..last).zip(trace.events.iter().zip(&changes[begun..])) {
        match event.action {
            Action::SegmentAlloc | Action::SegmentMap => reserved += event.size as i64,
            Action::SegmentFree | Action::SegmentUnmap => reserved -= event.size as i64,
            _ => {}
        }
        live += change;
        if number >= first {
            recorded.outside_bytes = recorded.outside_bytes.max(live as u64);
            recorded.held_bytes = recorded.held_bytes.max((reserved - live).max(0) as u64);
        }
    }
    recorded
}

/// The event with which a section begins, and the one before which it ends.
fn events(allocations: &[Allocation], section: &Range<usize>) -> (u64, u64) {
    let last = allocations.get(section.end).map_or_else(
        || allocations.iter().map(|other| other.end.unwrap_or(other.start)).fold(0, u64::max) + 1,
        |next| next.start,
    );
    (allocations[section.start].start, last)
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
fn find(allocations: &[Allocation]) -> Option<Section> {
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
    Some(Section { allocations: start..start + period, run: Some(run) })
}

/// The buffers of a section, and the numbers of their allocations.
fn buffers(
    allocations: &[Allocation],
    section: Range<usize>,
    repeats: bool,
    alignment: u64,
) -> (Vec<Buffer>, Vec<u64>) {
    let (first, last) = events(allocations, &section);
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

/// A plan as a table that can be planned again. The ids are the numbers of the record's allocations; further copies of a
/// buffer that several iterations hold are `NUMBER#2`, `NUMBER#3` and so on.
pub(super) fn with_offsets(numbers: &[u64], problem: &Problem, plan: &Plan) -> Vec<Vec<String>> {
    let header = ["id", "lower", "upper", "size", "alignment", "offset"].map(str::to_owned).to_vec();
    let mut copies = HashMap::new();
    let row = |((number, buffer), offset): ((&u64, &Buffer), &u64)| {
        let copy = copies.entry(*number).and_modify(|copy| *copy += 1).or_insert(1_u64);
        let id = if *copy == 1 { number.to_string() } else { format!("{number}#{copy}") };
        let fields = [buffer.start, buffer.end, buffer.size, buffer.alignment, *offset];
        std::iter::once(id).chain(fields.iter().map(u64::to_string)).collect()
    };
    let rows = numbers.iter().zip(&problem.buffers).zip(&plan.offsets).map(row);
    std::iter::once(header).chain(rows).collect()
}
