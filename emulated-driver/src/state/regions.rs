//! Memory taken from a device and given back: whole regions, and parts of shared pages. Serves
//! `cuMemAlloc` and the pools of stream-ordered memory.

use super::contexts;
use super::driver::State;
use super::physical;
use crate::backing::pages::{self, PAGE, POISON_FREED, POISON_NEW};
use crate::backing::space::{DeviceAccess, Space};
use crate::tables::memory::{Allocation, Region, Source};
use crate::tables::work::Span;
use crate::values::code::{Answer, Code};
use crate::values::ranges::Ranges;
use std::os::fd::AsRawFd;

/// Alignment of every allocated address, as with real devices.
pub(crate) const ALIGNMENT: u64 = 512;
/// Allocations below `SMALL` bytes share pages.
const SMALL: u64 = PAGE;

/// Returns the device in whose view work of `device` uses `[address, address + bytes)`: the owner
/// of an allocation, or for mapped memory a device with the needed access to the whole range.
///
/// # Errors
/// `INVALID_VALUE` if part of the range is no memory, or no device has access.
pub(crate) fn resolve(state: &State, address: u64, bytes: u64, device: usize, needed: DeviceAccess) -> Answer<usize> {
    let end = address.checked_add(bytes).ok_or(Code::INVALID_VALUE)?;
    if let Some((start, allocation)) = state.memory.containing(address) {
        let inside = end <= start + allocation.bytes;
        let owner = state.memory.regions.get(&allocation.region).ok_or(Code::UNKNOWN)?.device;
        return if inside { Ok(owner) } else { Err(Code::INVALID_VALUE) };
    }
    let others = (0..state.devices.len()).filter(|&other| other != device);
    std::iter::once(device)
        .chain(others)
        .find(|&device| state.virtual_memory.is_accessible(address, end, device, needed))
        .ok_or(Code::INVALID_VALUE)
}

/// Gives `device` access to all memory of a context, or removes the access.
pub(crate) fn share(state: &mut State, context: u64, device: usize, on: bool) -> Answer<()> {
    let its = |region: &Region| region.context == context && region.pool.is_none() && !region.managed;
    share_those(state, its, device, on)
}

/// Maps the regions of a pool for another device, or unmaps the regions.
pub(crate) fn share_pool(state: &mut State, number: u64, device: usize, on: bool) -> Answer<()> {
    share_those(state, |region| region.pool == Some(number), device, on)
}

/// Maps the regions named by `its` for another device, or unmaps the regions.
fn share_those(state: &State, its: impl Fn(&Region) -> bool, device: usize, on: bool) -> Answer<()> {
    let Some(space) = &state.space else { return Err(Code::NOT_INITIALIZED) };
    for (&address, region) in state.memory.regions.iter().filter(|(_, region)| its(region)) {
        if on {
            let descriptor = region.file(&state.devices).as_raw_fd();
            space.map(device, address, descriptor, &region.extents, DeviceAccess::ReadWrite)?;
        } else {
            space.unmap(device, address, region.bytes);
        }
    }
    Ok(())
}

/// Releases the memory of the allocations of an ending context, except memory of pools.
pub(crate) fn give_back_all(state: &mut State, context: u64) {
    let of_context = |allocation: &Allocation| allocation.context == context && allocation.pool.is_none();
    let its = state.memory.allocations.iter().filter(|(_, allocation)| of_context(allocation));
    let its: Vec<(u64, Allocation)> = its.map(|(&address, &allocation)| (address, allocation)).collect();
    for (address, allocation) in its {
        state.memory.allocations.remove(&address);
        give_back(state, address, allocation);
    }
}

/// Releases the regions that an ending context has left.
pub(crate) fn release_all(state: &mut State, context: u64) {
    let of_context = |region: &Region| region.context == context && region.pool.is_none();
    let left = state.memory.regions.iter().filter(|(_, region)| of_context(region));
    let left: Vec<u64> = left.map(|(&start, _)| start).collect();
    for region in left {
        release(state, region);
    }
}

/// Returns the bytes of the regions of a pool.
pub(crate) fn reserved_by(state: &State, pool: u64) -> u64 {
    let its = state.memory.regions.values().filter(|region| region.pool == Some(pool));
    its.map(|region| region.bytes).sum()
}

/// Returns the pool's idle region with the earliest release. An idle region has no allocation.
pub(crate) fn oldest_idle(state: &State, pool: u64) -> Option<u64> {
    let idle = state.memory.regions.iter().filter(|(_, region)| region.pool == Some(pool) && region.users == 0);
    idle.min_by_key(|(_, region)| region.returned).map(|(&start, _)| start)
}

