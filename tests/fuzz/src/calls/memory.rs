//! Memory: blocks, the cache, limits, plans.

use super::allocators::Room;
use super::argument::{Address, Bytes, Device, Handle, Size, StreamHandle, Word};
use super::world::World;
use arbitrary::Arbitrary;
use cachalot::c::abi::{cachalot_block, cachalot_forecast, cachalot_plan_report, cachalot_status};
use cachalot::c::capi::{
    cachalot_begin_iteration, cachalot_empty_cache, cachalot_free, cachalot_free_sized, cachalot_get_block,
    cachalot_get_forecast, cachalot_get_plan_report, cachalot_malloc, cachalot_process_events, cachalot_record_stream,
    cachalot_record_use, cachalot_set_caching, cachalot_set_limit, cachalot_set_memory_fraction, cachalot_trim,
};
use cachalot::c::status::CACHALOT_OK;
use std::ffi::c_void;
use std::ptr::{null_mut, without_provenance_mut};

/// A call.
#[derive(Arbitrary, Debug)]
pub(super) enum Call {
    Malloc(Handle, Device, Bytes, StreamHandle),
    MallocMany(Device, Bytes, StreamHandle, u8),
    Free(Handle, Address),
    FreeMany(u8),
    FreeSized(Handle, Address, Bytes),
    RecordStream(Handle, Address, StreamHandle),
    RecordUse(Handle, Address, StreamHandle),
    BaseOf(Handle, Address, Size),
    Forecast(Handle, Device, Bytes, StreamHandle, Size),
    ProcessEvents(Handle, Device),
    EmptyCache(Handle, Device),
    Trim(Handle, Device, Bytes),
    SetCaching(Handle, Device, i8),
    SetLimit(Handle, Device, Word),
    SetFraction(Handle, Device, f64),
    Iteration(Handle, Device),
    Planned(Handle, Device, Size),
}

impl World {
    pub(super) fn call_memory(&mut self, call: &Call) -> cachalot_status {
        let mut room = Room::new();
        match call {
            Call::Malloc(handle, device, bytes, stream) => self.malloc(handle, device, bytes.0, stream),
            Call::MallocMany(device, bytes, stream, count) => {
                let mut statuses = (0..*count).map(|_| self.malloc(&Handle::Own, device, bytes.0, stream));
                statuses.find(|&status| status != CACHALOT_OK).unwrap_or(CACHALOT_OK)
            }
            Call::Free(handle, address) => self.free(handle, self.address(address)),
            Call::FreeMany(count) => {
                let blocks: Vec<usize> = self.held.keys().rev().take((*count).into()).copied().collect();
                let mut statuses =
                    blocks.into_iter().map(|block| self.free(&Handle::Own, without_provenance_mut(block)));
                statuses.find(|&status| status != CACHALOT_OK).unwrap_or(CACHALOT_OK)
            }
            Call::FreeSized(handle, address, bytes) => {
                let block = self.address(address);
                // Mostly with the right size.
                let right = self.held.get(&block.addr()).filter(|_| bytes.0 > 1000);
                let status = cachalot_free_sized(self.handle(handle), block, right.copied().unwrap_or(bytes.0));
                self.note_free(block, status);
                status
            }
            Call::RecordStream(handle, address, stream) => {
                let stream = self.stream(stream);
                cachalot_record_stream(self.handle(handle), self.address(address), stream)
            }
            Call::RecordUse(handle, address, stream) => {
                let stream = self.stream(stream);
                cachalot_record_use(self.handle(handle), self.address(address), stream)
            }
            Call::BaseOf(handle, address, size) => {
                let address = self.address(address);
                // SAFETY: the room outlives the call.
                unsafe { cachalot_get_block(self.handle(handle), address, room.of::<cachalot_block>(size)) }
            }
            Call::Forecast(handle, device, bytes, stream, size) => {
                let (stream, out) = (self.stream(stream), room.of::<cachalot_forecast>(size));
                // SAFETY: the room outlives the call.
                unsafe { cachalot_get_forecast(self.handle(handle), device.0, bytes.0, stream, out) }
            }
            Call::ProcessEvents(handle, device) => cachalot_process_events(self.handle(handle), device.0),
            Call::EmptyCache(handle, device) => cachalot_empty_cache(self.handle(handle), device.0),
            Call::Trim(handle, device, bytes) => cachalot_trim(self.handle(handle), device.0, bytes.0),
            Call::SetCaching(handle, device, on) => {
                cachalot_set_caching(self.handle(handle), device.0, i32::from(*on).max(0))
            }
            Call::SetLimit(handle, device, bytes) => cachalot_set_limit(self.handle(handle), device.0, bytes.0),
            Call::SetFraction(handle, device, fraction) => {
                cachalot_set_memory_fraction(self.handle(handle), device.0, *fraction)
            }
            Call::Iteration(handle, device) => cachalot_begin_iteration(self.handle(handle), device.0),
            Call::Planned(handle, device, size) => {
                // SAFETY: the room outlives the call.
                unsafe {
                    cachalot_get_plan_report(self.handle(handle), device.0, room.of::<cachalot_plan_report>(size))
                }
            }
        }
    }

    fn malloc(&mut self, handle: &Handle, device: &Device, bytes: usize, stream: &StreamHandle) -> cachalot_status {
        let (stream, mut block) = (self.stream(stream), null_mut());
        // SAFETY: the variable outlives the call.
        let status = unsafe { cachalot_malloc(self.handle(handle), device.0, bytes, stream, &raw mut block) };
        if status == CACHALOT_OK {
            self.note_malloc(block, bytes);
        } else {
            assert!(block.is_null(), "a request that failed wrote {block:?}");
        }
        status
    }

    fn free(&mut self, handle: &Handle, block: *mut c_void) -> cachalot_status {
        let status = cachalot_free(self.handle(handle), block);
        self.note_free(block, status);
        status
    }
}
