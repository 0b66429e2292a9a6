//! Memory parked and woken: the calls, and the conditions after each call.

use super::Worker;
use super::refusals::Reason::{Capture, Memory, Ordinary, Turn};
use crate::stage::Device;
use crate::verdict::Kind;
use cachalot_core::{Error, ParkMode, ParkOrder, ParkReport, ParkState, ParkTarget};

/// A call to wake memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wake {
    Whole,
    Start,
    Wait,
}

impl Worker {
    /// Parks the memory of `target`. Returns whether the memory is parked.
    ///
    /// Work with the memory may be queued, on the streams in `order`. Parks nothing during a
    /// capture unknown to the allocator.
    pub(super) fn park(&mut self, stage: &Device, target: ParkTarget, mode: ParkMode, order: ParkOrder) -> bool {
        let (shared, since) = (self.shared, self.shared.captures.now());
        let Ok(_alone) = shared.untold.try_write() else { return false };
        let what = format!("park of {target:?} with {mode:?} and {order:?}");
        let parked = shared.subject.parking(stage.index).and_then(|parking| parking.park(target, mode, order));
        let Some(report) = self.report(stage, target) else { return false };
        match parked {
            // A stream without memory in the default pool has nothing to park. It may have got some
            // since.
            Ok(()) if report.state == ParkState::Awake && matches!(target, ParkTarget::Stream(_)) => false,
            Ok(()) => {
                self.counts.parks += 1;
                self.expect(report.state == ParkState::Asleep, &format!("a {what} left {report:?}"));
                true
            }
            Err(error) => {
                // Other threads request and free a stream's blocks, so the report says nothing of
                // the moment of the park.
                let may_be_ordinary = report.ordinary > 0 || matches!(target, ParkTarget::Stream(_));
                let reasons = [Capture, Turn, Ordinary];
                self.refused_for(&what, &error, since, &reasons[..if may_be_ordinary { 3 } else { 2 }]);
                let awake = report.state == ParkState::Awake && report.parked == 0;
                self.expect(awake, &format!("a {what} failed ({error}), and left {report:?}"));
                report.state != ParkState::Awake
            }
        }
    }

    /// Wakes the memory of `target`, or makes a step on the way. Returns whether the call
    /// succeeded.
    pub(super) fn wake(&mut self, stage: &Device, target: ParkTarget, step: Wake) -> bool {
        let (shared, since) = (self.shared, self.shared.captures.now());
        let what = format!("{step:?} wake of {target:?}");
        let woken = shared.subject.parking(stage.index).and_then(|parking| match step {
            Wake::Whole => parking.wake(target),
            Wake::Start => parking.wake_start(target),
            Wake::Wait => parking.wake_wait(target),
        });
        let Some(report) = self.report(stage, target) else { return false };
        match woken {
            Ok(()) if step == Wake::Start => {
                // Without a page to wake, the target stays asleep until the wait.
                let begun = report.state == ParkState::Waking || report.parked == 0;
                self.expect(begun, &format!("a {what} left {report:?}"));
                true
            }
            Ok(()) => {
                self.counts.wakes += 1;
                let awake = report.state == ParkState::Awake && report.parked == 0;
                self.expect(awake, &format!("a {what} left {report:?}"));
                true
            }
            Err(error) => {
                self.refused_for(&what, &error, since, &[Capture, Turn, Memory]);
                let refused = matches!(error, Error::ParkingRefused(_));
                // All blocks of a stream may have been freed since its park, and then nothing is
                // parked.
                let is_awake = matches!(target, ParkTarget::Stream(_)) && refused && report.state == ParkState::Awake;
                let waits = refused && report.state == ParkState::Waking;
                let stays = report.state == ParkState::Asleep || waits || is_awake;
                self.expect(stays, &format!("a {what} failed ({error}), and left {report:?}"));
                false
            }
        }
    }

    /// Returns where the memory of `target` is.
    pub(super) fn report(&mut self, stage: &Device, target: ParkTarget) -> Option<ParkReport> {
        let report = self.shared.subject.parking(stage.index).and_then(|parking| parking.report(target));
        report.inspect_err(|error| self.failed("the report of parked memory", error)).ok()
    }

    /// Reports a finding unless `holds`. With faults planned, a failure may leave memory parked.
    fn expect(&self, holds: bool, text: &str) {
        if !holds && !self.shared.is_faulty() {
            self.shared.verdict.report(Kind::Books, text.to_owned());
        }
    }
}