/// Returns the size of an allocation on the device: whole pages, or a part of a shared page.
pub(crate) fn taken_by(bytes: u64) -> Answer<u64> {
    bytes.checked_next_multiple_of(if bytes < SMALL { ALIGNMENT } else { PAGE }).ok_or(Code::OUT_OF_MEMORY)
}

/// Takes memory for a context, from the pool if given. The memory is usable after [`expose`].
pub(crate) fn take(state: &mut State, context: u64, pool: Option<u64>, bytes: u64) -> Answer<(u64, Span)> {
    let taken = taken_by(bytes)?;
    let (region, address) = if bytes < SMALL {
        take_part(state, context, pool, taken)?
    } else {
        let idle = state.memory.regions.iter().filter(|(_, region)| {
            let whole = region.bytes == taken && region.parts.is_none();
            pool.is_some() && region.pool == pool && region.users == 0 && whole
        });
        let newest = idle.max_by_key(|(_, region)| region.returned).map(|(&start, _)| start);
        let start = newest.map_or_else(|| obtain(state, context, pool, taken), Ok)?;
        (start, start)
    };
    if let Some(region) = state.memory.regions.get_mut(&region) {
        region.users += 1;
    }
    let allocation = add(state, address, Allocation { region, pool, ..Allocation::new(context, bytes, taken) });
    Ok((address, allocation.span(address)))
}

/// Takes memory that the host and every device can use, in its own region.
pub(crate) fn take_managed(state: &mut State, context: u64, bytes: u64) -> Answer<u64> {
    let taken = bytes.checked_next_multiple_of(PAGE).ok_or(Code::OUT_OF_MEMORY)?;
    let start = obtain(state, context, None, taken)?;
    let region = state.memory.regions.get_mut(&start).ok_or(Code::UNKNOWN)?;
    (region.managed, region.users) = (true, 1);
    show(state, start).inspect_err(|_| release(state, start))?;
    state.devices[state.memory.regions[&start].device].pages.poison(
        &state.memory.regions[&start].extents,
        0,
        taken,
        POISON_NEW,
    );
    let source = Source::Managed;
    add(state, start, Allocation { region: start, source, ..Allocation::new(context, bytes, taken) });
    Ok(start)
}

/// Adds memory of another process: a region, with one allocation at an offset. Returns the address
/// of the allocation.
pub(crate) fn add_imported(state: &mut State, region: Region, offset: u64, bytes: u64) -> Answer<u64> {
    let start = state.space().take(region.bytes, PAGE, 0)?;
    let region = Region { users: 1, ..region };
    let allocation =
        Allocation { region: start, source: Source::Imported, ..Allocation::new(region.context, bytes, region.bytes) };
    state.memory.regions.insert(start, region);
    show(state, start).inspect_err(|_| release(state, start))?;
    add(state, start + offset, allocation);
    Ok(start + offset)
}

/// Adds an allocation, and gives the allocation a number.
fn add(state: &mut State, address: u64, allocation: Allocation) -> Allocation {
    let allocation = Allocation { id: state.next_id(), ..allocation };
    state.memory.allocations.insert(address, allocation);
    allocation
}

/// Maps a part of a region for every device with access, filled with the poison of new memory. A
/// part of a shared page is mapped already.
pub(crate) fn expose(state: &mut State, span: Span) -> Answer<()> {
    let region = state.memory.regions.get(&span.region).ok_or(Code::UNKNOWN)?;
    if region.parts.is_none() {
        show(state, span.region)?;
    }
    let region = &state.memory.regions[&span.region];
    state.devices[region.device].pages.poison(&region.extents, span.offset, span.bytes, POISON_NEW);
    Ok(())
}

/// Unmaps a part of a region from every device. A part of a shared page stays mapped and is filled
/// with the poison of freed memory.
pub(crate) fn withdraw(state: &mut State, span: Span) {
    let Some(region) = state.memory.regions.get(&span.region) else { return };
    if region.parts.is_some() {
        state.devices[region.device].pages.poison(&region.extents, span.offset, span.bytes, POISON_FREED);
    } else {
        state.space().unmap_all(span.region, span.bytes);
    }
}

