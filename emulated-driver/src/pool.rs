//! Stream-ordered memory: `cuMemAllocAsync`, `cuMemFreeAsync`, and the pools.
//!
//! An allocation returns an address at once. In the order of the stream, a piece of work at the
//! allocation maps the memory for the device, and a piece of work at the free unmaps the memory.
//! Work that uses the memory too early or too late is killed, if the memory has separate pages.
//!
//! Freed memory is reused at once on the stream of the free, and on further streams after the free
//! is done. A pool keeps the memory of completed frees. Every wait releases the memory above the
//! threshold.

use crate::call::Call;
use crate::capture;
use crate::code::{Answer, Code};
use crate::context;
use crate::device::{self, MEMORY_POOLS};
use crate::driver::State;
use crate::handles::Handles;
use crate::memory;
use crate::stream::{self, Mark};
use crate::work::{Span, Work};
use std::collections::BTreeMap;

/// `CU_MEMPOOL_ATTR_*`: the switches are 1 to 3.
const RELEASE_THRESHOLD: i32 = 4;
const RESERVED_CURRENT: i32 = 5;
const RESERVED_HIGH: i32 = 6;
const USED_CURRENT: i32 = 7;
const USED_HIGH: i32 = 8;

/// `CUmemPoolProps`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Properties {
    kind: i32,
    handle_types: i32,
    location_kind: i32,
    location: i32,
    security: u64,
    max_bytes: u64,
    reserved: [u8; 56],
}

const _: () = assert!(size_of::<Properties>() == 88);

/// A pool of a device's memory.
#[derive(Debug)]
struct Pool {
    device: usize,
    /// The handle is destroyed. The pool ends with the last memory.
    destroyed: bool,
    /// Switches for reuse. The values are stored without effect.
    switches: [u64; 3],
    /// Bytes kept at a wait.
    threshold: u64,
    used: u64,
    used_high: u64,
    reserved_high: u64,
}

/// An allocation whose free is queued.
#[derive(Debug)]
struct Freed {
    address: u64,
    allocation: memory::Allocation,
    /// The queue with the free, and the point after the free.
    queue: u64,
    done: Mark,
}

/// All pools.
#[derive(Debug)]
pub(crate) struct Pools {
    /// Live handles, each of a pool number.
    pub(crate) handles: Handles<u64>,
    by_number: BTreeMap<u64, Pool>,
    made: u64,
    /// Handles of each device's default pool and current pool.
    defaults: Vec<u64>,
    current: Vec<u64>,
    freed: Vec<Freed>,
}

impl Pools {
    /// Creates an empty table of pools.
    pub(crate) fn new() -> Self {
        let (by_number, defaults, current) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { handles: Handles::new(8), by_number, made: 0, defaults, current, freed: Vec::new() }
    }

    /// Creates the default pools of `devices` devices.
    pub(crate) fn initialise(&mut self, devices: usize) {
        self.defaults = (0..devices).map(|device| self.add(device)).collect();
        self.current = self.defaults.clone();
    }

    /// Returns the number of live pools created by the program.
    pub(crate) fn made_and_alive(&self) -> usize {
        self.handles.len() - self.defaults.len()
    }

    /// Adds a pool and returns the handle.
    fn add(&mut self, device: usize) -> u64 {
        let (threshold, used, used_high, reserved_high) = (0, 0, 0, 0);
        let pool = Pool { device, destroyed: false, switches: [1; 3], threshold, used, used_high, reserved_high };
        self.made += 1;
        self.by_number.insert(self.made, pool);
        self.handles.add(self.made)
    }

    /// Returns the number of the pool of a live handle.
    fn number(&self, handle: u64) -> Answer<u64> {
        self.handles.get(handle).copied().map_err(|_| Code::INVALID_VALUE)
    }

    /// Returns the pool with a number.
    fn pool(&mut self, number: u64) -> Answer<&mut Pool> {
        self.by_number.get_mut(&number).ok_or(Code::INVALID_VALUE)
    }
}

