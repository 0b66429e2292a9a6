//! Graphs: made executable, launched, destroyed.

use super::submit::submit;
use crate::call::Call;
use crate::tables::work::Work;
use crate::values::code::{Answer, Code};
use crate::values::pointers::Out;
use std::sync::Arc;

/// `cuGraphInstantiateWithFlags`.
pub(crate) fn cuGraphInstantiateWithFlags(
    call: &mut Call,
    executable: Out<u64>,
    graph: u64,
    _flags: u64,
) -> Answer<()> {
    call.answer(executable, |call| instantiate(call, graph))
}

/// Makes a graph executable.
fn instantiate(call: &mut Call, graph: u64) -> Answer<u64> {
    // Predecessors have lower numbers, so the order of recording is an order of execution.
    let nodes = &call.state.graphs.get(graph).map_err(|_| Code::INVALID_VALUE)?.nodes;
    let works: Arc<[Work]> = nodes.iter().map(|node| node.work.clone()).collect();
    let handle = call.state.executables.add(works);
    call.made("executable graph", handle);
    Ok(handle)
}

/// `cuGraphLaunch`.
pub(crate) fn cuGraphLaunch(call: &mut Call, executable: u64, stream: u64) -> Answer<()> {
    let works = call.state.executables.get(executable).map_err(|_| Code::INVALID_VALUE)?;
    let works = Arc::clone(works);
    submit(call, stream, Work::Graph(works))
}

/// `cuGraphDestroy`.
pub(crate) fn cuGraphDestroy(call: &mut Call, graph: u64) -> Answer<()> {
    call.state.graphs.remove(graph).map(drop).map_err(|_| Code::INVALID_VALUE)
}

/// `cuGraphExecDestroy`. Launches under way go on.
pub(crate) fn cuGraphExecDestroy(call: &mut Call, executable: u64) -> Answer<()> {
    call.state.executables.remove(executable).map(drop).map_err(|_| Code::INVALID_VALUE)
}
