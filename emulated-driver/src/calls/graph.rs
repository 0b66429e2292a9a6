//! Graphs: made executable, launched, destroyed.

use super::submit::submit;
use crate::call::Call;
use crate::state::driver::refuse;
use crate::tables::capture::{Executable, Graph};
use crate::tables::work::Work;
use crate::values::code::{Answer, Code};
use crate::values::pointers::Out;
use crate::values::structs::InstantiateParams;
use std::ffi::c_char;
use std::sync::Arc;

/// `CUDA_GRAPH_INSTANTIATE_FLAG_*`: free on launch, upload, launch by a device, priorities of
/// nodes.
const INSTANTIATE_FLAGS: u64 = 0xf;

/// `cuGraphCreate`: a graph without nodes.
pub(crate) fn cuGraphCreate(call: &mut Call, graph: Out<u64>, flags: u32) -> Answer<()> {
    call.answer(graph, |call| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let handle = call.state.graphs.add(Graph { nodes: Vec::new() });
        call.made("graph", handle);
        Ok(handle)
    })
}

/// `cuGraphInstantiateWithFlags`.
pub(crate) fn cuGraphInstantiateWithFlags(call: &mut Call, executable: Out<u64>, graph: u64, flags: u64) -> Answer<()> {
    call.answer(executable, |call| {
        if flags & !INSTANTIATE_FLAGS != 0 {
            return Err(Code::INVALID_VALUE);
        }
        instantiate(call, graph)
    })
}

/// `cuGraphInstantiate_v2`. An emulated graph has no mistakes, so no node and no text is written.
pub(crate) fn cuGraphInstantiate_v2(
    call: &mut Call,
    executable: Out<u64>,
    graph: u64,
    _error_node: Out<u64>,
    _log: Out<c_char>,
    _log_bytes: usize,
) -> Answer<()> {
    call.answer(executable, |call| instantiate(call, graph))
}

/// `cuGraphInstantiateWithParams`.
pub(crate) fn cuGraphInstantiateWithParams(
    call: &mut Call,
    executable: Out<u64>,
    graph: u64,
    parameters: Out<InstantiateParams>,
) -> Answer<()> {
    let wanted = parameters.read()?;
    cuGraphInstantiateWithFlags(call, executable, graph, wanted.flags)?;
    call.give(parameters, InstantiateParams { error_node: 0, result: 0, ..wanted });
    Ok(())
}

/// Makes a graph executable.
fn instantiate(call: &mut Call, graph: u64) -> Answer<u64> {
    // Predecessors have lower numbers, so the order of recording is an order of execution.
    let nodes = &call.state.graphs.get(graph).map_err(|_| Code::INVALID_VALUE)?.nodes;
    let works: Arc<[Work]> = nodes.iter().map(|node| node.work.clone()).collect();
    let context = call.context;
    let handle = call.state.executables.add(Executable { context, is_over: false, works });
    call.made("executable graph", handle);
    Ok(handle)
}

/// `cuGraphUpload`. An emulated graph has nothing to upload.
pub(crate) fn cuGraphUpload(call: &mut Call, executable: u64, stream: u64) -> Answer<()> {
    find(call, executable)?;
    submit(call, stream, Work::Nothing)
}

/// `cuGraphLaunch`.
pub(crate) fn cuGraphLaunch(call: &mut Call, executable: u64, stream: u64) -> Answer<()> {
    let works = Arc::clone(&find(call, executable)?.works);
    submit(call, stream, Work::Several(works))
}

/// `cuGraphDestroy`.
pub(crate) fn cuGraphDestroy(call: &mut Call, graph: u64) -> Answer<()> {
    call.state.graphs.remove(graph).map(drop).map_err(|_| Code::INVALID_VALUE)
}

/// `cuGraphExecDestroy`. Launches under way go on.
pub(crate) fn cuGraphExecDestroy(call: &mut Call, executable: u64) -> Answer<()> {
    find(call, executable)?;
    call.state.executables.remove(executable).map(drop)
}

/// Returns an executable graph. One of an ended context aborts in strict mode, because a real
/// driver crashes or hangs.
fn find(call: &Call, handle: u64) -> Answer<&Executable> {
    let executable = call.state.executables.get(handle).map_err(|_| Code::INVALID_VALUE)?;
    if executable.is_over && call.state.config.strict {
        refuse(&format!("the executable graph {handle:#x} of an ended context"));
    }
    if executable.is_over { Err(Code::CONTEXT_IS_DESTROYED) } else { Ok(executable) }
}
