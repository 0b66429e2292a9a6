//! Errors of calls that park, wake, commit, decommit and release. Each error is a finding, unless
//! the documentation of the call permits the error under the disturbances of the run.

use super::Worker;
use crate::captures::Moment;
use cachalot_core::Error;

/// A reason for which a call may be refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reason {
    /// A graph was being captured during the call.
    Capture,
    /// Another thread parked or woke memory of the device, or gave parked memory up.
    Turn,
    /// All blocks are in ordinary segments.
    Ordinary,
    /// The limit or the device does not have the memory.
    Memory,
    /// The memory was parked at some time during the call.
    Parked,
}

impl Worker {
    /// Records an error of a call that started at `since`. The error is a finding unless a reason
    /// holds among `reasons`, the reasons in the call's documentation.
    pub(super) fn refused_for(&mut self, what: &str, error: &Error, since: Moment, reasons: &[Reason]) {
        let holds = |reason: &Reason| match reason {
            Reason::Capture => self.shared.is_due_to_capture(error, since),
            Reason::Turn => {
                let other = matches!(error, Error::ParkingRefused(why) if why.starts_with("another call"));
                other && self.shared.options.threads > 1
            }
            Reason::Ordinary => matches!(error, Error::ParkingRefused(why) if why.contains("ordinary segments")),
            Reason::Memory => matches!(error, Error::OutOfMemory(_) | Error::Rejected(_)),
            Reason::Parked => *error == Error::Parked,
        };
        if reasons.iter().any(holds) {
            self.counts.refused += 1;
        } else if let Error::Device(error) = error {
            self.device_failed(what, *error);
        } else {
            self.shared.refused(what, error);
        }
    }
}
