//! The work of an idle moment, besides the upkeep of memory.

use crate::c::changes::Changes;
use crate::c::device::SharedAllocator;
use crate::c::status::Outcome;
use crate::tuning::AutoTuner;
use cachalot_core::DeviceIndex;

/// The work of an allocator's idle moments: the program's, and those between two rounds of upkeep.
#[derive(Default)]
pub(crate) struct IdleWork {
    tuner: AutoTuner<SharedAllocator>,
    changes: Changes,
}

impl IdleWork {
    /// Does what is due on a device: tunes the settings, then tells the log what has changed.
    ///
    /// Callable from any thread. Device: called to release memory.
    ///
    /// # Errors
    /// Those of [`AutoTuner::idle`]. The log is told in either case.
    pub(crate) fn run(&self, allocator: &SharedAllocator, device: DeviceIndex) -> Outcome {
        let tuned = self.tuner.idle(allocator, device);
        self.changes.tell(allocator, device);
        Ok(tuned?)
    }
}
