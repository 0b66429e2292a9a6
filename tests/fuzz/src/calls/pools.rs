//! Calls about private pools, routes, captures, and short-lived streams.

use super::argument::{Device, Handle, PoolName, StreamHandle};
use super::world::World;
use arbitrary::Arbitrary;
use cachalot::c::abi::{cachalot_pool, cachalot_status};
use cachalot::c::capi::{
    cachalot_capture_begin, cachalot_capture_end, cachalot_get_pool_users, cachalot_pool_begin, cachalot_pool_create,
    cachalot_pool_empty, cachalot_pool_end, cachalot_pool_release, cachalot_pool_retain, cachalot_simulate_capture,
    cachalot_simulate_progress, cachalot_stream_destroyed,
};
use cachalot::c::status::CACHALOT_OK;

/// A call.
#[derive(Arbitrary, Debug)]
pub(super) enum Call {
    Create(Handle, Device, u8),
    Retain(Handle, Device, PoolName, u8),
    Release(Handle, Device, PoolName),
    Users(Handle, Device, PoolName),
    Empty(Handle, Device, PoolName),
    Begin(Handle, Device, PoolName, u8, StreamHandle),
    End(Handle, Device, PoolName),
    CaptureBegin(Handle, Device, PoolName, u8, StreamHandle),
    CaptureEnd(Handle, Device, PoolName),
    Capture(Handle, Device, StreamHandle, bool),
    Progress(Handle, Device, StreamHandle),
    Destroyed(Handle, Device, StreamHandle),
}

/// Returns a route. Routes 1, 2 and 3 are valid.
fn route(number: u8) -> i32 {
    i32::from(if number < 240 { number % 3 + 1 } else { number })
}

/// Flags of a pool: 1 and 2 are known.
fn flags(number: u8) -> u32 {
    u32::from(if number < 240 { number % 4 } else { number })
}

impl World {
    pub(super) fn call_pool(&mut self, call: &Call) -> cachalot_status {
        match call {
            Call::Create(handle, device, number) => {
                let mut pool = cachalot_pool::default();
                // SAFETY: the variable outlives the call.
                let status =
                    unsafe { cachalot_pool_create(self.handle(handle), device.0, flags(*number), &raw mut pool) };
                if status == CACHALOT_OK {
                    self.made.push(pool);
                    // Registers the name of the pool, so that `end` releases the pool.
                    self.pool(&PoolName::Made((self.made.len() - 1) as u8));
                }
                status
            }
            Call::Retain(handle, device, pool, number) => {
                let pool = self.pool(pool);
                cachalot_pool_retain(self.handle(handle), device.0, pool, flags(*number))
            }
            Call::Release(handle, device, pool) => {
                let pool = self.pool(pool);
                cachalot_pool_release(self.handle(handle), device.0, pool)
            }
            Call::Users(handle, device, pool) => {
                let (pool, mut users) = (self.pool(pool), 0);
                // SAFETY: the variable outlives the call.
                unsafe { cachalot_get_pool_users(self.handle(handle), device.0, pool, &raw mut users) }
            }
            Call::Empty(handle, device, pool) => {
                let pool = self.pool(pool);
                cachalot_pool_empty(self.handle(handle), device.0, pool)
            }
            Call::Begin(handle, device, pool, number, stream) => {
                let (pool, stream) = (self.pool(pool), self.stream(stream));
                cachalot_pool_begin(self.handle(handle), device.0, pool, route(*number), stream)
            }
            Call::End(handle, device, pool) => {
                let pool = self.pool(pool);
                cachalot_pool_end(self.handle(handle), device.0, pool)
            }
            Call::CaptureBegin(handle, device, pool, number, stream) => {
                let (pool, stream) = (self.pool(pool), self.stream(stream));
                cachalot_capture_begin(self.handle(handle), device.0, pool, route(*number), stream)
            }
            Call::CaptureEnd(handle, device, pool) => {
                let pool = self.pool(pool);
                cachalot_capture_end(self.handle(handle), device.0, pool)
            }
            Call::Capture(handle, device, stream, on) => {
                let stream = self.stream(stream);
                cachalot_simulate_capture(self.handle(handle), device.0, stream, (*on).into())
            }
            Call::Progress(handle, device, stream) => {
                let stream = self.stream(stream);
                cachalot_simulate_progress(self.handle(handle), device.0, stream)
            }
            Call::Destroyed(handle, device, stream) => {
                let stream = self.stream(stream);
                cachalot_stream_destroyed(self.handle(handle), device.0, stream)
            }
        }
    }
}
