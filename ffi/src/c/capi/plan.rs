//! The planner: an offset for every buffer of a program that is known in advance.

use crate::c::abi::{
    CACHALOT_BUFFER_FIXED, CACHALOT_BUFFER_GAP, cachalot_buffer, cachalot_buffer_plan, cachalot_status,
};
use crate::c::boundary;
use crate::c::marshal::{OutStruct, Versioned, array};
use crate::c::status::{Outcome, Status};
use cachalot_planner::gaps::{Gap, Pieces};
use cachalot_planner::parallel::minimise;
use cachalot_planner::{Buffer, HEURISTICS, Problem, lower_bound};
use core::time::Duration;

/// The most buffers: the planner numbers them with 32 bits.
const MOST_BUFFERS: usize = u32::MAX as usize - 1;

// SAFETY: `repr(C)` with its size first, and numbers without padding.
unsafe impl Versioned for cachalot_buffer_plan {
    // Everything up to `reserved`.
    const FIRST_SIZE: usize = 32;
}

/// Plans buffers with known lives.
///
/// # Safety
/// `buffers` is NULL, or points to `count` buffers that stay unchanged during the call. `offsets`
/// is NULL, or has room for `count` numbers that no other thread uses. `out` is NULL, or a
/// structure as long as its first field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_plan_buffers(
    buffers: *const cachalot_buffer,
    count: usize,
    threads: u32,
    deadline_us: u64,
    offsets: *mut u64,
    out: *mut cachalot_buffer_plan,
) -> cachalot_status {
    boundary::without_instance(|| {
        if buffers.is_null() && count > 0 {
            return Err(Status::null("buffers"));
        }
        if offsets.is_null() && count > 0 {
            return Err(Status::null("offsets"));
        }
        if count > MOST_BUFFERS {
            return Err(Status::argument(format_args!("{count} buffers are more than {MOST_BUFFERS}")));
        }
        // SAFETY: guaranteed by the caller.
        let out = unsafe { OutStruct::new(out, "out") }?;
        // SAFETY: guaranteed by the caller, and fewer than 2^32 buffers of 48 bytes.
        let given = unsafe { array(buffers, count) };
        let (found, result) = planned(given, threads, Duration::from_micros(deadline_us))?;
        // SAFETY: the caller guarantees room for `count` numbers, and there is one for each entry.
        unsafe { core::ptr::copy_nonoverlapping(found.as_ptr(), offsets, found.len()) };
        out.write(&result);
        Ok(())
    })
}

/// Returns the offset of each entry in the best plan that is found before the deadline, and what is
/// known about the plan.
fn planned(given: &[cachalot_buffer], threads: u32, deadline: Duration) -> Outcome<(Vec<u64>, cachalot_buffer_plan)> {
    let Task { problem, relaxed, entries, places } = Task::of(given)?;
    if problem.buffers.is_empty() {
        return Ok((Vec::new(), result(0, 0, true)));
    }
    problem.check().map_err(|error| {
        let error = error.renumbered(|buffer| entries[buffer as usize]);
        Status::argument(format_args!("{error}"))
    })?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if threads == 0 { cores } else { cores.min(threads as usize) };
    let found = minimise(&problem, threads, Some(deadline), &mut |_, _, _| {});
    // A deadline may pass before the first plan. The fastest algorithm then runs to its end.
    let plan = found.plan.or_else(|| HEURISTICS[0].plan(&problem, &mut ()));
    let plan = plan.expect("nothing stops the algorithm");
    // A proof about a problem that holds more than the gaps ask for is none about the gaps.
    let bound = relaxed.as_ref().map_or(found.lower_bound, lower_bound);
    let is_optimal = (found.optimal && relaxed.is_none()) || plan.peak == bound;
    let offsets = places.into_iter().map(|place| plan.offsets[place]).collect();
    Ok((offsets, result(plan.peak, bound, is_optimal)))
}

