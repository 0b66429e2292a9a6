//! Device memory: `cuMemAlloc`, `cuMemFree`, and questions about memory.

use crate::call::Call;
use crate::state::devices::{self, INTEGRATED};
use crate::state::driver::State;
use crate::state::{contexts, physical, pools, regions};
use crate::tables::memory::Source;
use crate::values::code::{Answer, Code};
use crate::values::pointers::Out;

/// `cuMemAlloc_v2`.
pub(crate) fn cuMemAlloc_v2(call: &mut Call, address: Out<u64>, bytes: u64) -> Answer<()> {
    call.answer(address, |call| allocate(call, bytes))
}

/// Allocates memory in the current context.
fn allocate(call: &mut Call, bytes: u64) -> Answer<u64> {
    if bytes == 0 {
        call.state.answers.outcome("alloc_zero")?;
        return Ok(0);
    }
    let (context, state) = (contexts::owner(&call.state, call.context), &mut *call.state);
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

/// `cuMemAllocPitch_v2`: rows with a pitch of whole steps of 512 bytes.
pub(crate) fn cuMemAllocPitch_v2(
    call: &mut Call,
    address: Out<u64>,
    pitch: Out<usize>,
    width: u64,
    height: u64,
    element: u32,
) -> Answer<()> {
    pitch.check()?;
    let row = width.checked_next_multiple_of(regions::ALIGNMENT).ok_or(Code::INVALID_VALUE)?;
    let bytes = row.checked_mul(height).ok_or(Code::INVALID_VALUE)?;
    if bytes == 0 || !matches!(element, 4 | 8 | 16) {
        return Err(Code::INVALID_VALUE);
    }
    call.answer(address, |call| allocate(call, bytes))?;
    call.give(pitch, row as usize);
    Ok(())
}

/// `cuMemAllocManaged`: memory for the host and for every device, in the memory of the context's
/// device.
pub(crate) fn cuMemAllocManaged(call: &mut Call, address: Out<u64>, bytes: u64, flags: u32) -> Answer<()> {
    /// `CU_MEM_ATTACH_GLOBAL` and `CU_MEM_ATTACH_HOST`.
    const ATTACH: [u32; 2] = [1, 2];
    call.answer(address, |call| {
        if bytes == 0 || !ATTACH.contains(&flags) {
            return Err(Code::INVALID_VALUE);
        }
        let start = regions::take_managed(&mut call.state, call.context, bytes)?;
        call.made("allocation", start);
        Ok(start)
    })
}

/// `cuMemFree_v2`. Another thread may get the address before the call returns, as with a real
/// driver. Memory of a pool is gone at once, whatever uses it.
pub(crate) fn cuMemFree_v2(call: &mut Call, address: u64) -> Answer<()> {
    let state = &call.state;
    if address == 0 {
        // A failed context answers its code, also to a free without an effect.
        if call.context != 0 {
            contexts::check(state, call.context)?;
        }
        return state.answers.outcome("free_null");
    }
    let Some(&allocation) = state.memory.allocations.get(&address) else {
        if call.context != 0 && !state.contexts.contains_key(&call.context) {
            return Err(Code::CONTEXT_IS_DESTROYED);
        }
        let case = if state.memory.containing(address).is_some() {
            "free_interior"
        } else if state.virtual_memory.containing(address).is_some() {
            "free_mapped"
        } else {
            "free_unknown"
        };
        return state.answers.outcome(case);
    };
    if allocation.source == Source::Imported {
        return Err(Code::INVALID_VALUE);
    }
    if allocation.pool.is_some() {
        pools::free_at_once(&mut call.state, address, allocation);
        return Ok(());
    }
    if allocation.context != call.context {
        state.answers.outcome("free_other_context")?;
    }
    contexts::check(state, allocation.context)?;
    call.state.memory.allocations.remove(&address);
    call.wait_for_work_of(allocation.context);
    regions::give_back(&mut call.state, address, allocation);
    Ok(())
}

/// `cuMemGetAddressRange_v2`: start and size of the allocation or mapping that contains an address.
/// An accessible mapping counts as a range, and UCX and libfabric rely on the range. A real driver
/// finds nothing in a mapping without access.
pub(crate) fn cuMemGetAddressRange_v2(call: &mut Call, base: Out<u64>, bytes: Out<usize>, address: u64) -> Answer<()> {
    let (start, length) = range_of(&call.state, address)?;
    call.give(base, start);
    call.give(bytes, length as usize);
    Ok(())
}

/// Returns start and size of the allocation, accessible mapping or pinned range that contains an
/// address.
fn range_of(state: &State, address: u64) -> Answer<(u64, u64)> {
    let allocation = state.memory.containing(address).map(|(start, allocation)| (start, allocation.bytes));
    let pinned = || state.host_memory.overlapping(address, address.saturating_add(1));
    let pinned = || pinned().map(|(start, range)| (start, range.bytes));
    let found = allocation.or_else(|| state.virtual_memory.accessible_containing(address)).or_else(pinned);
    found.ok_or(Code::NOT_FOUND)
}

/// `cuMemGetInfo_v2` of the current context's device.
pub(crate) fn cuMemGetInfo_v2(call: &mut Call, free: Out<usize>, total: Out<usize>) -> Answer<()> {
    let index = contexts::device_of(&call.state, call.context)?;
    physical::collect(&mut call.state);
    let (mut free_bytes, total_bytes) = call.state.devices[index].info();
    if devices::attribute(&call.state, INTEGRATED, index as i32)? != 0 {
        // A GB10's free memory is the system's `MemFree`, and not its `MemAvailable`.
        free_bytes = free_bytes.saturating_sub(call.state.config.file_bytes);
    }
    call.give(free, free_bytes as usize);
    call.give(total, total_bytes as usize);
    Ok(())
}
