//! Memory of the pools: frees that are complete, memory kept, and memory for an allocation.

use super::driver::State;
use super::regions;
use crate::tables::memory::Allocation;
use crate::tables::pool::Freed;
use crate::tables::work::Span;
use crate::values::code::{Answer, Code};

/// Turns completed frees into free memory, and releases memory above the thresholds to the device.
/// Called at every wait.
pub(crate) fn after_wait(state: &mut State) {
    settle(state);
    let kept: Vec<(u64, u64)> = state.pools.by_number.iter().map(|(&number, pool)| (number, pool.threshold)).collect();
    for (number, threshold) in kept {
        trim(state, number, threshold);
    }
}

/// Frees memory of a pool outside the order of streams, once the allocation has run. As with a real
/// driver, no use of the memory is waited for, and the pool still counts the memory as used.
pub(crate) fn free_at_once(state: &mut State, address: u64, allocation: Allocation) {
    state.memory.allocations.remove(&address);
    match allocation.exposed.filter(|&exposed| !state.streams.reached(exposed)) {
        Some(done) => state.pools.freed.push(Freed { address, allocation, queue: None, done }),
        None => regions::give_back(state, address, allocation),
    }
}

/// Takes `bytes` for an allocation: first memory freed on the stream `queue`, then free memory of
/// the pool, then new memory of the device.
pub(crate) fn take(state: &mut State, number: u64, context: u64, queue: u64, bytes: u64) -> Answer<(u64, Span)> {
    let taken = regions::taken_by(bytes)?;
    let again = |freed: &Freed| {
        let its = &freed.allocation;
        freed.queue == Some(queue) && its.pool == Some(number) && its.taken == taken
    };
    if let Some(index) = state.pools.freed.iter().rposition(again) {
        let Freed { address, allocation, .. } = state.pools.freed.remove(index);
        let id = state.next_id();
        let allocation = Allocation { context, bytes, id, ..allocation };
        state.memory.allocations.insert(address, allocation);
        return Ok((address, allocation.span(address)));
    }
    settle(state);
    match regions::take(state, context, Some(number), bytes) {
        Err(Code::OUT_OF_MEMORY) => {
            let pools: Vec<u64> = state.pools.by_number.keys().copied().collect();
            for pool in pools {
                trim(state, pool, 0);
            }
            regions::take(state, context, Some(number), bytes)
        }
        outcome => outcome,
    }
}

/// Turns allocations with completed frees into free memory.
pub(crate) fn settle(state: &mut State) {
    let streams = &state.streams;
    let freed = std::mem::take(&mut state.pools.freed).into_iter();
    // A free on another stream may run before the allocation.
    let is_over = |freed: &Freed| {
        let exposed = freed.allocation.exposed;
        streams.reached(freed.done) && exposed.is_none_or(|exposed| streams.reached(exposed))
    };
    let (done, waiting) = freed.partition(is_over);
    state.pools.freed = waiting;
    for Freed { address, allocation, .. } in done {
        regions::give_back(state, address, allocation);
    }
}

/// Releases idle regions of a pool to the device until the pool has no more than `kept_bytes`, or
/// no idle region.
pub(crate) fn trim(state: &mut State, number: u64, kept_bytes: u64) {
    while regions::reserved_by(state, number) > kept_bytes {
        let Some(region) = regions::oldest_idle(state, number) else { break };
        regions::release(state, region);
    }
    let empty = regions::reserved_by(state, number) == 0;
    if empty && state.pools.by_number.get(&number).is_some_and(|pool| pool.destroyed) {
        state.pools.by_number.remove(&number);
    }
}
