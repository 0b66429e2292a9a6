//! Memory: blocks, the cache, limits, plans.

use super::allocators::Room;
use super::argument::{Address, Bytes, Device, Handle, Size, StreamHandle, Word};
use super::world::World;
use cachalot::c::abi::{cachalot_block, cachalot_forecast, cachalot_plan_report, cachalot_status};
use cachalot::c::capi::{
    cachalot_begin_iteration, cachalot_empty_cache, cachalot_free, cachalot_free_sized, cachalot_get_block,
    cachalot_get_forecast, cachalot_get_plan_report, cachalot_malloc, cachalot_process_events, cachalot_record_stream,
    cachalot_record_use, cachalot_set_caching, cachalot_set_limit, cachalot_set_memory_fraction, cachalot_trim,
};
use cachalot::c::status::CACHALOT_OK;
use std::ffi::c_void;
use std::ptr::{null_mut, without_provenance_mut};

calls! {
    |world|
    Malloc(handle: Handle, device: Device, bytes: Bytes, stream: StreamHandle) =>
        world.malloc(handle, device, bytes.0, stream),
    MallocMany(device: Device, bytes: Bytes, stream: StreamHandle, count: u8) => {
        first_failure((0..*count).map(|_| world.malloc(&Handle::Own, device, bytes.0, stream)))
    },
    Free(handle: Handle, address: Address) => world.free(handle, world.address(address)),
    FreeMany(count: u8) => {
        let blocks: Vec<usize> = world.held.keys().rev().take((*count).into()).copied().collect();
        first_failure(blocks.into_iter().map(|block| world.free(&Handle::Own, without_provenance_mut(block))))
    },
    FreeSized(handle: Handle, address: Address, bytes: Bytes) => {
        let block = world.address(address);
        // Mostly with the right size.
        let right = world.held.get(&block.addr()).filter(|_| bytes.0 > 1000);
        let status = cachalot_free_sized(world.handle(handle), block, right.copied().unwrap_or(bytes.0));
        world.note_free(block, status);
        status
    },
    RecordStream(handle: Handle, address: Address, stream: StreamHandle) =>
        cachalot_record_stream(world.handle(handle), world.address(address), world.stream(stream)),
    RecordUse(handle: Handle, address: Address, stream: StreamHandle) =>
        cachalot_record_use(world.handle(handle), world.address(address), world.stream(stream)),
    BaseOf(handle: Handle, address: Address, size: Size) => {
        let (address, mut room) = (world.address(address), Room::new());
        // SAFETY: the room outlives the call.
        unsafe { cachalot_get_block(world.handle(handle), address, room.of::<cachalot_block>(size)) }
    },
    Forecast(handle: Handle, device: Device, bytes: Bytes, stream: StreamHandle, size: Size) => {
        let (stream, mut room) = (world.stream(stream), Room::new());
        let out = room.of::<cachalot_forecast>(size);
        // SAFETY: the room outlives the call.
        unsafe { cachalot_get_forecast(world.handle(handle), device.0, bytes.0, stream, out) }
    },
    ProcessEvents(handle: Handle, device: Device) => cachalot_process_events(world.handle(handle), device.0),
    EmptyCache(handle: Handle, device: Device) => cachalot_empty_cache(world.handle(handle), device.0),
    Trim(handle: Handle, device: Device, bytes: Bytes) => cachalot_trim(world.handle(handle), device.0, bytes.0),
    SetCaching(handle: Handle, device: Device, on: i8) =>
        cachalot_set_caching(world.handle(handle), device.0, i32::from(*on).max(0)),
    SetLimit(handle: Handle, device: Device, bytes: Word) =>
        cachalot_set_limit(world.handle(handle), device.0, bytes.0),
    SetFraction(handle: Handle, device: Device, fraction: f64) =>
        cachalot_set_memory_fraction(world.handle(handle), device.0, *fraction),
    Iteration(handle: Handle, device: Device) => cachalot_begin_iteration(world.handle(handle), device.0),
    Planned(handle: Handle, device: Device, size: Size) => {
        let mut room = Room::new();
        // SAFETY: the room outlives the call.
        unsafe { cachalot_get_plan_report(world.handle(handle), device.0, room.of::<cachalot_plan_report>(size)) }
    },
}

/// Makes calls up to the first that fails, and returns its status.
fn first_failure(mut statuses: impl Iterator<Item = cachalot_status>) -> cachalot_status {
    statuses.find(|&status| status != CACHALOT_OK).unwrap_or(CACHALOT_OK)
}

impl World {
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
