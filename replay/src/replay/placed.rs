//! Finds the pool of each event of a replay. The allocator's trace has no pools, but the program
//! has: the requests in it are those of the trace, in the same order.

use crate::memory::{Action, EventOf, HistoryReader, Memory, Part};
use crate::program::{GRAPHS, Operation};
use crate::trace::Segment;
use cachalot_core::{PoolId, TraceEntry};

/// Reads the pools of memory: an event has the pool of the request that follows it.
struct RouteReader;

impl HistoryReader for RouteReader {
    type Part = PoolId;
    type Block = ();
    type Event = PoolId;

    fn part(&mut self, event: &EventOf<PoolId>, _: &Memory<PoolId, ()>) -> Part<PoolId> {
        Part { end: event.end(), page: 0, of: event.of }
    }
}

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
        let (addr, size, action) = (entry.addr.0, entry.size, Action::from(entry.action));
        let of = match action {
            Action::Alloc | Action::OutOfMemory => return requests.next().unwrap_or_default(),
            // Memory is obtained for the request that follows, and in its pool.
            Action::SegmentAlloc | Action::SegmentMap => requests.peek().copied().unwrap_or_default(),
            _ => memory.part_at(addr).map_or(PoolId::DEFAULT, |(_, part)| part.of),
        };
        if action.obtains() || action.is_release() {
            memory.apply(&EventOf { addr, size, of, action }, &mut RouteReader);
        }
        of
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
