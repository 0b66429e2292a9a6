//! The planner: an offset for every buffer of a program that is known in advance.

use crate::c::abi::{CACHALOT_BUFFER_FIXED, cachalot_buffer, cachalot_plan_result, cachalot_status};
use crate::c::boundary;
use crate::c::marshal::{OutStruct, Versioned, array};
use crate::c::status::{Outcome, Status};
use cachalot_planner::parallel::minimise;
use cachalot_planner::{Buffer, HEURISTICS, Plan, Problem};
use core::time::Duration;

/// The most buffers: the planner numbers them with 32 bits.
const MOST_BUFFERS: usize = u32::MAX as usize - 1;

// SAFETY: `repr(C)` with its size first, and numbers without padding.
unsafe impl Versioned for cachalot_plan_result {
    // Everything up to `reserved`.
    const FIRST_SIZE: usize = 32;
}

/// Plans buffers with known lives.
///
/// # Safety
/// `buffers` is NULL, or points to `count` buffers that stay unchanged during the call. `offsets` is NULL, or has room
/// for `count` numbers that no other thread uses. `out` is NULL, or a structure as long as its first field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_plan(
    buffers: *const cachalot_buffer,
    count: usize,
    threads: u32,
    deadline_us: u64,
    offsets: *mut u64,
    out: *mut cachalot_plan_result,
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
        let (plan, result) = planned(given, threads, Duration::from_micros(deadline_us))?;
        // SAFETY: the caller guarantees room for `count` numbers, and a plan has one for each buffer.
        unsafe { core::ptr::copy_nonoverlapping(plan.offsets.as_ptr(), offsets, plan.offsets.len()) };
        out.write(&result);
        Ok(())
    })
}

/// Returns the best plan that is found before the deadline, and what is known about the plan.
fn planned(given: &[cachalot_buffer], threads: u32, deadline: Duration) -> Outcome<(Plan, cachalot_plan_result)> {
    let buffers = given.iter().enumerate().map(|(index, buffer)| read(index, buffer)).collect::<Outcome<_>>()?;
    let problem = Problem { buffers, ..Problem::default() };
    if problem.buffers.is_empty() {
        return Ok((Plan { offsets: Vec::new(), peak: 0 }, result(0, 0, true)));
    }
    problem.check().map_err(|error| Status::argument(format_args!("{error}")))?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = if threads == 0 { cores } else { cores.min(threads as usize) };
    let found = minimise(&problem, threads, Some(deadline), &mut |_, _, _| {});
    // A deadline may pass before the first plan. The fastest algorithm then runs to its end.
    let plan = found.plan.or_else(|| HEURISTICS[0].plan(&problem, &mut ()));
    let plan = plan.expect("nothing stops the algorithm");
    let is_optimal = found.optimal || plan.peak == found.lower_bound;
    let result = result(plan.peak, found.lower_bound, is_optimal);
    Ok((plan, result))
}

/// Converts a buffer of the program.
fn read(index: usize, buffer: &cachalot_buffer) -> Outcome<Buffer> {
    if buffer.flags & !CACHALOT_BUFFER_FIXED != 0 || buffer.reserved != 0 {
        return Err(Status::argument(format_args!("buffer {index} has unknown flags, or `reserved` is not 0")));
    }
    let is_fixed = buffer.flags & CACHALOT_BUFFER_FIXED != 0;
    Ok(Buffer {
        start: buffer.start,
        end: buffer.end,
        size: buffer.bytes,
        alignment: buffer.alignment.max(1),
        fixed: is_fixed.then_some(buffer.offset),
    })
}

/// Describes a plan for C.
fn result(peak_bytes: u64, lower_bound_bytes: u64, optimal: bool) -> cachalot_plan_result {
    cachalot_plan_result {
        struct_size: size_of::<cachalot_plan_result>(),
        peak_bytes,
        lower_bound_bytes,
        optimal: i32::from(optimal),
        reserved: 0,
    }
}