/// `cuDeviceGetDefaultMemPool`.
pub(crate) fn default_of(call: &Call, device: i32) -> Answer<u64> {
    supported(call)?;
    Ok(call.state.pools.defaults[device::index(&call.state, device)?])
}

/// `cuDeviceGetMemPool`.
pub(crate) fn current_of(call: &Call, device: i32) -> Answer<u64> {
    supported(call)?;
    Ok(call.state.pools.current[device::index(&call.state, device)?])
}

/// `cuDeviceSetMemPool`.
pub(crate) fn set_current(call: &mut Call, device: i32, handle: u64) -> Answer<()> {
    supported(call)?;
    let index = device::index(&call.state, device)?;
    let pools = &mut call.state.pools;
    let number = pools.number(handle)?;
    if pools.pool(number)?.device != index {
        return Err(Code::INVALID_VALUE);
    }
    pools.current[index] = handle;
    Ok(())
}

/// `cuMemPoolCreate`.
pub(crate) fn create(call: &mut Call, properties: &Properties) -> Answer<u64> {
    const PINNED: i32 = 1;
    const OF_DEVICE: i32 = 1;
    supported(call)?;
    if properties.kind != PINNED || properties.location_kind != OF_DEVICE {
        return Err(Code::INVALID_VALUE);
    }
    let device = device::index(&call.state, properties.location).map_err(|_| Code::INVALID_VALUE)?;
    if properties.handle_types != 0 || properties.max_bytes != 0 {
        return Err(Code::NOT_SUPPORTED);
    }
    let handle = call.state.pools.add(device);
    call.made("pool", handle);
    Ok(handle)
}

