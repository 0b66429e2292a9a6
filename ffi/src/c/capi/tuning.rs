//! Settings that adjust themselves: the report.

use crate::c::abi::{
    CACHALOT_TUNE_OFF, CACHALOT_TUNE_RECORDING, CACHALOT_TUNE_SEARCHING, CACHALOT_TUNE_TRIAL, cachalot_allocator,
    cachalot_status, cachalot_tune_report,
};
use crate::c::boundary;
use crate::c::marshal::{OutStruct, Versioned};
use cachalot_core::{TuneReport, TuneStage};
use core::ffi::c_int;

// SAFETY: `repr(C)` with its size first, and numbers without padding.
unsafe impl Versioned for cachalot_tune_report {
    // Everything up to `tuned`.
    const FIRST_SIZE: usize = 120;
}

/// Reports what `tune:auto` has done on a device.
///
/// # Safety
/// `out` is NULL, or a structure as long as its first field says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_get_tune_report(
    allocator: *const cachalot_allocator,
    device: c_int,
    out: *mut cachalot_tune_report,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { OutStruct::new(out, "out") }?;
        let (device, _) = instance.device(device)?;
        out.write(&described(&instance.allocator.tuning(device)?.report()));
        Ok(())
    })
}

/// Converts a report to the C structure.
fn described(report: &TuneReport) -> cachalot_tune_report {
    cachalot_tune_report {
        struct_size: size_of::<cachalot_tune_report>(),
        windows: report.windows,
        searches: report.searches,
        candidates: report.candidates,
        without_gain: report.without_gain,
        switches: report.switches,
        held: report.held,
        taken_back: report.taken_back,
        search_us: report.search_us,
        before_bytes: report.before_bytes,
        predicted_bytes: report.predicted_bytes,
        after_bytes: report.after_bytes,
        given_back_bytes: report.given_back_bytes,
        retired_bytes: report.retired_bytes,
        stage: match report.stage {
            TuneStage::Recording => CACHALOT_TUNE_RECORDING,
            TuneStage::Searching => CACHALOT_TUNE_SEARCHING,
            TuneStage::Trial => CACHALOT_TUNE_TRIAL,
            _ => CACHALOT_TUNE_OFF,
        },
        tuned: i32::from(report.is_tuned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_have_the_numbers_of_the_header() {
        for (stage, number) in [
            (TuneStage::Off, CACHALOT_TUNE_OFF),
            (TuneStage::Recording, CACHALOT_TUNE_RECORDING),
            (TuneStage::Searching, CACHALOT_TUNE_SEARCHING),
            (TuneStage::Trial, CACHALOT_TUNE_TRIAL),
        ] {
            assert_eq!(described(&TuneReport { stage, ..TuneReport::default() }).stage, number, "{stage:?}");
        }
    }
}
