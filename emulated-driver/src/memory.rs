//! `cuMemAlloc`: regions of the device mapped at addresses of their own, and small allocations that share a page.

use crate::call::Call;
use crate::code::{Answer, Code};
use crate::context;
use crate::device;
use crate::driver::State;
use crate::pages::{Extent, PAGE, POISON_FREED, POISON_NEW};
use crate::ranges::Ranges;
use crate::space::Access;
use std::collections::BTreeMap;

/// Every address handed out is a multiple of this, as with real devices.
pub(crate) const ALIGNMENT: u64 = 512;
/// Below, allocations share pages.
const SMALL: u64 = PAGE;

/// Memory obtained in one piece: whole pages, mapped for their own device and its peers.
#[derive(Debug)]
struct Region {
    context: u64,
    device: usize,
    bytes: u64,
    extents: Vec<Extent>,
    /// The free parts, if small allocations share it.
    parts: Option<Ranges>,
    /// Allocations whose memory was not given back yet, those being freed included.
    users: u64,
}

/// A live allocation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allocation {
    pub(crate) context: u64,
    /// As asked for.
    pub(crate) bytes: u64,
    /// As taken.
    taken: u64,
    /// The region it lies in.
    region: u64,
}

/// All of it, by address.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    regions: BTreeMap<u64, Region>,
    pub(crate) allocations: BTreeMap<u64, Allocation>,
    quarantine: bool,
}

impl Memory {
    /// From now on: never use a freed part of a shared page again, or do.
    pub(crate) fn set_quarantine(&mut self, on: bool) {
        self.quarantine = on;
        for parts in self.regions.values_mut().filter_map(|region| region.parts.as_mut()) {
            parts.set_quarantine(on);
        }
    }

    /// The allocation that an address lies in, and where it begins.
    pub(crate) fn containing(&self, address: u64) -> Option<(u64, &Allocation)> {
        let (&start, allocation) = self.allocations.range(..=address).next_back()?;
        (address - start < allocation.bytes).then_some((start, allocation))
    }
}

/// `cuMemAlloc_v2`.
pub(crate) fn allocate(call: &mut Call, bytes: u64) -> Answer<u64> {
    if bytes == 0 {
        call.state.answers.outcome("alloc_zero")?;
        return Ok(0);
    }
    let (context, state) = (call.context, &mut *call.state);
    let address = if bytes < SMALL {
        allocate_small(state, context, bytes)?
    } else {
        let taken = bytes.checked_next_multiple_of(PAGE).ok_or(Code::OUT_OF_MEMORY)?;
        let region = obtain(state, context, taken)?;
        add(state, region, Allocation { context, bytes, taken, region });
        region
    };
    call.made("allocation", address);
    Ok(address)
}

/// `cuMemFree_v2`. The address may be handed out again before the call returns, as by a real driver.
pub(crate) fn free(call: &mut Call, address: u64) -> Answer<()> {
    let state = &call.state;
    if address == 0 {
        return state.answers.outcome("free_null");
    }
    let Some(&allocation) = state.memory.allocations.get(&address) else {
        let case = if state.memory.containing(address).is_some() {
            "free_interior"
        } else if state.virtual_memory.containing(address).is_some() {
            "free_mapped"
        } else {
            "free_unknown"
        };
        return state.answers.outcome(case);
    };
    if allocation.context != call.context {
        state.answers.outcome("free_other_context")?;
    }
    context::check(state, allocation.context)?;
    call.state.memory.allocations.remove(&address);
    if call.state.config.free_waits {
        let marks = call.state.streams.ends_of_context(allocation.context);
        call.wait(|state| marks.iter().all(|&mark| state.streams.reached(mark)));
    }
    give_back(&mut call.state, address, allocation);
    Ok(())
}

/// `cuMemGetAddressRange_v2`: base and size of what an address lies in. A mapping has them while a device may use it:
/// without, a real driver says that there is nothing; with, that the mapping is the range (UCX and libfabric rely on it).
pub(crate) fn range_of(call: &Call, address: u64) -> Answer<(u64, u64)> {
    let state = &call.state;
    let allocation = state.memory.containing(address).map(|(start, allocation)| (start, allocation.bytes));
    allocation.or_else(|| state.virtual_memory.accessible_containing(address)).ok_or(Code::NOT_FOUND)
}

/// The device through whose eyes `[address, address + bytes)` is to be used by work of `device`: the owner's, or for
/// mapped memory one that has the access needed to all of it.
///
/// # Errors
/// `INVALID_VALUE` if part of it is nothing, or nobody's.
pub(crate) fn resolve(state: &State, address: u64, bytes: u64, device: usize, needed: Access) -> Answer<usize> {
    let end = address.checked_add(bytes).ok_or(Code::INVALID_VALUE)?;
    if let Some((start, allocation)) = state.memory.containing(address) {
        let inside = end <= start + allocation.bytes;
        let owner = context::device_of(state, allocation.context)?;
        return if inside { Ok(owner) } else { Err(Code::INVALID_VALUE) };
    }
    let others = (0..state.devices.len()).filter(|&other| other != device);
    std::iter::once(device)
        .chain(others)
        .find(|&device| state.virtual_memory.is_accessible(address, end, device, needed))
        .ok_or(Code::INVALID_VALUE)
}

