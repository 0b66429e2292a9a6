//! Calls to the virtual memory of a device: all of them are made here, and counted with their time.
//!
//! The time of a call is the difference of two readings of the device's clock. Waiting for another
//! thread's turn to map counts as part of a request's time.

use crate::arena::{Arena, OnDevice, Platform};
use crate::device::{DeviceResult, Segments, VirtualMemory};
use crate::stats::MemoryCall;
use core::cell::Cell;

/// The time of a request in calls to virtual memory, in ticks of the device's clock.
#[derive(Default, Debug)]
pub(crate) struct MappingTime(Cell<u64>);

/// The virtual memory of a device. No call is made once the context is lost.
pub(crate) struct VirtualCalls<'a, P: Platform> {
    arena: &'a Arena<P>,
    memory: &'a dyn VirtualMemory,
    /// Where the time of the calls is added, if they are made for a request.
    request: Option<&'a MappingTime>,
}

impl<P: Platform> Clone for VirtualCalls<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for VirtualCalls<'_, P> {}

impl<'a, P: Platform> VirtualCalls<'a, P> {
    /// Returns the virtual memory of a device, or `None`.
    pub(in crate::arena) fn of(device: OnDevice<'a, P>) -> Option<Self> {
        let arena = device.arena;
        Some(Self { arena, memory: arena.driver.device().virtual_memory()?, request: None })
    }

    /// Adds the time of all further calls to `request`.
    pub(in crate::arena) fn for_request(self, request: &'a MappingTime) -> Self {
        Self { request: Some(request), ..self }
    }

    /// Returns the smallest size for creating and mapping, in bytes.
    pub(in crate::arena) fn granularity(&self) -> u64 {
        self.memory.granularity()
    }

    /// Calls `map`, which only maps and sets access, while no second thread changes mappings. See
    /// [`VirtualMemory::begin_mapping`].
    pub(in crate::arena) fn in_turn<T>(&self, map: impl FnOnce() -> T) -> T {
        let ((), ticks) = self.arena.driver.timed(|| self.memory.begin_mapping());
        self.charge(ticks);
        let mapped = map();
        self.memory.end_mapping();
        mapped
    }

    /// Makes a call of a kind, unless the context is lost.
    pub(in crate::arena) fn call<T>(
        &self,
        kind: MemoryCall,
        call: impl FnOnce(&dyn VirtualMemory) -> DeviceResult<T>,
    ) -> DeviceResult<T> {
        self.arena.call(|_| {
            let (result, ticks) = self.arena.driver.timed(|| call(self.memory));
            self.arena.paging.calls.count(kind, ticks);
            self.charge(ticks);
            result
        })
    }

    /// Adds `ticks` to the time of the request.
    fn charge(&self, ticks: u64) {
        if let Some(MappingTime(sum)) = self.request {
            sum.set(sum.get().saturating_add(ticks));
        }
    }
}

impl MappingTime {
    /// Counts a finished request, if mapping took time.
    pub(in crate::arena) fn count<P: Platform>(&self, arena: &Arena<P>) {
        let ticks = self.0.get();
        if ticks > 0 {
            let bound = arena.settings.policy.max_stall_us();
            arena.paging.calls.count_request(arena.driver.ticks_to_us(ticks), bound);
        }
    }
}
