//! Changes of plans and of tuned settings, told in the log at the next idle moment.
//!
//! The core changes plans in the middle of a request, and the tuner changes settings on any thread.
//! Neither may wait for a log. Idle moments compare the reports with the reports at the idle moment
//! before.

use crate::c::device::SharedAllocator;
use cachalot_core::DeviceIndex;
use cachalot_cuda::log::{self, Level};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The changes reported for a device.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Told {
    plans: u64,
    given_up: u64,
    switches: u64,
    taken_back: u64,
}

/// The changes reported for the devices of an allocator.
#[derive(Default)]
pub(crate) struct Changes(Mutex<BTreeMap<u32, Told>>);

impl Changes {
    /// Logs the changes of a device since the last call. Does nothing if the log does not have the
    /// level.
    pub(crate) fn tell(&self, allocator: &SharedAllocator, device: DeviceIndex) {
        if !log::has(Level::Info) {
            return;
        }
        let (Ok(plans), Ok(tuning)) = (allocator.plans(device), allocator.tuning(device)) else {
            return;
        };
        let (planned, tuned) = (plans.report(), tuning.report());
        let now = Told {
            plans: planned.plans,
            given_up: planned.given_up,
            switches: tuned.switches,
            taken_back: tuned.taken_back,
        };
        let before = {
            let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(told.entry(device.0).or_default(), now)
        };
        let number = device.0;
        if now.given_up > before.given_up {
            log::info(format_args!("device {number}: the plans are given up; the program is observed again"));
        }
        if now.plans > before.plans {
            let peak = planned.peak_bytes;
            log::info(format_args!("device {number}: requests are served from plans with a peak of {peak} bytes"));
        }
        if now.switches > before.switches
            && let Ok(config) = allocator.settings(device).map(|settings| settings.config())
        {
            let (peak, predicted) = (tuned.before_bytes, tuned.predicted_bytes);
            log::info(format_args!(
                "device {number}: tune:auto has activated `{config}`: {predicted} bytes are predicted instead of {peak}"
            ));
        }
        if now.taken_back > before.taken_back {
            let (measured, predicted) = (tuned.after_bytes, tuned.predicted_bytes);
            log::info(format_args!(
                "device {number}: tune:auto has taken its settings back: {measured} bytes were held, {predicted} predicted"
            ));
        }
    }
}