/// Lets `device` use all memory of a context, or takes that from it.
pub(crate) fn share(state: &mut State, context: u64, device: usize, on: bool) -> Answer<()> {
    let Some(space) = &state.space else { return Err(Code::NOT_INITIALIZED) };
    for (&address, region) in state.memory.regions.iter().filter(|(_, region)| region.context == context) {
        if on {
            let descriptor = state.devices[region.device].pages.descriptor();
            space.map(device, address, descriptor, &region.extents, Access::ReadWrite)?;
        } else {
            space.unmap(device, address, region.bytes);
        }
    }
    Ok(())
}

/// Frees everything of a context that ends.
pub(crate) fn free_all(state: &mut State, context: u64) {
    let its = state.memory.allocations.iter().filter(|(_, allocation)| allocation.context == context);
    let its: Vec<(u64, Allocation)> = its.map(|(&address, &allocation)| (address, allocation)).collect();
    for (address, allocation) in its {
        state.memory.allocations.remove(&address);
        give_back(state, address, allocation);
    }
}

/// Copies device memory to `into` as it is now, without waiting for anything and without any access right.
pub(crate) fn peek(state: &State, address: u64, into: &mut [u8]) -> Answer<()> {
    let end = address.checked_add(into.len() as u64).ok_or(Code::INVALID_VALUE)?;
    let region = state.memory.regions.range(..=address).next_back();
    if let Some((&start, region)) = region.filter(|(start, region)| end <= *start + region.bytes) {
        state.devices[region.device].pages.read(&region.extents, address - start, into);
        return Ok(());
    }
    state.virtual_memory.peek(&state.devices, address, into)
}

/// Takes room in a page that small allocations of a context share.
fn allocate_small(state: &mut State, context: u64, bytes: u64) -> Answer<u64> {
    let taken = bytes.next_multiple_of(ALIGNMENT);
    let shared = state.memory.regions.iter_mut().filter(|(_, region)| region.context == context);
    let found = shared.into_iter().find_map(|(&start, region)| {
        let address = region.parts.as_mut()?.take(taken, ALIGNMENT)?;
        Some((start, address))
    });
    let (region, address) = if let Some(found) = found {
        found
    } else {
        let start = obtain(state, context, PAGE)?;
        let mut parts = Ranges::new(start, PAGE);
        parts.set_quarantine(state.memory.quarantine);
        let address = parts.take(taken, ALIGNMENT).ok_or(Code::UNKNOWN)?;
        state.memory.regions.get_mut(&start).ok_or(Code::UNKNOWN)?.parts = Some(parts);
        (start, address)
    };
    add(state, address, Allocation { context, bytes, taken, region });
    Ok(address)
}

/// Enters an allocation in the books and fills it with the poison of new memory.
fn add(state: &mut State, address: u64, allocation: Allocation) {
    if let Some(region) = state.memory.regions.get_mut(&allocation.region) {
        region.users += 1;
        let pages = &state.devices[region.device].pages;
        pages.poison(&region.extents, address - allocation.region, allocation.taken, POISON_NEW);
    }
    state.memory.allocations.insert(address, allocation);
}

/// Obtains a region and maps it for its device and those that may use the context's memory.
fn obtain(state: &mut State, context: u64, bytes: u64) -> Answer<u64> {
    let device = context::device_of(state, context)?;
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
    let mut users = context::accessors(state, context);
    users.push(device);
    let descriptor = state.devices[device].pages.descriptor();
    for &user in &users {
        if let Err(code) = state.space().map(user, address, descriptor, &extents, Access::ReadWrite) {
            state.space().unmap_all(address, bytes);
            state.space().give(address, bytes);
            state.devices[device].pages.give(&extents);
            return Err(code);
        }
    }
    state.memory.regions.insert(address, Region { context, device, bytes, extents, parts: None, users: 0 });
    Ok(address)
}

/// Gives a freed allocation's memory back: its part of a shared page, or the whole region.
fn give_back(state: &mut State, address: u64, allocation: Allocation) {
    let Some(region) = state.memory.regions.get_mut(&allocation.region) else { return };
    if let Some(parts) = &mut region.parts {
        parts.give(address, allocation.taken);
        let offset = address - allocation.region;
        state.devices[region.device].pages.poison(&region.extents, offset, allocation.taken, POISON_FREED);
    }
    region.users -= 1;
    if region.users > 0 {
        return;
    }
    if let Some(region) = state.memory.regions.remove(&allocation.region) {
        state.space().unmap_all(allocation.region, region.bytes);
        state.space().give(allocation.region, region.bytes);
        state.devices[region.device].pages.give(&region.extents);
    }
}

/// `cuMemGetInfo_v2` of the current context's device.
pub(crate) fn info(call: &Call) -> Answer<(u64, u64)> {
    let index = context::device_of(&call.state, call.context)?;
    Ok(call.state.devices[index].info())
}

/// `cuDeviceTotalMem_v2`.
pub(crate) fn total(call: &Call, device: i32) -> Answer<u64> {
    let index = device::index(&call.state, device)?;
    Ok(call.state.devices[index].pages.total())
}
