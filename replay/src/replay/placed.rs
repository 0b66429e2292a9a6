//! Finds the pool of each event of a replay. The allocator's trace has no pools, but the program
//! has: the requests in it are those of the trace, in the same order.

use crate::memory::{Memory, Part};
use crate::program::{GRAPHS, Operation};
use crate::trace::Segment;
use cachalot_core::{Action, PoolId, TraceEntry};

/// Returns the pool of each of `entries`, the trace of `operations`. `start` is the memory before
/// the first operation.
pub(super) fn pools(entries: &[TraceEntry], operations: &[Operation], start: &[Segment]) -> Vec<PoolId> {
    let mut memory = Memory::<PoolId, ()>::default();
    for segment in start {
        let (one, other) = segment.segment_pool_id;
        let end = segment.address.saturating_add(segment.total_size);
        memory.insert(segment.address, Part { end, page: 0, of: PoolId(one, other) });
    }
    let mut requests = requests(operations).peekable();
    let pool = |entry: &TraceEntry| {
        let (address, end) = (entry.addr.0, entry.addr.0.saturating_add(entry.size));
        match entry.action {
            Action::Alloc | Action::OutOfMemory => requests.next().unwrap_or_default(),
            // Memory is obtained for the request that follows, and in its pool.
            Action::SegmentAlloc | Action::SegmentMap => {
                let of = requests.peek().copied().unwrap_or_default();
                memory.map(address, Part { end, page: 0, of }, |_, _| false);
                of
            }
            _ => {
                let pool = memory.part_at(address).map_or(PoolId::DEFAULT, |part| part.of);
                if matches!(entry.action, Action::SegmentFree | Action::SegmentUnmap) {
                    memory.cut(address, end);
                }
                pool
            }
        }
    };
    entries.iter().map(pool).collect()
}

/// Iterates over the pools of the requests.
fn requests(operations: &[Operation]) -> impl Iterator<Item = PoolId> {
    operations
        .iter()
        .scan(PoolId::DEFAULT, |route, &operation| {
            match operation {
                Operation::BeginCapture => *route = GRAPHS,
                Operation::EndCapture => *route = PoolId::DEFAULT,
                Operation::Route { pool } => *route = pool,
                _ => {}
            }
            Some(operation.is_request().then_some(*route))
        })
        .flatten()
}
