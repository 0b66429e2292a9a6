//! A replacement for the planned policy in builds without the feature `alloc`, which have no plans.
//!
//! No stream has a plan and no iteration is observed. [`Allocator::new`](crate::Allocator::new)
//! refuses a configuration with `policy:planned`, so no page is ever served from a plan. The
//! functions have the signatures of `planned.rs`, `cycle.rs` and `switch.rs`, so callers need no
//! `cfg`.

#![allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "the signatures are those of a build with `alloc`")]

use crate::arena::allocation::Allocation;
use crate::arena::flags::FlagWord;
use crate::arena::flags::Flags;
use crate::arena::heaps::{HeapGuard, Heaps, Slot};
use crate::arena::holdings::Holdings;
use crate::arena::platform::Platform;
use crate::arena::request::Request;
use crate::config::Config;
use crate::error::Error;
use crate::heap::Outcome;
use crate::stats::PlannedReport;
use crate::sync::{Lock, empty_by};
use crate::units::{DevicePtr, StreamId};
use core::convert::Infallible;
use core::marker::PhantomData;

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

/// Frees no block.
#[inline(always)]
pub(in crate::arena) fn try_free<P: Platform>(_: &Heaps<P>, _: u32, _: DevicePtr, _: Option<u64>) -> bool {
    false
}

/// Frees and lists no block.
pub(in crate::arena) fn free_or_list<P: Platform>(
    _: &Heaps<P>,
    _: u32,
    _: DevicePtr,
    _: Option<u64>,
    _: bool,
) -> Result<bool, Error> {
    Ok(false)
}

/// Lists no block.
pub(crate) fn list_block<P: Platform>(_: &Heaps<P>, _: u32, _: DevicePtr) -> Result<(), Error> {
    Ok(())
}

/// Finds no block, because every block has an entry.
pub(crate) fn allocation<P: Platform>(_: &Heaps<P>, _: u32, _: DevicePtr) -> Option<Allocation> {
    None
}

impl<R: Lock> Plans<R> {
    /// Serves no request.
    #[inline(always)]
    pub(in crate::arena) fn next<'a, P: Platform>(
        &self,
        _: &'a Heaps<P>,
        _: &Flags,
        _: u64,
        _: StreamId,
    ) -> Option<(&'a Slot<P>, Outcome<DevicePtr>)> {
        None
    }

    /// Returns false, because there is no plan.
    pub(in crate::arena) fn is_occupied<P: Platform>(&self, _: &Heaps<P>, _: u64, _: StreamId) -> bool {
        false
    }

    /// Serves no request.
    pub(in crate::arena) fn deviating<'a, P: Platform>(
        &self,
        _: &'a Heaps<P>,
        _: u64,
        _: StreamId,
    ) -> Option<(&'a Slot<P>, HeapGuard<'a, P>, Outcome<DevicePtr>)> {
        None
    }

    /// Lists no block.
    pub(crate) fn list_all<P: Platform>(&self, _: &Heaps<P>) {}

    /// Predicts no address.
    pub(in crate::arena) fn forecast<P: Platform>(&self, _: &Heaps<P>, _: u64, _: StreamId) -> Option<DevicePtr> {
        None
    }

    /// Creates nothing.
    pub(in crate::arena) fn start(&self, _: &Config) {}

    /// Returns figures of 0.
    pub(crate) fn report<P: Platform>(&self, _: &Heaps<P>) -> PlannedReport {
        PlannedReport::default()
    }

    /// Finds no plan.
    pub(in crate::arena) fn first_idle<P: Platform>(&self, _: &Heaps<P>) -> Option<DevicePtr> {
        None
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
