//! The leak report: counts of live objects.

use super::driver::State;
use super::{contexts, physical};
use crate::tables::event::NO_CONTEXT;
use serde_json::{Value, json};

/// Returns the counts of all live objects, the bytes in use, and the objects abandoned through the
/// fault plan.
pub(crate) fn to_json(state: &mut State) -> Value {
    physical::collect(state);
    let (reservations, mappings, physical) = state.virtual_memory.counts();
    let allocated: u64 = state.memory.allocations.values().map(|allocation| allocation.bytes).sum();
    let used: Vec<u64> = state.devices.iter().map(|device| device.pages.total() - device.pages.free()).collect();
    let retains: u64 = contexts::held(state).iter().map(|(_, retains)| retains).sum();
    let own_streams: usize = state.contexts.values().map(|context| context.own_queues.keys().flatten().count()).sum();
    let abandoned: Vec<Value> =
        state.abandoned.iter().map(|(kind, handle)| json!({"kind": kind, "handle": handle})).collect();
    json!({
        "allocations": state.memory.allocations.len(),
        "allocated_bytes": allocated,
        "used_bytes": used,
        "pinned": state.host_memory.count(),
        "pinned_bytes": state.host_memory.bytes(),
        "reservations": reservations,
        "mappings": mappings,
        "physical": physical,
        "handles": state.virtual_memory.handles.len(),
        "pools": state.pools.made_and_alive(),
        "streams": state.streams.handles.len(),
        "own_streams": own_streams,
        "events": state.events.iter().filter(|(_, event)| event.context != NO_CONTEXT).count(),
        "captures": state.captures.len(),
        "graphs": state.graphs.len(),
        "executables": state.executables.iter().filter(|(_, executable)| !executable.is_over).count(),
        "modules": state.modules.len(),
        "libraries": state.libraries.len(),
        "arrays": state.arrays.len(),
        "opened": state.shared.opened.len(),
        "contexts": contexts::held(state).len(),
        "context_retains": retains,
        "abandoned": abandoned,
    })
}
