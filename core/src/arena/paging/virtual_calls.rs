//! Calls to the virtual memory of a device. All of them are made here, and are counted and timed.
//!
//! The time of a call is the difference of two readings of the device's clock. Waiting for another
//! thread's turn to map counts as part of a request's time.

use crate::arena::Platform;
use crate::arena::driver::Driver;
use crate::arena::paging::Paging;
use crate::arena::paging::mapper::Mapper;
use crate::arena::request::RequestCalls;
use crate::arena::settings::Settings;
use crate::device::{DeviceResult, VirtualMemory};
use crate::stats::MemoryCall;

impl<P: Platform> Mapper<'_, P> {
    /// Calls `map`, which only maps and sets access, while no other thread changes mappings. See
    /// [`VirtualMemory::begin_mapping`].
    pub(in crate::arena) fn in_turn<T>(&self, map: impl FnOnce() -> T) -> T {
        let ((), ticks) = self.driver.timed(|| self.memory.begin_mapping());
        self.charge(ticks);
        let mapped = map();
        self.memory.end_mapping();
        mapped
    }

    /// Makes a call of the given kind to the virtual memory, unless the context is lost.
    pub(in crate::arena) fn call<T>(
        &self,
        kind: MemoryCall,
        call: impl FnOnce(&dyn VirtualMemory) -> DeviceResult<T>,
    ) -> DeviceResult<T> {
        self.driver.call(|_| {
            let (result, ticks) = self.driver.timed(|| call(self.memory));
            self.paging.calls.count(kind, ticks);
            self.charge(ticks);
            result
        })
    }

    /// Adds `ticks` to the time of the request.
    fn charge(&self, ticks: u64) {
        if let Some(calls) = self.request {
            calls.ticks.set(calls.ticks.get().saturating_add(ticks));
        }
    }
}

impl RequestCalls {
    /// Counts a finished request, if mapping took time.
    pub(in crate::arena) fn count<P: Platform>(
        &self,
        driver: &Driver<P::Device>,
        settings: &Settings<P::Lock>,
        paging: &Paging<P>,
    ) {
        let ticks = self.ticks.get();
        if ticks > 0 {
            paging.calls.count_request(driver.ticks_to_us(ticks), settings.policy().max_stall_us());
        }
    }
}
