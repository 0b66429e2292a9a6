//! The planned policy: announcement of iterations, and the report.

use crate::c::abi::{
    CACHALOT_STAGE_OBSERVING, CACHALOT_STAGE_PLANNING, CACHALOT_STAGE_READY, CACHALOT_STAGE_SERVING,
    CACHALOT_STAGE_WAITING, cachalot_allocator, cachalot_plan_report, cachalot_status,
};
use crate::c::boundary;
use crate::c::marshal::{OutStruct, Versioned};
use cachalot_core::{PlannedReport, Stage};
use core::ffi::c_int;

// SAFETY: `repr(C)` with its size first, and numbers without padding.
unsafe impl Versioned for cachalot_plan_report {
    // Everything up to `reserved`.
    const FIRST_SIZE: usize = 120;
}

/// Announces the end of an iteration and the start of the next.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_begin_iteration(allocator: *const cachalot_allocator, device: c_int) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (device, _) = instance.device(device)?;
        instance.planner.iteration(&instance.allocator, device)?;
        instance.idle.run(&instance.allocator, device)
    })
}

/// Ends the active plans, and forgets what was observed.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_end_plans(allocator: *const cachalot_allocator, device: c_int) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        let (device, _) = instance.device(device)?;
        Ok(instance.allocator.plans(device)?.give_up()?)
    })
}

/// Reports the state and the results of the planned policy.
///
/// # Safety
/// `out` is NULL, or a structure as long as its first field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_get_plan_report(
    allocator: *const cachalot_allocator,
    device: c_int,
    out: *mut cachalot_plan_report,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { OutStruct::new(out, "out") }?;
        let (device, _) = instance.device(device)?;
        out.write(&described(&instance.allocator.plans(device)?.report()));
        Ok(())
    })
}

/// Converts a report to the C structure.
fn described(report: &PlannedReport) -> cachalot_plan_report {
    cachalot_plan_report {
        struct_size: size_of::<cachalot_plan_report>(),
        announced: report.announced,
        plans: report.plans,
        given_up: report.given_up,
        no_memory: report.no_memory,
        peak_bytes: report.peak_bytes,
        lower_bound_bytes: report.lower_bound_bytes,
        segment_bytes: report.segment_bytes,
        served: report.served,
        lasting: report.lasting,
        extra: report.extra,
        missing: report.missing,
        reordered: report.reordered,
        occupied: report.occupied,
        stage: match report.stage {
            Stage::Observing => CACHALOT_STAGE_OBSERVING,
            Stage::Planning => CACHALOT_STAGE_PLANNING,
            Stage::Ready => CACHALOT_STAGE_READY,
            Stage::Serving => CACHALOT_STAGE_SERVING,
            _ => CACHALOT_STAGE_WAITING,
        },
        reserved: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_have_the_numbers_of_the_header() {
        for (stage, number) in [
            (Stage::Waiting, CACHALOT_STAGE_WAITING),
            (Stage::Observing, CACHALOT_STAGE_OBSERVING),
            (Stage::Planning, CACHALOT_STAGE_PLANNING),
            (Stage::Ready, CACHALOT_STAGE_READY),
            (Stage::Serving, CACHALOT_STAGE_SERVING),
        ] {
            let mut report = PlannedReport::default();
            report.stage = stage;
            assert_eq!(described(&report).stage, number, "{stage:?}");
        }
    }
}
