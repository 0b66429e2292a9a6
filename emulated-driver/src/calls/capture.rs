//! Stream capture: records work instead of running the work, and builds the graph.
//!
//! A capture starts on one stream, the origin. Another stream joins by waiting for an event
//! recorded in the capture, and must be joined back before the end. Each stream has a frontier: the
//! predecessors of the stream's next node. A mistake invalidates the capture: every call on the
//! capture answers `STREAM_CAPTURE_INVALIDATED` until the origin ends the capture.

use crate::call::Call;
use crate::process::thread;
use crate::state::captures::implicit;
use crate::state::contexts;
use crate::tables::capture::{Capture, GLOBAL, Graph, RELAXED, is_joined};
use crate::tables::stream::Kind;
use crate::values::code::{Answer, Code};
use crate::values::pointers::Out;
use std::collections::BTreeMap;
use std::ffi::c_int;

/// `CU_STREAM_CAPTURE_STATUS_*`.
const STATUS_NONE: i32 = 0;
const STATUS_ACTIVE: i32 = 1;
const STATUS_INVALIDATED: i32 = 2;
/// The handles of nodes: above those of other objects, 2^24 nodes for each capture.
const NODES: u64 = 0x6000_0000_0000;

/// Returns the handle of a node of a capture under way.
fn handle_of(id: u64, node: usize) -> u64 {
    NODES + ((id << 24) + node as u64) * 8
}

/// `cuStreamBeginCapture_v2`.
pub(crate) fn cuStreamBeginCapture_v2(call: &mut Call, stream: u64, mode: i32) -> Answer<()> {
    if !(GLOBAL..=RELAXED).contains(&mode) {
        return Err(Code::INVALID_VALUE);
    }
    let queue = call.queue(stream)?;
    let state = &mut *call.state;
    let its = state.streams.queue(queue)?;
    contexts::check(state, its.context)?;
    if its.kind == Kind::Legacy {
        state.answers.outcome("begin_legacy")?;
    }
    if its.capture.is_some() {
        state.answers.outcome("begin_twice")?;
    }
    state.captures_made += 1;
    let id = state.captures_made;
    let frontiers = BTreeMap::from([(queue, Vec::new())]);
    let thread = thread::number();
    let capture =
        Capture { origin: queue, thread, mode, valid: true, nodes: Vec::new(), frontiers, shown: BTreeMap::new() };
    state.captures.insert(id, capture);
    state.streams.queue_mut(queue)?.capture = Some(id);
    call.out = Some(id);
    Ok(())
}

/// `cuStreamEndCapture`. Writes a null graph if the capture fails, as documented by CUDA: the only
/// result written on failure.
pub(crate) fn cuStreamEndCapture(call: &mut Call, stream: u64, graph: Out<u64>) -> Answer<()> {
    let ended = call.answer(graph, |call| end(call, stream));
    if ended.is_err_and(|code| (Code::STREAM_CAPTURE_UNSUPPORTED..=Code::STREAM_CAPTURE_IMPLICIT).contains(&code)) {
        graph.write(0);
    }
    ended
}

/// Ends a capture. Returns the graph.
fn end(call: &mut Call, stream: u64) -> Answer<u64> {
    let queue = call.queue(stream)?;
    let state = &mut *call.state;
    let Some(id) = state.streams.queue(queue)?.capture else {
        state.answers.outcome("end_idle")?;
        return Err(Code::ILLEGAL_STATE);
    };
    let capture = state.captures.get_mut(&id).ok_or(Code::ILLEGAL_STATE)?;
    if capture.origin != queue {
        capture.valid = false;
        return Err(Code::STREAM_CAPTURE_UNMATCHED);
    }
    if capture.mode != RELAXED && capture.thread != thread::number() {
        return Err(Code::STREAM_CAPTURE_WRONG_THREAD);
    }
    let joined = is_joined(capture);
    let valid = capture.valid;
    let Some(capture) = state.captures.remove(&id) else { return Err(Code::ILLEGAL_STATE) };
    for &member in capture.frontiers.keys() {
        if let Ok(queue) = state.streams.queue_mut(member) {
            queue.capture = None;
        }
    }
    if !valid {
        return Err(Code::STREAM_CAPTURE_INVALIDATED);
    }
    if !joined {
        return Err(Code::STREAM_CAPTURE_UNJOINED);
    }
    let graph = state.graphs.add(Graph { nodes: capture.nodes });
    call.made("graph", graph);
    Ok(graph)
}

/// `cuStreamIsCapturing`.
pub(crate) fn cuStreamIsCapturing(call: &mut Call, stream: u64, status: Out<c_int>) -> Answer<()> {
    call.answer(status, |call| Ok(status_of(call, stream)?.0))
}

/// `cuStreamGetCaptureInfo_v2`. The graph of a capture in progress is not shown.
pub(crate) fn cuStreamGetCaptureInfo_v2(
    call: &mut Call,
    stream: u64,
    status: Out<c_int>,
    id: Out<u64>,
    graph: Out<u64>,
    nodes: Out<*const u64>,
    count: Out<usize>,
) -> Answer<()> {
    status.check()?;
    let (its_status, its_id) = status_of(call, stream)?;
    let (shown, _, length) = shown_frontier(call, stream)?;
    call.give(status, its_status);
    call.give(id, its_id);
    call.give(graph, 0);
    call.give(nodes, shown);
    call.give(count, length);
    Ok(())
}

