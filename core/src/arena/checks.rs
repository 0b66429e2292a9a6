//! Checks every invariant of a device when an operation of the allocator begins and when it ends:
//! under the feature `paranoid`.
//!
//! All invariants hold between operations. While several operations run at once, only the
//! invariants of a lane, and of a heap of which no part is held for a mapping or a release, hold
//! under their locks. The check is then limited to them.

use crate::arena::Arena;
use crate::arena::platform::Platform;
use crate::sync::{AtomicU32, AtomicU64, Ordering, impl_empty};
use crate::units::DeviceIndex;

/// How many blocks each beginning and each end of an operation pays for. A check that visited more
/// delays the next one until as many are paid for. So every operation is checked on a device with
/// few blocks, and about every tenth check takes place on one with 640. Without this the cost of an
/// operation would grow with the number of blocks.
const VISITS_PAID: u64 = 64;

/// The count of running operations while every invariant of the device is checked: none may begin.
const EXCLUSIVE: u32 = u32::MAX;

/// When a device is checked next, and how thoroughly.
pub(crate) struct Schedule {
    /// The number of running operations, or [`EXCLUSIVE`].
    running: AtomicU32,
    /// Visits of the last check that no operation has paid for.
    unpaid: AtomicU64,
}

impl_empty! { Schedule { running, unpaid } }

impl Schedule {
    /// Returns the schedule of a copy of the device, made by a running operation. An operation
    /// beside it never ends in the copy, which then keeps only the invariants that hold while
    /// operations run.
    pub(super) fn of_copy(&self) -> Self {
        let others = self.running.load(Ordering::Relaxed).saturating_sub(1);
        Self { running: AtomicU32::new(others), unpaid: AtomicU64::new(0) }
    }

    /// Pays for [`VISITS_PAID`] blocks. True if the last check is paid for.
    fn pay(&self) -> bool {
        let pay = |unpaid: u64| unpaid.checked_sub(VISITS_PAID);
        self.unpaid.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pay).is_err()
    }

    /// Keeps operations from beginning until the returned value is dropped. `None` if one runs.
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

/// Keeps the device free of operations until the drop.
struct Exclusive<'a>(&'a Schedule);

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        self.0.running.store(0, Ordering::Release);
    }
}

/// An operation. The creation and the drop of the value check the devices of the operation.
pub(crate) struct Checked<'a, P: Platform> {
    operation: &'static str,
    arenas: &'a [Arena<P>],
}

impl<'a, P: Platform> Checked<'a, P> {
    /// Begins an operation on the device of `arenas` that `device` names, or on all.
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
