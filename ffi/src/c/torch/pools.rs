//! Private pools with the semantics of `PyTorch`: one hook serves graph captures and plain
//! redirection of requests, and the first use creates the pool.

use super::{diagnostics, plugin};
use crate::c::abi::{
    cachalot_pool, cachalot_status, cachalot_torch_filter, cachalot_torch_let_go, cachalot_torch_supply,
    cachalot_torch_take_back,
};
use crate::c::boundary;
use crate::c::capi::pools::pool_options;
use crate::c::filters::Filter;
use crate::c::marshal::Userdata;
use crate::c::status::{CACHALOT_ERROR_PANIC, Status};
use crate::c::supplies::Supply;
use cachalot_core::{PoolId, PoolOptions, Route, RoutePurpose};
use core::ffi::{c_int, c_void};

/// Converts a pool id from C.
fn name(pool: cachalot_pool) -> PoolId {
    PoolId(pool.first, pool.second)
}

/// Starts a route: sends the requests that the filter accepts into a pool.
///
/// # Safety
/// `filter` and `let_go` may be called with `userdata` from any thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_torch_begin_allocate_to_pool(
    device: c_int,
    pool: cachalot_pool,
    filter: cachalot_torch_filter,
    let_go: cachalot_torch_let_go,
    userdata: *mut c_void,
) -> cachalot_status {
    boundary::infallible(CACHALOT_ERROR_PANIC, || {
        // Dropping the filter releases it: at the end of the route, or on a failure here. Without a
        // filter, the route accepts every request.
        let filter = filter.map(|accepts| Filter { accepts, released: let_go, userdata: Userdata(userdata) });
        plugin::with_allocator(move |instance| {
            let (device, _) = instance.device(device)?;
            if name(pool) == PoolId::DEFAULT {
                return Err(Status::argument(format_args!("requests come from the default pool without a route")));
            }
            instance.allocator.pools(device)?.retain(name(pool), PoolOptions::default())?;
            let number = instance.callbacks.filters.add(filter);
            let begun = instance.allocator.pools(device)?.begin_route(
                name(pool),
                Route::Host(number),
                RoutePurpose::Undeclared,
            );
            if begun.is_err() {
                instance.callbacks.filters.remove(number);
            }
            // The route itself is now a user of the pool. The user added above only kept the pool
            // alive until the route existed.
            let released = instance.allocator.pools(device)?.release(name(pool));
            Ok(begun.and(released)?)
        })
    })
}

/// Ends the latest route into a pool.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_torch_end_allocate_to_pool(device: c_int, pool: cachalot_pool) {
    boundary::infallible((), || {
        let ended = plugin::with_allocator(|instance| {
            let (device, _) = instance.device(device)?;
            if let Route::Host(number) =
                instance.allocator.pools(device)?.end_route(name(pool), RoutePurpose::Undeclared)?
            {
                instance.callbacks.filters.remove(number);
            }
            Ok(())
        });
        diagnostics::report_once("allocating to a pool cannot be ended", ended);
    });
}

/// Removes a user from a pool.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_torch_release_pool(device: c_int, pool: cachalot_pool) {
    boundary::infallible((), || {
        let released = plugin::with_allocator(|instance| {
            let (index, _) = instance.device(device)?;
            instance.allocator.pools(index)?.release(name(pool))?;
            if instance.allocator.pools(index)?.users(name(pool)).unwrap_or(0) == 0 {
                instance.callbacks.supplied.forget(device, name(pool));
            }
            Ok(())
        });
        diagnostics::report_once("a pool cannot be released", released);
    });
}

/// Lets the program supply the segments of an existing pool.
///
/// # Safety
/// `supply` and `take_back` may be called with `userdata` from any thread, until `let_go` is called
/// once. `supply` returns NULL or memory of the device that nothing else uses until `take_back`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cachalot_torch_supply_pool(
    device: c_int,
    pool: cachalot_pool,
    supply: cachalot_torch_supply,
    take_back: cachalot_torch_take_back,
    let_go: cachalot_torch_let_go,
    userdata: *mut c_void,
) -> cachalot_status {
    boundary::infallible(CACHALOT_ERROR_PANIC, || {
        plugin::with_allocator(move |instance| {
            let (index, _) = instance.device(device)?;
            let supply = supply.ok_or_else(|| Status::null("supply"))?;
            let take_back = take_back.ok_or_else(|| Status::null("take_back"))?;
            instance.allocator.pools(index)?.users(name(pool))?;
            let supply =
                Supply { supplies: supply, takes_back: take_back, released: let_go, userdata: Userdata(userdata) };
            instance.callbacks.supplied.set(device, name(pool), supply);
            Ok(())
        })
    })
}

/// Changes the flags of an existing pool.
#[unsafe(no_mangle)]
pub extern "C" fn cachalot_torch_set_pool_flags(device: c_int, pool: cachalot_pool, flags: u32) -> cachalot_status {
    boundary::infallible(CACHALOT_ERROR_PANIC, || {
        plugin::with_allocator(|instance| {
            let (device, _) = instance.device(device)?;
            Ok(instance.allocator.pools(device)?.set_options(name(pool), pool_options(flags)?)?)
        })
    })
}
