//! A replacement for the planned policy in builds without the feature `alloc`, which have no plans.
//!
//! No stream has a lane and no iteration is observed. [`Allocator::new`](crate::Allocator::new)
//! refuses a configuration with `policy:planned`, so no page is ever assigned to a lane. The
//! functions have the signatures of `planned.rs`, `cycle.rs` and `switch.rs`, so callers need no
//! `cfg`.

#![allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "the signatures are those of a build with `alloc`")]

use crate::arena::allocation::Allocation;
use crate::arena::flags::FlagWord;
use crate::arena::flags::Flags;
use crate::arena::heaps::Heaps;
use crate::arena::holdings::Holdings;
use crate::arena::platform::{OwnerMap, Platform};
use crate::arena::request::Request;
use crate::config::Config;
use crate::error::Error;
use crate::page_map::{HeapRef, LaneRef};
use crate::stats::{HeapCounters, KindCounters, PlannedReport};
use crate::sync::{Lock, empty_by};
use crate::units::{DevicePtr, StreamId};
use core::convert::Infallible;
use core::marker::PhantomData;

/// A block that a plan has handed out. There is none.
pub(in crate::arena) struct PlannedBlock<'a> {
    pub ptr: DevicePtr,
    pub counters: &'a HeapCounters,
    pub peaks_stale: bool,
}

/// The outcome of freeing a block of a lane.
pub(in crate::arena) enum FreedOf {
    Lane,
    Home(HeapRef),
    Nothing,
}

/// Returns true, because plans serve no request.
pub(in crate::arena) fn is_unusual(_: FlagWord) -> bool {
    true
}

/// Returns true, because plans serve no request.
pub(in crate::arena) fn are_off(_: &Flags) -> bool {
    true
}

/// The switch between plans and heaps. No device has one.
pub(crate) struct PlanSwitch<'a, P>(Infallible, PhantomData<&'a P>);

impl<'a, P: Platform> PlanSwitch<'a, P> {
    /// Returns `None`.
    pub(crate) fn of(_: Holdings<'a, P>, _: &'a Plans<P::Lock>) -> Option<Self> {
        None
    }

    pub(crate) fn give_up(&self) -> Result<(), Error> {
        match self.0 {}
    }

    pub(in crate::arena) fn give_idle_up(&self, _: u64) -> Result<(), Error> {
        match self.0 {}
    }

    pub(crate) fn forget_stream(&self, _: StreamId) -> Result<(), Error> {
        match self.0 {}
    }
}

/// The planned policy of a build without it.
pub(crate) struct Plans<R: Lock>(PhantomData<R>);

empty_by!([R: Lock] Plans<R> = Self(PhantomData));

impl<R: Lock> Plans<R> {
    /// Serves no request.
    #[inline(always)]
    pub(in crate::arena) fn next(&self, _: &Flags, _: u64, _: StreamId) -> Option<PlannedBlock<'_>> {
        None
    }

    /// Returns false, because there is no plan.
    pub(in crate::arena) fn is_occupied<P: Platform>(&self, _: &Heaps<P>, _: u64, _: StreamId) -> bool {
        false
    }

    /// Serves no request.
    pub(in crate::arena) fn deviating<P: Platform>(
        &self,
        _: &Heaps<P>,
        _: u64,
        _: StreamId,
    ) -> Option<PlannedBlock<'_>> {
        None
    }

    /// Finds no lane.
    pub(in crate::arena) fn home_of_stream(&self, _: StreamId) -> Option<u32> {
        None
    }

    /// Frees no block.
    #[inline(always)]
    pub(in crate::arena) fn try_free(&self, _: LaneRef, _: DevicePtr, _: Option<u64>) -> bool {
        false
    }

    /// Refuses every address, because no lane owns a block.
    pub(in crate::arena) fn free<P: Platform>(
        &self,
        _: &Heaps<P>,
        _: LaneRef,
        ptr: DevicePtr,
        _: Option<u64>,
    ) -> Result<FreedOf, Error> {
        Err(Error::foreign(ptr))
    }

    /// Refuses every address, because no lane has a home heap.
    pub(in crate::arena) fn home_of<P: Platform>(
        &self,
        _: &Heaps<P>,
        _: &OwnerMap<P>,
        _: LaneRef,
        ptr: DevicePtr,
    ) -> Result<(HeapRef, bool), Error> {
        Err(Error::foreign(ptr))
    }

    /// Delegates no block.
    pub(in crate::arena) fn delegate_all<P: Platform>(&self, _: &Heaps<P>, _: impl Fn(u32, bool)) {}

    /// Predicts no address.
    pub(in crate::arena) fn forecast<P: Platform>(&self, _: &Heaps<P>, _: u64, _: StreamId) -> Option<DevicePtr> {
        None
    }

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

    /// Returns false, because no lane holds a block.
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

    /// Logs nothing, because no iteration is observed.
    pub(in crate::arena) fn observe_malloc(&self, _: &Flags, _: &Request, _: DevicePtr) {}

    /// Logs nothing, because no iteration is observed.
    pub(in crate::arena) fn observe_free(&self, _: &Flags, _: DevicePtr) {}

    /// Logs nothing, because no iteration is observed.
    pub(in crate::arena) fn observe_use(&self, _: &Flags, _: DevicePtr) {}
}