/// Copies the present contents of device memory, without waiting for work and without access
/// rights.
pub(crate) fn peek(state: &State, address: u64, into: &mut [u8]) -> Answer<()> {
    let end = address.checked_add(into.len() as u64).ok_or(Code::INVALID_VALUE)?;
    let region = state.memory.regions.range(..=address).next_back();
    if let Some((&start, region)) = region.filter(|(start, region)| end <= *start + region.bytes) {
        pages::read(region.file(&state.devices), &region.extents, address - start, into);
        return Ok(());
    }
    state.virtual_memory.peek(address, into)
}

/// Takes a part of a page shared by small allocations of a context and pool. Returns the page and
/// the part.
fn take_part(state: &mut State, context: u64, pool: Option<u64>, taken: u64) -> Answer<(u64, u64)> {
    let shared = state.memory.regions.iter_mut();
    // A pool serves all contexts of its device.
    let serves = |region: &Region| region.pool == pool && (pool.is_some() || region.context == context);
    let mut shared = shared.filter(|(_, region)| serves(region));
    let found = shared.find_map(|(&start, region)| Some((start, region.parts.as_mut()?.take(taken, ALIGNMENT)?)));
    if let Some(found) = found {
        return Ok(found);
    }
    let start = obtain(state, context, pool, PAGE)?;
    show(state, start).inspect_err(|_| release(state, start))?;
    let mut parts = Ranges::new(start, PAGE);
    parts.set_quarantine(state.memory.quarantine);
    let address = parts.take(taken, ALIGNMENT).ok_or(Code::UNKNOWN)?;
    state.memory.regions.get_mut(&start).ok_or(Code::UNKNOWN)?.parts = Some(parts);
    Ok((start, address))
}

/// Allocates a region, not yet mapped for any device.
fn obtain(state: &mut State, context: u64, pool: Option<u64>, bytes: u64) -> Answer<u64> {
    let device = contexts::device_of(state, context)?;
    physical::collect(state);
    if !state.devices[device].has_room(bytes) {
        return Err(Code::OUT_OF_MEMORY);
    }
    let extents = state.devices[device].pages.take(bytes).ok_or(Code::OUT_OF_MEMORY)?;
    let address = match state.space().take(bytes, PAGE, 0) {
        Ok(address) => address,
        Err(code) => {
            state.devices[device].pages.give(&extents);
            return Err(code);
        }
    };
    let region = Region { pool, ..Region::new(context, device, bytes, extents) };
    state.memory.regions.insert(address, region);
    Ok(address)
}

/// Maps a region for the owning device, and for every device with access to the pool's memory, or
/// without a pool to the context's.
fn show(state: &mut State, start: u64) -> Answer<()> {
    let region = state.memory.regions.get(&start).ok_or(Code::UNKNOWN)?;
    let peers = match region.pool {
        None => contexts::accessors(state, region.context),
        Some(number) => state.pools.by_number.get(&number).map(|pool| pool.peers.clone()).unwrap_or_default(),
    };
    let space = state.space.as_ref().ok_or(Code::NOT_INITIALIZED)?;
    let descriptor = region.file(&state.devices).as_raw_fd();
    let everyone = if region.managed { (0..state.devices.len()).collect() } else { peers };
    for user in everyone.into_iter().chain([region.device]) {
        space.map(user, start, descriptor, &region.extents, DeviceAccess::ReadWrite)?;
    }
    if region.managed { Space::map_host(start, descriptor, &region.extents) } else { Ok(()) }
}

/// Releases the memory of a freed allocation: to the shared page, to the pool, or to the device.
pub(crate) fn give_back(state: &mut State, address: u64, allocation: Allocation) {
    state.shared.offers.remove(&allocation.id);
    // A region without a pool or parts is unmapped by its release.
    if allocation.pool.is_some() || allocation.taken < SMALL {
        withdraw(state, allocation.span(address));
    }
    let memory = &mut state.memory;
    let Some(region) = memory.regions.get_mut(&allocation.region) else { return };
    if let Some(parts) = &mut region.parts {
        parts.give(address, allocation.taken);
    }
    region.users -= 1;
    memory.returned += 1;
    region.returned = memory.returned;
    if region.users == 0 && region.pool.is_none() {
        release(state, allocation.region);
    }
}

/// Releases a region to the device.
pub(crate) fn release(state: &mut State, start: u64) {
    if let Some(region) = state.memory.regions.remove(&start) {
        state.space().unmap_all(start, region.bytes);
        if region.managed {
            Space::forbid_host(start, region.bytes);
        }
        state.space().give(start, region.bytes);
        if region.imported.is_none() {
            state.devices[region.device].pages.give(&region.extents);
        }
    }
}
