//! Checks every invariant of a device when an operation of the allocator starts and when it ends,
//! under the feature `paranoid`.
//!
//! All invariants hold between operations. While several operations run at once, only two kinds of
//! invariants hold under their locks: those of a heap without a part that is
//! held for a mapping or a release. The check is then limited to them.

use crate::arena::Arena;
use crate::arena::platform::Platform;
use crate::sync::{AtomicU32, AtomicU64, Ordering, impl_empty};
use crate::units::DeviceIndex;

/// The number of blocks that each start and each end of an operation pays for. A check that visits
/// more blocks delays the next one until as many are paid for. So on a device with few blocks every
/// operation is checked, and on one with 640 about every tenth. Without this, the cost of an
/// operation would grow with the number of blocks.
const VISITS_PAID: u64 = 64;

/// The count of running operations while every invariant of the device is checked. No operation may
/// start then.
const EXCLUSIVE: u32 = u32::MAX;

/// The schedule of a device's checks: when the next one is due, and how thorough it is.
pub(crate) struct Schedule {
    /// The number of running operations, or [`EXCLUSIVE`].
    running: AtomicU32,
    /// The visits of the last check that no operation has paid for yet.
    unpaid: AtomicU64,
}

impl_empty! { Schedule { running, unpaid } }

impl Schedule {
    /// Returns the schedule for a copy of the device that is made by a running operation. Other
    /// operations that run at that moment never end in the copy, so the copy keeps only the
    /// invariants that hold while operations run.
    pub(super) fn of_copy(&self) -> Self {
        let others = self.running.load(Ordering::Relaxed).saturating_sub(1);
        Self { running: AtomicU32::new(others), unpaid: AtomicU64::new(0) }
    }

    /// Pays for [`VISITS_PAID`] blocks. Returns true if the last check is paid for.
    fn pay(&self) -> bool {
        let pay = |unpaid: u64| unpaid.checked_sub(VISITS_PAID);
        self.unpaid.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay).is_err()
    }

    /// Keeps operations from starting until the returned value is dropped. Returns `None` if one is
    /// running.
    fn try_exclusive(&self) -> Option<Exclusive<'_>> {
        let taken = self.running.compare_exchange(0, EXCLUSIVE, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| Exclusive(self))
    }

    /// Counts an operation as running, once no check is exclusive.
    fn enter(&self) {
        let more = |running: u32| (running != EXCLUSIVE).then(|| running + 1);
        while self.running.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).is_err() {
            std::thread::yield_now();
        }
    }

    fn leave(&self) {
        self.running.fetch_sub(1, Ordering::Release);
    }
}

/// Keeps the device free of operations until it is dropped.
struct Exclusive<'a>(&'a Schedule);

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        self.0.running.store(0, Ordering::Release);
    }
}

/// An operation. The devices of the operation are checked when the value is created and when it is
/// dropped.
pub(crate) struct Checked<'a, P: Platform> {
    operation: &'static str,
    arenas: &'a [Arena<P>],
}

impl<'a, P: Platform> Checked<'a, P> {
    /// Starts an operation on the device of `arenas` that `device` names, or on all of them.
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub(crate) fn begin(
        operation: &'static str,
        arenas: impl FnOnce() -> &'a [Arena<P>],
        device: impl FnOnce() -> Option<DeviceIndex>,
    ) -> Self {
        let arenas = match device() {
            Some(DeviceIndex(number)) => arenas().get(number as usize).map_or(&[][..], core::slice::from_ref),
            None => arenas(),
        };
        for arena in arenas {
            arena.check_if_due(operation, "before");
        }
        arenas.iter().for_each(|arena| arena.schedule.enter());
        Self { operation, arenas }
    }
}

impl<P: Platform> Drop for Checked<'_, P> {
    fn drop(&mut self) {
        self.arenas.iter().for_each(|arena| arena.schedule.leave());
        // A second panic would abort the program, and hide the first.
        if !std::thread::panicking() {
            for arena in self.arenas {
                arena.check_if_due(self.operation, "after");
            }
        }
    }
}

impl<P: Platform> Arena<P> {
    /// Checks the device if the last check is paid for.
    ///
    /// # Panics
    /// If an invariant does not hold.
    fn check_if_due(&self, operation: &str, when: &str) {
        if !self.schedule.pay() {
            return;
        }
        let exclusive = self.schedule.try_exclusive();
        let checked = self.check_invariants(exclusive.is_some());
        drop(exclusive);
        match checked {
            Ok(visits) => self.schedule.unpaid.store(visits, Ordering::Relaxed),
            Err(invariant) => panic!("{when} `{operation}` on device {}: {invariant}", self.number()),
        }
    }
}
