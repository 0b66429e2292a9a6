//! Records of an allocator: each allocation of a section becomes a buffer.
//!
//! A step is an event of the section: an allocation, or the moment from which the block could be
//! reused. The section is a repeated part (a training step) if the record repeats, otherwise the
//! whole record. A repeated section starts where the fewest bytes live on from before.

use super::{Reading, Source, Task};
use crate::trace::{Action, BadInput, BlockState, Segment, Start, Trace};
use cachalot_core::UNIT;
use cachalot_planner::{Buffer, Plan, Problem};
use cachalot_tuner::section::{Repetition, repetition};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::Path;

/// Data of a section besides the lives and sizes of the buffers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Number of each buffer's allocation, counted from 0.
    pub numbers: Vec<u64>,
    /// Bytes of blocks that live throughout the section. Such blocks are not in the problem.
    pub throughout_bytes: u64,
    /// Most bytes of live blocks outside the problem, at any time of the section. At least
    /// `throughout_bytes`.
    pub outside_bytes: u64,
    /// Most bytes that the recorded allocator had reserved in the section besides the live blocks
    /// outside the problem.
    pub held_bytes: u64,
}

/// A section to be planned.
struct Section {
    /// Numbers of the section's allocations.
    allocations: Range<usize>,
    /// The surrounding allocations that repeat with the length of the section, if the section
    /// repeats.
    run: Option<Range<usize>>,
}

/// An allocation of a record. Blocks from before the first event get the first numbers, followed by
/// the events.
struct Allocation {
    size: u64,
    stream: u64,
    /// Number of the allocating event.
    start: u64,
    /// Number of the event from which the block is free again, if any.
    end: Option<u64>,
}

/// Builds a problem of each record of a file.
pub(super) fn tasks(file: &Path, traces: &[Trace], reading: &Reading) -> Result<Vec<Task>, BadInput> {
    let several = traces.len() > 1;
    let task = |trace: &Trace| {
        let (mut part, problem, recorded) = plan(file, trace, reading)?;
        if several {
            part = format!("{} {part}", trace.name);
        }
        problem.check().map_err(|error| BadInput::whole(file, error.to_string()))?;
        let start = trace.start.as_ref().map(Start::to_string);
        Ok(Task { part, problem, source: Source::Record(recorded), start, held: None, remarks: trace.remarks.clone() })
    };
    traces.iter().map(task).collect()
}

/// Returns name and problem of the section, and other data of the record.
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
        let what = format!("the section holds no allocations: expected FROM..TO within 0..{count}");
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

/// Computes the live bytes outside a section's problem, and the bytes reserved besides.
fn outside(trace: &Trace, allocations: &[Allocation], section: &Section, alignment: u64) -> Recorded {
    let numbers = &section.allocations;
    let (first, last) = events(allocations, numbers);
    // A block kept from an earlier period has a place in the problem if the counterpart in the
    // section is also kept, because the counterpart's buffer then lives all the time. Of blocks
    // never freed only the last has a place.
    let has_place = |number: usize| {
        let Some(run) = section.run.as_ref().filter(|run| run.contains(&number)) else { return false };
        let period = numbers.len();
        let place = (number - run.start + period - (numbers.start - run.start) % period) % period;
        let held_over = allocations[numbers.start + place].end.is_none_or(|end| end > last);
        held_over && allocations[number].end.is_some()
    };
    let mut recorded = Recorded::default();
    // Blocks from before the first event have the first numbers.
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
    // Memory that was idle before the record and in it is not held for the section.
    let idle = idle(trace);
    let is_idle = |addr: u64| idle.range(..=addr).next_back().is_some_and(|(&start, &size)| addr - start < size);
    let begun_with = trace.start.iter().flat_map(|start| &start.segments).map(|segment| segment.total_size);
    let mut reserved = begun_with.sum::<u64>() as i64 - idle.values().sum::<u64>() as i64;
    let mut live: i64 = changes[..begun].iter().sum();
    for (number, (event, change)) in (begun as u64..last).zip(trace.events.iter().zip(&changes[begun..])) {
        match event.action {
            Action::SegmentAlloc | Action::SegmentMap => reserved += event.size as i64,
            Action::SegmentFree | Action::SegmentUnmap if !is_idle(event.addr) => reserved -= event.size as i64,
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

/// Returns the sizes of the segments from before the record that no block in it used, by address.
fn idle(trace: &Trace) -> BTreeMap<u64, u64> {
    let is_idle = |segment: &&Segment| segment.blocks.iter().all(|block| block.state == BlockState::Inactive);
    let segments = trace.start.iter().flat_map(|start| &start.segments).filter(is_idle);
    let mut idle: BTreeMap<u64, u64> = segments.map(|segment| (segment.address, segment.total_size)).collect();
    for event in trace.events.iter().filter(|event| event.action == Action::Alloc) {
        if let Some((&start, &size)) = idle.range(..=event.addr).next_back()
            && event.addr - start < size
        {
            idle.remove(&start);
        }
    }
    idle
}

/// Returns the first event of a section, and the event after the section.
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
                allocations.push(Allocation { size: event.size, stream: event.of.stream, start: number, end: None });
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

/// Returns a whole period of the repeated part, from the point with the fewest live bytes.
fn find(allocations: &[Allocation]) -> Option<Section> {
    let sequence: Vec<(u64, u64)> = allocations.iter().map(|allocation| (allocation.size, allocation.stream)).collect();
    let Repetition { run, period } = repetition(&sequence)?;
    // Not the last of several periods: blocks kept by a period are freed in the following period.
    let behind = if run.len() < 3 * period { 0 } else { period };
    let first = run.end + 1 - 2 * period - behind;
    // The live bytes at each allocation, from allocations of the run.
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

/// Returns the buffers of a section, with the numbers of the allocations.
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
            // A block kept into the next period is present from the start of the period, so the
            // buffer lives all the time. A block kept for several periods has as many copies at a
            // time.
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

/// Returns a plan as a table, which can be planned again. The ids are the numbers of the record's
/// allocations. Other copies of a buffer kept for several iterations are `NUMBER#2`, `NUMBER#3`
/// and so on.
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