/// `cuMemPoolDestroy`. Memory in use stays until the free.
pub(crate) fn destroy(call: &mut Call, handle: u64) -> Answer<()> {
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
pub(crate) fn attribute(call: &mut Call, handle: u64, attribute: i32) -> Answer<u64> {
    settle(&mut call.state);
    let number = call.state.pools.number(handle)?;
    let reserved = memory::reserved_by(&call.state, number);
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
pub(crate) fn is_switch(attribute: i32) -> bool {
    (1..RELEASE_THRESHOLD).contains(&attribute)
}

/// `cuMemPoolSetAttribute`. The only valid value for a peak is 0, which resets the peak to the
/// present amount.
pub(crate) fn set_attribute(call: &mut Call, handle: u64, attribute: i32, value: u64) -> Answer<()> {
    settle(&mut call.state);
    let number = call.state.pools.number(handle)?;
    let reserved = memory::reserved_by(&call.state, number);
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

/// `cuMemPoolTrimTo`.
pub(crate) fn trim_to(call: &mut Call, handle: u64, kept_bytes: u64) -> Answer<()> {
    let number = call.state.pools.number(handle)?;
    settle(&mut call.state);
    trim(&mut call.state, number, kept_bytes);
    Ok(())
}

/// `cuMemAllocAsync`, and `cuMemAllocFromPoolAsync` with a pool's handle. 0 bytes are the null
/// address.
pub(crate) fn allocate(call: &mut Call, bytes: u64, pool: Option<u64>, stream: u64) -> Answer<u64> {
    supported(call)?;
    let queue = stream::find(&mut call.state, stream, call.context)?;
    let state = &mut *call.state;
    let (context, device) = {
        let its = state.streams.queue(queue)?;
        (its.context, its.device)
    };
    context::check(state, context)?;
    if capture::of_queue(state, queue)?.is_some() {
        // Allocations inside a graph are not emulated.
        return Err(Code::NOT_SUPPORTED);
    }
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
    stream::push(state, queue, Work::Expose(span), Vec::new())?;
    let reserved = memory::reserved_by(state, number);
    let pool = state.pools.pool(number)?;
    pool.used += bytes;
    pool.used_high = pool.used_high.max(pool.used);
    pool.reserved_high = pool.reserved_high.max(reserved);
    call.made("allocation", address);
    Ok(address)
}

/// `cuMemFreeAsync`: of a pool's memory, and of `cuMemAlloc`'s.
pub(crate) fn free(call: &mut Call, address: u64, stream: u64) -> Answer<()> {
    let queue = stream::find(&mut call.state, stream, call.context)?;
    let state = &mut *call.state;
    context::check(state, state.streams.queue(queue)?.context)?;
    if address == 0 {
        return Ok(());
    }
    let allocation = *state.memory.allocations.get(&address).ok_or(Code::INVALID_VALUE)?;
    if capture::of_queue(state, queue)?.is_some() {
        return Err(Code::INVALID_VALUE);
    }
    state.memory.allocations.remove(&address);
    stream::push(state, queue, Work::Withdraw(allocation.span(address)), Vec::new())?;
    let done = state.streams.end_of(queue);
    state.pools.freed.push(Freed { address, allocation, queue, done });
    Ok(())
}

/// Turns completed frees into free memory, and releases memory above the thresholds to the device.
/// Called at every wait.
pub(crate) fn after_wait(state: &mut State) {
    settle(state);
    let kept: Vec<(u64, u64)> = state.pools.by_number.iter().map(|(&number, pool)| (number, pool.threshold)).collect();
    for (number, threshold) in kept {
        trim(state, number, threshold);
    }
}

/// Records the release of an allocation's memory.
pub(crate) fn given_back(state: &mut State, number: u64, bytes: u64) {
    if let Ok(pool) = state.pools.pool(number) {
        pool.used -= bytes;
    }
}

/// Releases memory with a pending free in an ending context.
pub(crate) fn give_back_all(state: &mut State, context: u64) {
    let freed = std::mem::take(&mut state.pools.freed).into_iter();
    let (gone, kept) = freed.partition(|freed: &Freed| freed.allocation.context == context);
    state.pools.freed = kept;
    for Freed { address, allocation, .. } in gone {
        memory::give_back(state, address, allocation);
    }
}

/// Checks that the devices have pools.
fn supported(call: &Call) -> Answer<()> {
    if device::all_have(&call.state, MEMORY_POOLS) { Ok(()) } else { Err(Code::NOT_SUPPORTED) }
}

/// Takes `bytes` for an allocation: first memory freed on the stream `queue`, then free memory of
/// the pool, then new memory of the device.
fn take(state: &mut State, number: u64, context: u64, queue: u64, bytes: u64) -> Answer<(u64, Span)> {
    let taken = memory::taken_by(bytes)?;
    let again = |freed: &Freed| {
        let its = &freed.allocation;
        freed.queue == queue && its.pool == Some(number) && its.taken == taken
    };
    if let Some(index) = state.pools.freed.iter().rposition(again) {
        let Freed { address, allocation, .. } = state.pools.freed.remove(index);
        state.pools.pool(number)?.used -= allocation.bytes;
        let allocation = memory::Allocation { bytes, ..allocation };
        state.memory.allocations.insert(address, allocation);
        return Ok((address, allocation.span(address)));
    }
    settle(state);
    match memory::take(state, context, Some(number), bytes) {
        Err(Code::OUT_OF_MEMORY) => {
            let pools: Vec<u64> = state.pools.by_number.keys().copied().collect();
            for pool in pools {
                trim(state, pool, 0);
            }
            memory::take(state, context, Some(number), bytes)
        }
        outcome => outcome,
    }
}

/// Turns allocations with completed frees into free memory.
fn settle(state: &mut State) {
    let streams = &state.streams;
    let freed = std::mem::take(&mut state.pools.freed).into_iter();
    let (done, waiting) = freed.partition(|freed: &Freed| streams.reached(freed.done));
    state.pools.freed = waiting;
    for Freed { address, allocation, .. } in done {
        memory::give_back(state, address, allocation);
    }
}

/// Releases idle regions of a pool to the device until the pool has no more than `kept_bytes`, or
/// no idle region.
fn trim(state: &mut State, number: u64, kept_bytes: u64) {
    while memory::reserved_by(state, number) > kept_bytes {
        let Some(region) = memory::oldest_idle(state, number) else { break };
        memory::release(state, region);
    }
    let empty = memory::reserved_by(state, number) == 0;
    if empty && state.pools.by_number.get(&number).is_some_and(|pool| pool.destroyed) {
        state.pools.by_number.remove(&number);
    }
}
