//! Iterations and plans, of the planned policy.

use crate::allocator::Allocator;
#[cfg(feature = "alloc")]
use crate::arena::plans::PlanSwitch;
use crate::device::DeviceMemory;
use crate::error::Error;
#[cfg(feature = "alloc")]
use crate::planned::Observed;
use crate::stats::PlannedReport;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::DeviceIndex;
#[cfg(feature = "alloc")]
use cachalot_planner::Plan;

impl<D: DeviceMemory, R: Lock, S: Storage> Allocator<D, R, S> {
    /// Announces the end of an iteration of the program, a training step for example, and the
    /// beginning of the next. Does nothing except under `policy:planned`; see [`Observed`].
    ///
    /// One of the first iterations is observed. After plans for the observation were
    /// [adopted](Self::adopt_plans), the next announcement puts the plans in force. Without memory
    /// for the plans nothing changes until a later announcement. Other threads may go on
    /// allocating: their calls count for either iteration.
    ///
    /// Device: polled for pending frees. When plans come into force the cache is released, and one
    /// segment is obtained for each stream. When plans are given up their segments are released.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`]; [`Error::TableFull`], [`Error::Device`]. The next iteration begins
    /// even so, unless the context was lost before.
    #[cfg(feature = "alloc")]
    pub fn iteration(&self, device: DeviceIndex) -> Result<(), Error> {
        let device = self.begin("iteration", device)?;
        PlanSwitch::of(device.device).map_or(Ok(()), |plans| plans.announce())
    }

    /// Takes out the record of the observed iteration, to be planned on any thread. Returns `None`
    /// if no observation is complete, or the record was taken before.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`].
    #[cfg(feature = "alloc")]
    pub fn observed(&self, device: DeviceIndex) -> Result<Option<Observed>, Error> {
        Ok(self.begin("observed", device)?.plans.observed())
    }

    /// Verifies plans for an [`observed`](Self::observed) iteration, one for each observed stream
    /// in order. The next [`iteration`](Self::iteration) puts the plans in force.
    ///
    /// # Errors
    /// * [`Error::UnknownDevice`].
    /// * [`Error::PlanRefused`]: a plan does not solve its problem, the number of plans is wrong,
    ///   or a later observation has begun.
    /// * [`Error::TooLarge`]: a plan needs 1 EiB or more.
    #[cfg(feature = "alloc")]
    pub fn adopt_plans(&self, device: DeviceIndex, observed: Observed, plans: &[Plan]) -> Result<(), Error> {
        self.begin("adopt_plans", device)?.plans.adopt_plans(observed, plans)
    }

    /// Gives up the plans in force, and everything observed or planned so far. The next
    /// [`iteration`](Self::iteration) is observed. Each plan's segment is released once no block in
    /// the segment is in use.
    ///
    /// Device: called to release memory.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`]; [`Error::TableFull`], [`Error::Device`].
    #[cfg(feature = "alloc")]
    pub fn give_plans_up(&self, device: DeviceIndex) -> Result<(), Error> {
        let device = self.begin("give_plans_up", device)?;
        PlanSwitch::of(device.device).map_or(Ok(()), |plans| plans.give_up())
    }

    /// Returns the figures of the planned policy. Under another policy all figures are 0.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`].
    pub fn planned_report(&self, device: DeviceIndex) -> Result<PlannedReport, Error> {
        Ok(self.arena(device)?.plans.report())
    }
}