/// `cuStreamGetCaptureInfo_v3`: with the edges, which are all zero.
pub(crate) fn cuStreamGetCaptureInfo_v3(
    call: &mut Call,
    stream: u64,
    status: Out<c_int>,
    id: Out<u64>,
    graph: Out<u64>,
    nodes: Out<*const u64>,
    edges: Out<*const [u8; 8]>,
    count: Out<usize>,
) -> Answer<()> {
    cuStreamGetCaptureInfo_v2(call, stream, status, id, graph, nodes, count)?;
    let (shown, shown_edges, _) = shown_frontier(call, stream)?;
    call.give(nodes, shown);
    call.give(edges, shown_edges);
    Ok(())
}

/// Returns status and id of a stream's capture, and breaks no capture.
fn status_of(call: &mut Call, stream: u64) -> Answer<(i32, u64)> {
    let number = call.queue(stream)?;
    let queue = call.state.streams.queue(number)?;
    contexts::check(&call.state, queue.context)?;
    if queue.kind == Kind::Legacy && !implicit(&call.state, number).is_empty() {
        return Err(Code::STREAM_CAPTURE_IMPLICIT);
    }
    let capture = queue.capture.and_then(|id| call.state.captures.get(&id).map(|capture| (id, capture)));
    let answer = match capture {
        None => (STATUS_NONE, 0),
        Some((id, capture)) if capture.valid => (STATUS_ACTIVE, id),
        Some((id, _)) => (STATUS_INVALIDATED, id),
    };
    call.out = Some(answer.0 as u64);
    Ok(answer)
}

/// Returns the addresses of the nodes and of their edges, and the number of the nodes after which
/// the next work of a capturing stream will come. Valid until the next such call for the stream.
fn shown_frontier(call: &mut Call, stream: u64) -> Answer<(*const u64, *const [u8; 8], usize)> {
    let number = call.queue(stream)?;
    let id = call.state.streams.queue(number)?.capture;
    let Some((id, capture)) = id.and_then(|id| Some((id, call.state.captures.get_mut(&id)?))) else {
        return Ok((std::ptr::null(), std::ptr::null(), 0));
    };
    let frontier = capture.frontiers.get(&number).into_iter().flatten();
    let handles: Box<[u64]> = frontier.map(|&node| handle_of(id, node)).collect();
    let edges = vec![[0; 8]; handles.len()].into_boxed_slice();
    let shown = capture.shown.entry(number).or_default();
    *shown = (handles, edges);
    let (handles, edges) = shown;
    Ok((handles.as_ptr(), edges.as_ptr(), handles.len()))
}

/// `cuGraphNodeGetDependencies`.
pub(crate) fn cuGraphNodeGetDependencies(call: &mut Call, node: u64, nodes: Out<u64>, count: Out<usize>) -> Answer<()> {
    dependencies(call, node, nodes, None, count)
}

/// `cuGraphNodeGetDependencies_v2`.
pub(crate) fn cuGraphNodeGetDependencies_v2(
    call: &mut Call,
    node: u64,
    nodes: Out<u64>,
    properties: Out<[u8; 8]>,
    count: Out<usize>,
) -> Answer<()> {
    dependencies(call, node, nodes, Some(properties), count)
}

/// Leaves the nodes right before a node with their properties, which are all zero, and their
/// number. Without a list, leaves the number alone.
fn dependencies(
    call: &mut Call,
    node: u64,
    nodes: Out<u64>,
    properties: Option<Out<[u8; 8]>>,
    count: Out<usize>,
) -> Answer<()> {
    count.check()?;
    let before = predecessors(call, node)?;
    let room = if nodes.is_null() { 0 } else { count.read()? };
    for (place, &handle) in before.iter().take(room).enumerate() {
        call.give(nodes.nth(place), handle);
        if let Some(properties) = properties.filter(|properties| !properties.is_null()) {
            call.give(properties.nth(place), [0; 8]);
        }
    }
    call.give(count, if nodes.is_null() { before.len() } else { before.len().min(room) });
    Ok(())
}

/// Returns the handles of the nodes right before a node of a capture under way.
fn predecessors(call: &Call, node: u64) -> Answer<Vec<u64>> {
    let place = node.checked_sub(NODES).filter(|place| place % 8 == 0).ok_or(Code::INVALID_VALUE)? / 8;
    let (id, number) = (place >> 24, (place & 0xff_ffff) as usize);
    let capture = call.state.captures.get(&id).ok_or(Code::INVALID_VALUE)?;
    let node = capture.nodes.get(number).ok_or(Code::INVALID_VALUE)?;
    Ok(node.after.iter().map(|&before| handle_of(id, before)).collect())
}

/// `cuThreadExchangeStreamCaptureMode`.
pub(crate) fn cuThreadExchangeStreamCaptureMode(call: &mut Call, mode: Out<c_int>) -> Answer<()> {
    let wanted = mode.read()?;
    call.out = Some(wanted as u64);
    if !(GLOBAL..=RELAXED).contains(&wanted) {
        return Err(Code::INVALID_VALUE);
    }
    call.give(mode, thread::exchange_capture_mode(wanted));
    Ok(())
}
