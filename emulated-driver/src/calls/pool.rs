//! Stream-ordered memory: `cuMemAllocAsync`, `cuMemFreeAsync`, and the pools.
//!
//! An allocation returns an address at once. In the order of the stream, a piece of work at the
//! allocation maps the memory for the device, and a piece of work at the free unmaps the memory.
//! Work that uses the memory too early or too late is killed, if the memory has separate pages.
//!
//! Freed memory is reused at once on the stream of the free, and on other streams after the free
//! is done. A pool keeps the memory of completed frees. Every wait releases the memory above the
//! threshold.

use crate::call::Call;
use crate::state::devices::{self, MEMORY_POOLS};
use crate::state::pools::{settle, take, trim};
use crate::state::{captures, contexts, regions, threads};
use crate::tables::memory::Source;
use crate::tables::pool::Freed;
use crate::tables::work::Work;
use crate::values::code::{Answer, Code};
use crate::values::pointers::{In, Out};
use crate::values::structs::{Access, PoolProperties};
use std::ffi::c_int;

/// `CU_MEMPOOL_ATTR_*`: the switches are 1 to 3.
const RELEASE_THRESHOLD: i32 = 4;
const RESERVED_CURRENT: i32 = 5;
const RESERVED_HIGH: i32 = 6;
const USED_CURRENT: i32 = 7;
const USED_HIGH: i32 = 8;

/// `cuDeviceGetDefaultMemPool`.
pub(crate) fn cuDeviceGetDefaultMemPool(call: &mut Call, pool: Out<u64>, device: c_int) -> Answer<()> {
    call.answer(pool, |call| {
        supported(call)?;
        Ok(call.state.pools.defaults[devices::index(&call.state, device)?])
    })
}

/// `cuDeviceGetMemPool`.
pub(crate) fn cuDeviceGetMemPool(call: &mut Call, pool: Out<u64>, device: c_int) -> Answer<()> {
    call.answer(pool, |call| {
        supported(call)?;
        Ok(call.state.pools.current[devices::index(&call.state, device)?])
    })
}

/// `cuDeviceSetMemPool`.
pub(crate) fn cuDeviceSetMemPool(call: &mut Call, device: i32, handle: u64) -> Answer<()> {
    supported(call)?;
    let index = devices::index(&call.state, device)?;
    let pools = &mut call.state.pools;
    let number = pools.number(handle)?;
    if pools.pool(number)?.device != index {
        return Err(Code::INVALID_VALUE);
    }
    pools.current[index] = handle;
    Ok(())
}

/// `cuMemPoolCreate`.
pub(crate) fn cuMemPoolCreate(call: &mut Call, pool: Out<u64>, properties: In<PoolProperties>) -> Answer<()> {
    call.answer(pool, |call| create(call, properties.read()?))
}

/// Creates a pool.
fn create(call: &mut Call, properties: PoolProperties) -> Answer<u64> {
    const PINNED: i32 = 1;
    const OF_DEVICE: i32 = 1;
    supported(call)?;
    if properties.kind != PINNED || properties.location_kind != OF_DEVICE {
        return Err(Code::INVALID_VALUE);
    }
    let device = devices::index(&call.state, properties.location).map_err(|_| Code::INVALID_VALUE)?;
    if properties.handle_types != 0 || properties.max_bytes != 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    let handle = call.state.pools.add(device);
    call.made("pool", handle);
    Ok(handle)
}

/// `cuMemPoolDestroy`. Memory in use stays until the free.
pub(crate) fn cuMemPoolDestroy(call: &mut Call, handle: u64) -> Answer<()> {
    let pools = &mut call.state.pools;
    let number = pools.number(handle)?;
    if pools.defaults.contains(&handle) {
        return Err(Code::INVALID_VALUE);
    }
    pools.handles.remove(handle)?;
    let pool = pools.pool(number)?;
    pool.destroyed = true;
    pool.threshold = 0;
    let device = pool.device;
    if pools.current[device] == handle {
        pools.current[device] = pools.defaults[device];
    }
    settle(&mut call.state);
    trim(&mut call.state, number, 0);
    Ok(())
}

