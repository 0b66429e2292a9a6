//! The planned policy in a build without `alloc`, which has none: no stream has a lane, and nothing is observed.

#![allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "the signatures are those of a build with `alloc`")]

use crate::arena::allocation::Allocation;
use crate::arena::request::Request;
use crate::arena::{Arena, OnDevice};
use crate::config::Config;
use crate::device::DeviceMemory;
use crate::error::Error;
use crate::page_map::{HeapRef, LaneRef};
use crate::stats::KindCounters;
use crate::sync::Lock;
use crate::tables::Storage;
use crate::units::{DevicePtr, StreamId};

impl<D: DeviceMemory, R: Lock, S: Storage> OnDevice<'_, D, R, S> {
    #[inline(always)]
    pub(super) fn malloc_next(self, bytes: u64, stream: StreamId) -> Result<DevicePtr, Error> {
        self.malloc_unplanned(bytes, stream)
    }

    pub(super) fn malloc_planned(self, _flags: u32, _bytes: u64, _stream: StreamId) -> Option<DevicePtr> {
        None
    }

    pub(crate) fn free_planned(self, _: LaneRef, ptr: DevicePtr, _: Option<u64>) -> Result<(), Error> {
        Err(Error::InvalidPointer(ptr))
    }

    pub(crate) fn home_of(self, _: LaneRef, ptr: DevicePtr) -> Result<HeapRef, Error> {
        Err(Error::InvalidPointer(ptr))
    }

    pub(super) fn give_plans_up(self) -> Result<(), Error> {
        Ok(())
    }

    pub(crate) fn forget_stream(self, _: StreamId) -> Result<(), Error> {
        Ok(())
    }
}

impl<D: DeviceMemory, R: Lock, S: Storage> Arena<D, R, S> {
    pub(crate) fn show_lanes(&self) {}

    pub(crate) fn check_lanes(&self) -> Result<(), &'static str> {
        Ok(())
    }

    pub(crate) fn planned_allocation(&self, _: LaneRef, _: DevicePtr) -> Option<Allocation> {
        None
    }

    pub(crate) fn is_planned_on(&self, _: LaneRef, _: DevicePtr, _: StreamId) -> bool {
        false
    }

    pub(super) fn planned_forecast(&self, _: u64, _: StreamId) -> Option<DevicePtr> {
        None
    }

    pub(super) fn first_idle_lane(&self) -> Option<DevicePtr> {
        None
    }

    pub(super) fn lane_counters(&self) -> impl Iterator<Item = KindCounters<'_>> + Clone {
        core::iter::empty()
    }

    pub(super) fn pin_planned(&self, _: &mut Config) {}

    pub(super) fn note_malloc(&self, _: &Request, _: DevicePtr) {}

    pub(super) fn note_free(&self, _: DevicePtr) {}

    pub(super) fn note_use(&self, _: DevicePtr) {}
}
