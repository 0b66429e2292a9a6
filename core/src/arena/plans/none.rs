//! Stands in for the planned policy in builds without the feature `alloc`, which have no plans.
//!
//! No stream has a lane and no iteration is observed. [`Allocator::new`](crate::Allocator::new)
//! refuses a configuration with `policy:planned`, so no page is ever assigned to a lane. The
//! functions have the signatures of `planned.rs`, `cycle.rs` and `switch.rs`, which
//! spares the callers a `cfg`.

#![allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "the signatures are those of a build with `alloc`")]

use crate::arena::allocation::Allocation;
use crate::arena::flags::FlagWord;
use crate::arena::flags::Flags;
use crate::arena::heaps::Heaps;
use crate::arena::request::Request;
use crate::arena::{Arena, OnDevice, Platform};
use crate::config::Config;
use crate::error::Error;
use crate::page_map::{HeapRef, LaneRef};
use crate::stats::{KindCounters, PlannedReport};
use crate::sync::{Lock, empty_by};
use crate::units::{DevicePtr, StreamId};
use core::marker::PhantomData;

impl<P: Platform> OnDevice<'_, P> {
    /// Passes every request on: no request is the next of a plan.
    #[inline(always)]
    pub(in crate::arena) fn malloc_next(self, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        self.malloc_unplanned(bytes, stream)
    }

    /// Serves no request.
    pub(in crate::arena) fn malloc_planned(
        self,
        _flags: FlagWord,
        _bytes: u64,
        _stream: StreamId,
    ) -> Option<DevicePtr> {
        None
    }

    /// Refuses every address: no lane owns a block.
    pub(crate) fn free_planned(self, _: LaneRef, ptr: DevicePtr, _: Option<u64>) -> Result<(), Error> {
        Err(Error::foreign(ptr))
    }

    /// Refuses every address: no lane has a home heap.
    pub(crate) fn home_of(self, _: LaneRef, ptr: DevicePtr) -> Result<HeapRef, Error> {
        Err(Error::foreign(ptr))
    }

    /// Gives up no plan.
    pub(in crate::arena) fn give_plans_up(self) -> Result<(), Error> {
        Ok(())
    }

    /// Gives up no plan.
    pub(in crate::arena) fn give_idle_plans_up(self, _: u64) -> Result<(), Error> {
        Ok(())
    }

    /// Ends no lane.
    pub(crate) fn forget_stream(self, _: StreamId) -> Result<(), Error> {
        Ok(())
    }
}

impl<P: Platform> Arena<P> {
    /// Delegates no block.
    pub(crate) fn delegate_lanes(&self) {}

    /// Predicts no address.
    pub(in crate::arena) fn planned_forecast(&self, _: u64, _: StreamId) -> Option<DevicePtr> {
        None
    }
}

/// The planned policy of a build that has none.
pub(crate) struct Plans<R: Lock>(PhantomData<R>);

empty_by!([R: Lock] Plans<R> = Self(PhantomData));

impl<R: Lock> Plans<R> {
    /// Creates nothing.
    pub(in crate::arena) fn start(&self, _: &Config) {}

    /// Returns figures of 0.
    pub(crate) fn report(&self) -> PlannedReport {
        PlannedReport::default()
    }

    /// Checks no lane.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        Ok(())
    }

    /// Finds no block.
    pub(crate) fn allocation(&self, _: LaneRef, _: DevicePtr) -> Option<Allocation> {
        None
    }

    /// Returns false: no lane holds a block.
    pub(crate) fn is_on(&self, _: LaneRef, _: DevicePtr, _: StreamId) -> bool {
        false
    }

    /// Finds no lane.
    pub(in crate::arena) fn first_idle<P: Platform>(&self, _: &Heaps<P>) -> Option<DevicePtr> {
        None
    }

    /// Iterates over no counters.
    pub(in crate::arena) fn lane_counters(&self) -> impl Iterator<Item = KindCounters<'_>> + Clone {
        core::iter::empty()
    }

    /// Leaves the configuration as it is.
    pub(in crate::arena) fn pin(&self, _: &mut Config) {}

    /// Logs nothing: no iteration is observed.
    pub(in crate::arena) fn observe_malloc(&self, _: &Flags, _: &Request, _: DevicePtr) {}

    /// Logs nothing: no iteration is observed.
    pub(in crate::arena) fn observe_free(&self, _: &Flags, _: DevicePtr) {}

    /// Logs nothing: no iteration is observed.
    pub(in crate::arena) fn observe_use(&self, _: &Flags, _: DevicePtr) {}
}