/// `cuMemPoolGetAttribute`.
pub(crate) fn cuMemPoolGetAttribute(call: &mut Call, pool: u64, attribute: c_int, value: Out<u64>) -> Answer<()> {
    value.check()?;
    let found = attribute_of(call, pool, attribute)?;
    if is_switch(attribute) {
        call.give(value.cast(), found as u32);
    } else {
        call.give(value, found);
    }
    Ok(())
}

/// Returns an attribute of a pool.
fn attribute_of(call: &mut Call, handle: u64, attribute: i32) -> Answer<u64> {
    settle(&mut call.state);
    let number = call.state.pools.number(handle)?;
    let reserved = regions::reserved_by(&call.state, number);
    let pool = call.state.pools.pool(number)?;
    match attribute {
        1..=3 => Ok(pool.switches[attribute as usize - 1]),
        RELEASE_THRESHOLD => Ok(pool.threshold),
        RESERVED_CURRENT => Ok(reserved),
        RESERVED_HIGH => Ok(pool.reserved_high),
        USED_CURRENT => Ok(pool.used),
        USED_HIGH => Ok(pool.used_high),
        _ => Err(Code::INVALID_VALUE),
    }
}

/// Returns whether an attribute is a switch of 4 bytes.
fn is_switch(attribute: i32) -> bool {
    (1..RELEASE_THRESHOLD).contains(&attribute)
}

/// `cuMemPoolSetAttribute`. Every attribute besides the switches has 8 bytes.
pub(crate) fn cuMemPoolSetAttribute(call: &mut Call, pool: u64, attribute: c_int, value: Out<u64>) -> Answer<()> {
    let wanted = if is_switch(attribute) { value.cast::<u32>().read()?.into() } else { value.read()? };
    set_attribute(call, pool, attribute, wanted)
}

/// Changes an attribute of a pool. The only valid value for a peak is 0, which resets the peak to
/// the present amount.
fn set_attribute(call: &mut Call, handle: u64, attribute: i32, value: u64) -> Answer<()> {
    settle(&mut call.state);
    let number = call.state.pools.number(handle)?;
    let reserved = regions::reserved_by(&call.state, number);
    let pool = call.state.pools.pool(number)?;
    match (attribute, value) {
        (1..=3, _) => pool.switches[attribute as usize - 1] = u64::from(value != 0),
        (RELEASE_THRESHOLD, _) => pool.threshold = value,
        (RESERVED_HIGH, 0) => pool.reserved_high = reserved,
        (USED_HIGH, 0) => pool.used_high = pool.used,
        _ => return Err(Code::INVALID_VALUE),
    }
    Ok(())
}

/// `cuMemPoolSetAccess`: checks all descriptors before applying the first. The pool's own device
/// keeps full access.
pub(crate) fn cuMemPoolSetAccess(call: &mut Call, handle: u64, descriptors: In<Access>, count: usize) -> Answer<()> {
    const OF_DEVICE: i32 = 1;
    let wanted = descriptors.list(count)?;
    supported(call)?;
    let state = &mut *call.state;
    let number = state.pools.number(handle)?;
    let own = state.pools.pool(number)?.device;
    let mut changes = Vec::new();
    for descriptor in wanted {
        let device = devices::index(state, descriptor.location).map_err(|_| Code::INVALID_VALUE)?;
        let on = match descriptor.flags {
            0 => false,
            3 => true,
            _ => return Err(Code::INVALID_VALUE),
        };
        if descriptor.location_kind != OF_DEVICE || (device == own && !on) {
            return Err(Code::INVALID_VALUE);
        }
        if device != own && !devices::can_access_peer(state, device as i32, own as i32)? {
            return Err(Code::INVALID_DEVICE);
        }
        changes.push((device, on));
    }
    for (device, on) in changes.into_iter().filter(|&(device, _)| device != own) {
        let peers = &mut state.pools.pool(number)?.peers;
        if peers.contains(&device) == on {
            continue;
        }
        if on {
            peers.push(device);
        } else {
            peers.retain(|&peer| peer != device);
        }
        regions::share_pool(state, number, device, on)?;
    }
    Ok(())
}

