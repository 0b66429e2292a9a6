//! The iterations and plans of the planned policy.

use crate::allocator::Allocator;
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

view! {
    /// The iterations and plans of a device under `policy:planned`: a view of an [`Allocator`],
    /// returned by [`Allocator::plans`].
    Planning,
    /// Returns the plans of `device`.
    plans
}

impl<D: DeviceMemory, R: Lock, S: Storage> Planning<'_, D, R, S> {
    /// Announces the end of an iteration of the program, for example a training step, and the start
    /// of the next one. Does nothing except under `policy:planned`; see [`Observed`].
    ///
    /// One of the first iterations is observed. After plans for this observation are
    /// [adopted](Self::adopt), the next announcement activates them. If there is no memory for the
    /// plans, nothing changes until a later announcement. Other threads may continue to allocate;
    /// their calls count for either iteration.
    ///
    /// Device: polled for pending frees. When plans become active, the cache is released, and one
    /// segment is obtained for each stream. When plans are given up, their segments are released.
    ///
    /// # Errors
    /// [`Error::TableFull`], [`Error::Device`]. The next iteration starts anyway, unless the
    /// context was lost before.
    #[cfg(feature = "alloc")]
    pub fn end_iteration(&self) -> Result<(), Error> {
        let device = self.begin("end_iteration");
        device.plan_switch().map_or(Ok(()), |plans| plans.announce(device.waiting()))
    }

    /// Takes the record of the observed iteration, which can be planned on any thread. Returns
    /// `None` if no observation is complete, or if it was taken already.
    #[cfg(feature = "alloc")]
    pub fn observed(&self) -> Option<Observed> {
        self.begin("observed").plans.observed()
    }

    /// Verifies plans for an [`observed`](Self::observed) iteration, one for each observed stream,
    /// in the same order. The next [`end_iteration`](Self::end_iteration) activates them.
    ///
    /// # Errors
    /// * [`Error::PlanRefused`]: a plan does not solve its problem, the number of plans is wrong,
    ///   or a later observation has started.
    /// * [`Error::TooLarge`]: a plan needs 1 EiB or more.
    #[cfg(feature = "alloc")]
    pub fn adopt(&self, observed: Observed, plans: &[Plan]) -> Result<(), Error> {
        self.begin("adopt_plans").plans.adopt_plans(observed, plans)
    }

    /// Gives up the active plans, and everything that was observed or planned so far. The next
    /// iteration is observed. The segment of each plan is released once none of its blocks is in
    /// use.
    ///
    /// Device: called to release memory.
    ///
    /// # Errors
    /// [`Error::TableFull`], [`Error::Device`].
    #[cfg(feature = "alloc")]
    pub fn give_up(&self) -> Result<(), Error> {
        let device = self.begin("give_plans_up");
        device.plan_switch().map_or(Ok(()), |plans| plans.give_up())
    }

    /// Returns the figures of the planned policy. Under another policy all figures are 0.
    pub fn report(&self) -> PlannedReport {
        self.arena.plans.report(&self.arena.heaps)
    }
}