/// The problem of a program.
#[derive(Default)]
struct Task {
    problem: Problem,
    /// The problem with what cannot be planned exactly left out: no plan is below its bound.
    /// `None`: all is planned exactly.
    relaxed: Option<Problem>,
    /// The program's entry of each buffer of the problem.
    entries: Vec<u32>,
    /// The buffer of the problem with the offset of each entry.
    places: Vec<usize>,
}

impl Task {
    /// Reads the program's buffers, each with the gaps that follow it.
    fn of(given: &[cachalot_buffer]) -> Outcome<Self> {
        let mut task = Self::default();
        let (mut relaxed, mut held) = (Problem::default(), 0);
        let mut first = 0;
        while let Some(buffer) = given.get(first) {
            let own = read(first, buffer)?;
            let gaps = given[first + 1..].iter().take_while(|entry| entry.flags & CACHALOT_BUFFER_GAP != 0);
            let gaps: Vec<Gap> =
                (first + 1..).zip(gaps).map(|(index, gap)| read_gap(index, gap)).collect::<Outcome<_>>()?;
            let place = if gaps.is_empty() || own.size == 0 {
                relaxed.buffers.push(own);
                task.problem.buffers.push(own);
                task.problem.buffers.len() - 1
            } else {
                let pieces = |relaxed| {
                    Pieces::of(&own, &gaps, relaxed).map_err(|accepted| {
                        Status::argument(format_args!("buffer {first} has other gaps than are accepted: {accepted}"))
                    })
                };
                let exact = pieces(false)?;
                held += exact.held;
                pieces(true)?.add_to(&mut relaxed);
                exact.add_to(&mut task.problem)
            };
            task.entries.resize(task.problem.buffers.len(), first as u32);
            first += 1 + gaps.len();
            task.places.resize(first, place);
        }
        task.relaxed = (held > 0).then_some(relaxed);
        Ok(task)
    }
}

/// Converts a buffer of the program.
fn read(index: usize, buffer: &cachalot_buffer) -> Outcome<Buffer> {
    if buffer.flags & CACHALOT_BUFFER_GAP != 0 {
        return Err(Status::argument(format_args!("buffer {index} is a gap, and no buffer is before it")));
    }
    check_flags(index, buffer, CACHALOT_BUFFER_FIXED)?;
    let is_fixed = buffer.flags & CACHALOT_BUFFER_FIXED != 0;
    Ok(Buffer {
        start: buffer.start,
        end: buffer.end,
        size: buffer.bytes,
        alignment: buffer.alignment.max(1),
        fixed: is_fixed.then_some(buffer.offset),
    })
}

/// Converts a gap of the buffer before it.
fn read_gap(index: usize, gap: &cachalot_buffer) -> Outcome<Gap> {
    check_flags(index, gap, CACHALOT_BUFFER_GAP)?;
    if gap.alignment != 0 {
        return Err(Status::argument(format_args!("buffer {index} is a gap, and has an alignment")));
    }
    let window = if gap.bytes > 0 { gap.offset..gap.offset.saturating_add(gap.bytes) } else { 0..0 };
    Ok(Gap { life: gap.start..gap.end, window })
}

/// Refuses flags beyond the known ones.
fn check_flags(index: usize, buffer: &cachalot_buffer, known: u32) -> Outcome<()> {
    if buffer.flags & !known != 0 || buffer.reserved != 0 {
        return Err(Status::argument(format_args!("buffer {index} has unknown flags, or `reserved` is not 0")));
    }
    Ok(())
}

/// Describes a plan for C.
fn result(peak_bytes: u64, lower_bound_bytes: u64, optimal: bool) -> cachalot_buffer_plan {
    cachalot_buffer_plan {
        struct_size: size_of::<cachalot_buffer_plan>(),
        peak_bytes,
        lower_bound_bytes,
        optimal: i32::from(optimal),
        reserved: 0,
    }
}
