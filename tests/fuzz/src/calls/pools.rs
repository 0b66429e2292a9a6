//! Calls about private pools, routes, captures, and short-lived streams.

use super::argument::{Device, Handle, PoolName, StreamHandle};
use super::world::World;
use cachalot::c::abi::{cachalot_pool, cachalot_status};
use cachalot::c::capi::{
    cachalot_capture_begin, cachalot_capture_end, cachalot_get_pool_users, cachalot_pool_begin, cachalot_pool_create,
    cachalot_pool_empty, cachalot_pool_end, cachalot_pool_release, cachalot_pool_retain, cachalot_simulate_capture,
    cachalot_simulate_progress, cachalot_stream_destroyed,
};
use cachalot::c::status::CACHALOT_OK;

/// Returns a route. Routes 1, 2 and 3 are valid.
fn route(number: u8) -> i32 {
    i32::from(if number < 240 { number % 3 + 1 } else { number })
}

/// Flags of a pool: 1 and 2 are known.
fn flags(number: u8) -> u32 {
    u32::from(if number < 240 { number % 4 } else { number })
}

calls! {
    |world|
    Create(handle: Handle, device: Device, number: u8) => world.create_pool(handle, device, *number),
    Retain(handle: Handle, device: Device, pool: PoolName, number: u8) =>
        cachalot_pool_retain(world.handle(handle), device.0, world.pool(pool), flags(*number)),
    Release(handle: Handle, device: Device, pool: PoolName) =>
        cachalot_pool_release(world.handle(handle), device.0, world.pool(pool)),
    Users(handle: Handle, device: Device, pool: PoolName) => {
        let (pool, mut users) = (world.pool(pool), 0);
        // SAFETY: the variable outlives the call.
        unsafe { cachalot_get_pool_users(world.handle(handle), device.0, pool, &raw mut users) }
    },
    Empty(handle: Handle, device: Device, pool: PoolName) =>
        cachalot_pool_empty(world.handle(handle), device.0, world.pool(pool)),
    Begin(handle: Handle, device: Device, pool: PoolName, number: u8, stream: StreamHandle) =>
        cachalot_pool_begin(
            world.handle(handle), device.0, world.pool(pool), route(*number), world.stream(stream)
        ),
    End(handle: Handle, device: Device, pool: PoolName) =>
        cachalot_pool_end(world.handle(handle), device.0, world.pool(pool)),
    CaptureBegin(handle: Handle, device: Device, pool: PoolName, number: u8, stream: StreamHandle) =>
        cachalot_capture_begin(
            world.handle(handle), device.0, world.pool(pool), route(*number), world.stream(stream)
        ),
    CaptureEnd(handle: Handle, device: Device, pool: PoolName) =>
        cachalot_capture_end(world.handle(handle), device.0, world.pool(pool)),
    Capture(handle: Handle, device: Device, stream: StreamHandle, on: bool) =>
        cachalot_simulate_capture(world.handle(handle), device.0, world.stream(stream), (*on).into()),
    Progress(handle: Handle, device: Device, stream: StreamHandle) =>
        cachalot_simulate_progress(world.handle(handle), device.0, world.stream(stream)),
    Destroyed(handle: Handle, device: Device, stream: StreamHandle) =>
        cachalot_stream_destroyed(world.handle(handle), device.0, world.stream(stream)),
}

impl World {
    fn create_pool(&mut self, handle: &Handle, device: &Device, number: u8) -> cachalot_status {
        let mut pool = cachalot_pool::default();
        // SAFETY: the variable outlives the call.
        let status = unsafe { cachalot_pool_create(self.handle(handle), device.0, flags(number), &raw mut pool) };
        if status == CACHALOT_OK {
            self.made.push(pool);
            // Registers the name of the pool, so that `end` releases the pool.
            self.pool(&PoolName::Made((self.made.len() - 1) as u8));
        }
        status
    }
}
