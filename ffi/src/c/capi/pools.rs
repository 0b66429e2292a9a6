//! Private pools, and graph captures into private pools.

use crate::c::abi::{
    CACHALOT_POOL_NO_SPLIT, CACHALOT_POOL_USE_ON_OOM, CACHALOT_ROUTE_ALL, CACHALOT_ROUTE_STREAM, CACHALOT_ROUTE_THREAD,
    cachalot_allocator, cachalot_pool, cachalot_route, cachalot_status, cachalot_stream,
};
use crate::c::boundary;
use crate::c::device::Device;
use crate::c::instance::Instance;
use crate::c::marshal::Out;
use crate::c::status::{Outcome, Status};
use cachalot_core::{DeviceIndex, Host, PoolId, PoolOptions, Route, RoutePurpose};
use cachalot_cuda::driver::types::CuStream;
use core::ffi::c_int;

/// Converts pool options from C. Rejects unknown flags.
pub(crate) fn pool_options(flags: u32) -> Outcome<PoolOptions> {
    let unknown = flags & !(CACHALOT_POOL_USE_ON_OOM | CACHALOT_POOL_NO_SPLIT);
    if unknown != 0 {
        return Err(Status::argument(format_args!("the pool's flags {unknown:#x} have no meaning")));
    }
    Ok(PoolOptions { use_on_oom: flags & CACHALOT_POOL_USE_ON_OOM != 0, no_split: flags & CACHALOT_POOL_NO_SPLIT != 0 })
}

/// Converts a route from C, with the calling thread or `stream` if the route needs one.
fn route(device: &Device, route: cachalot_route, stream: cachalot_stream) -> Outcome<Route> {
    match route {
        CACHALOT_ROUTE_ALL => Ok(Route::All),
        CACHALOT_ROUTE_STREAM => Ok(Route::Stream(device.stream_id(CuStream(stream.addr()))?)),
        CACHALOT_ROUTE_THREAD => Ok(Route::Thread(device.thread_id())),
        _ => Err(Status::argument(format_args!("{route} is no route"))),
    }
}

/// Runs the body of a function on a pool of a device.
fn with_pool(
    allocator: *const cachalot_allocator,
    device: c_int,
    pool: cachalot_pool,
    body: impl FnOnce(&Instance, (DeviceIndex, &Device), PoolId) -> Outcome,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        body(instance, instance.device(device)?, PoolId(pool.first, pool.second))
    })
}

/// Creates a private pool with one user, and writes its id to `out`.
///
/// # Safety
/// `out` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_pool_create(
    allocator: *const cachalot_allocator,
    device: c_int,
    flags: u32,
    out: *mut cachalot_pool,
) -> cachalot_status {
    boundary::with_instance(allocator, |instance| {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { Out::new(out, "out") }?;
        let (device, _) = instance.device(device)?;
        let PoolId(first, second) = instance.allocator.pools(device)?.create(pool_options(flags)?)?;
        out.write(cachalot_pool { first, second });
        Ok(())
    })
}

/// Adds a user to a pool.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_pool_retain(
    allocator: *const cachalot_allocator,
    device: c_int,
    pool: cachalot_pool,
    flags: u32,
) -> cachalot_status {
    with_pool(allocator, device, pool, |instance, (device, _), pool| {
        let options = pool_options(flags)?;
        if pool == PoolId::DEFAULT {
            return Err(Status::argument(format_args!("the default pool has no users")));
        }
        Ok(instance.allocator.pools(device)?.retain(pool, options)?)
    })
}

/// Removes a user from a pool.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_pool_release(
    allocator: *const cachalot_allocator,
    device: c_int,
    pool: cachalot_pool,
) -> cachalot_status {
    with_pool(allocator, device, pool, |instance, (device, _), pool| {
        Ok(instance.allocator.pools(device)?.release(pool)?)
    })
}

/// Returns the number of users of a pool.
///
/// # Safety
/// `out` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_get_pool_users(
    allocator: *const cachalot_allocator,
    device: c_int,
    pool: cachalot_pool,
    out: *mut u32,
) -> cachalot_status {
    with_pool(allocator, device, pool, |instance, (device, _), pool| {
        // SAFETY: guaranteed by the caller.
        let out = unsafe { Out::new(out, "out") }?;
        out.write(instance.allocator.pools(device)?.users(pool)?);
        Ok(())
    })
}

/// Releases the cached memory of a pool.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_pool_empty(
    allocator: *const cachalot_allocator,
    device: c_int,
    pool: cachalot_pool,
) -> cachalot_status {
    with_pool(allocator, device, pool, |instance, (device, _), pool| {
        Ok(instance.allocator.pools(device)?.empty(pool)?)
    })
}

/// Releases free memory of a pool until it holds at most `keep_bytes`.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_pool_trim(
    allocator: *const cachalot_allocator,
    device: c_int,
    pool: cachalot_pool,
    keep_bytes: usize,
) -> cachalot_status {
    with_pool(allocator, device, pool, |instance, (device, _), pool| {
        Ok(instance.allocator.pools(device)?.trim(pool, keep_bytes as u64)?)
    })
}

/// Sets whether new pages of a pool are memory of the host.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_pool_spill(
    allocator: *const cachalot_allocator,
    device: c_int,
    pool: cachalot_pool,
    on: c_int,
) -> cachalot_status {
    with_pool(allocator, device, pool, |instance, (device, _), pool| {
        Ok(instance.allocator.pools(device)?.spill(pool, on != 0)?)
    })
}

/// Starts a route, which sends the chosen requests into a pool.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_pool_begin(
    allocator: *const cachalot_allocator,
    device: c_int,
    pool: cachalot_pool,
    route: cachalot_route,
    stream: cachalot_stream,
) -> cachalot_status {
    with_pool(allocator, device, pool, |instance, (index, device), pool| {
        let route = self::route(device, route, stream)?;
        Ok(instance.allocator.pools(index)?.begin_route(pool, route, RoutePurpose::Requests)?)
    })
}

/// Ends the latest route into a pool.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_pool_end(
    allocator: *const cachalot_allocator,
    device: c_int,
    pool: cachalot_pool,
) -> cachalot_status {
    with_pool(allocator, device, pool, |instance, (device, _), pool| {
        instance.allocator.pools(device)?.end_route(pool, RoutePurpose::Requests)?;
        Ok(())
    })
}

/// Starts a route into a pool for the capture of a graph.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_capture_begin(
    allocator: *const cachalot_allocator,
    device: c_int,
    pool: cachalot_pool,
    route: cachalot_route,
    stream: cachalot_stream,
) -> cachalot_status {
    with_pool(allocator, device, pool, |instance, (index, device), pool| {
        let route = self::route(device, route, stream)?;
        Ok(instance.allocator.pools(index)?.begin_route(pool, route, RoutePurpose::Capture)?)
    })
}

/// Ends the route of a capture.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_capture_end(
    allocator: *const cachalot_allocator,
    device: c_int,
    pool: cachalot_pool,
) -> cachalot_status {
    with_pool(allocator, device, pool, |instance, (device, _), pool| {
        instance.allocator.pools(device)?.end_route(pool, RoutePurpose::Capture)?;
        Ok(())
    })
}
