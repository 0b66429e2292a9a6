//! The memory that a device holds for the allocator: the view of the arena for code that gives
//! memory back.
//!
//! ```text
//! give/ · vacate.rs      memory back to the device
//! tenants.rs             who may obtain, and who gives back first
//! compact.rs · idle/     how much is held
//! plans/switch.rs        memory that plans take over and hand back
//! ```

use crate::arena::driver::Driver;
use crate::arena::flags;
use crate::arena::heaps::{Heaps, Slot};
use crate::arena::ledger::Ledger;
use crate::arena::paging::Paging;
use crate::arena::paging::departures::GivenUp;
use crate::arena::peaks::{Counters, Peaks};
use crate::arena::platform::{OwnerMap, Platform};
use crate::arena::request::Request;
use crate::arena::settings::Settings;
use crate::arena::tracing::{History, Recorder};
use crate::arena::waits::Waits;
use crate::heap::Outcome;

/// The parts of a device that are needed to give memory back: the heaps and their settings, the
/// pages, the page map, the ledger, and the places where events are counted and recorded. Of the
/// waits it needs the fences. It does not include the guarded blocks, what `reclaim:auto` and
/// `tune:auto` have learned, or the path of a request.
pub(crate) struct Holdings<'a, P: Platform> {
    pub(in crate::arena) driver: &'a Driver<P::Device>,
    pub(in crate::arena) settings: &'a Settings<P::Lock>,
    pub(in crate::arena) heaps: &'a Heaps<P>,
    pub(in crate::arena) paging: &'a Paging<P>,
    pub(in crate::arena) ledger: &'a Ledger,
    pub(in crate::arena) peaks: &'a Peaks<P::Lock>,
    /// The page map, which finds the heap of an address.
    pub(in crate::arena) pages: &'a OwnerMap<P>,
    /// The fences, for memory that is given up while work may still use it.
    pub(super) waits: &'a Waits<P>,
    /// The history in which the recorder notes events.
    pub(super) history: &'a History<P::Lock>,
}

impl<'a, P: Platform> Holdings<'a, P> {
    pub(in crate::arena) fn counters(&self) -> Counters<'a, P> {
        Counters { heaps: self.heaps, ranges: self.paging.range_counters() }
    }

    /// Returns the recorder of events, for callers that know that a trace is recorded.
    pub(in crate::arena) fn recorder(&self) -> Recorder<'a, P> {
        Recorder { driver: self.driver, heaps: self.heaps, history: self.history }
    }

    /// Returns the parts needed to give up memory that work may still use.
    pub(crate) fn given_up(&self) -> GivenUp<'a, P> {
        GivenUp { driver: self.driver, heaps: self.heaps, paging: self.paging, waits: self.waits }
    }

    /// Records an event, if a trace is recorded.
    pub(in crate::arena) fn trace(&self, record: impl FnOnce(Recorder<'_, P>)) {
        if self.driver.flags.has(flags::TRACE) {
            record(self.recorder());
        }
    }

    /// Returns the value of a heap operation, after reconciling the peaks if the operation made
    /// them stale. The caller has unlocked the heap.
    pub(in crate::arena) fn reconcile<T>(&self, slot: &Slot<P>, done: Outcome<T>) -> T {
        self.settle_peaks(slot, done.peaks_stale);
        done.value
    }

    /// Reconciles the peaks if they are stale.
    pub(in crate::arena) fn settle_peaks(&self, slot: &Slot<P>, peaks_stale: bool) {
        if peaks_stale {
            self.peaks.reconcile_slot(&self.counters(), slot);
        }
    }

    /// Returns the length in bytes of the segment that the device would be asked for to serve a
    /// request.
    pub(in crate::arena) fn segment_bytes(&self, request: &Request) -> u64 {
        self.settings.segment_bytes(self.driver, self.heaps, self.ledger, request)
    }
}
