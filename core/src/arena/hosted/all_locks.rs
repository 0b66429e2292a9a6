//! All locks of a device at the same time. Nothing on the device changes while they are held.
//!
//! A call that works on several parts of a device holds the lock of one part at a time, in an order
//! in which the parts always agree: a wait is counted in the block before the block is queued, for
//! example. Parts that are read at different moments do not agree. A block that is freed in between
//! would be in a queue, and yet allocated.

use crate::arena::heaps::copy::LockedHeaps;
use crate::arena::heaps::ended::EndedHeaps;
use crate::arena::paging::LockedPaging;
use crate::arena::tuning::TuningState;
use crate::arena::waits::LockedWaits;
use crate::arena::{OnDevice, Platform};
use crate::config::Config;
use crate::planned::state::PlannerState;
use crate::sync::MutexGuard;

/// A locked part of a device.
type LockedPart<'a, R, T> = MutexGuard<'a, R, T>;

/// The locked parts of a device, in the order of their ranks.
pub(in crate::arena) struct AllLocks<'a, P: Platform> {
    pub heaps: LockedHeaps<'a, P>,
    /// The active configuration, which only changes while the registry is locked.
    pub config: Config,
    pub paging: LockedPaging<'a, P>,
    pub ended: LockedPart<'a, P::Lock, EndedHeaps<P::Storage>>,
    pub waits: LockedWaits<'a, P>,
    pub planner: Option<LockedPart<'a, P::Lock, PlannerState>>,
    pub tuning: LockedPart<'a, P::Lock, TuningState>,
    pub page_map: LockedPart<'a, P::Lock, ()>,
    pub peaks: LockedPart<'a, P::Lock, u32>,
}

impl<'a, P: Platform> AllLocks<'a, P> {
    /// Takes all locks of a device. Other threads wait for them as long as the returned value
    /// lives.
    pub(in crate::arena) fn of(device: OnDevice<'a, P>) -> Self {
        let arena = device.arena;
        // Fields are evaluated from top to bottom.
        let mut heaps = arena.heaps.lock_registry();
        let config = arena.settings.copy();
        let server = arena.plans.server();
        arena.heaps.lock_all(&mut heaps);
        Self {
            heaps,
            config,
            paging: arena.paging.lock_all(),
            ended: arena.heaps.lock_ended(),
            waits: arena.waits.lock_all(),
            planner: server.map(|server| server.planner.lock_beside()),
            tuning: arena.tuning.lock_beside(),
            page_map: device.pages.lock_beside(),
            peaks: arena.peaks.turn.lock_beside(),
        }
    }
}
