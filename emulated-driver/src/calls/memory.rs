//! Device memory: `cuMemAlloc`, `cuMemFree`, and questions about memory.

use crate::call::Call;
use crate::state::{contexts, devices, physical, regions};
use crate::values::code::{Answer, Code};

/// `cuMemAlloc_v2`.
pub(crate) fn allocate(call: &mut Call, bytes: u64) -> Answer<u64> {
    if bytes == 0 {
        call.state.answers.outcome("alloc_zero")?;
        return Ok(0);
    }
    let (context, state) = (call.context, &mut *call.state);
    let (address, span) = regions::take(state, context, None, bytes)?;
    if let Err(code) = regions::expose(state, span) {
        if let Some(allocation) = state.memory.allocations.remove(&address) {
            regions::give_back(state, address, allocation);
        }
        return Err(code);
    }
    call.made("allocation", address);
    Ok(address)
}

/// `cuMemFree_v2`. Another thread may get the address before the call returns, as with a real
/// driver.
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
    contexts::check(state, allocation.context)?;
    call.state.memory.allocations.remove(&address);
    if call.state.config.free_waits {
        let marks = call.state.streams.ends_of_context(allocation.context);
        call.wait(|state| marks.iter().all(|&mark| state.streams.reached(mark)));
    }
    regions::give_back(&mut call.state, address, allocation);
    Ok(())
}

/// `cuMemGetAddressRange_v2`: start and size of the allocation or mapping that contains an address.
/// An accessible mapping counts as a range, and UCX and libfabric rely on the range. A real driver
/// finds nothing in a mapping without access.
pub(crate) fn range_of(call: &Call, address: u64) -> Answer<(u64, u64)> {
    let state = &call.state;
    let allocation = state.memory.containing(address).map(|(start, allocation)| (start, allocation.bytes));
    allocation.or_else(|| state.virtual_memory.accessible_containing(address)).ok_or(Code::NOT_FOUND)
}

/// `cuMemGetInfo_v2` of the current context's device.
pub(crate) fn info(call: &mut Call) -> Answer<(u64, u64)> {
    let index = contexts::device_of(&call.state, call.context)?;
    physical::collect(&mut call.state);
    Ok(call.state.devices[index].info())
}

/// `cuDeviceTotalMem_v2`.
pub(crate) fn total(call: &Call, device: i32) -> Answer<u64> {
    let index = devices::index(&call.state, device)?;
    Ok(call.state.devices[index].pages.total())
}