/// `cuMemPoolTrimTo`.
pub(crate) fn cuMemPoolTrimTo(call: &mut Call, handle: u64, kept_bytes: u64) -> Answer<()> {
    let number = call.state.pools.number(handle)?;
    settle(&mut call.state);
    trim(&mut call.state, number, kept_bytes);
    Ok(())
}

/// `cuMemAllocAsync`.
pub(crate) fn cuMemAllocAsync(call: &mut Call, address: Out<u64>, bytes: u64, stream: u64) -> Answer<()> {
    call.answer(address, |call| allocate(call, bytes, None, stream))
}

/// `cuMemAllocFromPoolAsync`.
pub(crate) fn cuMemAllocFromPoolAsync(
    call: &mut Call,
    address: Out<u64>,
    bytes: u64,
    pool: u64,
    stream: u64,
) -> Answer<()> {
    call.answer(address, |call| allocate(call, bytes, Some(pool), stream))
}

/// Allocates memory of the current pool, or of the pool given by handle. 0 bytes are the null
/// address.
fn allocate(call: &mut Call, bytes: u64, pool: Option<u64>, stream: u64) -> Answer<u64> {
    supported(call)?;
    let queue = call.queue(stream)?;
    let state = &mut *call.state;
    let (context, device) = {
        let its = state.streams.queue(queue)?;
        (its.context, its.device)
    };
    contexts::check(state, context)?;
    if captures::of_queue(state, queue)?.is_some() {
        // Allocations inside a graph are not emulated.
        return Err(Code::NOT_SUPPORTED);
    }
    captures::check_unsafe(state)?;
    let number = state.pools.number(pool.unwrap_or(state.pools.current[device]))?;
    if bytes == 0 {
        return Ok(0);
    }
    let of_device = state.pools.pool(number)?.device;
    if of_device != device {
        // Another device's pool needs cuMemPoolSetAccess, which is not emulated.
        return Err(Code::NOT_SUPPORTED);
    }
    let (address, span) = take(state, number, context, queue, bytes)?;
    threads::push(state, queue, Work::Expose(span), Vec::new())?;
    let exposed = state.streams.end_of(queue);
    if let Some(allocation) = state.memory.allocations.get_mut(&address) {
        allocation.exposed = Some(exposed);
    }
    let reserved = regions::reserved_by(state, number);
    let pool = state.pools.pool(number)?;
    pool.used += bytes;
    pool.used_high = pool.used_high.max(pool.used);
    pool.reserved_high = pool.reserved_high.max(reserved);
    call.made("allocation", address);
    Ok(address)
}

/// `cuMemFreeAsync`: of a pool's memory, and of `cuMemAlloc`'s. The memory is no longer in use at
/// once, although the free is queued.
pub(crate) fn cuMemFreeAsync(call: &mut Call, address: u64, stream: u64) -> Answer<()> {
    let queue = call.queue(stream)?;
    let state = &mut *call.state;
    contexts::check(state, state.streams.queue(queue)?.context)?;
    if address == 0 {
        return Ok(());
    }
    let allocation = *state.memory.allocations.get(&address).ok_or(Code::INVALID_VALUE)?;
    if captures::of_queue(state, queue)?.is_some() || allocation.source == Source::Imported {
        return Err(Code::INVALID_VALUE);
    }
    captures::check_unsafe(state)?;
    state.memory.allocations.remove(&address);
    if let Some(number) = allocation.pool {
        state.pools.freed_by_stream(number, allocation.bytes);
    }
    threads::push(state, queue, Work::Withdraw(allocation.span(address)), Vec::new())?;
    let done = state.streams.end_of(queue);
    state.pools.freed.push(Freed { address, allocation, queue: Some(queue), done });
    Ok(())
}

/// Checks that the devices have pools.
fn supported(call: &Call) -> Answer<()> {
    if devices::all_have(&call.state, MEMORY_POOLS) { Ok(()) } else { Err(Code::NOT_SUPPORTED) }
}
